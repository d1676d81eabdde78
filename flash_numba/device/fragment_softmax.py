"""The online softmax on fragments: a row is spread over the four lanes of a quad.

References
----------
Dao, "FlashAttention-2", 2023, Algorithm 1, lines 8 to 10; see `online_softmax` for the fp32 rungs'.
"""

from functools import cache

from .numba_cuda import cuda, room, types
from .online_softmax import ALL_LANES, LN_2, LOWEST, ROUNDED_THRESHOLD
from .ptx import exp2, larger, log2, reciprocal
from .unroll import unroll_full

EXACT_BELOW = 1024.0
"""Maxima (in log2 units) for which product and difference of a score are one instruction.

It does not round the product, but that of the maximum was: the largest score's weight is off from 1
by what that lost, 2**-14 at most here. Beyond, the difference comes first, as it is exact there.
"""


@room
def largest_of_quad(x):
    """The largest `x` of four neighbouring lanes."""
    x = larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 1))
    return larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))


@room
def total_of_quad(x):
    """The sum of `x` over four neighbouring lanes."""
    x += cuda.shfl_xor_sync(ALL_LANES, x, 1)
    return x + cuda.shfl_xor_sync(ALL_LANES, x, 2)


@cache
def make_fragment_softmax(
    tile_rows: int, tile_columns: int, out_columns: int, threshold: float = ROUNDED_THRESHOLD
):
    """Rooms ``start``, ``update`` and ``finish`` of the online softmax.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a lane's part of the scores.
    out_columns : int
        Columns of its part of O.
    threshold : float
        See `online_softmax.ROUNDED_THRESHOLD`.

    Notes
    -----
    All arrays are registers: `rS` scores, `row_max` and `row_sum` (this lane's share of it) one a
    row, `acc_o` not yet divided by the row sum. A score is worth ``factor * score`` in log2 units,
    `factor` > 0, so that the scale need not be multiplied into every score; `row_max` is in units
    of the scores. It starts at the lowest number, not -inf: nothing is ever -inf - -inf.

    ``update(rS, row_max, row_sum, acc_o, factor)`` leaves P in `rS`. It rescales O only where a
    maximum grew by more than `threshold`: then, one vote of the warp having said so, lanes
    exchange their maxima, which they need not do in any other tile.
    """

    @room
    def start(row_max, row_sum, acc_o):
        for i in range(tile_rows):
            unroll_full()
            row_max[i] = LOWEST
            row_sum[i] = 0
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] = 0

    @room
    def raise_maxima(rTop, row_max, row_sum, acc_o, factor):
        for i in range(tile_rows):
            unroll_full()
            new_max = largest_of_quad(larger(row_max[i], rTop[i]))
            rescale = exp2((row_max[i] - new_max) * factor)
            row_max[i] = new_max
            row_sum[i] *= rescale
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= rescale

    @room
    def subtract(rS, row_max, rShift):
        for i in range(tile_rows):
            unroll_full()
            rShift[i] = 0
            for j in range(tile_columns):
                unroll_full()
                rS[i, j] -= row_max[i]

    @room
    def update(rS, row_max, row_sum, acc_o, factor):
        rTop = cuda.local.array(tile_rows, types.float32)
        rShift = cuda.local.array(tile_rows, types.float32)
        rare = False
        for i in range(tile_rows):
            unroll_full()
            rTop[i] = rS[i, 0]
            for j in range(1, tile_columns):
                unroll_full()
                rTop[i] = larger(rTop[i], rS[i, j])
            rare |= (rTop[i] - row_max[i]) * factor > types.float32(threshold)
            rShift[i] = row_max[i] * factor
            rare |= abs(rShift[i]) > types.float32(EXACT_BELOW)
        if cuda.any_sync(ALL_LANES, rare):
            raise_maxima(rTop, row_max, row_sum, acc_o, factor)
            far = False
            for i in range(tile_rows):
                unroll_full()
                rShift[i] = row_max[i] * factor
                far |= abs(rShift[i]) > types.float32(EXACT_BELOW)
            if far:
                subtract(rS, row_max, rShift)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rS[i, j] = exp2(cuda.fma(rS[i, j], factor, -rShift[i]))
                row_sum[i] += rS[i, j]

    @room
    def finish(row_max, row_sum, acc_o, rLse, scale):
        for i in range(tile_rows):
            unroll_full()
            z = total_of_quad(row_sum[i])
            inverse = reciprocal(z if z != 0 else types.float32(1))
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= inverse
            rLse[i] = row_max[i] * scale + log2(z) * types.float32(LN_2)

    return start, update, finish
