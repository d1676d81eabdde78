"""Softmax and output rooms where a tile lies in the registers of tensor-core sums.

A lane holds rows ``lane // 4`` and 8 below it of its warp's 16, and of each 8 columns two
neighbours: element (i, j) of its (2, columns // 4) part is row ``8 * i`` and column
``8 * (j // 2) + j % 2`` from its first. Four neighbouring lanes share a row.
"""

import math
from functools import cache

from .fragment_softmax import EXACT_BELOW, largest_of_quad, total_of_quad
from .functions import device_function
from .numba_cuda import cuda, room, types
from .online_softmax import ALL_LANES, LN_2, LOWEST, ROUNDED_THRESHOLD
from .ptx import exp2, larger, log2, reciprocal, rounded_product
from .ptx_matrix import pack_bf16, pack_fp16
from .unroll import unroll_full

ROWS = 2
"""Rows of a lane's part."""


@cache
def make_fragment_softmax(columns: int, out_columns: int, threshold: float = ROUNDED_THRESHOLD):
    """Rooms ``begin``, ``clear``, ``update``, ``rescale``, ``finish`` and ``raise_maxima``.

    Of the online softmax.

    Parameters
    ----------
    columns, out_columns : int
        Columns of a lane's part of the scores and of O.
    threshold : float
        See `online_softmax.ROUNDED_THRESHOLD`.

    Notes
    -----
    ``begin(row_max, row_sum)`` and ``clear(acc_o)`` come first.
    ``update(rS, row_max, row_sum, rScale, factor)`` turns scores into weights
    ``2 ** (factor * (S - row_max))`` with `factor` > 0 and says whether `acc_o` must be multiplied
    by `rScale` - ``rescale(acc_o, rScale)`` - before they are used: apart, since `acc_o` may be in
    the tensor cores' hands meanwhile. Far scores are subtracted first, as they are exact then (see
    `fragment_softmax.EXACT_BELOW`). A masked score is -inf, as is `row_max` before the first key.
    ``raise_maxima(rTop, row_max, row_sum, rScale, factor)`` is its part that takes new maxima.
    """

    @room
    def begin(row_max, row_sum):
        for i in range(ROWS):
            unroll_full()
            row_max[i] = -math.inf
            row_sum[i] = 0

    @room
    def clear(acc_o):
        for i in range(ROWS):
            unroll_full()
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] = 0

    @room
    def raise_maxima(rTop, row_max, row_sum, rScale, factor):
        for i in range(ROWS):
            unroll_full()
            new_max = largest_of_quad(larger(row_max[i], rTop[i]))
            fall = row_max[i] - larger(new_max, types.float32(LOWEST))
            rScale[i] = exp2(rounded_product(fall, factor))
            row_max[i] = new_max
            row_sum[i] *= rScale[i]

    @room
    def subtract_far(rS, row_max, rShift):
        for i in range(ROWS):
            unroll_full()
            if abs(rShift[i]) > types.float32(EXACT_BELOW):
                rShift[i] = 0
                for j in range(columns):
                    unroll_full()
                    rS[i, j] -= larger(row_max[i], types.float32(LOWEST))

    @room
    def update(rS, row_max, row_sum, rScale, factor):
        rTop = cuda.local.array(ROWS, types.float32)
        rShift = cuda.local.array(ROWS, types.float32)
        rNext = cuda.local.array(ROWS, types.float32)  # two chains a row: neither waits for long
        margin = min(types.float32(threshold) / factor, types.float32(-LOWEST))
        far = types.float32(EXACT_BELOW) / factor
        for i in range(ROWS):
            unroll_full()
            rTop[i], rNext[i] = rS[i, 0], rS[i, 1]
        for j in range(2, columns, 2):
            unroll_full()
            for i in range(ROWS):
                unroll_full()
                rTop[i] = larger(rTop[i], rS[i, j])
                rNext[i] = larger(rNext[i], rS[i, j + 1])
        grown = False
        for i in range(ROWS):
            unroll_full()
            rTop[i] = larger(rTop[i], rNext[i])
            grown |= (rTop[i] > row_max[i] + margin) | (abs(row_max[i]) > far)
        grown = cuda.any_sync(ALL_LANES, grown)
        if grown:
            raise_maxima(rTop, row_max, row_sum, rScale, factor)
        for i in range(ROWS):
            unroll_full()
            rShift[i] = larger(row_max[i] * factor, types.float32(LOWEST))
        if grown:
            subtract_far(rS, row_max, rShift)
        for i in range(ROWS):
            unroll_full()
            for j in range(columns):
                unroll_full()
                rS[i, j] = exp2(rS[i, j] * factor - rShift[i])
                row_sum[i] += rS[i, j]
        return grown

    @room
    def rescale(acc_o, rScale):
        for i in range(ROWS):
            unroll_full()
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= rScale[i]

    @room
    def finish(row_max, row_sum, acc_o, rLse, factor):
        for i in range(ROWS):
            unroll_full()
            z = total_of_quad(row_sum[i])
            divisor = z if z != 0 else types.float32(1)
            inverse = reciprocal(divisor)
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= inverse
            rLse[i] = (row_max[i] * factor + log2(divisor)) * types.float32(LN_2)

    return begin, clear, update, rescale, finish, raise_maxima


@cache
def make_pack_weights(dtype: str, steps: int):
    """Room ``pack_weights(rP, rS)``: weights as the left operand of `steps` 16-deep products."""
    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]

    @room
    def pack_weights(rP, rS):
        for k in range(steps):
            unroll_full()
            rP[k, 0] = pack(rS[0, 4 * k], rS[0, 4 * k + 1])
            rP[k, 1] = pack(rS[1, 4 * k], rS[1, 4 * k + 1])
            rP[k, 2] = pack(rS[0, 4 * k + 2], rS[0, 4 * k + 3])
            rP[k, 3] = pack(rS[1, 4 * k + 2], rS[1, 4 * k + 3])

    return pack_weights


@cache
def make_mask_range(key_range, columns: int, rows: int = ROWS):
    """Room ``mask_range(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux)``.

    Masks by the first and the last key that a row sees, for a mask that is no more than its
    `key_range` (`masks.Mask.exact`; None = every key): two comparisons with constants an element.
    """
    ends = device_function(key_range)

    @room
    def mask_range(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux):
        for i in range(rows):
            unroll_full()
            lo, hi = 0, seqlen_k
            if ends is not None:
                lo, hi = ends(batch, head, min(first_q + 8 * i, seqlen_q - 1), aux)
            # The tile is narrower than 512 keys.
            low = types.int32(0 if lo <= 0 else min(max(lo - first_k, 0), 512))
            high = types.int32(min(max(min(hi, seqlen_k) - first_k, 0), 512))
            for j in range(columns):
                unroll_full()
                c = types.int32(8 * (j // 2) + j % 2)
                if c < low or c >= high:
                    rS[i, j] = -math.inf

    return mask_range


@cache
def make_empty_rows(packed: bool, rows: int, out_columns: int):
    """Room ``empty_rows(row_max, row_sum, acc_o, first_q, seqlen_q)``: rows beyond the queries.

    Of packed sequences such a row may have a place in O and LSE: it ends as one that saw no key.
    """

    @room
    def empty_rows(row_max, row_sum, acc_o, first_q, seqlen_q):
        if packed:
            for i in range(rows):
                unroll_full()
                if first_q + 8 * i >= seqlen_q:
                    row_max[i] = LOWEST
                    row_sum[i] = 0
                    for c in range(out_columns):
                        unroll_full()
                        acc_o[i, c] = 0

    return empty_rows
