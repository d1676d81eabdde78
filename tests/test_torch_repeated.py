"""Repeated eager calls on torch tensors: which are answered without a look at the arguments."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fake_torch  # noqa: E402
from test_interop_torch import MASK, SLOPES  # noqa: E402

import flash_numba  # noqa: E402
from flash_numba import flash_attention  # noqa: E402
from flash_numba.interop import torch_eager, torch_pass, torch_repeated  # noqa: E402


@pytest.fixture
def looked_up(monkeypatch):
    """Calls whose arguments were looked at."""
    fake_torch.install(monkeypatch)
    torch.manual_seed(3)
    whole, found = torch_eager._key, []
    monkeypatch.setattr(torch_eager, "_key", lambda *a: found.append(a) or whole(*a))
    return found


def tensors(**options):
    return [torch.randn(2, 9, 4, 8, **options) for _ in "qkv"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"scale": 0.5},
        {"softcap": 2.0, "return_lse": True},
        {"window": (3, None), "kernel": "fake", "deterministic": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_the_second_call_is_known(options, looked_up):
    given = tensors()
    expected = flash_attention(*given, **options)
    others = [x.clone() for x in given]
    # The same numbers in new objects.
    fresh = {n: x if isinstance(x, str | bool) else eval(repr(x)) for n, x in options.items()}
    found = flash_attention(*others, **fresh)
    assert len(looked_up) == 1
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert type(found) is type(expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_no_known_call(looked_up):
    q, k, v = tensors()
    flash_attention(q, k, v)
    with pytest.raises(TypeError, match="q must be a dense torch tensor, got one that is nested"):
        flash_attention(torch.nested.nested_tensor(list(q)), k, v)
    with pytest.raises(TypeError, match="q as a torch tensor and k as a NumPy array"):
        flash_attention(q, k.numpy(), v)


@pytest.mark.parametrize("return_lse", [False, True])
def test_gradients_of_a_known_call(return_lse, looked_up):
    results, given = [], tensors()
    leaves = [x.clone().requires_grad_() for x in given]
    for _ in range(2):
        o = flash_attention(*leaves, return_lse=return_lse)
        loss = o[0].sum() + o[1].sum() if return_lse else o.sum()
        results.append(torch.autograd.grad(loss, leaves))
    assert len(looked_up) == 1
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    with torch.no_grad():
        assert not flash_attention(*leaves).requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"dropout_p": 0.5},
        {"seed": 3},
        {"mask": MASK[:, :9]},
        {"alibi_slopes": SLOPES},
        {"key_lengths": [9, 4]},
        {"block_mask": None, "score_mod": lambda score, *rest: score},
    ],
    ids=["dropout", "seed", "mask", "slopes", "lengths", "score_mod"],
)
def test_what_is_not_plain_is_looked_at_each_time(options, looked_up):
    given = tensors()
    for _ in range(2):
        flash_attention(*given, **options)
    assert len(looked_up) == 2
    assert not torch_repeated._known


def unaligned(x):
    """The numbers of `x` 4 bytes past a 16-byte boundary."""
    room = torch.empty(x.numel() + 4)
    start = next(n for n in range(4) if room[n:].data_ptr() % 16 == 4)
    return room[start : start + x.numel()].view(x.shape).copy_(x)


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.clone().requires_grad_(),
        unaligned,
    ],
    ids=["strides", "leaf", "alignment"],
)
def test_another_tensor_is_looked_at(change, which, looked_up):
    given = tensors()
    expected = flash_attention(*given)
    given[which] = change(given[which])
    torch.testing.assert_close(flash_attention(*given), expected)
    assert len(looked_up) == 2


def test_an_argument_of_another_kind_is_refused_as_ever(looked_up):
    q, k, v = tensors()
    flash_attention(q, k, v)
    for bad in (None, k.numpy(), k.double(), k[:1]):
        with pytest.raises((TypeError, ValueError), match="k"):
            flash_attention(q, bad, v)
    with pytest.raises((TypeError, ValueError), match="window"):
        flash_attention(q, k, v, window=k)
    other: Any = 0
    with pytest.raises(TypeError, match="return_lse"):
        flash_attention(q, k, v, return_lse=other)


def test_a_thread_in_another_state_is_looked_at(looked_up):
    given = tensors()
    expected = flash_attention(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flash_attention(*given).dtype == torch.bfloat16
    before = len(looked_up)
    with torch.inference_mode():
        assert torch.equal(flash_attention(*given), expected)
    assert len(looked_up) == before + 1
    assert torch.equal(flash_attention(*given), expected)
    assert len(looked_up) == before + 1


def test_another_current_device_is_looked_at(looked_up, monkeypatch):
    given = tensors()
    flash_attention(*given)
    monkeypatch.setattr(torch_pass, "current_device", lambda: 1)
    assert torch_repeated._known[0][-1](*given) is None


def test_watched_calls_are_not_answered_here(looked_up):
    from torch.autograd import forward_ad

    given = tensors()
    flash_attention(*given)
    run = torch_repeated._known[0][-1]
    with forward_ad.dual_level():
        assert run(*given) is None
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert run(*given) is None
    assert run(*given) is not None


def test_a_torch_without_guards_answers_the_same(looked_up, monkeypatch):
    monkeypatch.setattr(torch_repeated, "_make_guard", None)
    given = tensors()
    first, second = (flash_attention(*given) for _ in range(2))
    assert torch.equal(first, second)
    assert len(looked_up) == 2


def test_the_latest_kinds_are_known(looked_up):
    given = tensors()
    scales = [0.5 + n for n in range(torch_repeated.LIMIT + 1)]
    for scale in scales:
        flash_attention(*given, scale=scale)
    assert [scale for scale, *_ in torch_repeated._known] == scales[:0:-1]


def test_the_kind_that_was_called_last_is_looked_at_first(looked_up):
    given = tensors()
    for scale in (1.0, 2.0, 3.0, 1.0):
        flash_attention(*given, scale=scale)
    assert len(looked_up) == 3
    assert [scale for scale, *_ in torch_repeated._known] == [1.0, 3.0, 2.0]


def test_one_tensor_three_times_is_no_kind(looked_up):
    (x, *_) = tensors()
    first, second = (flash_attention(x, x, x) for _ in range(2))
    assert len(looked_up) == 2
    assert torch.equal(first, second)


@pytest.mark.parametrize("learns", [False, True])
def test_a_known_call_enters_few_functions(learns, looked_up):
    """One more if torch was imported after this package, as in a process of other tests."""
    given = tensors(requires_grad=learns)
    flash_attention(*given)
    (call,) = torch_eager._calls.values()
    call.forward_pass.run = lambda addresses, stream: None
    entered, package = [], str(Path(flash_numba.__file__).parent)

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        flash_attention(*given)
    finally:
        sys.setprofile(None)
    autograd = ["forward"] if learns else []
    late = ["_load_torch_repeated"] if "_load_torch_repeated" in entered else []
    assert entered == ["flash_attention", *late, "repeated", "run", *autograd]
