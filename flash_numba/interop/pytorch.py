"""Attention on torch tensors: ops: autograd has their gradients, torch.compile their shapes.

Tensors and numbers are arguments of the ops. Functions and block masks cannot be: an op is handed
their numbers in a table of this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from .. import attention as api
from ..arguments import Numbers, Posed, check_functions, host_lengths, pose
from ..arrays import one_place
from ..ladder import check_wishes
from ..packed_arguments import packed_like
from ..sequences import Packed
from .torch_inputs import (
    autocast,
    learned_tensor,
    refuse_lost_gradients,
    refuse_transforms,
    seed_tensor,
)

_objects: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_count = itertools.count(1)
_traced: set[Any] = set()
"""What a compiled call has by its number only, such as a function that is made inside of it."""


@torch.compiler.assume_constant_result
def _number_of(thing, traced: bool) -> int:
    """The number under which `_objects` has a function or block mask; 0 for None."""
    if thing is None:
        return 0
    if thing not in _numbers:
        number = _numbers[thing] = next(_count)
        _objects[number] = thing
    if traced:
        _traced.add(thing)
    return _numbers[thing]


class _Arguments(NamedTuple):
    """Arguments of both ops behind q, k and v, in order."""

    mask: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    key_lengths: Tensor | None
    seed: Tensor | None
    score_tensor: Tensor | None
    scale: float | None
    causal: bool
    left: int | None
    right: int | None
    softcap: float
    dropout_p: float
    score_mod: int
    mask_mod: int
    block_mask: int
    kernel: str
    deterministic: bool | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None

    @property
    def packed(self) -> Packed | None:
        """What says where sequences of a packed batch lie; None if it is not packed."""
        if self.cu_seqlens_q is None:
            return None
        return Packed(*(getattr(self, name) for name in Packed._fields))

    def pose(self, q: Tensor, k: Tensor, v: Tensor, needs: Sequence[str] = ()) -> Posed:
        """The problem, with the objects in place of their numbers."""
        score_mod: Any = _objects[self.score_mod] if self.score_mod else None
        if self.score_tensor is not None:
            aux = list(score_mod.aux)
            aux[score_mod.aux_index] = self.score_tensor
            score_mod = replace(score_mod, aux=tuple(aux))
        return pose(
            q,
            k,
            v,
            scale=self.scale,
            causal=self.causal,
            window=(self.left, self.right),
            key_lengths=self.key_lengths,
            mask=self.mask,
            bias=self.bias,
            alibi_slopes=self.alibi_slopes,
            softcap=self.softcap,
            score_mod=score_mod,
            mask_mod=_objects[self.mask_mod] if self.mask_mod else None,
            block_mask=_objects[self.block_mask] if self.block_mask else None,
            dropout_p=self.dropout_p,
            seed=None if self.seed is None else int(self.seed) % (1 << 64),
            packed=self.packed,
            needs=needs,
        )


def attention(
    q, k, v, kernel, deterministic, options: dict, packed: Packed | None = None
) -> tuple[Tensor, Tensor]:
    """O and lse of `flash_attention` on torch tensors, with their gradients.

    Parameters
    ----------
    q, k, v, kernel, deterministic
        As for `attention.flash_attention`.
    options : dict
        Its other arguments by name, but `return_lse`.
    packed : Packed, optional
        Of `varlen.flash_attention_varlen`.
    """
    tensors = {name: options[name] for name in ("mask", "bias", "alibi_slopes")}
    if packed is None:
        one_place(tuple(tensors), q=q, k=k, v=v, **tensors)
        packed = Packed(None, None)
    else:
        packed = packed_like(q, packed)
        one_place((*tensors, *packed.arrays), q=q, k=k, v=v, **tensors, **packed.arrays)
    check_wishes(kernel, deterministic)
    check_functions(*(options[name] for name in ("score_mod", "mask_mod", "block_mask")))
    names = "scale", "causal", "window", "softcap", "dropout_p", "seed"
    numbers = tuple(options[name] for name in names)
    traced = torch.compiler.is_compiling()
    if not traced:  # numbers may be symbols there; the op checks them
        numbers = Numbers.of(*numbers)
        refuse_transforms(q, k, v, *tensors.values())
    scale, causal, (left, right), softcap, dropout_p, _ = numbers
    score_mod, lengths = options["score_mod"], options["key_lengths"]
    if lengths is not None and not isinstance(lengths, Tensor):
        known = traced and isinstance(lengths, np.ndarray)  # to a trace, NumPy arrays are tensors
        lengths = torch.as_tensor(lengths if known else host_lengths(lengths))
    refuse_lost_gradients(options)
    arguments = _Arguments(
        **tensors,
        key_lengths=lengths,
        seed=seed_tensor(options["seed"]) if dropout_p else None,
        score_tensor=learned_tensor(score_mod),
        scale=scale,
        causal=causal,
        left=left,
        right=right,
        softcap=softcap,
        dropout_p=dropout_p,
        score_mod=_number_of(score_mod, traced),
        mask_mod=_number_of(options["mask_mod"], traced),
        block_mask=_number_of(options["block_mask"], traced),
        kernel=kernel,
        deterministic=deterministic,
        **packed._asdict(),
    )
    return forward(*autocast(q, k, v), *arguments)


_SCHEMA = """Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? alibi_slopes,
Tensor? key_lengths, Tensor? seed, Tensor? score_tensor, float? scale, bool causal, int? left,
int? right, float softcap, float dropout_p, int score_mod, int mask_mod, int block_mask, str kernel,
bool? deterministic, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q,
Tensor? seqused_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k"""
_FORWARD_SCHEMA = f"({_SCHEMA}) -> (Tensor, Tensor)"
_BACKWARD_SCHEMA = (
    f"(bool[] needs, Tensor do, Tensor? dlse, Tensor o, Tensor lse, {_SCHEMA}) -> Tensor[]"
)


def _custom_op(name: str, schema: str) -> Callable[[Callable], Any]:
    """`torch.library.custom_op`, whose ops a type checker without torch takes for functions."""
    return torch.library.custom_op(name, mutates_args=(), schema=schema)


@_custom_op("flash_numba::attention", _FORWARD_SCHEMA)
def forward(q, k, v, *arguments):
    """O and lse; behind v as in `_Arguments`."""
    call = _Arguments(*arguments)
    return api.forward(call.pose(q, k, v), call.kernel, call.deterministic)


@forward.register_fake
def _(q, k, v, *arguments):
    *batch, seqlen_q, num_heads, _ = q.shape
    o = q.new_empty((*batch, seqlen_q, num_heads, v.shape[-1]))
    return o, q.new_empty((*batch, num_heads, seqlen_q), dtype=torch.float32)


@_custom_op("flash_numba::attention_backward", _BACKWARD_SCHEMA)
def backward(needs, do, dlse, o, lse, q, k, v, *arguments):
    """Gradients of those of `attention.NEEDS` that `needs` has True for."""
    call = _Arguments(*arguments)
    names = [name for name, needed in zip(api.NEEDS, needs, strict=True) if needed]
    posed = call.pose(q, k, v, names)
    found = api.backward(posed, names, do, o, lse, dlse, call.kernel, call.deterministic)
    return [gradient for gradient in found if gradient is not None]


@backward.register_fake
def _(needs, do, dlse, o, lse, q, k, v, *arguments):
    tensors = _Arguments(*arguments)
    sources = q, k, v, tensors.bias, tensors.score_tensor
    wanted = (x for x, needed in zip(sources, needs, strict=True) if needed and x is not None)
    return [x.new_empty(x.shape) for x in wanted]


def _keep_for_backward(ctx, inputs, output):
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*output, *tensors)
    ctx.places = [n for n, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
    numbers = _Arguments(*inputs[3:])
    # What the table holds weakly lives as long as the graph.
    ctx.objects = [
        _objects.get(number) for number in (numbers.score_mod, numbers.mask_mod, numbers.block_mask)
    ]
    ctx.set_materialize_grads(False)


def _gradients(ctx, do, dlse):
    o, lse, *tensors = ctx.saved_tensors
    inputs = list(ctx.others)
    for place, tensor in zip(ctx.places, tensors, strict=True):
        inputs[place] = tensor
    sources = [
        0,
        1,
        2,
        3 + _Arguments._fields.index("bias"),
        3 + _Arguments._fields.index("score_tensor"),
    ]
    needs = [ctx.needs_input_grad[place] for place in sources]
    if do is None:
        do = torch.zeros_like(o)
    found = iter(backward(needs, do, dlse, o, lse, *inputs))
    gradients: list[Tensor | None] = [None] * len(inputs)
    for place, needed in zip(sources, needs, strict=True):
        if needed:
            gradients[place] = next(found)
    return tuple(gradients)


def _twice(ctx, *gradients):
    raise NotImplementedError(
        "flash_attention can be differentiated once: gradients of its gradients are not defined"
    )


forward.register_autograd(_gradients, setup_context=_keep_for_backward)
backward.register_autograd(_twice)
