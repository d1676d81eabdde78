"""From the arguments of an attention call to a `Problem`: every check of the front door is here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import checks, masks
from .addresses import known_as
from .arrays import DeviceArray, Place, broadcast, dtype_of, is_copyable, kind_of, one_place
from .checks import shown
from .masks import Mask, ScoreMod
from .packed_arguments import packed_like, packed_problem
from .problem import Problem, window_sides
from .sequences import Packed
from .tiling import BlockMask

ELEMENTS = ("fp32", "fp16", "bf16")
"""Element types of q, k and v, by their names in `problem.DTYPES`."""

LIKELY_HEADS = 256
"""No model has more heads: an array with more heads than this, and with four times as many heads as
positions, is taken for one in the layout (batch, heads, seqlen, head_dim)."""


class Numbers(NamedTuple):
    """The options that are numbers, checked.

    Attributes
    ----------
    softmax_scale, causal, window, dropout_p, seed
        As in `Problem`.
    softcap : float
        0 = none.
    """

    softmax_scale: float | None
    causal: bool
    window: tuple[int | None, int | None]
    softcap: float
    dropout_p: float
    seed: int

    @classmethod
    def of(cls, scale, causal, window, softcap, dropout_p, seed) -> Numbers:
        """Check what `attention.flash_attention` was given under these names.

        Raises
        ------
        ValueError, TypeError
        """
        if scale is not None:
            scale = checks.single("scale", scale)
        causal = checks.flag("causal", causal)
        softcap = checks.single("softcap", softcap)
        if softcap != 0 and softcap < checks.LEAST_FLOAT32:
            raise ValueError(f"softcap must be >= 0 (0 = none; else >= 1.2e-38), got {softcap}")
        dropout_p = checks.dropout_probability("dropout_p", dropout_p)
        seed = 0 if seed is None else checks.seed("seed", seed)
        return cls(scale, causal, window_sides(window), softcap, dropout_p, seed)

    def of_problem(self) -> dict[str, Any]:
        """Those that are fields of `Problem`."""
        return {name: x for name, x in self._asdict().items() if name != "softcap"}


@dataclass(frozen=True, eq=False)
class Posed:
    """A call's problem and arrays.

    Attributes
    ----------
    problem : Problem
    place : Place
        The arrays' kind and device.
    arrays : dict of str to array
        "q", "k", "v" and those of "mask", "bias" and "alibi_slopes" that are on a GPU, as NumPy
        arrays or as `DeviceArray` views. The problem's functions see the views at unknown addresses
        (`addresses`), so that the problem, and what is planned for it, serves other arrays too.
    like : array
        q as it came, for what is made to be of its kind.
    repeated : bool
        Whether a later call of the same sizes and numbers finds this very problem.
    tensors : dict of str to array
        "bias" and "score_mod": the tensors with a gradient that score changes have, as they came.
    at : dict of str to int
        Where those changes are in ``problem.score_mods``.
    owners : tuple
        Arrays that were made for `problem`, which sees only their memory.
    """

    problem: Problem
    place: Place
    arrays: dict[str, Any]
    like: Any
    repeated: bool
    tensors: dict[str, Any]
    at: dict[str, int]
    owners: tuple = ()

    @property
    def aligned(self) -> bool:
        """Whether q, k and v lie as `ladder.Rung.copies_boxes` says; copies from the host do."""
        views = (self.arrays[name] for name in ("q", "k", "v"))
        return all(is_copyable(x) for x in views if isinstance(x, DeviceArray))

    def checked(self, **arrays) -> dict[str, Any]:
        """Views of further arrays under the problem's names for them; `dlse` may be None.

        Raises
        ------
        ValueError, TypeError
            If one differs from q in kind or device, or has not the problem's shape or type.
        """
        one_place(("dlse",), q=self.like, **arrays)
        given = {name: array for name, array in arrays.items() if array is not None}
        self.problem.check_shapes(**given)
        for name, array in given.items():
            allowed = "fp32" if name in ("lse", "dlse") else self.problem.dtype
            if dtype_of(array) != allowed:
                raise TypeError(f"{name} must have dtype {allowed}, got {dtype_of(array)}")
        return {name: self.place.view(array) for name, array in arrays.items()}


def pose(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window=(None, None),
    key_lengths=None,
    mask=None,
    bias=None,
    alibi_slopes=None,
    softcap=0.0,
    score_mod=None,
    mask_mod=None,
    block_mask=None,
    dropout_p=0.0,
    seed=None,
    packed: Packed | None = None,
    needs=(),
) -> Posed:
    """Check the arguments of `attention.flash_attention` and make one problem of them.

    Parameters
    ----------
    packed : Packed, optional
        Of `varlen.flash_attention_varlen`: q, k and v are a packed batch.
    needs : sequence of str
        Gradients wanted. The tensor of one of "bias" and "score_mod" is copied if it has an axis of
        stride 0 itself, so that each of its elements has a gradient of its own.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what is allowed and what was received.
    """
    if isinstance(mask, Mask):
        raise TypeError(f"mask must be a bool array, got {shown(mask)}; mask_mod takes a Mask")
    optional = {"mask": mask, "bias": bias, "alibi_slopes": alibi_slopes}
    if packed is not None:
        packed = packed_like(q, packed)
        optional |= packed.arrays
    place = one_place(tuple(optional), q=q, k=k, v=v, **optional)
    numbers = Numbers.of(scale, causal, window, softcap, dropout_p, seed)
    dtype = _common_dtype(q, k, v)
    shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    if packed is None:
        base = _problem(*shapes, dtype, numbers)
    else:
        base = packed_problem(*shapes, dtype, numbers, packed, place)
    if key_lengths is not None:
        base = replace(base, key_lengths=host_lengths(key_lengths))
    check_functions(score_mod, mask_mod, block_mask)
    score_mod = _as(ScoreMod, "score_mod", score_mod, "score, batch, head, q_idx, k_idx, aux")
    mask_mod = _as(Mask, "mask_mod", mask_mod, "batch, head, q_idx, k_idx, aux")
    if "bias" in needs:
        bias = _with_gradient("bias", bias, place)
    if "score_mod" in needs:
        score_mod = _tensor_with_gradient(score_mod, place)
    views = {name: place.view(array) for name, array in (("q", q), ("k", k), ("v", v))}

    def seen(name, array) -> Any:
        """What the problem's functions see of an array."""
        view = place.view(array)
        if not isinstance(view, DeviceArray):
            return view
        views[name] = view
        return known_as(view, name)

    read_bias = _readable_bias(base, bias, place)
    mods = {
        "softcap": masks.softcap(numbers.softcap) if numbers.softcap else None,
        "alibi_slopes": _alibi(base, seen("alibi_slopes", alibi_slopes)),
        "bias": _bias(base, seen("bias", read_bias)),
        "score_mod": _seen_from(place, score_mod),
    }
    mods = {name: mod for name, mod in mods.items() if mod is not None}
    mask = _both(_boolean(base, seen("mask", mask)), _seen_from(place, mask_mod))
    if block_mask is not None:
        block_mask = replace(block_mask, mask=_seen_from(place, block_mask.mask))
    if packed is not None:
        views |= {n: place.view(x) for n, x in packed.arrays.items() if x is not None}
    repeated = not (mods or mask is not None or block_mask is not None or key_lengths is not None)
    repeated = repeated and (packed is None or not place.on_host)
    if mods or mask is not None or block_mask is not None:
        base = replace(base, mask=mask, score_mods=tuple(mods.values()), block_mask=block_mask)
    at = {name: number for number, name in enumerate(mods)}
    tensors = {"bias": bias}
    if score_mod is not None and score_mod.aux_index is not None:
        tensors["score_mod"] = score_mod.aux[score_mod.aux_index]
    return Posed(base, place, views, q, repeated, tensors, at, (read_bias,))


