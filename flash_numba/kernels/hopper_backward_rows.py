"""The short passes around the Hopper backward kernel: rows before it, and dQ's rounding."""

import math
from functools import cache

from ..device.copies import make_read4
from ..device.fragment_gradients import log2_units
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, room, types
from ..device.online_softmax import ALL_LANES
from ..device.ptx import store4_global
from ..device.unroll import unroll_full
from ..tiling import ceil_div
from .hopper_backward_queries import make_move_sums, make_write_queries
from .hopper_backward_tiles import BackwardTiles
from .row_passes import ROW_THREADS

THREADS = 256
"""Threads of a block; each has one query tile."""


@cache
def make_query_tile_of(tile_m: int):
    """Room ``query_tile_of(seqlen_q, num_heads) -> (block, batch, head, m_block)`` of a block."""

    @room
    def query_tile_of(seqlen_q, num_heads):
        block = types.int32(cuda.blockIdx.x)
        blocks = types.int32((seqlen_q + tile_m - 1) // tile_m)
        batch_head = types.int32(block // blocks)
        return block, batch_head // num_heads, batch_head % num_heads, block % blocks

    return query_tile_of


@cache
def make_prepare(
    dtype: str,
    head_dim_v: int,
    tiles: BackwardTiles,
    vectors: bool,
    has_dlse: bool,
    ordered: bool,
):
    """The pass before: lse and delta by query tiles, and zeros where dQ needs them.

    Returns
    -------
    kernel
        ``prepare_rows(O, dO, LSE, dLSE, Rows, Sums, dQ, Turns, Ticket)``: O, dO (batch, seqlen_q,
        num_heads, head_dim_v); LSE (batch, num_heads, seqlen_q) float32; dLSE ``(array like
        LSE,)`` if `has_dlse`, else (). `Rows` (query tiles of all heads, 2 * tile_m) float32 gets
        lse in log2 units and rowsum(dO∘O), less the gradient of lse; queries that do not exist get
        an lse that makes their weights 0. If `ordered`, dQ ``(array,)`` gets zeros where a whole
        tile sees no key and nobody will write it; else `Sums` (query tiles, tile_m * depth) float32
        does everywhere, and dQ is (). `Ticket` gets 0, and if `ordered` `Turns` does.

    Notes
    -----
    Reads O and dO once, 16 threads side by side in a row.
    """
    read4 = make_read4(dtype, head_dim_v, vectors)
    query_tile_of = make_query_tile_of(tiles.tile_m)
    tile_m, size, at_once = tiles.tile_m, tiles.tile_m * tiles.depth, THREADS // ROW_THREADS
    turns, parts = ceil_div(tile_m, at_once), ceil_div(head_dim_v, 4 * ROW_THREADS)

    @room
    def clear_queries(dQ, batch, head, first, tid):
        columns = dQ.shape[3]
        for place in range(tid, min(tile_m, dQ.shape[1] - first) * columns, THREADS):
            dQ[batch, first + place // columns, head, place % columns] = 0

    @kernel(THREADS)
    def prepare_rows(O, dO, LSE, dLSE, Rows, Sums, dQ, Turns, Ticket):
        tid = types.int32(cuda.threadIdx.x)
        seqlen_q, num_heads = types.int32(O.shape[1]), types.int32(O.shape[2])
        block, batch, head, m_block = query_tile_of(seqlen_q, num_heads)
        gO, gdO = O[batch, :, head], dO[batch, :, head]
        in_row, first_place = types.int32(tid % ROW_THREADS), types.int32(tid // ROW_THREADS)
        if ordered and tid < 2:
            Turns[batch, head, 2 * m_block + tid] = 0
        if tid == 0 and block == 0:
            Ticket[0] = 0
        if not ordered:
            zero = types.float32(0)
            for place in range(4 * tid, size, 4 * THREADS):
                store4_global(Sums, (block, place), (zero, zero, zero, zero))
        # All loads before the first sum is needed.
        totals = cuda.local.array(turns, types.float32)
        for i in range(turns):
            unroll_full()
            row = types.int32(m_block * tile_m + first_place + at_once * i)
            totals[i] = types.float32(0)
            for part in range(parts):
                unroll_full()
                column = types.int32(4 * in_row + 4 * ROW_THREADS * part)
                a, b, c, d = read4(gO, row, column, seqlen_q)
                e, f, g, h = read4(gdO, row, column, seqlen_q)
                totals[i] += a * e + b * f + (c * g + d * h)
        sees = False
        for i in range(turns):
            unroll_full()
            total, place = totals[i], types.int32(first_place + at_once * i)
            row = types.int32(m_block * tile_m + place)
            for step in (8, 4, 2, 1):
                total += cuda.shfl_xor_sync(ALL_LANES, total, step)
            if in_row == 0:
                lse2 = types.float32(math.inf)
                if row < seqlen_q:
                    lse2 = log2_units(LSE[batch, head, row])
                    if has_dlse:
                        total -= dLSE[0][batch, head, row]
                sees |= lse2 != types.float32(math.inf)
                Rows[block, place], Rows[block, tile_m + place] = lse2, total
        if ordered and not cuda.syncthreads_or(types.int32(sees)):
            clear_queries(dQ[0], batch, head, m_block * tile_m, tid)

    return prepare_rows


@cache
def make_round(dtype: str, tiles: BackwardTiles):
    """The pass after, if parts of dQ were added as they came.

    Returns
    -------
    kernel
        ``round_queries(Sums, dQ, scale)``: `Sums` as of `make_prepare`; dQ (batch, seqlen_q,
        num_heads, head_dim) gets `scale` times it, rounded.
    """
    query_tile_of = make_query_tile_of(tiles.tile_m)
    columns = tiles.q_columns // 4
    clear = make_clear(2, columns)
    _, _, take_sums = make_move_sums(tiles)
    write_queries = make_write_queries(dtype, tiles)

    @kernel(THREADS)
    def round_queries(Sums, dQ, scale):
        tid = types.int32(cuda.threadIdx.x)
        rdQ = cuda.local.array((2, columns), types.float32)
        block, batch, head, m_block = query_tile_of(
            types.int32(dQ.shape[1]), types.int32(dQ.shape[2])
        )
        w, thread = tid // 128, tid % 128
        clear(rdQ)
        take_sums(Sums, block, w, thread, rdQ)
        write_queries(dQ, rdQ, batch, head, m_block, w, thread, scale)

    return round_queries
