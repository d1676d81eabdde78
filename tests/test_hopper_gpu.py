"""The Hopper rung on a GPU against whole-matrix attention in float64: every feature, every tail."""

import itertools

import numpy as np
import pytest

from flash_numba.kernels import hopper

torch = pytest.importorskip("torch")
import beside_flash_attention_2 as beside  # noqa: E402
from dense import attention  # noqa: E402
from test_flash2_gpu import UNIT, changes, make, name  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_hopper():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs compute capability 9.x")


def cases():
    """(batch, heads, kv heads, N, M, head_dim, head_dim_v, dtype, options)."""
    for n, m, d in itertools.product((1, 63, 193, 257), (1, 128, 333), (64, 128)):
        yield 2, 3, 1, n, m, d, d, "fp16", {"causal": (n + m) % 2 == 0}
    depths = (8, 8), (40, 40), (96, 96), (64, 128), (160, 128), (192, 192), (256, 256), (200, 72)
    for (d, dv), dtype in itertools.product(depths, ("fp16", "bf16")):
        yield 1, 4, 2, 157, 400, d, dv, dtype, {"causal": True}
    for window in ((0, 0), (17, None), (None, 5), (64, 3)):
        yield 2, 2, 2, 203, 457, 64, 64, "bf16", {"window": window}
        yield 2, 2, 2, 457, 203, 128, 128, "fp16", {"window": window, "causal": True}
    for lengths in ([0, 203], [1, 64], [65, 128]):
        yield 2, 2, 1, 213, 203, 64, 64, "fp16", {"key_lengths": np.array(lengths)}
        yield (
            2,
            2,
            1,
            213,
            203,
            128,
            128,
            "bf16",
            {"key_lengths": np.array(lengths), "causal": True},
        )
    for scale in (0.0, -0.5, 3.0, 1e-35):
        yield 1, 1, 1, 65, 65, 64, 64, "fp16", {"softmax_scale": scale}
    yield 2, 4, 1, 130, 203, 64, 64, "fp16", {"dropout_p": 0.3, "seed": 2**40 + 7, "causal": True}
    yield 1, 2, 1, 130, 203, 128, 128, "bf16", {"dropout_p": 0.9, "seed": 3}
    yield 0, 2, 1, 10, 10, 64, 64, "fp16", {}
    yield 1, 2, 1, 0, 10, 64, 64, "fp16", {}
    yield 1, 2, 1, 10, 0, 64, 64, "fp16", {}
    yield 5, 7, 7, 300, 300, 64, 64, "fp16", {"causal": True}  # an odd number of heads, many turns


def forward(problem, q, k, v):
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.nan, device=q.device)
    hopper.forward(problem, q, k, v, out, lse, torch.cuda.current_stream().cuda_stream)
    return out, lse


def check(problem, q, k, v):
    """Scores are rounded as in float32, each weight of V to the element type, and O once more."""
    want = attention(problem, q, k, v)
    for batch in range(problem.batch):
        k[batch, problem.key_length(batch) :] = torch.nan
        v[batch, problem.key_length(batch) :] = torch.nan
    out, lse = forward(problem, q, k, v)
    assert not out.isnan().any()
    assert torch.equal(lse == -torch.inf, want.lse == -torch.inf)
    if not out.numel() or not k.numel():
        return
    largest = [x.double().nan_to_num().abs().amax() for x in (q, k, v)]
    size = abs(problem.softmax_scale) * problem.head_dim * largest[0] * largest[1]
    scores = 2 * UNIT["fp32"] * (size + 64)
    weights = UNIT[problem.dtype] / (1 - problem.dropout_p) * largest[2]
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
    ("n", "m", "d", "dtype"), [(213, 403, 64, "fp16"), (257, 130, 128, "bf16")]
)
def test_forward_with_changes(change, n, m, d, dtype):
    check(*make((2, 4, 2, n, m, d, d, dtype, change(2, 4, n, m)))[:4])


def test_strided_tensors():
    problem, q, *_ = make((2, 3, 3, 130, 150, 64, 64, "fp16", {"causal": True}))
    wide = torch.randn(2, 150, 3, 3, 64, device="cuda").half()
    check(problem, q.transpose(1, 2).contiguous().transpose(1, 2), wide[:, :, 0], wide[..., 1, :])


@pytest.mark.parametrize("d", [64, 128])
def test_growing_scores(d):
    """The row maximum grows at nearly every tile; at 128 it lags a tile behind."""
    problem, q, k, v, _ = make((1, 2, 2, 130, 512, d, d, "fp16", {}))
    check(problem, q, (k * torch.linspace(0, 40, 512, device="cuda")[:, None, None]).half(), v)


def test_the_same_bits_every_time():
    problem, q, k, v, _ = make((2, 16, 4, 1000, 1000, 128, 128, "bf16", {"causal": True}))
    first = forward(problem, q, k, v)
    for _ in range(5):
        assert all(map(torch.equal, first, forward(problem, q, k, v)))


@beside.EACH_DTYPE
@beside.EACH_SHAPE
def test_as_accurate_as_flash_attention_2(d, causal, dtype):
    beside.check_outputs(lambda *given: forward(*given)[0], d, causal, dtype)
