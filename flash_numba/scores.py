"""Score changes and masks on a tile of S, and the way back through them.

The reference calls these functions on the whole S of a head, the simulator on one tile: `q_idx` and
`k_idx` are index arrays of shapes (rows, 1) and (1, cols), so the very functions of `masks` run on
both. A user's function that works only on scalars is run element by element.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike

from .arrays import DeviceArray
from .checks import shown
from .masks import ScoreMod
from .problem import Problem

_warned: WeakSet[Callable] = WeakSet()


def apply_scores(
    problem: Problem,
    batch: int,
    head: int,
    q_idx: np.ndarray,
    k_idx: np.ndarray,
    scores: np.ndarray,
    *,
    masked: bool = True,
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Change the scaled scores, then mask them.

    Parameters
    ----------
    problem : Problem
    batch, head : int
        Sequence and query head.
    q_idx, k_idx : int arrays of shapes (rows, 1) and (1, cols)
        Positions within the sequence; no key at or beyond its own length.
    scores : float array of shape (rows, cols)
        ``softmax_scale * Q @ K.T``. It is left as it is.
    masked : bool
        False where no position is masked (a full tile): the masks are not evaluated.

    Returns
    -------
    scores : array of shape (rows, cols), the dtype of `scores`
        Changed, and -inf where attention is not allowed; `scores` itself if nothing applies.
    chain : tuple of arrays of shape (rows, cols)
        The score that came into each change, for `score_gradient`.
    """
    where = batch, head, q_idx, k_idx
    chain = []
    for mod in problem.score_mods:
        chain.append(scores)
        label = f"score_mod {mod.name!r}"
        changed = np.asarray(evaluate(label, mod.apply, scores, *where, aux=mod.aux), scores.dtype)
        if changed.shape != scores.shape or not changed.flags.writeable:
            changed = np.broadcast_to(changed, scores.shape).copy()
        scores = changed
    mask = problem.visibility if masked else None
    if mask is not None:
        keep = evaluate(f"mask {mask.name!r}", mask.keep, *where, aux=mask.aux)
        scores = np.where(keep, scores, scores.dtype.type(-np.inf))
    return scores, tuple(chain)


