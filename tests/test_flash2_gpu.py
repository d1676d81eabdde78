"""The rungs on a GPU against whole-matrix attention in float64: flash2 most thoroughly."""

import itertools
from typing import Any

import numpy as np
import pytest

from flash_numba import masks, tiling
from flash_numba.ladder import RUNGS
from flash_numba.problem import Problem

torch = pytest.importorskip("torch")
from dense import attention  # noqa: E402

pytestmark = pytest.mark.gpu

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}


def shift_of(options, n, m):
    lengths = options.get("key_lengths")
    return m - n if lengths is None else np.asarray(lengths, np.int64) - n


def cases():
    """(batch, heads, kv heads, N, M, head_dim, head_dim_v, dtype, options)."""
    for n, m, d in itertools.product((1, 63, 113, 128, 257), (1, 64, 203), (64, 128)):
        yield 2, 2, 1, n, m, d, d, "fp32", {"causal": (n + m) % 2 == 0}
    for d, dv in ((1, 1), (3, 5), (16, 16), (40, 40), (65, 64), (64, 128), (96, 96), (200, 72)):
        yield 1, 2, 2, 113, 203, d, dv, "fp32", {"causal": True}
    yield 1, 2, 1, 130, 140, 256, 256, "fp32", {"causal": True}
    for dtype, d in itertools.product(("fp16", "bf16"), (64, 72, 128)):
        yield 2, 4, 2, 203, 203, d, d, dtype, {"causal": True}
    for window in ((0, 0), (17, None), (None, 5), (64, 3)):
        yield 2, 2, 2, 203, 257, 64, 64, "fp32", {"window": window}
        yield 2, 2, 2, 257, 203, 64, 64, "fp32", {"window": window, "causal": True}
    for lengths in ([0, 203], [1, 64], [65, 128]):
        yield 2, 2, 1, 113, 203, 64, 64, "fp32", {"key_lengths": np.array(lengths)}
        yield 2, 2, 1, 113, 203, 64, 64, "fp32", {"key_lengths": np.array(lengths), "causal": True}
    for scale in (0.0, -0.5, 3.0):
        yield 1, 1, 1, 65, 65, 64, 64, "fp32", {"softmax_scale": scale}
    yield 2, 4, 1, 130, 203, 64, 64, "fp32", {"dropout_p": 0.3, "seed": 2**40 + 7, "causal": True}
    yield 1, 2, 1, 130, 203, 128, 128, "fp32", {"dropout_p": 0.9, "seed": 3}
    yield 0, 2, 1, 10, 10, 64, 64, "fp32", {}
    yield 1, 2, 1, 0, 10, 64, 64, "fp32", {}
    yield 1, 2, 1, 10, 0, 64, 64, "fp32", {}


