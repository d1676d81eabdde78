"""Integers that depend on the block: their value in the block that runs, and in all others.

With ``blocks="representative"`` one block runs for many (`alike`). blockIdx is then a `PerBlock`,
and so is all that is computed from it: each operation is done for the running block, and at once
for the others. Where a decision or an address depends on it, `Alike` drops the blocks in which
it would come out differently.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


class PerBlock(int):
    """An int that knows its value in other blocks.

    Attributes
    ----------
    plain : int or Unsigned
        The value in the running block.
    others : int64 array
        The values in all blocks.
    alike : Alike
        Which blocks do what the running one does so far.
    """

    plain: Any
    others: np.ndarray
    alike: Any

    def __new__(cls, plain, others, alike):
        """`plain` is what it is to everything that does not know of blocks."""
        self = super().__new__(cls, plain)
        self.plain, self.others, self.alike = plain, others, alike
        return self

    def __int__(self):
        self.alike.leaked("an int() of what depends on blockIdx")
        return super().__int__()

    __hash__ = int.__hash__

    def mapped(self, function, many) -> PerBlock:
        """The value through `function`, those of the others through `many`."""
        return PerBlock(function(self.plain), many(self.others), self.alike)

    def __bool__(self):
        return self.alike.decide(self.plain != 0, self.others != 0)

    def __neg__(self):
        return self.mapped(operator.neg, operator.neg)

    def __invert__(self):
        return self.mapped(operator.invert, operator.invert)

    def __pos__(self):
        return self

    def __abs__(self):
        return self.mapped(abs, np.abs)


class PerBlockTruth:
    """A truth that depends on the block; a branch on it drops the blocks that go another way."""

    def __init__(self, plain, others, alike):
        self.plain, self.others, self.alike = plain, others, alike

    def __bool__(self):
        return self.alike.decide(bool(self.plain), self.others)

    def __int__(self):
        return int(bool(self))

    __index__ = __int__

    def _combined(self, other, operate):
        if isinstance(other, PerBlockTruth):
            return PerBlockTruth(
                operate(self.plain, other.plain), operate(self.others, other.others), self.alike
            )
        if isinstance(other, bool | np.bool_):
            plain = operate(self.plain, other)
            return PerBlockTruth(plain, operate(self.others, other), self.alike)
        return NotImplemented

    def __and__(self, other):
        return self._combined(other, operator.and_)

    def __or__(self, other):
        return self._combined(other, operator.or_)

    def __xor__(self, other):
        return self._combined(other, operator.xor)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self):
        return PerBlockTruth(not self.plain, ~self.others, self.alike)


def _parts(value):
    if value.__class__ is PerBlock:
        return value.plain, value.others
    return value, value


def _operation(operate, swap):
    def method(self, other):
        if not isinstance(other, int):
            return operate(other, self.plain) if swap else operate(self.plain, other)
        plain, many = _parts(other)
        try:
            if swap:
                result, rest = operate(plain, self.plain), operate(many, self.others)
            else:
                result, rest = operate(self.plain, plain), operate(self.others, many)
        except OverflowError:
            self.alike.alone()
            return operate(plain, self.plain) if swap else operate(self.plain, plain)
        if isinstance(result, bool):
            return PerBlockTruth(result, rest, self.alike)
        if not isinstance(result, int):
            if operate is not operator.truediv:
                self.alike.leaked("a float made of unsigned and signed integers")
            return result
        if type(result) is not int:
            self.alike.keep(rest >= 0)
        return PerBlock(result, rest, self.alike)

    return method


_ARITHMETIC = "add sub mul floordiv mod pow and_ or_ xor lshift rshift truediv"
for _name in _ARITHMETIC.split():
    for _prefix, _swap in (("", False), ("r", True)):
        _method = _operation(getattr(operator, _name), _swap)
        setattr(PerBlock, f"__{_prefix}{_name.rstrip('_')}__", _method)
    if _name not in ("and_", "or_", "xor"):
        _function = getattr(operator, _name)
        setattr(PerBlockTruth, f"__{_name}__", lambda a, b, f=_function: f(int(a), b))
        setattr(PerBlockTruth, f"__r{_name}__", lambda a, b, f=_function: f(b, int(a)))
for _name in ["lt", "le", "gt", "ge", "eq", "ne"]:
    setattr(PerBlock, f"__{_name}__", _operation(getattr(operator, _name), False))


def either(a, b, choose, choose_many) -> PerBlock:
    """The larger or smaller of two integers, of which at least one depends on the block."""
    (plain_a, others_a), (plain_b, others_b) = _parts(a), _parts(b)
    alike = a.alike if a.__class__ is PerBlock else b.alike
    return PerBlock(choose(plain_a, plain_b), choose_many(others_a, others_b), alike)


def chosen(one: slice, n: int) -> tuple[int, int, int]:
    """First element, number and stride of a slice of an axis of `n` elements."""
    bounds = (one.start, one.stop, one.step)
    tagged = next((bound for bound in bounds if bound.__class__ is PerBlock), None)
    if tagged is None:
        found = range(n)[one]
        return found.start, len(found), found.step
    first: Any = one.start or 0
    stop: Any = n if one.stop is None else one.stop
    if one.step not in (None, 1) or first < 0 or stop < first:
        tagged.alike.leaked("a slice that depends on blockIdx")
    if stop > n:
        stop = n
    size = stop - first
    if size.__class__ is PerBlock:
        size.alike.keep(size.others == size.plain)
        size = size.plain
    return first, size, 1


def block_range(*given):
    """``range``; what depends on the block stays known to, and must give as many turns in all."""
    bounds: Any = given
    tagged = next((one for one in bounds if one.__class__ is PerBlock), None)
    if tagged is None:
        return range(*bounds)
    values: Any = [operator.index(_parts(one)[0]) for one in bounds]
    plain = range(*values)
    start = bounds[0] if len(bounds) > 1 else 0
    stop = bounds[1] if len(bounds) > 1 else bounds[0]
    step = bounds[2] if len(bounds) > 2 else 1
    if step.__class__ is PerBlock:
        tagged.alike.leaked("a range whose step depends on blockIdx")
    else:
        first, last = (np.asarray(_parts(one)[1]) for one in (start, stop))
        turns = -((first - last) // step) if step > 0 else (first - last - step - 1) // -step
        tagged.alike.keep(np.maximum(turns, 0) == len(plain))
    return (start + turn * step for turn in range(len(plain)))
