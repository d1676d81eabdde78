"""Gradients of eager calls on torch tensors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Planned(Protocol):
    """What `torch_eager` keeps of calls of one kind."""

    def forward(self, seed, lse: bool, tensors) -> list[Tensor]:
        """O, and lse if that is asked for."""
        ...

    def run(self, lse: bool, at) -> list[Tensor]:
        """As `forward`, of q, k and v at these addresses of the current device, without dropout."""
        ...

    def backward(self, needs, seed, do, dlse, *saved) -> list[Tensor]:
        """Gradients of those of the tensors that `needs` has True for."""
        ...


class Asked(NamedTuple):
    """What an eager call asks for.

    Attributes
    ----------
    call : Planned
    seed : tuple of int
        The words of dropout's seed, low and high.
    return_lse : bool
    addresses : tuple of int, or None
        Of q, k and v where `Planned.run` may be asked.
    """

    call: Planned
    seed: tuple[int, int]
    return_lse: bool
    addresses: tuple[int, ...] | None = None


class _Attention(torch.autograd.Function):
    """O, and lse if that is asked for, where a gradient may be."""

    @staticmethod
    def forward(ctx, asked: Asked, *tensors):
        call, seed, return_lse, addresses = ctx.asked = asked
        if addresses is None:
            o, lse = call.forward(seed, True, tensors)
        else:
            o, lse = call.run(True, addresses)
        ctx.to_save = (*tensors, o, lse)  # `save_for_backward` in half its time
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        call, seed, *_ = ctx.asked
        do = torch.zeros_like(saved[-2]) if do is None else do.resolve_neg()
        if torch.is_grad_enabled():
            found = iter(_Gradients.apply(call, seed, needs, do, dlse, *saved))
        else:
            found = iter(call.backward(needs, seed, do, dlse, *saved))
        return None, *(next(found) if need else None for need in needs)


class _Gradients(torch.autograd.Function):
    """The gradients where those of gradients may be asked for, which are not defined."""

    @staticmethod
    def forward(ctx, call: Planned, seed, needs, do, dlse, *saved):
        return tuple(call.backward(needs, seed, do, dlse, *saved))

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(
            "flash_attention can be differentiated once: gradients of its gradients are not defined"
        )


differentiable: Any = getattr(super(torch.autograd.Function, _Attention), "apply")  # noqa: B009
"""``differentiable(asked, *tensors)``: `_Attention.apply` without its care for functorch, whose
calls do not come here: half of its time."""
