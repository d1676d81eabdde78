"""Masks and score changes as device functions, and `flash_numba.fn` made known to Numba.

The functions compiled here are the very ones that the reference and the simulator call. One that
was put together from others (`masks.both`, `masks.overlap`) names its maker and pieces in `parts`:
the pieces are compiled, then the maker is called on them again.
"""

import math
from functools import cache
from typing import Any

from .. import fn
from ..masks import reads_shifts
from .numba_cuda import overload, room


@overload(fn.exp)
def _exp(x):
    return lambda x: math.exp(x)


@overload(fn.tanh)
def _tanh(x):
    return lambda x: math.tanh(x)


@overload(fn.sin)
def _sin(x):
    return lambda x: math.sin(x)


@overload(fn.abs)
def _abs(x):
    return lambda x: abs(x)


@overload(fn.where)
def _where(condition, x, y):
    return lambda condition, x, y: x if condition else y


@overload(fn.minimum)
def _minimum(x, y):
    return lambda x, y: min(x, y)


@overload(fn.maximum)
def _maximum(x, y):
    return lambda x, y: max(x, y)


@cache
def device_function(function) -> Any:
    """`function` compiled for kernels; None stays None."""
    if function is None:
        return None
    parts = getattr(function, "parts", None)
    if parts is None:
        return room(function)
    maker, *pieces = parts
    return room(maker(*(device_function(piece) for piece in pieces)))


@cache
def with_shift(function) -> Any:
    """Room ``own_aux(aux, shift)``: aux of a mask's function as `masks.of_one_sequence` wants it.

    Where `function` reads an array of shifts there is the number `shift`; all else stays.
    """
    maker, *pieces = getattr(function, "parts", (None,))
    if maker is not None:
        first, second = map(with_shift, pieces)

        @room
        def own_aux_of_two(aux, shift):
            return first(aux[0], shift), second(aux[1], shift)

        return own_aux_of_two
    replaces = reads_shifts(function)

    @room
    def own_aux(aux, shift):
        if replaces:
            return shift, *aux[1:]
        return aux

    return own_aux


@cache
def chain(functions: tuple):
    """Score changes one after the other, as one device function; its aux nests in pairs.

    The empty chain leaves the score alone. See `chain_aux`.
    """
    if not functions:

        @room
        def unchanged(score, batch, head, q_idx, k_idx, aux):
            return score

        return unchanged
    earlier, last = chain(functions[:-1]), device_function(functions[-1])

    @room
    def change(score, batch, head, q_idx, k_idx, aux):
        score = earlier(score, batch, head, q_idx, k_idx, aux[0])
        return last(score, batch, head, q_idx, k_idx, aux[1])

    return change


@cache
def chain_derivative(functions: tuple, derivatives: tuple, start: int = 0):
    """Derivative of `chain` at the incoming score: the product of the links' derivatives.

    Of the links from number `start` on: the derivative by the score that comes into that one.
    """
    if len(functions) == start:

        @room
        def one(score, batch, head, q_idx, k_idx, aux):
            return 1.0

        return one
    earlier = chain(functions[:-1])
    earlier_derivative = chain_derivative(functions[:-1], derivatives[:-1], start)
    last_derivative = device_function(derivatives[-1])

    @room
    def derivative(score, batch, head, q_idx, k_idx, aux):
        slope = earlier_derivative(score, batch, head, q_idx, k_idx, aux[0])
        middle = earlier(score, batch, head, q_idx, k_idx, aux[0])
        return slope * last_derivative(middle, batch, head, q_idx, k_idx, aux[1])

    return derivative


@cache
def chain_aux_derivative(functions: tuple, number: int, derivative):
    """`derivative`, a `masks.ScoreMod.aux_derivative` of link `number`, at the incoming score."""
    if len(functions) > number + 1:
        inner = chain_aux_derivative(functions[:-1], number, derivative)

        @room
        def without_last(score, batch, head, q_idx, k_idx, term, aux):
            return inner(score, batch, head, q_idx, k_idx, term, aux[0])

        return without_last
    earlier, own = chain(functions[:-1]), device_function(derivative)

    @room
    def aux_derivative(score, batch, head, q_idx, k_idx, term, aux):
        score = earlier(score, batch, head, q_idx, k_idx, aux[0])
        return own(score, batch, head, q_idx, k_idx, term, aux[1])

    return aux_derivative


def chain_aux(auxes) -> tuple:
    """The aux of a chain of functions from those of its links."""
    nested = ()
    for aux in auxes:
        nested = (nested, tuple(aux))
    return nested
