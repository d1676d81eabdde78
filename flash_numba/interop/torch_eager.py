"""Attention on torch tensors in GPU memory, called eagerly: repeated calls cost the host little.

The first call of a kind is checked and planned like any other. Its plans are kept under everything
that they depend on, so that a later one makes its outputs, hands over addresses and launches. What
watches or transforms calls (torch.compile, other dispatch modes, functorch) gets the ops of
`interop.pytorch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import attention as api
from .. import checks, gpu_call, plan_store
from ..arguments import check_functions, host_lengths, pose
from ..ladder import check_wishes, choose
from ..problem import DTYPES
from ..scores import check_differentiable
from .torch_inputs import autocast, learned_tensor, refuse_lost_gradients, seed_tensor

LIMIT = 1024
"""Kinds of calls that are kept, the latest made."""

_TENSORS = (Tensor, torch.nn.Parameter)
_OPTIONAL = ("mask", "bias", "alibi_slopes")
_calls: dict[tuple | None, _Call] = {}
_captured: list[_Call] = []
"""Calls that CUDA graphs hold: a replay reads what was uploaded for them."""


def attention(q, k, v, kernel, deterministic, options: dict) -> tuple[Tensor, Tensor]:
    """O and lse of `flash_attention` on torch tensors, with their gradients.

    Parameters
    ----------
    q, k, v, kernel, deterministic
        As for `attention.flash_attention`.
    options : dict
        Its other arguments by name, but `return_lse`.
    """
    if torch.compiler.is_compiling() or not _are_plain(q, k, v, options):
        from . import pytorch

        return pytorch.attention(q, k, v, kernel, deterministic, options)
    q, k, v = autocast(q, k, v)
    if options["bias"] is not None and options["bias"].dtype is q.dtype:
        options["bias"] = options["bias"].float()  # as kernels read it
    seed = options["seed"]
    if seed is not None:
        seed = checks.seed("seed", seed)
    key = _key(q, k, v, kernel, deterministic, options)
    try:
        call = _calls.get(key)
    except TypeError:  # something that cannot be hashed, and that no check allows
        key = call = None
    if call is None:
        call = _Call(key, q, k, v, kernel, deterministic, options)
        if key is not None:
            while len(_calls) >= LIMIT:
                _calls.pop(next(iter(_calls)), None)
            _calls[key] = call
    if call.drops and seed is None:
        seed = int(seed_tensor(None)) % (1 << 64)
    bias = options["bias"]
    learned = None if options["score_mod"] is None else learned_tensor(options["score_mod"])
    tensors = q, k, v, options["mask"], bias, options["alibi_slopes"], learned
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (learned is not None and learned.requires_grad)
    ):
        return _Attention.apply(call, seed or 0, *tensors)
    return call.forward(seed or 0, tensors)


def _are_plain(q, k, v, options: dict) -> bool:
    """Whether tensors are memory on a GPU and nothing more, and only autograd watches the call."""
    given = (q, k, v, *(options[n] for n in _OPTIONAL if options[n] is not None))
    return (
        _on_gpu(q)
        and all(type(x) in _TENSORS and _is_memory(x) for x in given)
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and forward_ad._current_level < 0
    )


def _is_memory(x: Tensor) -> bool:
    """Whether a tensor's elements are what lies at its address."""
    return x.layout is torch.strided and not x.is_neg()


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _current_device() -> int:
    return torch._C._cuda_getDevice()


def _stream(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)


def _layout(x: Tensor) -> tuple:
    """All of a tensor that a plan depends on; an address counts by its alignment."""
    return x.shape, x.stride(), x.dtype, x.data_ptr() % 16, x.get_device()


