"""What happens to a consumer's scores: weights P, and gradients of scores dS, both transposed.

Rows are keys and columns queries: of each query a lane reads lse and delta from shared memory.
"""

import math
from functools import cache

from ..device.dropout import make_drop_weights
from ..device.functions import device_function
from ..device.hopper.matrix_stores import stmatrix_x4_trans
from ..device.hopper.warpgroups import made_here
from ..device.numba_cuda import room, types
from ..device.ptx import exp2
from ..device.scores import make_change_scores_backward, make_mask_scores, make_scale_scores
from ..device.unroll import unroll_full
from .hopper_backward_producer import BATCH, HEAD, HEADS, M_BLOCK, N_BLOCK, SEQLEN_K, SEQLEN_Q
from .hopper_backward_tiles import BackwardTiles
from .spec import Spec

ROWS = 2
"""Keys of a lane's part: one, and the eighth after it."""


@cache
def make_weights(columns: int):
    """Rooms ``weights(rS, numbers, tid, factor)``, ``score_gradients`` and ``subtract_delta``.

    The first turns scores into P = 2 ** (factor S - lse2). ``score_gradients(rdP, rS, numbers,
    tid)`` turns dP into dS = P∘(dP - delta); ``subtract_delta(rdP, numbers, tid)`` does only
    that. `numbers` (2, tile_m // 8, 4, 2) holds lse2 (lse in log2 units) and delta of a tile's
    queries, with the two neighbours that a lane has of each 8 in the last axis.

    References
    ----------
    Dao, "FlashAttention-2", 2023, Algorithm 2, lines 11 to 14.
    """

    @room
    def weights(rS, numbers, tid, factor):
        lane = types.uint32(made_here(tid) & 3)
        for c in range(columns):
            unroll_full()
            j = columns - 1 - c  # from the last one on: so ptxas finds a register for everything
            lse2 = numbers[0, j // 2, lane, j % 2]
            for i in range(ROWS):
                unroll_full()
                rS[i, j] = exp2(rS[i, j] * factor - lse2)

    @room
    def score_gradients(rdP, rS, numbers, tid):
        lane = types.uint32(made_here(tid) & 3)
        for j in range(columns):
            unroll_full()
            delta = numbers[1, j // 2, lane, j % 2]
            for i in range(ROWS):
                unroll_full()
                rdP[i, j] = rS[i, j] * (rdP[i, j] - delta)

    @room
    def subtract_delta(rdP, numbers, tid):
        lane = types.uint32(made_here(tid) & 3)
        for j in range(columns):
            unroll_full()
            delta = numbers[1, j // 2, lane, j % 2]
            for i in range(ROWS):
                unroll_full()
                rdP[i, j] -= delta

    return weights, score_gradients, subtract_delta


@cache
def make_mask_columns(key_range, columns: int):
    """Room ``mask_columns(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux)``.

    As `fragments.make_mask_range` where columns are queries.
    """
    ends = device_function(key_range)

    @room
    def mask_columns(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux):
        last_q = types.int32(seqlen_q - 1)
        for j in range(columns):
            unroll_full()
            lo, hi = 0, seqlen_k
            if ends is not None:
                q_idx = types.int32(first_q + types.int32(8 * (j // 2) + j % 2))
                lo, hi = ends(batch, head, min(q_idx, last_q), aux)
            for i in range(ROWS):
                unroll_full()
                k_idx = types.uint32(first_k + types.int32(8 * i))
                if k_idx < lo or k_idx >= hi or k_idx >= types.uint32(seqlen_k):
                    rS[i, j] = -math.inf

    return mask_columns


@cache
def make_first_position(tiles: BackwardTiles):
    """Room ``first_position(step, block, w, tid) -> (first_q, first_k)`` of a lane's part."""
    tile_m, tile_n = tiles.tile_m, tiles.tile_n

    @room
    def first_position(step, block, w, tid):
        thread = made_here(tid)
        first_q = step[M_BLOCK] * tile_m + (thread & 3) * 2
        first_k = block[N_BLOCK] * tile_n + 64 * w + (thread >> 5) * 16 + (thread >> 2 & 7)
        return types.int32(first_q), types.int32(first_k)

    return first_position


@cache
def make_hide(spec: Spec, tiles: BackwardTiles):
    """Room ``hide(rS, step, block, sizes, w, tid, mask_aux, range_aux)``.

    Scores of keys that a query does not see become -inf. `step` and `block` are numbers of
    `hopper_backward_producer`.
    """
    columns = tiles.tile_m // 4
    by_ends = spec.keep is None or (spec.exact and not spec.has_list)
    mask_columns = make_mask_columns(spec.key_range, columns)
    mask_scores = make_mask_scores(spec.keep, ROWS, columns, True, True)
    first_position = make_first_position(tiles)

    @room
    def hide(rS, step, block, sizes, w, tid, mask_aux, range_aux):
        first_q, first_k = first_position(step, block, w, tid)
        seqlen_q, seqlen_k = types.int32(sizes[SEQLEN_Q]), block[SEQLEN_K]
        where = first_q, first_k, seqlen_q, seqlen_k, block[BATCH], step[HEAD]
        if by_ends:
            mask_columns(rS, *where, range_aux)
        else:
            mask_scores(rS, *where, mask_aux)

    return hide


@cache
def make_change_both(spec: Spec, tiles: BackwardTiles, scale_first: bool):
    """Rooms ``change_both(rS, rdP, ...)``, ``drop_weights(rS, ...)`` and ``times_weights``.

    For scores that are changed, or weights that are dropped, dP must be there first: `change_both`
    scales and changes the scores and turns dP into what P is multiplied by for dS, which
    ``times_weights(rdP, rS)`` does.
    """
    columns = tiles.tile_m // 4
    _, _, subtract_delta = make_weights(columns)
    scale_scores = make_scale_scores(not scale_first, ROWS, columns)
    drop = make_drop_weights(spec.has_dropout, ROWS, columns, True, True)
    change_scores = make_change_scores_backward(
        spec.changes, spec.derivatives, ROWS, columns, True, True
    )
    first_position = make_first_position(tiles)

    @room
    def drop_weights(rX, step, block, sizes, w, tid, dropout):
        first_q, first_k = first_position(step, block, w, tid)
        batch_head = block[BATCH] * types.int32(sizes[HEADS]) + step[HEAD]
        drop(rX, first_q, first_k, batch_head, dropout)

    @room
    def change_both(rS, rdP, numbers, step, block, sizes, scale, w, tid, score_aux, dropout):
        first_q, first_k = first_position(step, block, w, tid)
        seqlen_q, seqlen_k = types.int32(sizes[SEQLEN_Q]), block[SEQLEN_K]
        where = first_q, first_k, seqlen_q, seqlen_k, block[BATCH], step[HEAD]
        scale_scores(rS, scale)
        drop_weights(rdP, step, block, sizes, w, tid, dropout)
        subtract_delta(rdP, numbers, tid)
        change_scores(rS, rdP, *where, score_aux)

    @room
    def times_weights(rdP, rS):
        for i in range(ROWS):
            unroll_full()
            for j in range(columns):
                unroll_full()
                rdP[i, j] *= rS[i, j]

    return change_both, drop_weights, times_weights


@cache
def make_share_gradients(steps: int):
    """Room ``share_gradients(sdS, rdS, w, tid)``: a warp's 16 keys of dS, by queries.

    `sdS` (2, tile_m // 16, 16, 64) has a row for each query; consumer `w` writes panel w. `rdS` is
    as `fragments.make_pack_weights` makes it. The swizzle keeps eight rows on different banks.
    """

    @room
    def share_gradients(sdS, rdS, w, tid):
        thread = made_here(tid)
        in_eight = thread & 7
        row = types.uint32((thread >> 4 & 1) * 8 + in_eight)
        column = types.uint32((((thread >> 5) * 2 + (thread >> 3 & 1)) ^ in_eight) * 8)
        for k in range(steps):
            unroll_full()
            words = rdS[k, 0], rdS[k, 1], rdS[k, 2], rdS[k, 3]
            stmatrix_x4_trans(sdS, (w, k, row, column), words)

    return share_gradients
