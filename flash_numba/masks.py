"""Masks and score changes: small functions of (batch, head, q_idx, k_idx, aux).

One mechanism serves the float64 reference, the tile simulator and the CUDA kernels: each runs the
very functions below, the first two on index arrays, the kernels on scalars compiled by Numba.
`aux` is the tuple of tensors and numbers that a function needs (a bias, slopes, lengths).

- A *mask* returns True where a query may attend to a key. Masks combine by AND.
- A *score change* maps the scaled score to a new score; the order is scale, softcap, ALiBi or
  bias, the user's own, and the mask last.

Tiles are skipped only through a mask's `key_range`, which gives the keys that a query row may
see, or through a block list (`tiling.BlockMask`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from . import fn
from .checks import axes, finite, shown, whole

UNLIMITED = 1 << 40
"""A window side this wide reaches every key (sequence lengths stay below it)."""

AUX_AXES = ("batch", "head", "query", "key", "term")
"""What an axis of a score change's tensor may run over, in the order in which kernels add up."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Where attention is allowed.

    Parameters
    ----------
    name : str
        Shown in views and errors.
    keep : callable
        ``keep(batch, head, q_idx, k_idx, aux) -> bool``; True = attend.
    aux : tuple
        Tensors and numbers handed to `keep` and `key_range`.
    key_range : callable, optional
        ``key_range(batch, head, q_idx, aux) -> (lo, hi)``: row `q_idx` sees keys inside
        ``lo <= k_idx < hi`` only. Both ends must never decrease as `q_idx` grows; they may lie
        outside the sequence. Without it no tile is skipped.
    exact : bool
        True if `keep` holds for *every* key inside `key_range`, so that a tile inside the range
        of all its rows needs no masking.
    """

    name: str
    keep: Callable
    aux: tuple = ()
    key_range: Callable | None = None
    exact: bool = False

    def __post_init__(self):
        if not callable(self.keep):
            raise TypeError(
                f"keep must be callable(batch, head, q_idx, k_idx, aux), got {shown(self.keep)}"
            )
        if self.key_range is not None and not callable(self.key_range):
            raise TypeError(
                f"key_range must be callable(batch, head, q_idx, aux) or None, "
                f"got {shown(self.key_range)}"
            )
        if not isinstance(self.exact, bool):
            raise TypeError(f"exact must be True or False, got {shown(self.exact)}")
        if self.exact and self.key_range is None:
            raise ValueError(f"mask {self.name!r}: exact=True needs a key_range, got None")

    def __and__(self, other: "Mask") -> "Mask":
        """Attend only where both masks allow it."""
        if not isinstance(other, Mask):
            raise TypeError(f"a Mask is combined with a Mask by &, got {shown(other)}")
        return Mask(
            f"{self.name} & {other.name}",
            both(self.keep, other.keep),
            (self.aux, other.aux),
            overlap(self.key_range, other.key_range),
            self.exact and other.exact,
        )


@cache
def both(first: Callable, second: Callable) -> Callable:
    """The AND of two mask functions; its aux is the pair of theirs.

    Kernels call it with compiled device functions, everything else with plain ones.
    """

    def keep(batch, head, q_idx, k_idx, aux):
        return first(batch, head, q_idx, k_idx, aux[0]) & second(batch, head, q_idx, k_idx, aux[1])

    keep.__dict__["parts"] = (both, first, second)
    return keep


@cache
def overlap(first: Callable | None, second: Callable | None) -> Callable | None:
    """The overlap of two key ranges (None = all keys); its aux is the pair of theirs."""
    if first is None and second is None:
        return None

    if first is None or second is None:
        key_range = _range_of_part(0 if second is None else 1, first or second)
    else:
        key_range = _overlap_of_ranges(first, second)
    key_range.__dict__["parts"] = (overlap, first, second)
    return key_range


def _range_of_part(part, key_range):
    def range_of_part(batch, head, q_idx, aux):
        return key_range(batch, head, q_idx, aux[part])

    return range_of_part


def _overlap_of_ranges(first, second):
    def overlap_of_ranges(batch, head, q_idx, aux):
        lo_1, hi_1 = first(batch, head, q_idx, aux[0])
        lo_2, hi_2 = second(batch, head, q_idx, aux[1])
        return fn.maximum(lo_1, lo_2), fn.minimum(hi_1, hi_2)

    return overlap_of_ranges


# Built-in masks. `shift` aligns the diagonal with the bottom-right corner: the last query sees
# the last key. It is seqlen_k - seqlen_q, or one number a batch when key lengths differ.


def _causal(batch, head, q_idx, k_idx, aux):
    return k_idx <= q_idx + aux[0]


def _causal_range(batch, head, q_idx, aux):
    return 0, q_idx + aux[0] + 1


def _causal_by_batch(batch, head, q_idx, k_idx, aux):
    return k_idx <= q_idx + aux[0][batch]


def _causal_range_by_batch(batch, head, q_idx, aux):
    return 0, q_idx + aux[0][batch] + 1


def _window(batch, head, q_idx, k_idx, aux):
    behind = q_idx + aux[0] - k_idx
    return (behind <= aux[1]) & (-behind <= aux[2])


def _window_range(batch, head, q_idx, aux):
    return q_idx + aux[0] - aux[1], q_idx + aux[0] + aux[2] + 1


def _window_by_batch(batch, head, q_idx, k_idx, aux):
    behind = q_idx + aux[0][batch] - k_idx
    return (behind <= aux[1]) & (-behind <= aux[2])


def _window_range_by_batch(batch, head, q_idx, aux):
    shift = aux[0][batch]
    return q_idx + shift - aux[1], q_idx + shift + aux[2] + 1


_OF_ONE_SEQUENCE = {
    _causal_by_batch: _causal,
    _causal_range_by_batch: _causal_range,
    _window_by_batch: _window,
    _window_range_by_batch: _window_range,
}


def reads_shifts(function: Callable | None) -> bool:
    """Whether a mask's function reads an array of shifts, ``aux[0]``."""
    return function in _OF_ONE_SEQUENCE