def _common_dtype(q, k, v) -> str:
    found = {"q": dtype_of(q), "k": dtype_of(k), "v": dtype_of(v)}
    for name, dtype in found.items():
        if dtype not in ELEMENTS:
            raise TypeError(
                f"{name} must have dtype float32, float16 or bfloat16, got {dtype}; convert q, k "
                "and v first (astype or to)"
            )
    if len(set(found.values())) > 1:
        got = ", ".join(f"{name} has {dtype}" for name, dtype in found.items())
        raise TypeError(f"q, k and v must have one dtype; {got}")
    return found["q"]


@lru_cache(maxsize=256)
def _problem(q_shape, k_shape, v_shape, dtype: str, numbers: Numbers) -> Problem:
    """The problem that three shapes and the numbers pose; a repeated call finds it made."""
    q, k, v = (DeviceArray(0, shape, (), dtype) for shape in (q_shape, k_shape, v_shape))
    options = numbers.of_problem()
    problem = Problem.of(q, k, v, dtype=dtype, **options)
    positions = max(problem.seqlen_q, problem.seqlen_k)
    if problem.num_heads > max(LIKELY_HEADS, 4 * positions):
        raise ValueError(
            "q, k and v must have the layout (batch, seqlen, heads, head_dim), got q of shape "
            f"{q_shape}, which would be {problem.num_heads} heads of {problem.seqlen_q} positions: "
            "it looks like (batch, heads, seqlen, head_dim), swap axes 1 and 2. Many heads of "
            "short sequences are best laid out as a batch"
        )
    return problem


