"""The tensor-core rung on a GPU: every feature, and accuracy beside FlashAttention-2's."""

import itertools

import numpy as np
import pytest

from flash_numba.device import turns
from flash_numba.kernels import tensor_core, tensor_core_backward
from flash_numba.tiling import ceil_div

torch = pytest.importorskip("torch")
import beside_flash_attention_2 as beside  # noqa: E402
from dense import attention  # noqa: E402
from test_flash2_gpu import UNIT, changes, gradient_tolerance, make, name, space_of  # noqa: E402

pytestmark = pytest.mark.gpu


def cases():
    """(batch, heads, kv heads, N, M, head_dim, head_dim_v, dtype, options)."""
    for n, m, d in itertools.product((1, 63, 113, 128, 257), (1, 64, 203), (64, 128)):
        yield 2, 2, 1, n, m, d, d, "fp16", {"causal": (n + m) % 2 == 0}
    wide = (192, 192), (256, 256), (200, 72), (256, 64), (40, 256), (96, 96), (160, 128)
    narrow = (8, 8), (16, 16), (40, 40), (72, 72), (64, 128), (1, 1), (3, 5), (65, 64), (100, 100)
    for (d, dv), dtype in itertools.product((*narrow, *wide), ("fp16", "bf16")):
        yield 1, 4, 2, 157, 203, d, dv, dtype, {"causal": True}
    for window in ((0, 0), (17, None), (None, 5), (64, 3)):
        yield 2, 2, 2, 203, 257, 64, 64, "bf16", {"window": window}
        yield 2, 2, 2, 257, 203, 128, 128, "fp16", {"window": window, "causal": True}
    for lengths in ([0, 203], [1, 64], [65, 128]):
        yield 2, 2, 1, 113, 203, 64, 64, "fp16", {"key_lengths": np.array(lengths)}
        yield 2, 2, 1, 113, 203, 64, 64, "bf16", {"key_lengths": np.array(lengths), "causal": True}
    for scale in (0.0, -0.5, 3.0, 1e-35):
        yield 1, 1, 1, 65, 65, 64, 64, "fp16", {"softmax_scale": scale}
    yield 2, 4, 1, 130, 203, 64, 64, "fp16", {"dropout_p": 0.3, "seed": 2**40 + 7, "causal": True}
    yield 1, 2, 1, 130, 203, 128, 128, "bf16", {"dropout_p": 0.9, "seed": 3}
    yield 0, 2, 1, 10, 10, 64, 64, "fp16", {}
    yield 1, 2, 1, 0, 10, 64, 64, "fp16", {}
    yield 1, 2, 1, 10, 0, 64, 64, "fp16", {}
    yield 70000, 1, 1, 3, 5, 8, 8, "fp16", {"causal": True}


def forward(problem, q, k, v):
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.nan, device=q.device)
    stream = torch.cuda.current_stream().cuda_stream
    tensor_core.forward(problem, q, k, v, out, lse, stream)
    return out, lse


def check(problem, q, k, v):
    """Scores are rounded as in float32, each weight of V to the element type, and O once more."""
    out, lse = forward(problem, q, k, v)
    want = attention(problem, q, k, v)
    assert not out.isnan().any()
    assert torch.equal(lse == -torch.inf, want.lse == -torch.inf)
    if not out.numel() or not k.numel():
        return
    size = abs(problem.softmax_scale) * problem.head_dim * q.double().abs().amax()
    scores = 2 * UNIT["fp32"] * (size * k.double().abs().amax() + 64)
    weights = UNIT[problem.dtype] / (1 - problem.dropout_p) * v.double().abs().amax()
    allowed = 4 * scores + weights + UNIT[problem.dtype] * want.out.abs().amax()
    assert (out.double() - want.out).abs().max() <= allowed
    seen = want.lse > -torch.inf
    if seen.any():
        assert (lse.double() - want.lse)[seen].abs().max() <= 4 * scores


@pytest.mark.parametrize("case", list(cases()), ids=name)
def test_forward(case):
    check(*make(case)[:4])


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("n", "m", "d", "dtype"), [(113, 203, 64, "fp16"), (257, 130, 128, "bf16")]
)
def test_forward_with_changes(change, n, m, d, dtype):
    check(*make((2, 4, 2, n, m, d, d, dtype, change(2, 4, n, m)))[:4])


