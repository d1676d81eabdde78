"""The online softmax of a tile of scores.

References
----------
Dao, "FlashAttention-2", 2023, Algorithm 1, lines 8 to 10; Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018.
"""

import math
from functools import cache

from .numba_cuda import cuda, room, types
from .ptx import exp2, larger, rounded_product
from .unroll import unroll_full

ALL_LANES = 0xFFFFFFFF
LN_2, LOG2_E = math.log(2), math.log2(math.e)
LOWEST = -3.4028234663852886e38
RESCALE_THRESHOLD = 8.0
"""A row maximum is replaced only by one larger by this much (in log2 units).

The softmax is the same for any number subtracted from the exponents as long as nothing overflows:
with 8, P reaches 256 at most, and O and the row sum are rescaled in the first tile and hardly
again. 0 is the paper's rule.
"""
ROUNDED_THRESHOLD = 2.0
"""The same where P is rounded to 16 bits for the tensor cores.

The largest weight is a power of two, which loses nothing to that, only where the maximum is the
newest. With 2 the error of O (root mean square) is some 1.03 times what it is with the paper's rule
(tests/test_rescale_threshold.py), which FlashAttention-2 follows.
"""


@cache
def make_over_lanes(lanes: int):
    """Rooms ``largest(x)`` and ``total(x)`` over the lanes that share a row (see `products`)."""

    @room
    def largest(x):
        x = larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))
        x = larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 4))
        x = larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 8))
        if lanes == 16:
            x = larger(x, cuda.shfl_xor_sync(ALL_LANES, x, 16))
        return x

    @room
    def total(x):
        x += cuda.shfl_xor_sync(ALL_LANES, x, 2)
        x += cuda.shfl_xor_sync(ALL_LANES, x, 4)
        x += cuda.shfl_xor_sync(ALL_LANES, x, 8)
        if lanes == 16:
            x += cuda.shfl_xor_sync(ALL_LANES, x, 16)
        return x

    return largest, total


@cache
def make_online_softmax(
    tile_rows: int,
    tile_columns: int,
    out_columns: int,
    lanes: int,
    threshold: float = RESCALE_THRESHOLD,
):
    """Rooms ``start``, ``update`` and ``finish`` of the online softmax.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of the scores.
    out_columns : int
        Columns of its part of O.
    lanes : int
        Lanes that share a row.
    threshold : float
        See `RESCALE_THRESHOLD`.

    Notes
    -----
    All arrays are registers: `rS` scores, `row_max` and `row_sum` (this thread's share of it) one a
    row, `acc_o` not yet divided by the row sum. A masked score is -inf; a row that has seen no key
    has row_max -inf, and the lowest number takes its place where something is subtracted.
    """
    largest, total = make_over_lanes(lanes)

    margin = threshold * LN_2

    @room
    def exponential(x, shift):
        # The difference first: it is exact for the largest score.
        difference = x - larger(shift, types.float32(LOWEST))
        return exp2(rounded_product(difference, types.float32(LOG2_E)))

    @room
    def start(row_max, row_sum, acc_o):
        for i in range(tile_rows):
            unroll_full()
            row_max[i] = -math.inf
            row_sum[i] = 0
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] = 0

    @room
    def raise_maxima(rTop, row_max, row_sum, acc_o):
        for i in range(tile_rows):
            unroll_full()
            new_max = largest(larger(row_max[i], rTop[i]))
            rescale = exponential(row_max[i], new_max)
            row_max[i] = new_max
            row_sum[i] *= rescale
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= rescale

    @room
    def update(rS, row_max, row_sum, acc_o):
        rTop = cuda.local.array(tile_rows, types.float32)
        grown = False
        for i in range(tile_rows):
            unroll_full()
            rTop[i] = rS[i, 0]
            for j in range(1, tile_columns):
                unroll_full()
                rTop[i] = larger(rTop[i], rS[i, j])
            grown |= rTop[i] > row_max[i] + types.float32(margin)
        if cuda.any_sync(ALL_LANES, grown):
            raise_maxima(rTop, row_max, row_sum, acc_o)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rS[i, j] = exponential(rS[i, j], row_max[i])
                row_sum[i] += rS[i, j]

    @room
    def finish(row_max, row_sum, acc_o, rLse):
        for i in range(tile_rows):
            unroll_full()
            z = total(row_sum[i])
            divisor = z if z != 0 else types.float32(1)
            factor = types.float32(1) / divisor  # a division is some 28 instructions, a product one
            for c in range(out_columns):
                unroll_full()
                acc_o[i, c] *= factor
            rLse[i] = row_max[i] + math.log(divisor)

    return start, update, finish
