"""Eager calls on torch tensors "on a GPU": what their cache of plans may and may not do."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fake_torch  # noqa: E402
from cases import CASES  # noqa: E402
from harness import check  # noqa: E402
from packed import packed_problem  # noqa: E402
from public_api import rounding  # noqa: E402
from test_interop_torch import BAD, EVEN, MASK, OPTIONS, SLOPES, TorchApi, hold, leaf, numpy, qkv  # noqa: E402  # noqa: E402

from flash_numba import (  # noqa: E402
    attention,
    flash_attention,
    flash_attention_varlen,
    masks,
    plan_store,
)
from flash_numba import reference as ref  # noqa: E402
from flash_numba.interop import torch_eager, torch_pass, torch_repeated  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402


@pytest.fixture
def gpu(monkeypatch):
    torch.manual_seed(5)
    return fake_torch.install(monkeypatch)


def plain():
    return [x.detach() for x in qkv()]


@pytest.mark.parametrize("spec", CASES[::3], ids=[spec.id for spec in CASES[::3]])
def test_cases(spec, gpu):
    case = spec.build()
    case.repeats = 2
    check(case, TorchApi(), rounding(spec.id))


@pytest.mark.parametrize(("options", "fields"), OPTIONS.values(), ids=OPTIONS)
def test_repeated_gradients(options, fields, gpu):
    for _ in range(2):
        q, k, v = qkv()
        o, lse = flash_attention(q, k, v, return_lse=True, **options)
        do, dlse = torch.randn(o.shape), torch.randn(lse.shape)
        gradients = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
        problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", **fields)
        hold(problem, q, k, v, gradients, do, dlse)
    assert len(gpu.planned) == 2
    assert len(gpu.calls) == 4
    assert {call.stream for call in gpu.calls} == {7}


def test_packed_batches_are_planned_once_and_read_their_lengths_anew(gpu):
    for rows_q, rows_k, used in (
        ([3, 0, 9], [7, 2, 4], [7, 0, 3]),
        ([5, 5, 1], [0, 6, 6], [0, 6, 6]),
    ):
        q, k, v = leaf(14, 4, 8), leaf(15, 2, 8), leaf(15, 2, 8)
        options = {"slack": (14 - sum(rows_q), 15 - sum(rows_k)), "causal": True}
        heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
        problem, packed = packed_problem(rows_q, rows_k, None, used, **options, **heads)
        lists = {n: torch.from_numpy(x) for n, x in packed.arrays.items() if x is not None}
        o, lse = flash_attention_varlen(
            q, k, v, **lists, max_seqlen_q=max(rows_q), causal=True, return_lse=True
        )
        expected = ref.forward(problem, numpy(q), numpy(k), numpy(v))
        for found, exact in zip((o, lse), expected, strict=True):
            np.testing.assert_allclose(numpy(found), exact, rtol=1e-5, atol=1e-6)
        do, dlse = torch.randn(o.shape), torch.randn(lse.shape)
        found = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
        exact = ref.backward(problem, *map(numpy, (q, k, v, do, dlse)))
        for gradient, same in zip(found, exact, strict=False):
            np.testing.assert_allclose(numpy(gradient), same, rtol=1e-4, atol=1e-5)
    assert len(gpu.planned) == 2
    assert len(gpu.calls) == 4


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"cu_seqlens_q": [0, 14]}, TypeError, "cu_seqlens_q must be an int32 array on cuda"),
        ({"cu_seqlens_k": torch.tensor([0, 15])}, TypeError, "must have dtype int32, got int64"),
        ({"max_seqlen_q": -1}, ValueError, "max_seqlen_q must be a whole number >= 0, got -1"),
        ({"seqused_q": torch.ones(2, dtype=torch.int32)}, ValueError, r"seqused_q .* shape \(1,\)"),
    ],
    ids=["list", "int64", "longest", "used"],
)  # fmt: skip
def test_bad_lists_of_a_packed_batch_are_refused(changed, error, match, gpu):
    q, k = torch.randn(14, 4, 8), torch.randn(15, 2, 8)
    cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (14, 15))
    good = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    flash_attention_varlen(q, k, k, **good)
    with pytest.raises(error, match=match):
        flash_attention_varlen(q, k, k, **(good | changed))
    assert len(gpu.calls) == 1


# What a cache must not mix up


def reference_o(*tensors, **options):
    """O as it is without a cache."""
    copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in tensors]
    fake_torch.forget()
    return flash_attention(*copies, **options)


def of(x, **changed):
    """The numbers of `x` in memory that differs in one way."""
    if changed.get("unaligned"):
        room = torch.empty(x.numel() + 4)
        start = next(n for n in range(4) if room[n:].data_ptr() % 16 == 4)
        return room[start : start + x.numel()].view(x.shape).copy_(x)
    if changed.get("transposed"):
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.to(changed["dtype"])


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize("changed", ["unaligned", "transposed"])
def test_memory_of_another_kind_has_a_plan_of_its_own(which, changed, gpu):
    given = plain()
    expected = flash_attention(*given, causal=True)
    other = list(given)
    other[which] = of(given[which], **{changed: True})
    torch.testing.assert_close(flash_attention(*other, causal=True), expected)
    assert len(gpu.planned) == 2
    torch.testing.assert_close(flash_attention(*given, causal=True), expected)
    assert len(gpu.planned) == 2
    layouts = [(call.q.strides, call.k.strides, call.v.strides) for call in gpu.calls]
    assert layouts[0] == layouts[2]


def test_other_types_and_shapes_have_plans_of_their_own(gpu):
    given = plain()
    flash_attention(*given)
    half = [x.half() for x in given]
    assert flash_attention(*half).dtype == torch.float16
    assert flash_attention(*(x[:1] for x in given)).shape[0] == 1
    assert flash_attention(given[0][:, :4], *given[1:]).shape[1] == 4
    assert len(gpu.planned) == 4


def test_another_device_has_a_plan_of_its_own(gpu, monkeypatch):
    given = plain()
    flash_attention(*given)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    monkeypatch.setattr(torch_pass, "current_device", lambda: 1)
    flash_attention(*given)
    assert len(gpu.planned) == 2


def test_plans_are_read_from_disk_on_the_tensors_own_device(gpu, monkeypatch):
    entered, read = [], []

    @contextmanager
    def device(index):
        entered.append(index)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(plan_store, "load", lambda _, device: read.append((device, *entered)))
    q, k, v = (x.requires_grad_() for x in plain())
    flash_attention(q, k, v).sum().backward()
    assert read == 2 * [(q.get_device(),) * 2]


def test_the_same_plan_serves_other_memory(gpu):
    """One tensor three times, then three tensors: an address's value does not say whose."""
    x, y, z = torch.randn(3, 2, 9, 4, 8)
    flash_attention(x, x, x)
    found = flash_attention(x, y, z)
    assert len(gpu.planned) == 1
    torch.testing.assert_close(found, reference_o(x, y, z))