def of_one_sequence(function: Callable | None) -> Callable | None:
    """A mask's function for those who know their sequence: each `shift` is a number, its own."""
    maker, *pieces = getattr(function, "parts", (None,))
    if maker is not None:
        return maker(*map(of_one_sequence, pieces))
    return _OF_ONE_SEQUENCE.get(function, function)  # type: ignore[arg-type]


def causal(shift) -> Mask:
    """A query sees the keys at or before its own position.

    Parameters
    ----------
    shift : int or int64 array of shape (batch,)
        ``seqlen_k - seqlen_q``, with each batch's own number of keys when they differ.
    """
    if hasattr(shift, "__len__"):
        return Mask("causal", _causal_by_batch, (shift,), _causal_range_by_batch, exact=True)
    return Mask("causal", _causal, (shift,), _causal_range, exact=True)


def window(shift, left: int | None, right: int | None) -> Mask:
    """A query sees `left` keys before its own position, its own, and `right` after it.

    Parameters
    ----------
    shift : int or int64 array of shape (batch,)
        As for `causal`.
    left, right : int or None
        Keys on each side, own position not counted; None = unlimited.
    """
    left, right = (
        None if side is None else whole("window side", side, 0) for side in (left, right)
    )
    sides = tuple(UNLIMITED if side is None else min(side, UNLIMITED) for side in (left, right))
    name = f"window({left}, {right})"
    if hasattr(shift, "__len__"):
        return Mask(name, _window_by_batch, (shift, *sides), _window_range_by_batch, exact=True)
    return Mask(name, _window, (shift, *sides), _window_range, exact=True)


def _boolean(batch, head, q_idx, k_idx, aux):
    return aux[0][batch, head, q_idx, k_idx]


def boolean(mask) -> Mask:
    """Attend where the tensor is True.

    Parameters
    ----------
    mask : bool array of shape (batch, heads, seqlen_q, seqlen_k)
        Axes may have stride 0 (see `numpy.broadcast_to`).
    """
    axes("mask", mask, "batch", "num_heads", "seqlen_q", "seqlen_k")
    if "bool" not in str(mask.dtype):
        raise TypeError(f"mask must be a bool array (True = attend), got {mask.dtype}")
    return Mask("boolean mask", _boolean, (mask,))


@dataclass(frozen=True, eq=False)
class ScoreMod:
    """A change of the score before the softmax.

    Parameters
    ----------
    name : str
        Shown in views and errors.
    apply : callable
        ``apply(score, batch, head, q_idx, k_idx, aux) -> score``.
    aux : tuple
        Tensors and numbers handed to the functions.
    derivative : callable, optional
        ``derivative(score, batch, head, q_idx, k_idx, aux)``: d apply / d score at the incoming
        `score`. The backward pass needs it.
    aux_index : int, optional
        Which entry of `aux` gets a gradient.
    aux_axes : tuple of str
        What the axes of that tensor run over: each of "batch", "head", "query", "key" (positions;
        an axis of length 1 serves them all) and "term" (anything else, such as learned weights) at
        most once. A score depends on the elements at its own position, for all terms.
    aux_derivative : callable, optional
        ``aux_derivative(score, batch, head, q_idx, k_idx, term, aux)``: d apply / d element `term`
        of that tensor at the position, at the incoming `score`; `term` is 0 without such an axis.
    """

    name: str
    apply: Callable
    aux: tuple = ()
    derivative: Callable | None = None
    aux_index: int | None = None
    aux_axes: tuple[str, ...] = ()
    aux_derivative: Callable | None = None

    def __post_init__(self):
        if not callable(self.apply):
            raise TypeError(
                "apply must be callable(score, batch, head, q_idx, k_idx, aux), "
                f"got {shown(self.apply)}"
            )
        if not isinstance(self.aux, tuple):
            raise TypeError(
                f"score change {self.name!r}: aux must be a tuple, got {shown(self.aux)}"
            )
        if self.aux_index is not None or self.aux_derivative is not None or self.aux_axes:
            self._check_rule()

    def _check_rule(self):
        rule = f"score change {self.name!r}: "
        if self.aux_index is None or not callable(self.aux_derivative) or not self.aux_axes:
            raise ValueError(
                f"{rule}aux_index, aux_axes and aux_derivative come together, "
                f"got aux_index={shown(self.aux_index)}, aux_axes={shown(self.aux_axes)} and "
                f"aux_derivative={shown(self.aux_derivative)}"
            )
        if type(self.aux_index) is not int or not 0 <= self.aux_index < len(self.aux):
            raise ValueError(
                f"{rule}aux_index must lie in 0..{len(self.aux) - 1} "
                f"(entries of aux), got {shown(self.aux_index)}"
            )
        known = isinstance(self.aux_axes, tuple) and set(self.aux_axes) <= set(AUX_AXES)
        if not known or len(set(self.aux_axes)) < len(self.aux_axes):
            raise ValueError(
                f"{rule}aux_axes must be a tuple of {', '.join(AUX_AXES)}, each at most once, "
                f"got {shown(self.aux_axes)}"
            )
        axes("aux[aux_index]", self.aux[self.aux_index], *self.aux_axes)


