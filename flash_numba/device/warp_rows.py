"""Rows of a matrix in global memory, a warp a row: its lanes take every 32nd four neighbours.

Rows begin on 16-byte boundaries. What is left of a row, up to three columns, has a lane each.
"""

import math

from .numba_cuda import cuda, room, types
from .online_softmax import ALL_LANES
from .ptx import load4_global
from .tile_softmax import finite

WARP = 32


@room
def largest_of_warp(x):
    """The largest `x` of the warp's lanes."""
    step = 16
    while step > 0:
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, step))
        step //= 2
    return x


@room
def sum_of_warp(x):
    """The sum of the warp's lanes, the same in all of them."""
    step = 16
    while step > 0:
        x += cuda.shfl_xor_sync(ALL_LANES, x, step)
        step //= 2
    return x


@room
def softmax_of_row(gS, row, stop, lane):
    """``(m, l)`` of the first `stop` scores of a row: largest, and sum of exp(S - m).

    References
    ----------
    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, Algorithm 3.
    """
    row_max, row_sum = types.float32(-math.inf), types.float32(0)
    column = types.int64(4 * lane)
    while column + 4 <= stop:
        a, b, c, d = load4_global(gS, (row, column))
        new_max = max(row_max, max(max(a, b), max(c, d)))
        shift = finite(new_max)
        parts = math.exp(a - shift) + math.exp(b - shift) + math.exp(c - shift)
        row_sum = row_sum * math.exp(row_max - shift) + (parts + math.exp(d - shift))
        row_max = new_max
        column += 4 * WARP
    column = stop // 4 * 4 + lane
    if column < stop:
        score = gS[row, column]
        new_max = max(row_max, score)
        shift = finite(new_max)
        row_sum = row_sum * math.exp(row_max - shift) + math.exp(score - shift)
        row_max = new_max
    largest = largest_of_warp(row_max)
    return largest, sum_of_warp(row_sum * math.exp(row_max - finite(largest)))