def test_slopes_that_ask_for_a_gradient_are_no_others(gpu):
    q, k, v = (torch.randn(2, 9, 4, 8) for _ in "qkv")
    flash_attention(q, k, v, alibi_slopes=SLOPES)
    with pytest.raises(ValueError, match="alibi_slopes must not require a gradient"):
        flash_attention(q, k, v, alibi_slopes=SLOPES.clone().requires_grad_())


@pytest.mark.parametrize("name", ["mask", "bias", "alibi_slopes"])
def test_tensors_are_read_anew(name, gpu):
    q, k, v = plain()
    first, second = {
        "mask": (MASK, ~MASK),
        "bias": (torch.randn(9, 13), torch.randn(9, 13)),
        "alibi_slopes": (SLOPES, 3 * SLOPES),
    }[name]
    changing = first.clone()
    flash_attention(q, k, v, **{name: changing})
    changing.copy_(second)
    changed = flash_attention(q, k, v, **{name: changing})
    another = flash_attention(q, k, v, **{name: second})
    assert len(gpu.planned) == 1
    expected = reference_o(q, k, v, **{name: second})
    torch.testing.assert_close(changed, expected)
    torch.testing.assert_close(another, expected)


def test_lengths_are_told_by_their_content(gpu):
    q, k, v = plain()
    lengths = np.array([13, 4])
    results = []
    for first in (13, 7):
        lengths[0] = first
        results.append(flash_attention(q, k, v, key_lengths=lengths))
    assert not torch.equal(*results)
    torch.testing.assert_close(results[1], reference_o(q, k, v, key_lengths=[7, 4]))


