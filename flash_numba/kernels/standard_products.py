"""The products of standard attention: A Bᵀ of rows, and out = A B, out = Aᵀ B with a matrix A.

As a matrix library would tile them. The matrix A is P or dS of shape (batch, num_heads, seqlen_q,
seqlen_k), float32; all else has the layout (batch, seqlen, heads, columns).
"""

from functools import cache

from ..device.copies import make_store_rows
from ..device.dropout import make_drop_tile
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, room, types
from ..device.plain_copies import make_load_rows
from ..device.products import (
    make_multiply_add,
    make_multiply_add_rows,
    make_multiply_rows,
    make_place,
)
from ..device.ptx import shared_tile
from ..device.schedule import block_of, make_keys_of
from .standard_tiles import LANES, THREAD_ROWS, SquareTiles


@cache
def make_pair_product(dtype: str, columns: int, tiles: SquareTiles, vectors: bool):
    """Rooms ``pair_of`` and ``pair_product`` of a kernel with a block for each tile of a matrix.

    ``pair_of(batch_heads, seqlen_q, seqlen_k) -> (batch_head, m_block, n_block)`` says which tile
    is the block's. ``pair_product(rC, gA, gB, m_block, seqlen_q, n_block, seqlen_k, tid) -> (first
    query, first key)`` puts the thread's part of ``A_i B_jᵀ`` into `rC`: S = Q Kᵀ, dP = dO Vᵀ.
    """
    tile, tn, threads, depth = tiles.tile, tiles.thread_n, tiles.threads, tiles.depth(columns)
    place = make_place(LANES)
    load_a = make_load_rows(dtype, depth, tile, THREAD_ROWS, threads, vectors)
    load_b = make_load_rows(dtype, depth, tile, tn, threads, vectors)
    multiply = make_multiply_rows(THREAD_ROWS, tn, depth)
    a_shape, b_shape = (tile // THREAD_ROWS, THREAD_ROWS * depth + 4), (LANES, tn * depth + 4)
    b_at = a_shape[0] * a_shape[1]

    @room
    def pair_of(batch_heads, seqlen_q, seqlen_k):
        m_blocks, n_blocks = (seqlen_q + tile - 1) // tile, (seqlen_k + tile - 1) // tile
        batch_head, block = block_of(batch_heads, m_blocks * n_blocks)
        return batch_head, block // n_blocks, block % n_blocks

    @room
    def pair_product(rC, gA, gB, m_block, seqlen_q, n_block, seqlen_k, tid):
        row_group, lane = place(tid)
        memory = cuda.shared.array(0, types.float32)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        load_a(sA, gA, m_block * tile, seqlen_q, tid)
        load_b(sB, gB, n_block * tile, seqlen_k, tid)
        cuda.syncthreads()
        multiply(rC, sA, sB, row_group, lane)
        return m_block * tile + row_group * THREAD_ROWS, n_block * tile + lane * tn

    return pair_of, pair_product


@cache
def make_row_blocks(
    dtype: str,
    columns: int,
    tiles: SquareTiles,
    has_lengths: bool,
    has_dropout: bool,
    vectors: bool,
):
    """Kernel ``row_blocks(A, B, Out, lengths, dropout)``: ``Out_i = sum_j A_ij B_j``.

    O = P V and dQ = dS K; a block owns a query tile. B has kv heads, Out query heads, both `dtype`
    elements and `columns` columns. With `has_dropout` weights of A are dropped; `vectors` says that
    B and Out allow four elements at once.

    Notes
    -----
    Reads A once and B once a query tile, writes Out once.
    """
    tile, threads = tiles.tile, tiles.threads
    depth = tiles.depth(columns)
    thread_columns = depth // LANES

    place = make_place(LANES)
    keys_of = make_keys_of(has_lengths)
    load_a = make_load_rows("fp32", tile, tile, THREAD_ROWS, threads, True)
    load_b = make_load_rows(dtype, depth, tile, 4, threads, vectors)
    drop_tile = make_drop_tile(has_dropout, tile, THREAD_ROWS, threads)
    clear = make_clear(THREAD_ROWS, thread_columns)
    add_product = make_multiply_add_rows(THREAD_ROWS, thread_columns, LANES, tile, depth)
    store = make_store_rows(dtype, columns, THREAD_ROWS, thread_columns, LANES, vectors)
    a_shape = (tile // THREAD_ROWS, THREAD_ROWS * tile + 4)
    b_shape, b_at = (tile // 4, 4 * depth + 4), tile * tile + tile // THREAD_ROWS * 4

    @kernel(threads)
    def row_blocks(A, B, Out, lengths, dropout):
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        seqlen_q, num_heads = Out.shape[1], Out.shape[2]
        batch_head, m_block = block_of(Out.shape[0] * num_heads, (seqlen_q + tile - 1) // tile)
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, B.shape[1], lengths)
        gB = B[batch, :, head // (num_heads // B.shape[2])]
        first_q = m_block * tile

        memory = cuda.shared.array(0, types.float32)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        acc = cuda.local.array((THREAD_ROWS, thread_columns), types.float32)
        clear(acc)
        first_k = 0
        while first_k < seqlen_k:
            load_a(sA, A[batch, head, :, first_k:seqlen_k], first_q, seqlen_q, tid)
            load_b(sB, gB, first_k, seqlen_k, tid)
            drop_tile(sA, first_q, first_k, batch_head, dropout, tid)
            cuda.syncthreads()
            add_product(acc, sA, sB, row_group, lane)
            cuda.syncthreads()
            first_k += tile
        row = first_q + row_group * THREAD_ROWS
        store(Out[batch, :, head], acc, row, seqlen_q, lane, types.float32(1))

    return row_blocks


@cache
def make_column_blocks(
    dtype: str,
    columns: int,
    tiles: SquareTiles,
    has_lengths: bool,
    has_dropout: bool,
    vectors: bool,
):
    """Kernel ``column_blocks(A, B, Out, lengths, dropout)``: ``Out_j = sum_i A_ijᵀ B_i``.

    dV = Pᵀ dO and dK = dSᵀ Q; a block owns a key tile and sums over the query heads that share its
    kv head. B has query heads, Out kv heads; the rest is as for `make_row_blocks`.

    Notes
    -----
    Reads A once and B once a key tile, writes Out once.
    """
    tile, group, threads = tiles.tile, tiles.thread_n, tiles.threads
    depth = tiles.depth(columns)
    thread_columns = depth // LANES

    place = make_place(LANES)
    keys_of = make_keys_of(has_lengths)
    load_a = make_load_rows("fp32", tile, tile, group, threads, True)
    load_b = make_load_rows(dtype, depth, tile, group, threads, vectors)
    drop_tile = make_drop_tile(has_dropout, tile, group, threads)
    clear = make_clear(THREAD_ROWS, thread_columns)
    add_product = make_multiply_add(THREAD_ROWS, thread_columns, LANES, group, depth)
    store = make_store_rows(dtype, columns, THREAD_ROWS, thread_columns, LANES, vectors)
    a_shape, b_shape = (LANES, group * tile + 4), (LANES, group * depth + 4)
    b_at = LANES * (group * tile + 4)

    @kernel(threads)
    def column_blocks(A, B, Out, lengths, dropout):
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        kv_heads, num_heads, seqlen_q = Out.shape[2], B.shape[2], B.shape[1]
        index, n_block = block_of(Out.shape[0] * kv_heads, (Out.shape[1] + tile - 1) // tile)
        batch, kv_head = index // kv_heads, index % kv_heads
        seqlen_k = keys_of(batch, Out.shape[1], lengths)
        sharing = num_heads // kv_heads
        first_k = n_block * tile

        memory = cuda.shared.array(0, types.float32)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        acc = cuda.local.array((THREAD_ROWS, thread_columns), types.float32)
        clear(acc)
        if first_k < seqlen_k:
            for head in range(kv_head * sharing, (kv_head + 1) * sharing):
                gA, gB = A[batch, head, :, first_k:seqlen_k], B[batch, :, head]
                first_q = 0
                while first_q < seqlen_q:
                    load_a(sA, gA, first_q, seqlen_q, tid)
                    load_b(sB, gB, first_q, seqlen_q, tid)
                    drop_tile(sA, first_q, first_k, batch * num_heads + head, dropout, tid)
                    cuda.syncthreads()
                    add_product(acc, sA, sB, tile, row_group, lane)
                    cuda.syncthreads()
                    first_q += tile
        row = first_k + row_group * THREAD_ROWS
        store(Out[batch, :, kv_head], acc, row, Out.shape[1], lane, types.float32(1))

    return column_blocks
