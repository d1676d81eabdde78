"""The softmax whose maxima lag a tile behind, a warp's rooms traced, against all keys at once."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOptionalSubscript=false

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from numba import cuda, types
from traced_attention import blank, run

from flash_numba.device.fragment_softmax import EXACT_BELOW
from flash_numba.device.fragments import ROWS, make_fragment_softmax, make_pack_weights
from flash_numba.device.late_softmax import FAR, make_late_softmax
from flash_numba.device.online_softmax import ROUNDED_THRESHOLD
from flash_numba.problem import DTYPES

KEYS, WARP_ROWS = 32, 16
"""Keys of a tile, and rows of a warp."""
COLUMNS, STEPS = KEYS // 4, KEYS // 16
FACTOR = np.float32(0.36)
"""Log2 units that a score is worth."""


def make_softmax(dtype: str):
    """A kernel of one warp: weights, maxima, sums and scales after each tile of `S`."""
    begin, _, update, _, _, _ = make_fragment_softmax(COLUMNS, 1)
    update_late, pack = make_late_softmax(dtype, COLUMNS, 1), make_pack_weights(dtype, STEPS)

    @cuda.jit
    def softmax(S, P, Maxima, Sums, Scales, factor):
        lane = types.int32(cuda.threadIdx.x)
        rS = cuda.local.array((ROWS, COLUMNS), types.float32)
        rP = cuda.local.array((STEPS, 4), types.uint32)
        row_max = cuda.local.array(ROWS, types.float32)
        row_sum = cuda.local.array(ROWS, types.float32)
        rScale = cuda.local.array(ROWS, types.float32)
        rLate = cuda.local.array(ROWS, types.float32)
        begin(row_max, row_sum)
        for tile in range(S.shape[0]):
            for i in range(ROWS):
                for j in range(COLUMNS):
                    key = 8 * (j // 2) + j % 2 + lane % 4 * 2
                    rS[i, j] = S[tile, lane // 4 + 8 * i, key]
            now = later = False
            if tile == 0:
                update(rS, row_max, row_sum, rScale, factor)
                pack(rP, rS)
            else:
                last = tile == S.shape[0] - 1
                now, later = update_late(rS, rP, row_max, row_sum, rScale, rLate, factor, last)
            for k in range(STEPS):
                for i in range(4):
                    P[tile, k, i, lane] = rP[k, i]
            for i in range(ROWS):
                row = lane // 4 + 8 * i
                Sums[tile, row, lane % 4] = row_sum[i]
                if lane % 4 == 0:
                    Maxima[tile, row] = row_max[i]
                    Scales[tile, 0, row] = rScale[i] if now else 1
                    Scales[tile, 1, row] = rLate[i] if later else 1

    return softmax


def unpacked(words: np.ndarray, dtype: str) -> np.ndarray:
    """Weights (tiles, rows, keys) of A fragments (tiles, steps, 4, 32), in float64."""
    halves = words[..., None].view(np.uint16).view(DTYPES[dtype]).astype(np.float64)
    found = np.empty((len(words), WARP_ROWS, KEYS))
    lanes = np.arange(32)
    for k in range(STEPS):
        for i in range(4):
            for half in range(2):
                keys = 16 * k + i // 2 * 8 + lanes % 4 * 2 + half
                found[:, lanes // 4 + i % 2 * 8, keys] = halves[:, k, i, :, half]
    return found


GROWTHS = {
    "hardly": [0, 1, 0.5, 0.3, -2, 0.1],
    "some": [0, 3, 4, -1, 7, 3, 2.5],
    "much": [0, 20, 1, 3, 200, 3, 9, 0],
    "far-scores": [1500, 3, 0, 9, -4, 5],
    "far-below": [-3000, 1, 4, 100, 0],
    "last-one": [0, 0, 6],
    "last-one-far": [0, 0, 60],
}
"""By how much the largest score of each tile is above that of the one before, in log2 units."""


def scores(name: str, hidden: bool) -> np.ndarray:
    """Scores (tiles, rows, keys) in float32; if `hidden` two rows see nothing at first, one never.

    A warp with such a row takes every new maximum at once.
    """
    rng = np.random.default_rng(3)
    tops = np.cumsum(GROWTHS[name])[:, None, None]
    s = tops - rng.uniform(0, 6, (len(tops), WARP_ROWS, KEYS))
    tile, row = np.ogrid[: len(tops), :WARP_ROWS]
    s[tile, row, (5 * row + 3 * tile) % KEYS] = tops[..., 0]
    s = (s / FACTOR).astype(np.float32)
    if hidden:
        s[0, 3], s[:2, 12], s[:, 7] = -np.inf, -np.inf, -np.inf
    return s


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", GROWTHS)
def test_late_maxima(name, hidden, dtype):
    s = scores(name, hidden)
    tiles = len(s)
    words = np.zeros((tiles, STEPS, 4, 32), np.uint32)
    maxima, sums = blank((tiles, WARP_ROWS)), blank((tiles, WARP_ROWS, 4))
    scales = blank((tiles, 2, WARP_ROWS))
    run(make_softmax(dtype), 1, 32, 0, (s, words, maxima, sums, scales, FACTOR))
    p, unit = unpacked(words, dtype), {"fp16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    check_when_maxima_are_taken(s, maxima, scales)
    assert p.max() <= 2**FAR * (1 + unit)

    # As a consumer adds O up, with V = identity: o is what each key's weight came to.
    o = np.zeros((tiles, WARP_ROWS, KEYS))
    for tile in range(tiles):
        if tile:
            o *= scales[tile - 1, 1, :, None] * scales[tile, 0, :, None]
        o[tile] = p[tile]
    z = sums[-1].sum(1, dtype=np.float64)
    s = s.astype(np.float64) * FACTOR
    top = np.where(np.isinf(s), -1e30, s).max((0, 2))
    exact = np.exp2(s - top[:, None])
    total = exact.sum((0, 2))
    seen = total > 0
    assert seen[7] != hidden
    assert not z[~seen].any()
    assert not o[:, ~seen].any()
    np.testing.assert_allclose(
        (o[:, seen] / z[seen, None]), exact[:, seen] / total[seen, None], rtol=2 * unit, atol=2e-6
    )
    lse = maxima[-1, seen].astype(np.float64) * FACTOR + np.log2(z[seen])
    np.testing.assert_allclose(lse, top[seen] + np.log2(total[seen]), atol=1e-3)


def check_when_maxima_are_taken(s, maxima, scales):
    """Before a tile's product where it matters, after it where it may wait, else not at all."""
    for tile in range(1, len(s)):
        old, top = maxima[tile - 1], s[tile].max(1)
        known = old > -np.inf
        growth = (top[known].astype(np.float64) - old[known]) * FACTOR
        far = (growth > FAR).any() or (np.abs(old) * FACTOR > EXACT_BELOW).any()
        grown = (growth > ROUNDED_THRESHOLD).any()
        last = tile == len(s) - 1
        taken = far or (grown and not last)
        expected = np.maximum(old, top) if taken else old
        np.testing.assert_array_equal(maxima[tile], expected)
        moved = np.exp2((old[known] - expected[known]).astype(np.float64) * FACTOR)
        now, later = scales[tile][:, known]
        np.testing.assert_allclose(now, moved if far else 1, rtol=1e-5, atol=1e-37)
        np.testing.assert_allclose(later, 1 if far else moved, rtol=1e-5)
