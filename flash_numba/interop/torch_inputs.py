"""What torch tensors bring along that other arrays do not: autocast, gradients, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..masks import Mask, ScoreMod


def autocast(*tensors: Tensor) -> Sequence[Tensor]:
    """q, k and v in the type that autocast asks for.

    `torch.library.register_autocast` would take one type for good; autocast has the caller's.
    """
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    # Like torch's own ops: float64 is left alone (and refused later), integers too.
    eligible = (torch.float32, torch.float16, torch.bfloat16)
    return [tensor.to(dtype) if tensor.dtype in eligible else tensor for tensor in tensors]


def seed_tensor(seed: int | None) -> Tensor:
    """The seed as a tensor, so that a compiled call draws a new one each time it runs."""
    if seed is None:
        return torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64)
    return torch.tensor(seed - (1 << 64) if seed >= 1 << 63 else seed, dtype=torch.int64)


def learned_tensor(score_mod) -> Tensor | None:
    """The tensor of a score_mod that gets a gradient."""
    if isinstance(score_mod, ScoreMod) and score_mod.aux_index is not None:
        tensor = score_mod.aux[score_mod.aux_index]
        return tensor if isinstance(tensor, Tensor) else None
    return None


def refuse_lost_gradients(options: dict) -> None:
    """Raise a ValueError if a tensor asks for a gradient that is not defined."""
    score_mod, mask_mod, blocks = (options[n] for n in ("score_mod", "mask_mod", "block_mask"))
    others: dict[str, Any] = {"alibi_slopes": options["alibi_slopes"]}
    if isinstance(score_mod, ScoreMod):
        rest = enumerate(score_mod.aux)
        others["score_mod.aux"] = tuple(x for n, x in rest if n != score_mod.aux_index)
    others["mask_mod.aux"] = mask_mod.aux if isinstance(mask_mod, Mask) else ()
    others["block_mask.mask.aux"] = () if blocks is None else blocks.mask.aux
    for name, part in others.items():
        if _needs_gradient(part):
            raise ValueError(
                f"{name} must not require a gradient, as none is defined; a ScoreMod can define "
                "that of the tensor aux[aux_index]"
            )


def _needs_gradient(part) -> bool:
    if isinstance(part, tuple):
        return any(_needs_gradient(inner) for inner in part)
    return isinstance(part, Tensor) and part.requires_grad


def refuse_transforms(*tensors: Tensor | None) -> None:
    """Raise a NotImplementedError where torch would look for derivatives that do not exist.

    It would take those of forward mode for zero, without a word.
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    layers = functorch.get_interpreter_stack() or ()
    refused = any(str(layer.key()).endswith(("Grad", "Jvp")) for layer in layers)
    if forward_ad._current_level >= 0:  # layers hide tangents
        refused |= bool(layers) or any(
            x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
        )
    if refused:
        raise NotImplementedError(
            "flash_attention is differentiable by torch.autograd, in reverse mode and once; "
            "forward_ad and torch.func.grad, vjp, jacrev and jvp have no rule for it"
        )
