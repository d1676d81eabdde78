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

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import attention as api
from .. import checks, passes, plan_store
from ..arguments import check_functions, host_lengths, pose
from ..ladder import check_wishes, choose
from ..scores import check_differentiable
from ..sequences import Packed
from . import torch_pass
from .torch_autograd import Made, differentiable
from .torch_inputs import autocast, learned_tensor, refuse_lost_gradients, seed_tensor
from .torch_pass import NO_SEED, TorchPass
from .torch_repeated import is_window, remember

LIMIT = 1024
"""Kinds of calls that are kept, the latest made."""

_TENSORS = (Tensor, torch.nn.Parameter)
_NUMBERS = (int, np.float32, np.float64)
_OPTIONAL = ("mask", "bias", "alibi_slopes")
_UNLIMITED = (None, None)
_calls: dict[tuple, _Call] = {}
_captured: list[_Call] = []
"""Calls that CUDA graphs hold: a replay reads what was uploaded for them."""


def attention(
    q, k, v, kernel, deterministic, return_lse: bool, options: dict, packed: Packed | None = None
) -> Any:
    """O of `flash_attention` on torch tensors, or O and lse, with their gradients.

    Parameters
    ----------
    q, k, v, kernel, deterministic, return_lse
        As for `attention.flash_attention`.
    options : dict
        Its other arguments by name.
    packed : Packed, optional
        Of `varlen.flash_attention_varlen`.
    """
    if deterministic is None and torch.are_deterministic_algorithms_enabled():
        deterministic = True
    optional: Any = ()
    if not (options["mask"] is options["bias"] is options["alibi_slopes"] is None):
        optional = [(n, options[n]) for n in _OPTIONAL if options[n] is not None]
    if packed is not None:
        optional = [*optional, *_given(packed)]
    if torch.compiler.is_compiling() or _is_watched() or not _are_plain(q, k, v, optional):
        from . import pytorch

        o, lse = pytorch.attention(q, k, v, kernel, deterministic, options, packed)
        return (o, lse) if return_lse else o
    if torch.is_autocast_enabled(torch_pass.DEVICE):
        q, k, v = autocast(q, k, v)
    if optional and options["bias"] is not None and options["bias"].dtype is q.dtype:
        options["bias"] = options["bias"].float()  # as kernels read it
        optional = [(n, options[n] if n == "bias" else x) for n, x in optional]
    key = _key(q, k, v, kernel, deterministic, options, optional)
    call = None if key is None else _calls.get(key)
    if call is None:
        call = _Call(key, q, k, v, kernel, deterministic, options, packed)
        if key is not None:
            while len(_calls) >= LIMIT:
                _calls.pop(next(iter(_calls)), None)
            _calls[key] = call
    if key is not None and packed is None:
        remember(call, q, k, v, options, (kernel, deterministic, return_lse))
    seed = NO_SEED if options["seed"] is None and not call.drops else _words(options["seed"])
    tensors = (q, k, v, *(tensor for _, tensor in optional)) if optional else (q, k, v)
    if call.learns:
        tensors += (learned_tensor(options["score_mod"]),)
    if torch.is_grad_enabled():
        for x in tensors:
            if x.requires_grad:
                o, lse = call.forward(seed, True, tensors)
                return differentiable(Made((call, seed), return_lse, o, lse), *tensors)
    found = call.forward(seed, return_lse, tensors)
    return tuple(found) if return_lse else found[0]


def _given(packed: Packed) -> list[tuple[str, Any]]:
    """Names and arrays of a packed batch, those that there are; its other numbers are checked."""
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if (longest := getattr(packed, name)) is not None:
            checks.whole(name, longest, 0)
    return [(name, x) for name, x in packed.arrays.items() if x is not None]


def _words(seed: int | None) -> tuple[int, int]:
    """Both words of dropout's seed, low and high; of a new one where there is none."""
    if seed is None:
        seed = int(seed_tensor(None)) % (1 << 64)
    seed = checks.seed("seed", seed)
    return seed & 0xFFFFFFFF, seed >> 32


def _is_watched() -> bool:
    """Whether more than autograd watches calls: other modes, functorch, a trace, forward AD."""
    return (
        torch._C._len_torch_dispatch_stack() != 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
    )


