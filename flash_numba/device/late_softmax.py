"""The online softmax of fragments whose maxima lag a tile behind, so that nothing waits for them.

Exponents need *a* maximum, not the newest one: with that of the tiles before, the exponentials of
a tile can start at once, and its own maximum is found beside them, on another unit. Where it turns
out that the maximum grew, O and the row sum are rescaled for the tiles that follow. Only where it
grew by so much that this tile's weights would be far from 1 are they computed again.
"""

from functools import cache

from .fragment_softmax import EXACT_BELOW
from .fragments import ROWS, make_fragment_softmax, make_pack_weights
from .numba_cuda import cuda, room, types
from .online_softmax import ALL_LANES, LOWEST, ROUNDED_THRESHOLD
from .ptx import exp2, larger
from .ptx_matrix import pack_bf16, pack_fp16
from .unroll import unroll_full

FAR = 8.0
"""Growth of a maximum (in log2 units) from which on a tile is computed again: P reaches 2**8."""


@cache
def make_late_softmax(dtype: str, columns: int, out_columns: int):
    """Room ``update(rS, rP, row_max, row_sum, rScale, rLate, factor, last) -> (now, later)``.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    columns, out_columns : int
        As for `fragments.make_fragment_softmax`, whose ``update`` has to see the first tile.

    Notes
    -----
    `rP` gets the weights packed (`fragments.make_pack_weights`); `rS` is lost. If `now`, O must be
    multiplied by `rScale` before this tile's product; if `later`, by `rLate` after it. Never
    `later` with the `last` tile of a row: `row_sum` and O then have the same scale.
    """
    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]
    _, _, compute_again, _, _, raise_maxima = make_fragment_softmax(columns, out_columns)
    pack_weights = make_pack_weights(dtype, columns // 4)

    @room
    def weigh(rS, rP, rTop, rSum, row_max, factor):
        rShift = cuda.local.array(ROWS, types.float32)
        rNext = cuda.local.array(ROWS, types.float32)
        for i in range(ROWS):
            unroll_full()
            rShift[i] = larger(row_max[i] * factor, types.float32(LOWEST))
            rTop[i], rNext[i], rSum[i] = rS[i, 0], rS[i, 1], 0
        for j in range(0, columns, 2):
            unroll_full()
            for i in range(ROWS):
                unroll_full()
                if j > 0:
                    rTop[i] = larger(rTop[i], rS[i, j])
                    rNext[i] = larger(rNext[i], rS[i, j + 1])
                first = exp2(rS[i, j] * factor - rShift[i])
                second = exp2(rS[i, j + 1] * factor - rShift[i])
                rSum[i] += first
                rSum[i] += second
                rP[j // 4, j % 4 + i] = pack(first, second)
        for i in range(ROWS):
            unroll_full()
            rTop[i] = larger(rTop[i], rNext[i])

    @room
    def update(rS, rP, row_max, row_sum, rScale, rLate, factor, last):
        rTop = cuda.local.array(ROWS, types.float32)
        rSum = cuda.local.array(ROWS, types.float32)
        margin = min(types.float32(ROUNDED_THRESHOLD) / factor, types.float32(-LOWEST))
        limit = min(types.float32(FAR) / factor, types.float32(-LOWEST))
        largest = types.float32(EXACT_BELOW) / factor
        weigh(rS, rP, rTop, rSum, row_max, factor)
        grown = far = False
        for i in range(ROWS):
            unroll_full()
            grown |= rTop[i] > row_max[i] + margin
            far |= (rTop[i] > row_max[i] + limit) | (abs(row_max[i]) > largest)
        now = later = False
        if cuda.any_sync(ALL_LANES, grown | far):
            far = cuda.any_sync(ALL_LANES, far)
            if far:
                now = compute_again(rS, row_max, row_sum, rScale, factor)
                pack_weights(rP, rS)
            later = not far and not last
        if not now:
            for i in range(ROWS):
                unroll_full()
                row_sum[i] += rSum[i]
        if later:
            raise_maxima(rTop, row_max, row_sum, rLate, factor)
        return now, later

    return update
