"""`flash_attention` down to the kernels of the fp32 rungs, whose launches a CPU traces."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

from harness import Case, check, tiled_rounding  # noqa: E402
from public_api import PublicApi  # noqa: E402
from traced_attention import random_problem  # noqa: E402
from traced_gpu import install_traced  # noqa: E402

from flash_numba import flash_attention, flash_attention_backward, fn, masks  # noqa: E402
from flash_numba import reference as ref  # noqa: E402
from flash_numba.masks import ScoreMod  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402

CASES = {
    "fp32": {"window": (9, 3), "key_lengths": np.array([0, 11]), "batch": 2}
    | {"score_mods": (masks.softcap(2.0),), "num_heads": 2, "num_kv_heads": 1},
    "bf16": {"dtype": "bf16", "dropout_p": 0.4, "seed": 2**33 + 5, "causal": True},
}
KERNELS = {
    "flash2": ("flash2_forward", "flash2_backward"),
    "flash1": ("flash1_forward", "flash1_backward"),
    "standard": ("standard_scores", "column_blocks"),
}
each_rung = pytest.mark.parametrize("rung", KERNELS)


@pytest.fixture
def traced_gpu(monkeypatch):
    return install_traced(monkeypatch)


@pytest.mark.parametrize("name", CASES)
@each_rung
def test_public_functions_reach_the_kernels(rung, name, traced_gpu):
    problem, q, k, v, do = random_problem(seqlen_q=7, seqlen_k=18, head_dim=8, **CASES[name])
    dlse = np.random.default_rng(3).standard_normal(problem.shapes["lse"]).astype(np.float32)
    check(Case(problem, q, k, v, do, dlse), PublicApi(rung), tiled_rounding)
    first, last = KERNELS[rung]
    rounded = rung != "standard" and problem.dtype != "fp32"
    assert traced_gpu[0] == first
    assert traced_gpu[-1] == ("round_pass" if rounded else last)


def steep(score, batch, head, q_idx, k_idx, aux):
    """A user's own: slopes by head and the square of the score, which are learned."""
    return score + aux[1][head, 0] * score * score + aux[1][head, 1] * fn.sin(aux[0] * q_idx)


def steep_derivative(score, batch, head, q_idx, k_idx, aux):
    return 1.0 + 2.0 * aux[1][head, 0] * score


def steep_aux_derivative(score, batch, head, q_idx, k_idx, term, aux):
    return fn.where(term == 0, score * score, fn.sin(aux[0] * q_idx))


@each_rung
def test_gradients_of_a_bias_and_of_a_users_own_score_mod(rung, traced_gpu):
    """Both at once, between other changes; two heads share a kv head, and rows see no key."""
    problem, q, k, v, do = random_problem(
        seqlen_q=19, seqlen_k=18, head_dim=8, batch=2, num_heads=2, num_kv_heads=1, causal=True
    )
    rng = np.random.default_rng(5)
    bias = rng.standard_normal((2, 1, 18)).astype(np.float32)
    learned = 0.3 * rng.standard_normal((2, 2)).astype(np.float32)
    mod = ScoreMod(
        "steep", steep, (0.5, learned), steep_derivative, 1, ("head", "term"), steep_aux_derivative
    )
    options = {"causal": True, "softcap": 3.0, "bias": bias, "score_mod": mod, "kernel": rung}
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    needs = ("v", "bias", "score_mod")
    found = flash_attention_backward(do, q, k, v, o, lse, needs=needs, **options)
    wide = masks.bias(np.broadcast_to(bias, (2, 2, 19, 18)))
    problem = Problem.of(q, k, v, causal=True, score_mods=[masks.softcap(3.0), wide, mod])
    want = ref.backward(problem, q, k, v, do)
    twin = ref.backward(problem, q, k, v, do, dtype="fp32")
    assert found.dq is found.dk is None
    for name, got, exact, close in (
        ("dv", found.dv, want.dv, twin.dv),
        ("dbias", found.dbias, want.aux[0][0], twin.aux[0][0]),
        ("dscore_mod", found.dscore_mod, want.aux[1], twin.aux[1]),
    ):
        allowed = 2 * np.abs(close - exact).max() + 8 * 2.0**-24 * np.abs(exact).max() * 8**0.5
        assert np.abs(got - exact).max() <= allowed, name
    assert traced_gpu.count("aux_gradient") == 2