def changes():
    """The same for what needs tensors: name and a function that adds it to the options."""
    rng = np.random.default_rng(7)

    def softcap(b, h, n, m):
        return {"score_mods": (masks.softcap(1.5),)}

    def alibi(b, h, n, m):
        slopes = np.broadcast_to(rng.random(h, np.float32), (b, h))
        return {"score_mods": (masks.alibi(slopes, m - n),), "causal": True}

    def bias(b, h, n, m):
        tensor = np.broadcast_to(rng.standard_normal((1, h, n, m), np.float32), (b, h, n, m))
        return {"score_mods": (masks.softcap(2.0), masks.bias(tensor))}

    def relative(b, h, n, m):
        w, theta = rng.standard_normal((2, 3)).astype(np.float32)
        return {"score_mods": (masks.relative_positions(w, theta),), "causal": True}

    def boolean(b, h, n, m):
        keep = np.broadcast_to(rng.random((b, 1, n, m)) < 0.4, (b, h, n, m))
        return {"mask": masks.boolean(keep), "causal": True}

    def boolean_alone(b, h, n, m):
        return {"mask": boolean(b, h, n, m)["mask"]}

    def listed(b, h, n, m):
        def visible(batch, head, q_idx, k_idx, aux):
            return (q_idx // aux[0] + k_idx // aux[0]) % 3 != 0

        mask = masks.Mask("stripes", visible, (64,))
        sizes = tiling.BlockMask.from_mask(mask, Problem(n, m, 64), 128, 64)
        return {"block_mask": sizes, "causal": True}

    return [softcap, alibi, bias, relative, boolean, boolean_alone, listed]


def name(case):
    b, h, hk, n, m, d, dv, dtype, options = case
    text = "-".join(f"{key}{value}" for key, value in options.items())
    return f"B{b}-H{h}_{hk}-N{n}-M{m}-D{d}_{dv}-{dtype}-{text}"


def make(case, seed=0) -> Any:
    b, h, hk, n, m, d, dv, dtype, options = case
    problem = Problem(n, m, d, dv, b, h, hk, dtype, **options)
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = (b, n, h, d), (b, m, hk, d), (b, m, hk, dv), (b, n, h, dv)
    tensors = [
        torch.randn(shape, generator=generator, device="cuda").to(TORCH[dtype]) for shape in shapes
    ]
    return problem, *tensors


FUNCTIONS = {rung.name: rung.functions for rung in RUNGS if rung.modules}
SIMPLE = [rung.name for rung in RUNGS if rung.name in ("flash1", "standard")]


def space_of(parts):
    """Memory for a rung's own use, whose every float is NaN."""
    return torch.full((sum(parts),), 255, dtype=torch.uint8, device="cuda")


def forward(problem, q, k, v, rung="flash2"):
    functions = FUNCTIONS[rung]("forward")
    out = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.nan, device=q.device)
    needed = getattr(functions, "forward_workspace", None)
    memory = [space_of(needed(problem))] if needed else []
    stream = torch.cuda.current_stream().cuda_stream
    functions.forward(problem, q, k, v, out, lse, stream, *memory)
    return out, lse


def tolerance(problem, truth, q, k):
    """Rounding of the scores (depth terms of size |q||k|) reaches P as it is; O once more."""
    size = q.double().abs().amax() * k.double().abs().amax() if q.numel() and k.numel() else 0
    scores = abs(problem.softmax_scale) * size * problem.head_dim
    unit = UNIT["fp32"]
    rounding = UNIT[problem.dtype] * truth.abs().amax() if truth.numel() else 0
    return float(2 * unit * (scores + 64) + 2 * rounding)


def check(problem, q, k, v, rung="flash2"):
    out, lse = forward(problem, q, k, v, rung)
    want = attention(problem, q, k, v)
    assert not out.isnan().any()
    assert torch.equal(lse == -torch.inf, want.lse == -torch.inf)
    seen = want.lse > -torch.inf
    error = (out.double() - want.out).abs()
    assert error.numel() == 0 or error.max() <= tolerance(problem, want.out, q, k)
    if seen.any():
        assert (lse.double() - want.lse)[seen].abs().max() <= tolerance(problem, want.lse, q, k)


def backward(problem, q, k, v, dout, dlse=None, rung="flash2"):
    functions = FUNCTIONS[rung]("backward")
    out, lse = forward(problem, q, k, v, rung)
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    functions.backward(
        problem, q, k, v, out, lse, dout, dq, dk, dv, space_of(functions.workspace(problem)), dlse,
        torch.cuda.current_stream().cuda_stream,
    )  # fmt: skip
    return dq, dk, dv


def check_gradients(problem, q, k, v, dout, dlse=None, rung="flash2"):
    """dV sums P∘dO over the queries, dQ and dK sum dS; each term carries the error of P."""
    grads = backward(problem, q, k, v, dout, dlse, rung)
    want = attention(problem, q, k, v, dout, dlse)
    for name, got, exact in zip("qkv", grads, (want.dq, want.dk, want.dv), strict=True):
        assert not got.isnan().any(), f"d{name} has NaN"
        if got.numel():
            error = float((got.double() - exact).abs().max())
            limit = gradient_tolerance(problem, exact, q, k)
            assert error <= limit, f"d{name}: error {error} over {limit}"


def gradient_tolerance(problem, exact, q, k):
    relative = 8 * tolerance(problem, exact[:0], q, k) + 4 * UNIT[problem.dtype]
    return relative * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("case", list(cases()), ids=name)