def _key(q, k, v, kernel, deterministic, options: dict) -> tuple | None:
    """Everything that the plan of a call depends on; None if a key cannot hold it.

    Types are part of it, as True, 1 and 1.0 are equal but not all allowed.
    """
    scale, causal, window = options["scale"], options["causal"], options["window"]
    softcap, dropout_p = options["softcap"], options["dropout_p"]
    if type(window) is not tuple or options["block_mask"] is not None:
        return None
    numbers = scale, causal, softcap, dropout_p, kernel, deterministic, *window
    key = _layout(q), _layout(k), _layout(v), numbers, tuple(map(type, numbers))
    for name in _OPTIONAL:
        if (tensor := options[name]) is not None:
            key += (name, _layout(tensor), tensor.requires_grad)
    if options["key_lengths"] is not None:
        lengths = options["key_lengths"] = host_lengths(options["key_lengths"])
        key += ("key_lengths", lengths.dtype.str, lengths.shape, lengths.tobytes())
    for name in ("score_mod", "mask_mod"):
        if (function := options[name]) is not None:
            if not _is_constant(getattr(function, "aux", ())):
                return None
            key += (name, id(function))  # the call keeps it alive
    return key


def _is_constant(aux) -> bool:
    if type(aux) is tuple:
        return all(map(_is_constant, aux))
    return type(aux) in (int, float, bool)