def _are_plain(q, k, v, optional) -> bool:
    """Whether tensors are memory on a GPU and nothing more."""
    return (
        type(q) in _TENSORS
        and type(k) in _TENSORS
        and type(v) in _TENSORS
        and q.is_cuda
        and q.layout is k.layout is v.layout is torch.strided
        and not (q.is_nested or k.is_nested or v.is_nested)
        and not (q.is_neg() or k.is_neg() or v.is_neg())
        and (not optional or all(map(_is_memory, optional)))
    )


def _is_memory(named: tuple[str, Any]) -> bool:
    """Whether an optional tensor's elements are what lies at its address."""
    x = named[1]
    return type(x) in _TENSORS and x.layout is torch.strided and not x.is_neg()


def _layout(x: Tensor) -> tuple:
    """All of a tensor that a plan depends on; an address counts by its alignment."""
    return x.shape, x.stride(), x.dtype, x.data_ptr() & 15, x.get_device()


def _key(q, k, v, kernel, deterministic, options: dict, optional) -> tuple | None:
    """Everything that the plan of a call depends on; None if a key cannot hold it.

    True, 1 and 1.0 are equal, but not all allowed: other types than the usual ones have no key.
    """
    scale, causal, window = options["scale"], options["causal"], options["window"]
    softcap, dropout_p = options["softcap"], options["dropout_p"]
    scale = float(scale) if type(scale) in _NUMBERS else scale
    softcap = float(softcap) if type(softcap) in _NUMBERS else softcap
    if not (
        (scale is None or type(scale) is float)
        and type(causal) is bool
        and type(softcap) is type(dropout_p) is float
        and type(kernel) is str
        and (deterministic is None or type(deterministic) is bool)
        and (window == _UNLIMITED or is_window(window))
        and options["block_mask"] is None
    ):
        return None
    key = (
        (q.shape, q.stride(), q.dtype, q.data_ptr() & 15, q.get_device()),
        (k.shape, k.stride(), k.dtype, k.data_ptr() & 15, k.get_device()),
        (v.shape, v.stride(), v.dtype, v.data_ptr() & 15, v.get_device()),
        (scale, causal, window, softcap, dropout_p, kernel, deterministic),
    )
    for name, tensor in optional:
        key += (name, _layout(tensor), tensor.requires_grad)
    if options["key_lengths"] is not None:
        lengths = options["key_lengths"] = host_lengths(options["key_lengths"])
        key += ("key_lengths", lengths.dtype.str, lengths.shape, lengths.tobytes())
    if not (options["score_mod"] is options["mask_mod"] is None):
        functions = options["score_mod"], options["mask_mod"]
        if not all(_is_constant(getattr(function, "aux", ())) for function in functions):
            return None
        key += tuple(map(id, functions))  # the call keeps them alive
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
    q, k, v, kernel, deterministic, options, packed
        As for `attention`; of tensors, nothing is kept.

    Attributes
    ----------
    drops : bool
        Whether there is dropout.
    learns : bool
        Whether the score change has a tensor that may get a gradient.
    forward_pass : TorchPass
        From `read` to o and lse.
    """

    def __init__(self, key, q, k, v, kernel, deterministic, options: dict, packed=None):
        self.wishes = kernel, deterministic
        self.drops = options["dropout_p"] != 0
        self.learns = learned_tensor(options["score_mod"]) is not None
        tensors = {n: options[n] for n in _OPTIONAL}
        self.others = {n: x for n, x in options.items() if n not in (*tensors, "seed")}
        self.read = ("q", "k", "v", *(n for n, x in tensors.items() if x is not None))
        if packed is not None:
            self.read += tuple(name for name, _ in _given(packed))
        functions = [options[name] for name in ("score_mod", "mask_mod", "block_mask")]
        self.uploads = any(x is not None for x in (*functions, options["key_lengths"]))
        # Packed batches are of another size each time.
        self.stored = None if self.uploads or packed is not None else key
        self._backward: dict[tuple, TorchPass] | None = None if key is None else {}

        def plan() -> passes.Pass:
            check_wishes(kernel, deterministic)
            check_functions(*functions)
            posed = pose(q, k, v, **self.others, **tensors, packed=packed)
            refuse_lost_gradients(options)
            gpu, aligned = api.gpu_of(posed), posed.aligned
            rung = choose(posed.problem, gpu, kernel, deterministic, aligned=aligned)
            with posed.place.kind.current(q):
                return passes.plan_forward(rung, posed.problem, posed.arrays)

        self.forward_pass = self._planned(plan, q, ("forward",))
        self._forward_to_o = self.forward_pass.without("lse", q)

    def _planned(self, plan, like: Tensor, more: tuple) -> TorchPass:
        """A pass from disk or, if it is not there, from `plan`."""
        device = like.get_device()
        if self.stored is None:
            return TorchPass(plan(), like)
        where = repr((*_model(device), self.stored, more))
        with torch.cuda.device(device):
            found = plan_store.load(where, device)
        if found is None:
            found = plan()
            plan_store.save(where, found)
        return TorchPass(found, like)

    def forward(self, seed: tuple[int, int], lse: bool, tensors: Sequence[Tensor]) -> list[Tensor]:
        """O, and lse if that is asked for.

        Parameters
        ----------
        seed : (int, int)
            The words of dropout's seed, low and high.
        lse : bool
        tensors : sequence of Tensor
            Those in `read` and, if it `learns`, the one that is learned.
        """
        if self.uploads and torch.cuda.is_current_stream_capturing():
            _captured.append(self)
        if self.learns:
            tensors = tensors[:-1]
        return (self.forward_pass if lse else self._forward_to_o)(tensors, seed)

    def backward(
        self, needs: tuple[bool, ...], seed, do: Tensor, dlse: Tensor | None, *saved: Tensor
    ) -> list[Tensor]:
        """Gradients of those of the tensors of `forward` that `needs` has True for.

        Parameters
        ----------
        needs, seed, do, dlse
        *saved : Tensor
            The tensors of `forward`, o and lse.
        """
        tensors = dict(zip(self.read, saved, strict=False))
        if "bias" in tensors and needs[self.read.index("bias")]:
            # Each of its elements has a gradient of its own.
            tensors["bias"] = tensors["bias"].contiguous()
        read = (*tensors.values(), *saved[-2:], do)
        if dlse is not None:
            read += (dlse,)
        key = needs, len(read), *map(_layout, read)
        found = None if self._backward is None else self._backward.get(key)
        if found is None:
            learned = saved[-3] if self.learns else None
            arrays = {"do": do, "o": saved[-2], "lse": saved[-1], "dlse": dlse}
            found = self._planned(
                lambda: self._plan_backward(needs, tensors, learned, arrays),
                do,
                ("backward", key),
            )
            if self._backward is not None:
                if len(self._backward) >= LIMIT // 16:
                    self._backward.clear()
                self._backward[key] = found
        return found(read, seed)

    def _plan_backward(self, needs, tensors: dict, learned, arrays) -> passes.Pass:
        names = (*self.read, "score_mod") if self.learns else self.read
        names = [name for name, need in zip(names, needs, strict=True) if need]
        others: dict[str, Any] = dict(self.others)
        if learned is not None:
            mod = others["score_mod"]
            aux = (*mod.aux[: mod.aux_index], learned, *mod.aux[mod.aux_index + 1 :])
            others["score_mod"] = replace(mod, aux=aux)
        lists = {name: tensors.pop(name) for name in Packed._fields if name in tensors}
        packed = Packed(**lists) if lists else None
        posed = pose(**tensors, **others, packed=packed, needs=names)
        rung = choose(posed.problem, api.gpu_of(posed), *self.wishes, names, posed.aligned)
        check_differentiable(posed.problem)
        given = posed.checked(**arrays)
        views = {**posed.arrays, **{n: x for n, x in given.items() if x is not None}}
        with posed.place.kind.current(posed.like):
            shapes = {n: tuple(posed.tensors[n].shape) for n in posed.at if n in names}
            return passes.plan_backward(rung, posed.problem, views, names, posed.at, shapes)


def _model(device: int) -> tuple:
    """What plans depend on of a GPU."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.name, gpu.major, gpu.minor, gpu.multi_processor_count
