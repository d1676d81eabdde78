"""The steps from naive to flash2 on a GPU against whole-matrix attention in float64."""

import pytest

from flash_numba.kernels.steps import STEPS, module_of
from flash_numba.problem import Problem

torch = pytest.importorskip("torch")
from dense import attention  # noqa: E402

pytestmark = pytest.mark.gpu

CASES = {
    "B2-H4-N200-M331-D64": Problem(200, 331, 64, batch=2, num_heads=4, num_kv_heads=2),
    "B1-H2-N331-M200-D64-causal": Problem(331, 200, 64, num_heads=2, causal=True),
    "B1-H2-N257-M257-D128-causal": Problem(257, 257, 128, num_heads=2, causal=True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", STEPS)
def test_step(step, name):
    problem = CASES[name]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(problem.shapes[x], generator=generator, device="cuda") for x in ("q", "k", "v")
    )
    out = torch.full(problem.shapes["o"], torch.nan, device="cuda")
    lse = torch.full(problem.shapes["lse"], torch.nan, device="cuda")
    module_of(step).forward(problem, q, k, v, out, lse, torch.cuda.current_stream().cuda_stream)
    want = attention(problem, q, k, v)
    # head_dim roundings of scores as large as |q||k| reach P as they are.
    scores = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * problem.softmax_scale
    budget = 2 * 2.0**-24 * (scores * problem.head_dim**0.5 + 64)
    assert float((out - want.out).abs().max()) <= budget * max(1, float(v.abs().max()))
    assert torch.equal(lse == -torch.inf, want.lse == -torch.inf)
    seen = want.lse > -torch.inf
    assert float((lse - want.lse)[seen].abs().max()) <= budget