class _Call:
    """All calls of one kind: the plan of the forward pass, and those of the backward pass.

    Parameters
    ----------
    key : tuple or None
        From `_key`.
    q, k, v, kernel, deterministic, options
        As for `attention`; of tensors, nothing is kept.
    """

    def __init__(self, key, q, k, v, kernel, deterministic, options: dict):
        self.wishes = kernel, deterministic
        self.drops = options["dropout_p"] != 0
        self.others = {n: x for n, x in options.items() if n not in (*_OPTIONAL, "seed")}
        functions = [options[name] for name in ("score_mod", "mask_mod", "block_mask")]
        self.uploads = any(x is not None for x in (*functions, options["key_lengths"]))
        self.stored = None if self.uploads else key
        self._backward: dict[tuple, _Pass] | None = None if key is None else {}
        tensors = {name: options[name] for name in _OPTIONAL}

        def plan() -> gpu_call.Pass:
            check_wishes(kernel, deterministic)
            check_functions(*functions)
            posed = pose(q, k, v, **self.others, **tensors)
            refuse_lost_gradients(options)
            rung = choose(posed.problem, api.gpu_of(posed), kernel, deterministic)
            with posed.place.kind.current(q):
                return gpu_call.plan_forward(rung, posed.problem, posed.arrays)

        self._forward = self._planned(plan, q, ("forward",))

    def _planned(self, plan, like: Tensor, more: tuple) -> _Pass:
        """A pass from disk or, if it is not there, from `plan`."""
        device = like.get_device()
        if self.stored is None:
            return _Pass(plan(), like)
        where = repr((*_model(device), self.stored, more))
        found = plan_store.load(where, device)
        if found is None:
            found = plan()
            plan_store.save(where, found)
        return _Pass(found, like)

    def forward(self, seed: int, tensors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """O and lse from q, k, v, mask, bias, alibi_slopes and the learned tensor, or None."""
        if self.uploads and torch.cuda.is_current_stream_capturing():
            _captured.append(self)
        o, lse = self._forward([x.data_ptr() for x in tensors[:6] if x is not None], seed)
        return o, lse

    def backward(
        self, needs: tuple[bool, ...], seed: int, do: Tensor, dlse: Tensor | None, *saved
    ) -> list[Tensor]:
        """Gradients of those of `attention.NEEDS` that `needs` has True for.

        Parameters
        ----------
        needs, seed, do, dlse
        *saved : Tensor or None
            The tensors of `forward`, o and lse.
        """
        q, k, v, mask, bias, slopes, learned, o, lse = saved
        if needs[3]:
            bias = bias.contiguous()  # each of its elements has a gradient of its own
        read = [x for x in (q, k, v, mask, bias, slopes) if x is not None]
        read += [o, lse, do] if dlse is None else [o, lse, do, dlse]
        key = needs, dlse is None, *map(_layout, read)
        found = None if self._backward is None else self._backward.get(key)
        if found is None:
            tensors = dict(zip(_OPTIONAL, (mask, bias, slopes), strict=True))
            arrays = {"do": do, "o": o, "lse": lse, "dlse": dlse}
            found = self._planned(
                lambda: self._plan_backward(needs, q, k, v, tensors, learned, arrays),
                q,
                ("backward", key),
            )
            if self._backward is not None:
                self._backward[key] = found
        return found([x.data_ptr() for x in read], seed)

    def _plan_backward(self, needs, q, k, v, tensors, learned, arrays) -> gpu_call.Pass:
        names = [name for name, needed in zip(api.NEEDS, needs, strict=True) if needed]
        others: dict[str, Any] = dict(self.others)
        if learned is not None:
            mod = others["score_mod"]
            aux = (*mod.aux[: mod.aux_index], learned, *mod.aux[mod.aux_index + 1 :])
            others["score_mod"] = replace(mod, aux=aux)
        posed = pose(q, k, v, **others, **tensors, needs=names)
        rung = choose(posed.problem, api.gpu_of(posed), *self.wishes, names)
        check_differentiable(posed.problem)
        given = posed.checked(**arrays)
        views = {**posed.arrays, **{n: x for n, x in given.items() if x is not None}}
        with posed.place.kind.current(q):
            shapes = {n: tuple(posed.tensors[n].shape) for n in posed.at if n in names}
            return gpu_call.plan_backward(rung, posed.problem, views, names, posed.at, shapes)


def _model(device: int) -> tuple:
    """What plans depend on of a GPU."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.name, gpu.major, gpu.minor, gpu.multi_processor_count


class _Pass:
    """A planned pass on tensors of one device."""

    def __init__(self, planned: gpu_call.Pass, like: Tensor):
        self.planned, self.run = planned, planned.run
        self.device, self.index = like.device, like.get_device()

        def made(output):
            element = getattr(torch, str(DTYPES[output.dtype]))
            return output.shape, element

        self.outputs = [made(output) for output in planned.outputs]
        self.memory = [made(output) for output in planned.memory]

    def __call__(self, addresses: list[int], seed: int) -> list[Tensor]:
        """Run on arrays at `addresses` (of the plan's inputs) and the current stream."""
        device = self.device
        results = [torch.empty(shape, dtype=kind, device=device) for shape, kind in self.outputs]
        addresses += [x.data_ptr() for x in results]
        memory = [torch.empty(shape, dtype=kind, device=device) for shape, kind in self.memory]
        addresses += [x.data_ptr() for x in memory]
        addresses += (seed & 0xFFFFFFFF, seed >> 32)
        if _current_device() == self.index:
            self.run(addresses, _stream(self.index))
        else:
            with torch.cuda.device(self.index):
                self.run(addresses, _stream(self.index))
        return results


class _Attention(torch.autograd.Function):
    """O and lse where a gradient may be asked for."""

    @staticmethod
    def forward(ctx, call: _Call, seed: int, *tensors):
        o, lse = call.forward(seed, tensors)
        ctx.save_for_backward(*tensors, o, lse)
        ctx.call, ctx.seed = call, seed
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        needed = ctx.needs_input_grad
        needs = needed[2], needed[3], needed[4], needed[6], needed[8]
        if do is None:
            do = torch.zeros_like(saved[7])
        do = do.resolve_neg()
        if torch.is_grad_enabled():
            found = _Gradients.apply(ctx.call, ctx.seed, needs, do, dlse, *saved)
        else:
            found = ctx.call.backward(needs, ctx.seed, do, dlse, *saved)
        given = iter(found)
        dq, dk, dv, dbias, dlearned = (next(given) if need else None for need in needs)
        return None, None, dq, dk, dv, None, dbias, None, dlearned


class _Gradients(torch.autograd.Function):
    """The gradients where those of gradients may be asked for, which are not defined."""

    @staticmethod
    def forward(ctx, call: _Call, seed: int, needs, do, dlse, *saved):
        return tuple(call.backward(needs, seed, do, dlse, *saved))

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(
            "flash_attention can be differentiated once: gradients of its gradients are not defined"
        )
