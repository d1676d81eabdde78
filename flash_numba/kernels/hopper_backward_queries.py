"""Where a consumer's part of dQ goes: into sums in global memory, or, by the last, into dQ itself.

The sums lie in the order of registers, so that a warp moves 512 neighbouring bytes at a time. A
lane's part is of dQ *transposed*: row g = lane // 4 (and 8 after it) is a column of dQ, and of each
8 columns the lane has two neighbours, queries 2t and 2t + 1 with t = lane % 4.
"""

from functools import cache

from ..device.hopper.sums import add4_global, store_pair_global
from ..device.hopper.warpgroups import made_here
from ..device.numba_cuda import cuda, room, types
from ..device.online_softmax import ALL_LANES
from ..device.ptx import load4_global, store4_global
from ..device.ptx_matrix import pack_bf16, pack_fp16
from ..device.unroll import unroll_full
from .hopper_backward_producer import BATCH, HEAD, LAST, M_BLOCK, PLACE, TURN
from .hopper_backward_tiles import BackwardTiles, WideBackwardTiles
from .hopper_backward_turns import make_take_turns


@cache
def make_move_sums(tiles: BackwardTiles):
    """Rooms ``put_sums``, ``add_sums`` and ``take_sums`` of ``(Sums, place, w, tid, rdQ)``.

    A consumer's part of query tile `place` of ``Sums`` (query tiles of all heads, tile_m * depth)
    becomes `rdQ`, or grows by it, or `rdQ` grows by the part.
    """
    groups, half = tiles.q_columns // 8, tiles.tile_m * tiles.depth // 2

    @room
    def first_of(w, tid):
        return half * w + 4 * made_here(tid)

    @room
    def four_of(rdQ, c):
        return rdQ[0, 2 * c], rdQ[0, 2 * c + 1], rdQ[1, 2 * c], rdQ[1, 2 * c + 1]

    @room
    def put_sums(Sums, place, w, tid, rdQ):
        first = first_of(w, tid)
        for c in range(groups):
            unroll_full()
            store4_global(Sums, (place, first + 512 * c), four_of(rdQ, c))

    @room
    def add_sums(Sums, place, w, tid, rdQ):
        first = first_of(w, tid)
        for c in range(groups):
            unroll_full()
            add4_global(Sums, (place, first + 512 * c), four_of(rdQ, c))

    @room
    def take_sums(Sums, place, w, tid, rdQ):
        first = first_of(w, tid)
        for c in range(groups):
            unroll_full()
            a, b, d, e = load4_global(Sums, (place, first + 512 * c))
            rdQ[0, 2 * c] += a
            rdQ[0, 2 * c + 1] += b
            rdQ[1, 2 * c] += d
            rdQ[1, 2 * c + 1] += e

    return put_sums, add_sums, take_sums


@cache
def make_add_queries(dtype: str, tiles: BackwardTiles, wants_dq: bool, ordered: bool):
    """Room ``add_queries(Sums, dQ, rdQ, step, block, w, tid, scale)``: add a step's part of dQ.

    `step` and `block` are numbers of `hopper_backward_producer`. If `ordered` it is this key tile's
    turn; the first one need not add, and the last one rounds the sum and writes `dQ`.
    """
    put_sums, add_sums, take_sums = make_move_sums(tiles)
    write_queries = make_write_queries(dtype, tiles)
    begin_turn, end_turn = make_take_turns(ordered)

    @room
    def add_queries(Sums, dQ, rdQ, step, block, w, tid, scale):
        place, first = step[PLACE], step[TURN] == 0
        begin_turn(w)
        if ordered and step[LAST] != 0:
            if not first:
                take_sums(Sums, place, w, tid, rdQ)
            write_queries(dQ, rdQ, block[BATCH], step[HEAD], step[M_BLOCK], w, tid, scale)
        elif ordered and first:
            put_sums(Sums, place, w, tid, rdQ)
        elif wants_dq:
            add_sums(Sums, place, w, tid, rdQ)
        end_turn(w)

    return add_queries


def _make_write_rows(pack, q_columns: int):
    """`make_write_queries` where a consumer has half of the columns, and queries are rows."""

    @room
    def write_rows(dQ, rdQ, batch, head, m_block, w, tid, scale):
        thread = made_here(tid)
        row = types.int32(m_block * 64 + (thread >> 5) * 16 + (thread >> 2 & 7))
        first = types.int32(q_columns * w + (thread & 3) * 2)
        gdQ = dQ[types.uint32(batch), :, types.uint32(head)]
        rows, columns = types.int32(gdQ.shape[0]), types.int32(gdQ.shape[1])
        for c in range(q_columns // 8):
            unroll_full()
            column = types.int32(first + 8 * c)
            for i in range(2):
                unroll_full()
                pair = pack(rdQ[i, 2 * c] * scale, rdQ[i, 2 * c + 1] * scale)
                inside = (row + 8 * i < rows) & (column < columns)
                store_pair_global(gdQ, (types.int32(row + 8 * i), column), pair, inside)

    return write_rows


@cache
def make_write_queries(dtype: str, tiles: BackwardTiles):
    """Room ``write_queries(dQ, rdQ, batch, head, m_block, w, tid, scale)``: rounded, times `scale`.

    `dQ` (batch, seqlen_q, num_heads, head_dim) has 16-bit elements. Of the two queries that a lane
    has in a column it exchanges one with the lane of the next column, for a pair of neighbours.
    """
    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]
    if isinstance(tiles, WideBackwardTiles):
        return _make_write_rows(pack, tiles.q_columns)
    groups, tile_m, q_columns = tiles.q_columns // 8, tiles.tile_m, tiles.q_columns
    wide = tiles.depth == 128

    @room
    def pair_of(a, b, odd, scale):
        """Even columns keep the first query and hand over the second."""
        kept = (b if odd else a) * scale
        other = cuda.shfl_xor_sync(ALL_LANES, a if odd else b, 4) * scale
        return pack(other if odd else kept, kept if odd else other)

    @room
    def write_queries(dQ, rdQ, batch, head, m_block, w, tid, scale):
        thread = made_here(tid)
        bit = thread >> 2 & 1
        odd = bit != 0
        column = types.int32((thread >> 5) * 16 + (thread >> 2 & 6))
        row = types.int32(m_block * tile_m + (thread & 3) * 2 + bit)
        if wide:
            column += types.int32(64 * w)
        else:
            row += types.int32(q_columns * w)
        gdQ = dQ[types.uint32(batch), :, types.uint32(head)]
        rows, columns = types.int32(gdQ.shape[0]), types.int32(gdQ.shape[1])
        for c in range(groups):
            unroll_full()
            upper = pair_of(rdQ[0, 2 * c], rdQ[0, 2 * c + 1], odd, scale)
            lower = pair_of(rdQ[1, 2 * c], rdQ[1, 2 * c + 1], odd, scale)
            at, inside = types.int32(row + 8 * c), row + 8 * c < rows
            store_pair_global(gdQ, (at, column), upper, inside & (column < columns))
            store_pair_global(gdQ, (at, column + 8), lower, inside & (column + 8 < columns))

    return write_queries