def test_numbers_of_other_values_have_plans_of_their_own(gpu):
    given = plain()
    found = [
        flash_attention(*given, **options)
        for options in (
            {},
            {"causal": True},
            {"scale": 0.5},
            {"softcap": 2.0},
            {"window": (3, None)},
            {"window": (None, 3)},
            {"dropout_p": 0.5, "seed": 1},
            {"dropout_p": 0.5, "seed": 2},
        )
    ]
    for n, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:n])
    assert len(gpu.planned) == len(found) - 1  # seeds share a plan


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"causal": True}, {"causal": 1}),
        ({"scale": 1.0}, {"scale": True}),
        ({"softcap": 1.0}, {"softcap": True}),
        ({"window": (1, None)}, {"window": (True, None)}),
        ({"window": (1, None)}, {"window": (1.0, None)}),
        ({"deterministic": True}, {"deterministic": 1}),
        ({"seed": 1}, {"seed": -1}),
        ({"kernel": "auto"}, {"kernel": ["auto"]}),
        ({"dropout_p": 0.0}, {"dropout_p": False}),
    ],
)
def test_equal_values_of_types_that_are_not_allowed_stay_refused(good, bad, gpu):
    given = plain()
    flash_attention(*given, **good)
    with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
        flash_attention(*given, **bad)
    assert len(gpu.calls) == 1


# Every tensor is on the fake GPU.
HERE = {name: case for name, case in BAD.items() if "device" not in name}


@pytest.mark.parametrize(("changed", "error", "match"), HERE.values(), ids=HERE)
def test_bad_input_is_refused_before_anything_runs(changed, error, match, gpu):
    given: Any = dict(zip("qkv", plain(), strict=True))
    flash_attention(**given)
    with pytest.raises(error, match=match):
        flash_attention(**(given | changed))
    assert len(gpu.calls) == 1


@pytest.mark.parametrize(("room", "made"), [(1 << 16, [1, 2, 2]), (71, [2, 2, 2])])
def test_lse_is_made_if_somebody_reads_it_or_it_is_large(room, made, gpu, monkeypatch):
    monkeypatch.setattr(torch_pass, "UNREAD", room)
    torch_pass._unread.cache_clear()
    given, empty, found = plain(), torch_pass._empty_strided, []
    flash_attention(*given)
    monkeypatch.setattr(torch_pass, "_empty_strided", lambda *a: found.append(a) or empty(*a))
    fake_torch.forget()
    counts, results = [], []
    for options in ({}, {"return_lse": True}):
        found.clear()
        results.append(flash_attention(*given, **options))
        counts.append(len(found))
    found.clear()
    flash_attention(*(x.requires_grad_() for x in given))
    assert [*counts, len(found)] == made
    assert torch.equal(results[0], results[1][0])
    assert results[1][1].isfinite().all()
    torch_pass._unread.cache_clear()


def test_functions_are_told_apart(gpu):
    given = plain()
    odd = masks.Mask("odd", lambda batch, head, q_idx, k_idx, aux: (q_idx + k_idx) % 2 == 1)
    even, again, other = (flash_attention(*given, mask_mod=f) for f in (EVEN, EVEN, odd))
    assert torch.equal(even, again)
    assert not torch.equal(even, other)
    assert len(gpu.planned) == 2


def test_functions_with_tensors_are_planned_each_time(gpu):
    given = plain()
    limit = torch.tensor([4])
    mask = masks.Mask("few", lambda batch, head, q_idx, k_idx, aux: k_idx < aux[0][0], (limit,))
    first = flash_attention(*given, mask_mod=mask)
    limit.fill_(9)
    assert not torch.equal(first, flash_attention(*given, mask_mod=mask))
    assert len(gpu.planned) == 2