def _one(score, batch, head, q_idx, k_idx, aux):
    return 1.0


def _softcap(score, batch, head, q_idx, k_idx, aux):
    return aux[0] * fn.tanh(score / aux[0])


def _softcap_derivative(score, batch, head, q_idx, k_idx, aux):
    capped = fn.tanh(score / aux[0])
    return 1.0 - capped * capped


def softcap(cap: float) -> ScoreMod:
    """Scores squashed into (-cap, cap): ``cap * tanh(score / cap)``; `cap` > 0."""
    if finite("softcap", cap) <= 0:
        raise ValueError(f"softcap must be a finite number > 0, got {cap!r}")
    return ScoreMod(f"softcap({cap:g})", _softcap, (cap,), _softcap_derivative)


def _alibi(score, batch, head, q_idx, k_idx, aux):
    return score - aux[0][batch, head] * fn.abs(q_idx + aux[1] - k_idx)


def _alibi_by_batch(score, batch, head, q_idx, k_idx, aux):
    return score - aux[0][batch, head] * fn.abs(q_idx + aux[1][batch] - k_idx)


def alibi(slopes, shift) -> ScoreMod:
    """Scores fall linearly with distance: ``score - slope * |q_idx + shift - k_idx|``.

    Parameters
    ----------
    slopes : float array of shape (batch, heads)
        The batch axis may have stride 0.
    shift : int or int64 array of shape (batch,)
        ``seqlen_k - seqlen_q`` as for `causal`.

    References
    ----------
    Press et al., "Train Short, Test Long", ICLR 2022.
    """
    axes("slopes", slopes, "batch", "num_heads")
    function = _alibi_by_batch if hasattr(shift, "__len__") else _alibi
    return ScoreMod("ALiBi", function, (slopes, shift), _one)


def _bias(score, batch, head, q_idx, k_idx, aux):
    return score + aux[0][batch, head, q_idx, k_idx]


def _bias_derivative(score, batch, head, q_idx, k_idx, term, aux):
    return 1.0


def bias(tensor) -> ScoreMod:
    """An additive bias with a gradient.

    Parameters
    ----------
    tensor : float array of shape (batch, heads, seqlen_q, seqlen_k)
        Axes may have stride 0; the gradient is then summed over them.
    """
    axes("bias", tensor, "batch", "num_heads", "seqlen_q", "seqlen_k")
    return ScoreMod("bias", _bias, (tensor,), _one, 0, AUX_AXES[:4], _bias_derivative)


def _relative(score, batch, head, q_idx, k_idx, aux):
    weights, theta = aux
    distance = fn.abs(q_idx - k_idx)
    for k in range(theta.shape[0]):
        score = score + weights[k] * fn.sin(distance * theta[k])
    return score


def _relative_derivative(score, batch, head, q_idx, k_idx, term, aux):
    return fn.sin(fn.abs(q_idx - k_idx) * aux[1][term])


def relative_positions(weights, theta) -> ScoreMod:
    """A learned function of distance: ``score + sum_k w_k sin(|q_idx - k_idx| theta_k)``.

    Parameters
    ----------
    weights, theta : float arrays of shape (terms,)
        `weights` gets a gradient, `theta` (radians a position) is fixed.
    """
    axes("weights", weights, "terms")
    axes("theta", theta, "terms")
    if tuple(theta.shape) != tuple(weights.shape):
        raise ValueError(
            f"theta must have the shape of weights, {tuple(weights.shape)}, "
            f"got {tuple(theta.shape)}"
        )
    rule = 0, ("term",), _relative_derivative
    return ScoreMod("relative positions", _relative, (weights, theta), _one, *rule)
