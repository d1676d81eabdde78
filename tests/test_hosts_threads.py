"""`flash_attention` down to the kernels of the fp32 rungs, whose launches a CPU traces."""

from dataclasses import replace

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

from aux_gradients import broadcast_bias, hold, steep_mod  # noqa: E402
from harness import Case, check, tiled_rounding  # noqa: E402
from public_api import PublicApi  # noqa: E402
from traced_attention import random_problem  # noqa: E402
from traced_gpu import install_traced  # noqa: E402

from flash_numba import flash_attention, flash_attention_backward, masks  # noqa: E402

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


@each_rung
def test_gradients_of_a_bias_and_of_a_users_own_score_mod(rung, traced_gpu):
    """Both at once, between other changes; two heads share a kv head, and rows see no key."""
    plain, q, k, v, do = random_problem(
        seqlen_q=19, seqlen_k=18, head_dim=8, batch=2, num_heads=2, num_kv_heads=1, causal=True
    )
    rng = np.random.default_rng(5)
    bias, change = broadcast_bias(rng, plain, (1, 2))
    mod = steep_mod(0.3 * rng.standard_normal((2, 2)).astype(np.float32))
    options = {"causal": True, "softcap": 3.0, "bias": bias, "score_mod": mod}
    o, lse = flash_attention(q, k, v, return_lse=True, kernel=rung, **options)
    needs = ("bias", "score_mod")
    found = flash_attention_backward(do, q, k, v, o, lse, needs=needs, kernel=rung, **options)
    assert found.dq is found.dk is found.dv is None
    problem = replace(plain, score_mods=(masks.softcap(3.0), change, mod))
    hold(problem, (q, k, v, do), (found.dbias, found.dscore_mod), slope=20.0)
    assert traced_gpu.count("aux_gradient") == 2


@pytest.mark.parametrize(
    "sizes", [(2, 5, 0), (2, 0, 5), (0, 5, 5)], ids=["keys", "queries", "batch"]
)
@each_rung
def test_nothing_is_written_beyond_an_empty_gradient(rung, sizes, traced_gpu):
    """Strides of an empty tensor are 0, and do not make it one number for all."""
    batch, n, m = sizes
    shapes = {"q": (batch, n, 2, 16), "k": (batch, m, 2, 16), "v": (batch, m, 2, 16)}
    q, k, v = (np.ones(shape, np.float32) for shape in shapes.values())
    for shape in ((m,), (2, 1, 1), (batch, 2, n, m), (1, 1, n, 1)):
        options = {"bias": np.ones(shape, np.float32), "kernel": rung}
        o, lse = flash_attention(q, k, v, return_lse=True, **options)
        found = flash_attention_backward(o, q, k, v, o, lse, needs="bias", **options)
        assert np.array_equal(found.dbias, np.zeros(shape))