def test_forward(case):
    check(*make(case)[:4])


@pytest.mark.parametrize("case", list(cases()), ids=name)
def test_backward(case):
    check_gradients(*make(case))


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize(("n", "m"), [(113, 203), (257, 130)])
def test_forward_with_changes(change, n, m):
    check(*make((2, 4, 2, n, m, 64, 64, "fp32", change(2, 4, n, m)))[:4])


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize(("n", "m"), [(113, 203), (257, 130)])
def test_backward_with_changes(change, n, m):
    check_gradients(*make((2, 4, 2, n, m, 64, 64, "fp32", change(2, 4, n, m))))


def test_forward_any_strides():
    problem, q, k, v, _ = make((2, 3, 3, 130, 150, 64, 64, "fp32", {"causal": True}))
    shifted = torch.randn(2 * 130 * 3 * 64 + 1, device="cuda")[1:].view(2, 130, 3, 64)
    check(problem, shifted, k, v)
    check(problem, q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    check(problem, q, k.flip(3).transpose(1, 3).contiguous().transpose(1, 3), v)
    check(problem, q, k, v[:, :1].expand(-1, 150, -1, -1))


def test_backward_any_strides():
    problem, q, k, v, dout = make((2, 3, 3, 130, 150, 64, 64, "fp32", {"causal": True}))
    check_gradients(problem, q, k, v, dout[:, :1, :1, :1].expand_as(dout))
    check_gradients(problem, q, k.transpose(1, 3).contiguous().transpose(1, 3), v, dout)


def test_backward_with_gradient_of_lse():
    problem, q, k, v, dout = make((2, 4, 2, 113, 150, 64, 64, "fp32", {"window": (30, 0)}))
    check_gradients(problem, q, k, v, dout, torch.randn(2, 4, 113, device="cuda"))


@pytest.mark.parametrize("causal", [False, True])
def test_backward_repeats_bit_for_bit(causal):
    problem, *tensors = make((1, 2, 1, 1500, 1500, 64, 64, "fp32", {"causal": causal}))
    first = backward(problem, *tensors)
    for _ in range(29):
        assert all(map(torch.equal, first, backward(problem, *tensors)))


def test_many_heads():
    problem, q, k, v, dout = make((70000, 1, 1, 3, 5, 8, 8, "fp32", {"causal": True}))
    check(problem, q, k, v)
    check_gradients(problem, q, k, v, dout)


def test_forward_growing_scores():
    problem, q, k, v, _ = make((1, 2, 2, 130, 512, 64, 64, "fp32", {}))
    check(problem, q, k * torch.linspace(0, 40, 512, device="cuda")[:, None, None], v)


@pytest.mark.parametrize("rung", SIMPLE)
@pytest.mark.parametrize("case", list(cases())[2::5], ids=name)
def test_simple_rungs(case, rung):
    problem, q, k, v, dout = make(case)
    check(problem, q, k, v, rung)
    check_gradients(problem, q, k, v, dout, rung=rung)


@pytest.mark.parametrize("rung", SIMPLE)
@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_simple_rungs_with_changes(change, rung):
    problem, q, k, v, dout = make((2, 4, 2, 113, 203, 64, 64, "fp32", change(2, 4, 113, 203)))
    check(problem, q, k, v, rung)
    dlse = torch.randn(2, 4, 113, device="cuda")
    check_gradients(problem, q, k, v, dout, dlse, rung)


@pytest.mark.parametrize("rung", SIMPLE)
def test_simple_rungs_with_any_strides_and_one_answer(rung):
    problem, q, k, v, dout = make((2, 3, 3, 130, 150, 64, 64, "fp32", {"causal": True}))
    k = k.transpose(1, 3).contiguous().transpose(1, 3)
    dout = dout[:, :1, :1, :1].expand_as(dout)
    check(problem, q, k, v, rung)
    check_gradients(problem, q, k, v, dout, rung=rung)
    first = backward(problem, q, k, v, dout, rung=rung)
    assert all(map(torch.equal, first, backward(problem, q, k, v, dout, rung=rung)))