def score_gradient(
    problem: Problem,
    batch: int,
    head: int,
    q_idx: np.ndarray,
    k_idx: np.ndarray,
    d_scores: np.ndarray,
    chain: Sequence[np.ndarray],
    totals: Sequence[np.ndarray | None] | None = None,
) -> np.ndarray:
    """Carry the gradient of the changed scores back to the scaled scores (the chain rule).

    Parameters
    ----------
    problem, batch, head, q_idx, k_idx
        As for `apply_scores`.
    d_scores : float array of shape (rows, cols)
        P∘(dP - delta): zero where masked, and zero it stays, whatever a derivative says there.
    chain : sequence of arrays
        From `apply_scores`.
    totals : sequence of arrays or None, optional
        From `aux_totals`: the gradient of each change's tensor is added to its entry.

    Returns
    -------
    array of shape (rows, cols), the dtype of `d_scores`
        `d_scores` itself if there is no score change.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    where = batch, head, q_idx, k_idx
    for number in reversed(range(len(problem.score_mods))):
        mod = problem.score_mods[number]
        derivative = derivative_of(mod)
        total = None if totals is None else totals[number]
        if total is not None:
            _add_aux_gradient(total, mod, d_scores, chain[number], *where)
        label = f"derivative of score_mod {mod.name!r}"
        slope = evaluate(label, derivative, chain[number], *where, aux=mod.aux)
        if np.ndim(slope) or slope != 1.0:
            slope = np.where(d_scores == 0, 0, slope)
            d_scores = np.asarray(d_scores * slope, d_scores.dtype)
    return d_scores


def derivative_of(mod: ScoreMod) -> Callable:
    """The derivative of a score change, or a ValueError that names the change without one."""
    if mod.derivative is None:
        raise ValueError(
            f"the backward pass needs the derivative of every score_mod: "
            f"ScoreMod {mod.name!r} must have a callable derivative, got None"
        )
    return mod.derivative


def check_differentiable(problem: Problem) -> None:
    """Raise the ValueError of `derivative_of` before a backward pass computes anything."""
    for mod in problem.score_mods:
        derivative_of(mod)


def _add_aux_gradient(total, mod: ScoreMod, d_scores, scores, batch, head, q_idx, k_idx) -> None:
    """Add to `total` what a tile of scores gives it, summed over the axes that `total` lacks."""
    assert mod.aux_derivative is not None
    label = f"aux_derivative of score_mod {mod.name!r}"
    at = {"batch": batch, "head": head, "query": q_idx, "key": k_idx}
    sizes = dict(zip(mod.aux_axes, total.shape, strict=True))
    summed = tuple(n for n, axis in enumerate(("query", "key")) if sizes.get(axis, 1) == 1)
    for term in range(sizes.get("term", 1)):
        operands = scores, batch, head, q_idx, k_idx, term
        slope = evaluate(label, mod.aux_derivative, *operands, aux=mod.aux)
        part = d_scores * np.where(d_scores == 0, 0, slope).astype(d_scores.dtype, copy=False)
        place = (
            term if axis == "term" else 0 if size == 1 else at[axis] for axis, size in sizes.items()
        )
        # Index arrays of the shape of `part`, in which no element occurs twice.
        where = tuple(np.add(index, np.zeros((1, 1), int)) for index in place)
        total[where] += part.sum(axis=summed, keepdims=True)


def aux_shape(problem: Problem, mod: ScoreMod) -> tuple[int, ...]:
    """Shape of the gradient of a score change's tensor: the tensor's own.

    An axis of stride 0 (a broadcast one) has length 1.

    Raises
    ------
    ValueError
        If an axis is neither of length 1 nor as long as what it runs over.
    """
    assert mod.aux_index is not None
    tensor = mod.aux[mod.aux_index]
    view = tensor if isinstance(tensor, np.ndarray) else DeviceArray.of(tensor)
    lengths = {
        "batch": problem.batch,
        "head": problem.num_heads,
        "query": problem.seqlen_q,
        "key": problem.seqlen_k,
    }
    shape = []
    for axis, size, stride in zip(mod.aux_axes, view.shape, view.strides, strict=True):
        if size not in (1, lengths.get(axis, size)):
            raise ValueError(
                f"score_mod {mod.name!r}: the axis {axis!r} of aux[{mod.aux_index}] must have "
                f"length 1 or {lengths[axis]}, got shape {tuple(view.shape)}"
            )
        shape.append(1 if stride == 0 else size)
    return tuple(shape)


def aux_totals(problem: Problem, dtype: DTypeLike = np.float64) -> list[np.ndarray | None]:
    """Zeros to add the gradients of the score changes' tensors to.

    Returns
    -------
    list of arrays or None, one for each of ``problem.score_mods``
        Of shape `aux_shape`. None for a change none of whose tensors gets a gradient.
    """
    return [
        None if mod.aux_index is None else np.zeros(aux_shape(problem, mod), dtype)
        for mod in problem.score_mods
    ]


def evaluate(label: str, function: Callable, *operands, aux: tuple):
    """``function(*operands, aux)`` on arrays, or element by element if it works only on scalars.

    Parameters
    ----------
    label : str
        What the one warning calls the function.
    function : callable
        A function of `masks.Mask` or `masks.ScoreMod`. Of a single element it is given scalars,
        as in a kernel; its floating-point warnings are silent, as in a kernel.
    *operands : arrays and numbers that broadcast
        Handed over read-only, so that a function cannot change its caller's scores.
    aux : tuple
        Handed over as it is.

    Returns
    -------
    What the function returns, which broadcasts to the operands' shape; element by element an array
    of that shape.
    """
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        return np.zeros(shape, bool)
    with np.errstate(all="ignore"):
        if size > 1:
            try:
                found = function(*(_read_only(operand) for operand in operands), aux)
            except (TypeError, ValueError):
                pass
            else:
                return _numbers(label, found, shape)
        columns = (array.ravel().tolist() for array in np.broadcast_arrays(*operands))
        elements = [function(*element, aux) for element in zip(*columns, strict=True)]
    if size > 1 and function not in _warned:
        _warned.add(function)
        warnings.warn(
            f"{label} works only on scalars and is run element by element, which is right but "
            "slow: write it with operators, & | ~ and flash_numba.fn instead of if, and, or, math",
            RuntimeWarning,
            stacklevel=3,
        )
    return _numbers(label, elements, (size,)).reshape(shape)


def _numbers(label: str, found, shape: tuple[int, ...]) -> np.ndarray:
    """What a function returned as an array that broadcasts to `shape`, or a TypeError."""
    array = np.asarray(found)
    lead = len(shape) - array.ndim
    fits = lead >= 0 and all(
        one in (1, wanted) for one, wanted in zip(array.shape, shape[lead:], strict=True)
    )
    if array.dtype.kind not in "biufV" or not fits:  # V: bfloat16
        raise TypeError(f"{label} must return one number or bool a score, got {shown(found)}")
    return array


@cache
def range_on_arrays(key_range: Callable) -> Callable:
    """The `key_range` of a mask made to work on arrays of rows, whether it does or not."""

    def first(batch, head, q_idx, aux):
        return key_range(batch, head, q_idx, aux)[0]

    def end(batch, head, q_idx, aux):
        return key_range(batch, head, q_idx, aux)[1]

    def on_arrays(batch, head, q_idx, aux):
        row = batch, head, q_idx
        ends = (evaluate("key_range", side, *row, aux=aux) for side in (first, end))
        return tuple(ends)

    return on_arrays


def _read_only(operand):
    if not isinstance(operand, np.ndarray):
        return operand
    view = operand.view()
    view.flags.writeable = False
    return view
