"""Eager calls on torch tensors of the latest and plainest kinds: nothing is checked twice.

Of a call without masks, biases, functions and dropout, `torch_eager` leaves here what it found out.
Another call of its kind is known by its numbers and by torch's own guard, which compares of three
tensors type, dtype, device, sizes, strides and whether they require gradients, and of the thread
all that dispatches calls: autocast, functorch, tracing, inference mode.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.autograd import forward_ad

from ..driver import NoContext, enter
from . import torch_pass
from .torch_autograd import Planned, differentiable
from .torch_pass import NO_SEED

LIMIT = 8
"""Kinds of calls that are known, the latest."""

_ALIGNMENT = 15
_NESTED = "is_nested"

_make_guard: Any = getattr(guards, "TensorGuards", None)
_is_compiling = torch.compiler.is_compiling
_count_modes = torch._C._len_torch_dispatch_stack
_asks_for_same_bits = torch._C._get_deterministic_algorithms
"""`torch.are_deterministic_algorithms_enabled`, less the call that leads there."""

_known: list[tuple] = []
"""Kinds of calls, the one that was called last first.

Of each its scale, causal, window, softcap, kernel, deterministic and return_lse, and
``run(q, k, v)``, which answers if they, and the thread's state, are like those of the call that
left this, and else is None. Plain tuples, as those with names are taken apart slowly.
"""
_lock = Lock()


def repeated(
    q, k, v, scale, causal, window, softcap, dropout_p, seed, kernel, deterministic, return_lse
) -> Any:
    """The result of `attention.flash_attention`, or None if the call's kind is not known.

    Parameters
    ----------
    q, k, v, scale, causal, window, softcap, dropout_p, seed, kernel, deterministic, return_lse
        As there, unchecked. Equal numbers need not be of allowed types: what is no such object
        itself counts only if it is a float, or a window's pair of whole numbers.
    """
    if _is_compiling() or type(dropout_p) is not float or dropout_p or seed is not None:
        return None
    if deterministic is None and _asks_for_same_bits():
        deterministic = True
    for n, known in enumerate(_known):
        its_scale, its_causal, its_window, its_softcap, name, same, lse, run = known
        if (
            causal is its_causal
            and return_lse is lse
            and deterministic is same
            and kernel is name
            and (scale is its_scale or (type(scale) is float and scale == its_scale))
            and (softcap is its_softcap or (type(softcap) is float and softcap == its_softcap))
            and (window is its_window or (is_window(window) and window == its_window))
            and (found := run(q, k, v)) is not None
        ):
            if n:
                _put_first(known)
            return found
    return None


def _put_first(known: tuple) -> None:
    """Let `known` be looked at before all others."""
    with _lock:
        _known[:] = [known, *(other for other in _known if other is not known)][:LIMIT]


def is_window(window) -> bool:
    """Whether it is a pair of whole numbers or None."""
    sides = [None if x is None else type(x) for x in window] if type(window) is tuple else ()
    return len(sides) == 2 and all(x in (None, int) for x in sides)


def remember(call: Planned, q: Tensor, k: Tensor, v: Tensor, options: dict, wishes: tuple) -> None:
    """Let `repeated` answer calls like this one, if they are plain.

    Parameters
    ----------
    call, q, k, v, options
        As `torch_eager` has them.
    wishes : tuple
        The caller's kernel and return_lse, and between them what `deterministic` came to.
    """
    plain = all(options[name] is None for name in _NEVER) and not options["dropout_p"]
    plain = plain and not call.forward_pass.planned.memory
    if not plain or _make_guard is None or torch.is_autocast_enabled(torch_pass.DEVICE):
        return
    if any(x.data_ptr() & _ALIGNMENT for x in (q, k, v)):
        return
    tensors = q, k, v
    sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    guard = _make_guard(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    if not guard.check(*tensors):  # one tensor twice
        return
    numbers = [options[name] for name in ("scale", "causal", "window", "softcap")]
    learns = any(x.requires_grad for x in tensors)
    run = _runner(call, guard.check, q, learns, wishes[-1])
    _put_first((*numbers, *wishes, run))


_NEVER = (
    "key_lengths",
    "mask",
    "bias",
    "alibi_slopes",
    "score_mod",
    "mask_mod",
    "block_mask",
    "seed",
)
"""Options that must be None."""


def _runner(call: Planned, check, like: Tensor, learns: bool, return_lse: bool) -> Callable:
    """``run(q, k, v)``: a whole call in one function, as each that is entered costs time."""
    forward, by, index = call.forward_pass, (call, NO_SEED), like.get_device()
    make_o, make_lse = forward.make
    unread = torch_pass.unread(forward.planned.outputs[1].shape, like.device)

    def run(q, k, v):
        # Asked for strides that there are none of, a guard would end the process.
        if q.is_nested or getattr(k, _NESTED, False) or getattr(v, _NESTED, False):
            return None
        if not check(q, k, v):
            return None
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (
            (at_q | at_k | at_v) & _ALIGNMENT
            or torch_pass.current_device() != index
            or _count_modes()
            or forward_ad._current_level >= 0
        ):
            return None
        learn = learns and torch.is_grad_enabled()
        o = make_o()
        lse = make_lse() if learn or return_lse or unread is None else unread
        addresses = at_q, at_k, at_v, o.data_ptr(), lse.data_ptr(), 0, 0  # no seed
        stream = torch_pass.current_stream(index)
        try:
            forward.run(addresses, stream)
        except NoContext:
            enter(index)
            forward.run(addresses, stream)
        if learn:
            return differentiable((by, return_lse, o, lse), q, k, v)
        return (o, lse) if return_lse else o

    return run