def test_any_strides():
    problem, q, k, v, _ = make((2, 3, 3, 130, 150, 64, 64, "fp16", {"causal": True}))
    shifted = torch.randn(2 * 130 * 3 * 64 + 1, device="cuda").half()[1:].view(2, 130, 3, 64)
    check(problem, shifted, k, v)
    check(problem, q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    check(problem, q, k.flip(3).transpose(1, 3).contiguous().transpose(1, 3), v)
    check(problem, q, k, v[:, :1].expand(-1, 150, -1, -1))


def test_growing_scores():
    """The row maximum grows at nearly every tile."""
    problem, q, k, v, _ = make((1, 2, 2, 130, 512, 64, 64, "fp16", {}))
    growing = k * torch.linspace(0, 40, 512, device="cuda")[:, None, None]
    check(problem, q, growing.half(), v)


@beside.EACH_DTYPE
@beside.EACH_SHAPE
def test_as_accurate_as_flash_attention_2(d, causal, dtype):
    beside.check_outputs(lambda *given: forward(*given)[0], d, causal, dtype)


def backward(problem, q, k, v, dout, dlse=None, wanted="qkv"):
    """dQ, dK and dV, None for those that are not `wanted`."""
    out, lse = forward(problem, q, k, v)
    dq, dk, dv = (
        torch.full_like(x, torch.nan) if name in wanted else None
        for name, x in (("q", q), ("k", k), ("v", v))
    )
    memory = space_of(tensor_core_backward.workspace(problem))
    stream = torch.cuda.current_stream().cuda_stream
    tensor_core_backward.backward(
        problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse, stream
    )
    return dq, dk, dv


def check_gradients(problem, q, k, v, dout, dlse=None, wanted="qkv"):
    """P and dS are rounded to the element type before they are summed, O before delta is."""
    grads = backward(problem, q, k, v, dout, dlse, wanted)
    want = attention(problem, q, k, v, dout, dlse)
    for letter, got, exact in zip("qkv", grads, (want.dq, want.dk, want.dv), strict=True):
        assert (got is not None) == (letter in wanted)
        if got is None:
            continue
        assert not got.isnan().any(), f"d{letter} has NaN"
        if got.numel():
            error = float((got.double() - exact).abs().max())
            assert error <= gradient_tolerance(problem, exact, q, k), f"d{letter}: {error}"


@pytest.mark.parametrize("case", list(cases()), ids=name)
def test_backward(case):
    check_gradients(*make(case))


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("n", "m", "d", "dtype"), [(113, 203, 64, "fp16"), (257, 130, 128, "bf16")]
)
def test_backward_with_changes(change, n, m, d, dtype):
    check_gradients(*make((2, 4, 2, n, m, d, d, dtype, change(2, 4, n, m))))


def test_backward_any_strides_and_gradient_of_lse():
    problem, q, k, v, dout = make((2, 3, 3, 130, 150, 64, 64, "fp16", {"causal": True}))
    check_gradients(problem, q, k, v, dout[:, :1, :1, :1].expand_as(dout))
    check_gradients(problem, q, k, v, dout[:, :1].expand_as(dout))
    check_gradients(problem, q, k.transpose(1, 3).contiguous().transpose(1, 3), v, dout)
    check_gradients(problem, q, k, v, dout, torch.randn(2, 3, 130, device="cuda"))


@pytest.mark.parametrize("wanted", ["q", "kv", "k", "v", "qv"])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_some_gradients(d, wanted):
    """What one kernel computes when all are asked for, two kernels compute one by one."""
    case = make((2, 4, 2, 157, 203, d, d, "fp16", {"causal": True}))
    check_gradients(*case, wanted=wanted)


@pytest.mark.parametrize("d", [64, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_backward_repeats_bit_for_bit(d, causal):
    """Many key tiles add to each query tile's dQ, on more blocks than run at once."""
    problem, *tensors = make((2, 12, 4, 1500, 1500, d, d, "bf16", {"causal": causal}))
    first = backward(problem, *tensors)
    for _ in range(29):
        assert all(map(torch.equal, first, backward(problem, *tensors)))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_more_key_tiles_than_few(d, causal):
    """The first one begins and all walk back: right, and the same bits each time."""
    problem, *tensors = make((1, 16, 8, 2200, 2200, d, d, "bf16", {"causal": causal}))
    tiles = tensor_core_backward.one_kernel_tiles(problem)
    assert tiles is not None
    assert ceil_div(problem.seqlen_k, tiles.tile_n) > turns.FEW
    check_gradients(problem, *tensors)
    first = backward(problem, *tensors)
    for _ in range(29):
        assert all(map(torch.equal, first, backward(problem, *tensors)))


@beside.EACH_DTYPE
@beside.EACH_SHAPE
def test_gradients_as_accurate_as_flash_attention_2(d, causal, dtype):
    beside.check_gradients(backward, d, causal, dtype)