def host_lengths(key_lengths) -> np.ndarray:
    """`key_lengths`, an array of any kind or a list, as a NumPy array."""
    if isinstance(key_lengths, list | tuple):
        try:
            return np.asarray(key_lengths, np.int64 if not key_lengths else None)
        except ValueError:
            got = shown(key_lengths)
            raise ValueError(f"key_lengths must be whole numbers, one a batch, got {got}") from None
    return kind_of("key_lengths", key_lengths).host(key_lengths)


def check_functions(score_mod, mask_mod, block_mask) -> None:
    """Raise a TypeError unless `pose` can take them."""
    for name, given, wanted in (("score_mod", score_mod, ScoreMod), ("mask_mod", mask_mod, Mask)):
        if not (given is None or isinstance(given, wanted) or callable(given)):
            raise TypeError(f"{name} must be a {wanted.__name__} or a function, got {shown(given)}")
    if not (block_mask is None or isinstance(block_mask, BlockMask)):
        raise TypeError(f"block_mask must be a BlockMask or None, got {shown(block_mask)}")


def _as(wanted: type, name: str, given, parameters: str):
    """A user's Mask or ScoreMod; a plain function becomes one without `aux`."""
    if given is None or isinstance(given, wanted):
        return given
    checks.takes(name, given, parameters)
    return wanted(getattr(given, "__name__", name), given)


def _with_gradient(name: str, tensor, place: Place):
    if tensor is None:
        raise ValueError(f"needs has {name!r}, but no {name} is given")
    return place.kind.contiguous(tensor)


def _tensor_with_gradient(mod: ScoreMod | None, place: Place) -> ScoreMod:
    if mod is None or mod.aux_index is None:
        raise ValueError(
            "needs has 'score_mod', which must be a ScoreMod with aux_index and aux_derivative, "
            f"got {shown(mod)}"
        )
    aux = list(mod.aux)
    aux[mod.aux_index] = place.kind.contiguous(aux[mod.aux_index])
    return replace(mod, aux=tuple(aux))


def _seen_from(place: Place, function):
    """A Mask or ScoreMod whose tensors are what `place` computes on: NumPy arrays on the host."""
    if function is None or not place.on_host or not function.aux:
        return function
    return replace(function, aux=_on_host(function.aux))


def _on_host(aux):
    if isinstance(aux, tuple):
        return tuple(_on_host(part) for part in aux)
    if isinstance(aux, int | float | np.generic) or not hasattr(aux, "shape"):
        return aux
    return kind_of("aux", aux).host(aux)


def _alibi(problem: Problem, slopes) -> ScoreMod | None:
    if slopes is None:
        return None
    heads = problem.batch, problem.num_heads
    if tuple(slopes.shape) not in (heads, heads[1:]):
        raise ValueError(
            f"alibi_slopes must have shape {heads[1:]} (num_heads) or {heads} (batch, num_heads), "
            f"got {tuple(slopes.shape)}"
        )
    if dtype_of(slopes) != "fp32":
        raise TypeError(f"alibi_slopes must have dtype float32, got {dtype_of(slopes)}")
    return masks.alibi(broadcast(slopes, heads), problem.shift)


def _readable_bias(problem: Problem, bias, place: Place):
    """The bias as kernels can read it: on a GPU a float32 copy of 16-bit numbers."""
    if bias is None:
        return None
    if dtype_of(bias) not in ("fp32", problem.dtype):
        allowed = " or ".join(sorted({"fp32", problem.dtype}))
        raise TypeError(f"bias must have dtype {allowed} here, got {dtype_of(bias)}")
    return bias if place.on_host or dtype_of(bias) == "fp32" else place.kind.cast(bias, "fp32")


def _bias(problem: Problem, bias) -> ScoreMod | None:
    return None if bias is None else masks.bias(_whole_scores("bias", bias, problem))


def _boolean(problem: Problem, mask) -> Mask | None:
    return None if mask is None else masks.boolean(_whole_scores("mask", mask, problem))


def _whole_scores(name: str, array, problem: Problem):
    shape = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
    received = tuple(array.shape)
    lead = len(shape) - len(received)
    if lead < 0 or any(
        size not in (1, wanted) for size, wanted in zip(received, shape[lead:], strict=True)
    ):
        raise ValueError(
            f"{name} must broadcast to {shape} (batch, num_heads, seqlen_q, seqlen_k), "
            f"got shape {received}"
        )
    return broadcast(array, shape)


def _both(first: Mask | None, second: Mask | None) -> Mask | None:
    return first & second if first is not None and second is not None else first or second
