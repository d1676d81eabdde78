"""Claims about exactness and rounding."""

from __future__ import annotations

import numpy as np

from flash_numba import reference
from flash_numba.budget import within_budget
from flash_numba.problem import Problem

from ..inputs import demo_input, random_input
from ..run import simulate
from .claim import CONDITIONS, HOLDS, WRONG, Found, claim, conditional_if
from .evidence import softmax


def bitwise_equal_share(seed: int = 0) -> float:
    """The share of fp32 outputs of flash2 that have the bits of standard attention's."""
    problem = Problem(256, 256, 64)
    q, k, v = random_input(problem, seed)
    flash = simulate("flash2", problem, q, k, v, tile_m=64, tile_n=64).arrays["O"]
    standard = simulate("algorithm0", problem, q, k, v).arrays["O"]
    return float((flash == standard).mean())


@claim("C19", "0 §2")
def no_approximation() -> Found:
    """16K-32K tokens without approximation error."""
    rows = []
    for keys in (16384, 32768):
        problem = Problem(16, keys, 64, dtype="fp16")
        q, k, v = random_input(problem)
        truth, _ = reference.forward(problem, q, k, v)
        twin, _ = reference.forward(problem, q, k, v, dtype="fp16")
        run = simulate("flash2", problem, q, k, v, tile_m=16, tile_n=128)
        rows.append((keys, within_budget(run.arrays["O"], truth, twin, "fp16"), twin - truth))
    return Found(
        conditional_if(all(verdict for _, verdict, _ in rows)),
        "no approximation beside rounding: the same function of Q, K and V at any length",
        "16 queries, fp16 inputs, largest error against float64: "
        + ", ".join(
            f"{verdict.error:.0e} with {keys:,} keys (standard attention in fp16 "
            f"{np.abs(twin).max():.0e})"
            for keys, verdict, twin in rows
        ),
    )


@claim("C28", "0 §2.3")
def exact() -> Found:
    """The result is exact."""
    rng = np.random.default_rng(0)
    S, V = rng.standard_normal((16, 96)), rng.standard_normal((96, 8))
    truth = softmax(S) @ V
    m, l, O = np.full((16, 1), -np.inf), np.zeros((16, 1)), np.zeros((16, 8))
    for j in range(0, 96, 8):
        m_new = np.maximum(m, S[:, j : j + 8].max(axis=1, keepdims=True))
        P, alpha = np.exp(S[:, j : j + 8] - m_new), np.exp(m - m_new)
        l, O, m = alpha * l + P.sum(axis=1, keepdims=True), alpha * O + P @ V[j : j + 8], m_new
    error = float(np.abs(O / l - truth).max())
    return Found(
        conditional_if(0 < error < 1e-14),
        "an identity of real numbers; in floating point the order of sums differs (C77)",
        f"12 tiles in float64: off by {error:.0e}, a few units in the last place",
    )


@claim("C33", "0 §3.2")
def rescaling_and_underflow() -> Found:
    """log_softmax(x) = x - logsumexp(x); rescaling while accumulating prevents underflow."""
    x = np.random.default_rng(0).standard_normal(64) * 50
    weights = softmax(x[None])[0]
    lse = x.max() + np.log(np.exp(x - x.max()).sum())
    identity = float(np.abs(np.log(weights) - (x - lse)).max())
    with np.errstate(over="ignore"):
        overflow = np.isinf(np.exp(np.float32(89.0)))
    vanished = int((np.exp(np.float32(x - x.max())) == 0).sum())
    return Found(
        conditional_if(identity < 1e-9 and bool(overflow) and vanished > 0),
        "the identity holds; subtracting the maximum prevents overflow, and rescaling keeps old "
        "sums on "
        "the same scale. Small weights still underflow, to 0, where they do not matter",
        f"identity off by {identity:.0e}; e^89 is infinite in fp32; of 64 scores of deviation 50, "
        f"{vanished} weights are 0 in fp32",
    )


@claim("C70", "0 §6.1")
def overflow_for_large_n() -> Found:
    """exp(QKᵀ/√d) under- or overflows in low precision for large N."""
    limit = float(np.log(np.finfo(np.float16).max))
    expected = {N: float(np.sqrt(2 * np.log(N))) for N in (1024, 1 << 20)}
    terms = int(np.finfo(np.float16).max / np.exp(0.5))
    return Found(
        conditional_if(max(expected.values()) < limit),
        "one exponential depends on the score, not on N: above 11.1 in fp16, 88.7 in fp32 or "
        "bf16. With "
        "N grows their sum; with the maximum subtracted neither overflows, and sums are kept in "
        "fp32",
        f"fp16 overflows at a score of {limit:.1f}; the largest of N normal scores is about "
        f"{expected[1024]:.1f} at N=1,024 and {expected[1 << 20]:.1f} at N=1,048,576; a sum of N "
        f"exponentials in fp16 overflows from N = {terms:,}",
    )


@claim("C74", "0 §6.2")
def quantised_scores() -> Found:
    """Quantised scores: QKᵀ = S_Q Q̂ K̂ᵀ S_K, approximately."""
    q, k, _, _ = demo_input()
    Q, K = (x[0, :, 9].astype(np.float64) for x in (q, k))
    exact = Q @ K.T
    errors = {}
    for name, axis in (("row", 1), ("tensor", None)):
        scales = [np.abs(x).max(axis=axis, keepdims=True) / 127 for x in (Q, K)]
        rounded = [np.round(x / scale) for x, scale in zip((Q, K), scales, strict=True)]
        again = (rounded[0] * scales[0]) @ (rounded[1] * scales[1]).T
        errors[name] = float(np.abs(again - exact).max() / np.abs(exact).max())
    return Found(
        conditional_if(0 < max(errors.values()) < 0.1),
        "with diagonal S_Q, S_K (a scale a row) or numbers; scales are measured from the data more "
        "often than learned",
        "int8, a head of a real layer, largest error over largest score: "
        + ", ".join(f"{error:.2%} with a scale a {name}" for name, error in errors.items()),
    )


@claim("C77", "1")
def exactly_the_same() -> Found:
    """The output is exactly the same as standard attention's."""
    share = bitwise_equal_share()
    return Found(
        CONDITIONS if 0 < share < 1 else HOLDS if share == 1 else WRONG,
        "the same to rounding, not bit for bit: sums have another order, and exp another argument",
        f"N=256, d=64, fp32: {share:.0%} of the outputs have the same bits",
    )
