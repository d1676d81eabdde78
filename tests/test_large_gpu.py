"""Reported cases in their whole size, and offsets beyond 32 bits, for every rung with kernels."""

import pytest

torch = pytest.importorskip("torch")
from test_flash2_gpu import (  # noqa: E402
    FUNCTIONS,
    backward,
    check,
    check_gradients,
    make,
)

from flash_numba.ladder import RUNGS  # noqa: E402

pytestmark = pytest.mark.gpu
each_rung = pytest.mark.parametrize("rung", FUNCTIONS)
TAKES = {rung.name: rung.dtypes for rung in RUNGS}
# Numbers of `cases.CASES`, as (batch, heads, kv heads, N, M, head_dim, head_dim_v, dtype, options).
WHOLE = {
    "K03": (1, 1, 1, 1024, 1024, 128, 128, "fp16", {"causal": True}),
    "K49": (300, 1, 1, 2048, 128, 128, 128, "fp16", {}),
    "K54": (65536, 1, 1, 16, 16, 16, 16, "fp32", {}),
    "K55": (8300, 16, 16, 1, 1, 128, 128, "fp16", {}),
}
REPEATS = {"K03": 30, "K49": 50}


@pytest.mark.parametrize("number", WHOLE)
@each_rung
def test_reported_case_in_its_whole_size(rung, number):
    case = list(WHOLE[number])
    if case[7] not in TAKES[rung]:
        case[7] = TAKES[rung][0]
    problem, q, k, v, dout = make(case)
    check(problem, q, k, v, rung)
    check_gradients(problem, q, k, v, dout, rung=rung)
    if number in REPEATS:
        first = backward(problem, q, k, v, dout, rung=rung)
        for _ in range(REPEATS[number] - 1):
            again = backward(problem, q, k, v, dout, rung=rung)
            assert all(map(torch.equal, first, again))


def far_apart(tensor):
    """The same numbers with 2**31 elements from one sequence to the next."""
    step = 2**31
    base = torch.empty(step + tensor[0].numel(), dtype=tensor.dtype, device="cuda")
    view = base.as_strided(tensor.shape, (step, *tensor.stride()[1:]))
    return view.copy_(tensor)


@each_rung
def test_offsets_beyond_32_bits(rung):
    case = (2, 2, 1, 70, 90, 64, 64, "fp16", {"causal": True})
    problem, *tensors = make(case)
    q, k, v, dout = map(far_apart, tensors)
    check(problem, q, k, v, rung)
    check_gradients(problem, q, k, v, dout, rung=rung)
