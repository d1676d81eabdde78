"""What it costs to keep an old row maximum where P is rounded: a model of the tensor-core softmax.

Weights are rounded to 16 bits as each tile's are, against the maximum that is kept; all else is
exact. A warp of 32 rows takes new maxima together, as `tensor_core` does.
"""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the threshold stands beside kernel code")

from flash_numba.device.online_softmax import ROUNDED_THRESHOLD
from flash_numba.problem import DTYPES

ROWS, KEYS, TILE, WARP = 1024, 1000, 64, 32


def weighted_sums(scores, v, threshold: float, dtype: str) -> np.ndarray:
    """O of scores in log2 units, divided by the sums of unrounded weights, not rounded itself."""
    rows = len(scores)
    row_max, row_sum, acc_o = np.full((rows, 1), -1e30), np.zeros((rows, 1)), np.zeros(1)
    for start in range(0, scores.shape[1], TILE):
        s = scores[:, start : start + TILE]
        top = s.max(1, keepdims=True)
        rare = (top - row_max > threshold).reshape(-1, WARP).any(1).repeat(WARP)[:, None]
        new_max = np.where(rare, np.maximum(row_max, top), row_max)
        rescale = np.exp2(row_max - new_max)
        p = np.exp2(s - new_max)
        row_max, row_sum = new_max, row_sum * rescale + p.sum(1, keepdims=True)
        rounded = p.astype(np.float32).astype(DTYPES[dtype]).astype(np.float64)
        acc_o = acc_o * rescale + rounded @ v[start : start + TILE]
    return acc_o / row_sum


def error(head_dim: int, threshold: float, dtype: str) -> float:
    """Root mean square error of O, rounded, on normal numbers."""
    rng = np.random.default_rng(7)
    scores = rng.standard_normal((ROWS, KEYS)) * np.log2(np.e)
    v = rng.standard_normal((KEYS, head_dim)).astype(DTYPES[dtype]).astype(np.float64)
    p = np.exp2(scores - scores.max(1, keepdims=True))
    o = weighted_sums(scores, v, threshold, dtype).astype(np.float32).astype(DTYPES[dtype])
    return np.sqrt(((o.astype(np.float64) - p @ v / p.sum(1, keepdims=True)) ** 2).mean())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_kept_maximum_costs_little_accuracy(dtype):
    """At most 1.05 times the error of FlashAttention-2's rule, which is a threshold of 0."""
    assert error(128, ROUNDED_THRESHOLD, dtype) <= 1.05 * error(128, 0.0, dtype)


def test_the_model_sees_the_cost():
    """It grows with the threshold; 8, the fp32 rungs', costs all there is to lose."""
    errors = [error(128, threshold, "fp16") for threshold in (0.0, 2.0, 8.0)]
    assert errors == sorted(errors)
    assert errors[2] > 1.04 * errors[0]


def share_of_steps(threshold: float, blocks: int = 40, tiles: int = 64) -> float:
    """In how many steps of a Hopper consumer some of its 64 rows take a new maximum."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(blocks):
        scores = rng.standard_normal((64, tiles, 128), np.float32) * np.log2(np.e)
        row_max = np.full(64, -np.inf)
        for top in scores.max(2).T:
            grown = (top > row_max + threshold).reshape(4, 16).any(1)
            row_max = np.where(grown.repeat(16), np.maximum(row_max, top), row_max)
            found += grown.any()
    return found / (blocks * tiles)


@pytest.mark.parametrize(("threshold", "share"), [(0.5, 0.59), (2.0, 0.17)])
def test_how_often_a_hopper_consumer_rescales(threshold, share):
    """The figures of docs/hopper.md."""
    assert share_of_steps(threshold) == pytest.approx(share, abs=0.015)
