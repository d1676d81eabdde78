"""Gradients of eager calls on torch tensors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .torch_pass import TorchPass


class Planned(Protocol):
    """What `torch_eager` keeps of calls of one kind."""

    forward_pass: TorchPass
    """Makes o and lse."""

    def backward(self, needs, seed, do, dlse, *saved) -> list[Tensor]:
        """Gradients of those of the tensors that `needs` has True for."""
        ...


class Made(NamedTuple):
    """What a call has made, and how.

    Attributes
    ----------
    by : (Planned, (int, int))
        Who, and the words of dropout's seed, low and high.
    return_lse : bool
        Whether the caller is given lse.
    o, lse : Tensor
    """

    by: tuple[Planned, tuple[int, int]]
    return_lse: bool
    o: Tensor
    lse: Tensor


class _Attention(torch.autograd.Function):
    """O, and lse if that is asked for, with gradients."""

    @staticmethod
    def forward(ctx, made: Made, *tensors):
        ctx.by, return_lse, o, lse = made
        ctx.to_save = tensors + (o, lse)  # noqa: RUF005  # `save_for_backward` in half its time
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        call, seed = ctx.by
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
"""``differentiable(made, *tensors)``: `_Attention.apply` without its care for functorch, whose
calls do not come here: half of its time."""
