"""The Hopper rung's backward on a GPU against whole-matrix attention in float64."""

import itertools
from typing import Any

import numpy as np
import pytest

from flash_numba.kernels import hopper, hopper_backward
from flash_numba.kernels.hopper_backward_heads import (
    BACKWARDS_AT_ONCE,
    KEYS_AT_ONCE,
    heads_at_once,
)
from flash_numba.kernels.hopper_backward_tiles import hopper_backward_tiles
from flash_numba.launch import multiprocessors

torch = pytest.importorskip("torch")
import beside_flash_attention_2 as beside  # noqa: E402
from dense import attention  # noqa: E402
from test_flash2_gpu import changes, gradient_tolerance, make, name, space_of  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_hopper():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs compute capability 9.x")


def cases():
    """(batch, heads, kv heads, N, M, head_dim, head_dim_v, dtype, options)."""
    for n, m, d in itertools.product((1, 80, 193, 257), (1, 128, 333), (64, 128)):
        yield 2, 3, 1, n, m, d, d, "fp16", {"causal": (n + m) % 2 == 0}
    for n, m, d in itertools.product((1, 64, 193), (1, 64, 333), (192, 256)):
        yield 2, 3, 1, n, m, d, d, "fp16", {"causal": (n + m) % 2 == 0}
    depths = (8, 8), (40, 40), (96, 96), (64, 128), (128, 64), (72, 16), (160, 128), (256, 256)
    depths += (40, 256), (192, 128)
    for (d, dv), dtype in itertools.product(depths, ("fp16", "bf16")):
        yield 1, 4, 2, 157, 400, d, dv, dtype, {"causal": True}
    for window in ((0, 0), (17, None), (None, 5), (64, 3)):
        yield 2, 2, 2, 203, 457, 64, 64, "bf16", {"window": window}
        yield 2, 2, 2, 457, 203, 128, 128, "fp16", {"window": window, "causal": True}
        yield 2, 2, 2, 457, 203, 256, 256, "fp16", {"window": window, "causal": True}
    for lengths, d in itertools.product(([0, 203], [1, 64], [65, 128]), (64, 128, 192, 256)):
        options = {"key_lengths": np.array(lengths), "causal": d == 128}
        yield 2, 2, 1, 213, 203, d, d, "bf16", options
    for scale in (0.0, -0.5, 3.0, 1e-35):
        yield 1, 1, 1, 65, 65, 64, 64, "fp16", {"softmax_scale": scale}
        yield 1, 1, 1, 65, 65, 192, 192, "fp16", {"softmax_scale": scale}
    yield 2, 4, 1, 130, 203, 64, 64, "fp16", {"dropout_p": 0.3, "seed": 2**40 + 7, "causal": True}
    yield 1, 2, 1, 130, 203, 128, 128, "bf16", {"dropout_p": 0.9, "seed": 3}
    yield 1, 2, 1, 130, 203, 256, 256, "bf16", {"dropout_p": 0.4, "seed": 3, "causal": True}
    yield 3, 50, 25, 300, 300, 64, 64, "fp16", {"causal": True}  # heads by groups, the last short


def backward(problem, q, k, v, dout, dlse=None, **how):
    """Through the rung's own entry, or with given tiles or order."""
    stream = torch.cuda.current_stream().cuda_stream
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.nan, device=q.device)
    hopper.forward(problem, q, k, v, out, lse, stream)
    grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    memory = space_of(hopper_backward.workspace(problem))
    given: Any = problem, q, k, v, out, lse, dout, *grads, memory, dlse, stream
    if how:
        hopper_backward.backward_with(hopper_backward_tiles(problem), how["ordered"], *given)
    else:
        hopper_backward.backward(*given)
    return grads


def check(problem, q, k, v, dout, dlse=None, **how):
    """P and dS are rounded to the element type before they are summed, O before delta is."""
    want = attention(problem, q, k, v, dout, dlse)
    for batch in range(problem.batch):
        k[batch, problem.key_length(batch) :] = torch.nan
        v[batch, problem.key_length(batch) :] = torch.nan
    grads = backward(problem, q, k, v, dout, dlse, **how)
    for letter, got, exact in zip("qkv", grads, (want.dq, want.dk, want.dv), strict=True):
        assert not got.isnan().any(), f"d{letter} has NaN"
        error = float((got.double() - exact).abs().max())
        tolerance = gradient_tolerance(problem, exact, q, k.nan_to_num())
        assert error <= tolerance, f"d{letter}: {error}"


@pytest.mark.parametrize("case", list(cases()), ids=name)
def test_backward(case):
    check(*make(case))


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("n", "m", "d", "dtype"),
    [(213, 403, 64, "fp16"), (257, 130, 128, "bf16"), (130, 257, 256, "bf16")],
)
def test_backward_with_changes(change, n, m, d, dtype):
    check(*make((2, 4, 2, n, m, d, d, dtype, change(2, 4, n, m))))


@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_sums_that_are_added_as_they_come(d):
    check(*make((2, 3, 3, 700, 700, d, d, "bf16", {"causal": True})), ordered=False)


def test_strides_and_the_gradient_of_lse():
    problem, q, k, v, dout = make((2, 3, 3, 130, 150, 64, 64, "fp16", {"causal": True}))
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    check(problem, turned, k, v, dout, torch.randn(2, 3, 130, device="cuda"))
    for one in (dout[:, :1, :1, :1], dout[:, :1]):  # tensor_core's
        check(problem, q, k, v, one.expand_as(dout))


@pytest.mark.parametrize(
    ("d", "dtype"), [(64, "fp16"), (128, "bf16"), (192, "fp16"), (256, "bf16")]
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_same_bits_every_time(d, dtype, causal):
    problem, *tensors = make((1, 20, 4, 1500, 1500, d, d, dtype, {"causal": causal}))
    first = backward(problem, *tensors)
    for _ in range(30):
        assert all(map(torch.equal, first, backward(problem, *tensors)))


LONG = [(64, "fp16", 2200, False), (64, "fp16", 2200, True)]
LONG += [(128, "bf16", 2200, False), (128, "bf16", 2200, True)]
LONG += [(192, "fp16", 4200, True), (256, "bf16", 4200, True)]
"""head_dim, dtype, N and causal: sequences long enough that wide heads, causal, walk backwards."""


@pytest.mark.parametrize(("d", "dtype", "n", "causal"), LONG)
def test_long_sequences(d, dtype, n, causal):
    for queries in (n, 700):
        problem, *tensors = make((1, 4, 2, queries, n, d, d, dtype, {"causal": causal}))
        assert hopper_backward_tiles(problem).backwards == (d > 128)
        check(problem, *tensors)


@pytest.mark.parametrize(("d", "dtype", "n", "causal"), LONG)
def test_long_sequences_have_the_same_bits(d, dtype, n, causal):
    """And of more heads than are worked on side by side."""
    problem, *tensors = make((1, 48, 24, n, n, d, d, dtype, {"causal": causal}))
    tiles = hopper_backward_tiles(problem)
    keys = BACKWARDS_AT_ONCE if tiles.backwards else KEYS_AT_ONCE
    assert heads_at_once(problem, tiles.tile_n, multiprocessors(), keys) < 24
    first = backward(problem, *tensors)
    for _ in range(30):
        assert all(map(torch.equal, first, backward(problem, *tensors)))


@beside.EACH_DTYPE
@beside.EACH_SHAPE
def test_gradients_as_accurate_as_flash_attention_2(d, causal, dtype):
    beside.check_gradients(backward, d, causal, dtype)