def test_the_latest_plans_are_kept(gpu, monkeypatch):
    monkeypatch.setattr(torch_eager, "LIMIT", 2)
    monkeypatch.setattr(torch_repeated, "LIMIT", 0)
    given = plain()
    for scale in (1.0, 2.0, 3.0, 2.0, 1.0):
        flash_attention(*given, scale=scale)
    assert len(gpu.planned) == 4
    assert len(torch_eager._calls) == 2


# Autograd


def test_a_gradient_is_asked_for_after_a_call_without(gpu):
    q, k, v = qkv()
    with torch.no_grad():
        assert not flash_attention(q, k, v).requires_grad
    o = flash_attention(q, k, v)
    assert o.requires_grad
    assert not flash_attention(*(x.detach() for x in (q, k, v))).requires_grad
    assert len(gpu.planned) == 1


@pytest.mark.parametrize("needs", [("v",), ("q", "k"), ("bias",)])
def test_only_the_gradients_asked_for(needs, gpu):
    tensors = dict(zip(("q", "k", "v", "bias"), (*qkv(), leaf(13)), strict=True))
    for name, tensor in tensors.items():
        tensor.requires_grad_(name in needs)
    for _ in range(2):
        flash_attention(**tensors).sum().backward()
    found = gpu.calls[-1]
    for name, tensor in tensors.items():
        assert (tensor.grad is not None) == (name in needs)
        if name != "bias":
            assert (getattr(found, f"d{name}") is not None) == (name in needs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_of_an_expanded_bias(dtype, gpu):
    q, k, v = (x.detach().to(dtype) for x in qkv())
    column = leaf(9, 1).detach().to(dtype).requires_grad_()
    do = torch.randn(q.shape).to(dtype)
    expanded, own = (
        torch.autograd.grad(flash_attention(q, k, v, bias=bias), column, do)[0]
        for bias in (column.expand(9, 13), column)
    )
    assert own.dtype == dtype
    torch.testing.assert_close(expanded, own, atol=1e-2, rtol=1e-2)


def test_learned_weights_of_a_score_change(gpu):
    q, k, v = qkv()
    weights, theta = leaf(3), torch.rand(3)
    o = flash_attention(q, k, v, score_mod=masks.relative_positions(weights, theta))
    do = torch.randn(o.shape)
    gradients = torch.autograd.grad(o, (q, k, v, weights), do)
    change = masks.relative_positions(weights.detach().numpy(), theta.numpy())
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", score_mods=[change])
    hold(problem, q, k, v, gradients, do)


def test_gradients_of_any_strides(gpu):
    q, k, v = qkv()
    o = flash_attention(q, k, v)
    dense = torch.randn(2, 9, 4, 16)[..., 1::2]
    for do in (dense, dense.contiguous(), torch.ones(1).expand(2, 9, 4, 8)):
        found = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
        hold(Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32"), q, k, v, found, do)
    torch.autograd.grad(o, (q, k, v), dense, retain_graph=True)
    assert len(gpu.planned) == 4


def test_a_loss_of_lse_alone(gpu):
    q, k, v = qkv()
    _, lse = flash_attention(q, k, v, return_lse=True)
    *_, dv = torch.autograd.grad(lse.mean(), (q, k, v))
    assert not dv.any()


def test_it_is_differentiable_once(gpu):
    q, k, v = qkv()
    (dq,) = torch.autograd.grad(flash_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="can be differentiated once"):
        dq.sum().backward()


def test_inputs_changed_before_the_backward_are_an_error(gpu):
    q, k, v = (x * 1 for x in qkv())
    o = flash_attention(q, k, v)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_autocast_takes_its_own_type(gpu):
    q, k, v = qkv()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = flash_attention(q, k, v)
        assert o.dtype == torch.bfloat16
        o.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32


# What must not be answered here


def test_watched_calls_are_ops(gpu, monkeypatch):
    seen = []
    monkeypatch.setattr(attention, "forward", lambda *a: seen.append(a) or pytest.fail("it ran"))
    given = plain()
    flash_attention(*given)
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda q, k, v: flash_attention(q, k, v), tracing_mode="fake")(*given)
    assert "flash_numba.attention" in graph.code
    assert not seen
