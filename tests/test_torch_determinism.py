"""``torch.use_deterministic_algorithms(True)``: who does not say gets the same bits each time."""

from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fake_torch  # noqa: E402

from flash_numba import (  # noqa: E402
    attention,
    explain,
    flash_attention,
    flash_attention_backward,
    flash_attention_varlen,
    flash_attention_varlen_backward,
    ladder,
)
from flash_numba.interop import torch_eager, torch_repeated  # noqa: E402
from flash_numba.ladder import Gpu, NoGpu  # noqa: E402

LISTS = {f"cu_seqlens_{x}": torch.tensor([0, 4, 9], dtype=torch.int32) for x in "qk"}


@contextmanager
def asked(by_torch: bool):
    torch.use_deterministic_algorithms(by_torch)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def tensors(*shape, **options):
    return [torch.randn(shape or (2, 9, 4, 8), **options) for _ in "qkv"]


@pytest.fixture
def wishes(monkeypatch):
    """What each plan of a pass was asked for."""
    fake_torch.install(monkeypatch)
    torch.manual_seed(3)
    whole, found = ladder.choose, []

    def choose(problem, gpu, kernel="auto", deterministic=None, needs=(), aligned=True):
        found.append(deterministic)
        return whole(problem, gpu, kernel, deterministic, needs, aligned)

    for module in (ladder, torch_eager):
        monkeypatch.setattr(module, "choose", choose)
    return found


@pytest.mark.parametrize("wish", [None, True, False])
def test_each_call_does_as_torch_asks_then(wish, wishes):
    """Also where its kind is known: one of each was left by the first two calls."""
    leaves, wanted = tensors(requires_grad=True), []
    for by_torch in (False, True, False, True, True, False):
        with asked(by_torch):
            o = flash_attention(*leaves, deterministic=wish)
            torch.autograd.grad(o, leaves, torch.ones_like(o))
        wanted.append(True if wish is None and by_torch else wish)
        assert torch_repeated._known[0][5] is wanted[-1]
    # Each kind was planned once, its backward pass with what the call was asked for.
    assert wishes == [x for kind in dict.fromkeys(wanted) for x in (kind, kind)]
    assert [call.wishes[1] for call in torch_eager._calls.values()] == [*dict.fromkeys(wanted)]


def test_what_the_call_was_asked_for_holds_backward(wishes):
    leaves = tensors(requires_grad=True)
    with asked(True):
        o = flash_attention(*leaves)
    torch.autograd.grad(o, leaves, torch.ones_like(o))
    assert wishes == [True, True]


def test_packed_batches(wishes):
    leaves = tensors(9, 4, 8, requires_grad=True)
    with asked(True):
        o = flash_attention_varlen(*leaves, **LISTS)
        torch.autograd.grad(o, leaves, torch.ones_like(o))
    assert wishes == [True, True]


@pytest.mark.parametrize(("wish", "comes_to"), [(None, True), (False, False)])
def test_functions_of_the_backward_pass(wish, comes_to, wishes):
    given: Any = tensors()
    given += flash_attention(*given, return_lse=True)
    packed: Any = tensors(9, 4, 8)
    packed += flash_attention_varlen(*packed, **LISTS, return_lse=True)
    wishes.clear()
    with asked(True):
        flash_attention_backward(given[3], *given, deterministic=wish)
        flash_attention_varlen_backward(packed[3], *packed, **LISTS, deterministic=wish)
    with asked(False):
        flash_attention_backward(given[3], *given)
    assert wishes == [comes_to, comes_to, None]


def test_arrays_of_other_libraries_have_no_such_wish(wishes):
    arrays: Any = [x.numpy() for x in tensors()]
    arrays += flash_attention(*arrays, return_lse=True)
    with asked(True):
        flash_attention_backward(arrays[3], *arrays)
    assert wishes == [None, None]


@pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
def test_a_compiled_call_is_traced_anew(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))
    whole, found = attention.forward, []

    def forward(posed, kernel, deterministic):
        found.append(deterministic)
        return whole(posed, kernel, deterministic)

    monkeypatch.setattr(attention, "forward", forward)
    given = tensors()
    compiled = torch.compile(flash_attention, fullgraph=True, backend="eager")
    for by_torch in (False, True, False):
        with asked(by_torch):
            compiled(*given)
    torch._dynamo.reset()
    assert found == [None, True, None]


@pytest.mark.parametrize("wish", [None, True, False])
def test_explain_says_who_asks(wish, monkeypatch):
    """Of heads of which the same bits cost much."""
    monkeypatch.setattr(attention, "gpu_of", lambda posed: Gpu("H200", (9, 0)))
    given: Any = torch.empty(1, 8192, 1, 192, dtype=torch.float16)
    hopper = next(rung for rung in ladder.RUNGS if rung.fast_backward)
    for by_torch in (False, True):
        with asked(by_torch):
            choice = explain(given, given, given, causal=True, deterministic=wish)
        same = wish or (wish is None and by_torch)
        assert choice.rung == (hopper if same else hopper.fast)
        says = ", which torch.use_deterministic_algorithms asks for;" in str(choice)
        assert says == (by_torch and wish is None)
