"""What is known of a value in all blocks (see `following`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import Place
from .kinds import FLOATS, Kind

UNKNOWN, FOLLOWED, SAME, WHOLE = range(4)
"""May differ in any way; an integer that `PerBlock` knows in each block; the same in each block;
an integer (or a place in memory, or a function) that is."""
NUMBERS = -1
"""As `UNKNOWN`, but certainly one or more numbers, and no array."""


class Contents:
    """Level of the elements of a local array; all its names share it."""

    def __init__(self, level: int):
        self.level = level

    def lower(self, level: int) -> None:
        """Elements of `level` are put into it."""
        self.level = least(self.level, level)


Level = int | tuple | Contents


def escaped(*levels: Any) -> None:
    """Local arrays are put where nobody sees what is written to them."""
    for one in levels:
        if isinstance(one, Contents):
            one.lower(UNKNOWN)


def least(*levels: Any) -> int:
    """What is known of a value that depends on all of these; `WHOLE` of none.

    Integers that are followed are so no more once they meet floats.
    """
    found = WHOLE
    for level in levels:
        one = least(*level) if isinstance(level, tuple) else level
        one = max(UNKNOWN, one.level if isinstance(one, Contents) else one)
        found = UNKNOWN if {found, one} == {FOLLOWED, SAME} else min(found, one)
    return found


def any_unknown(*levels: Any) -> bool:
    """Whether any part of these is `UNKNOWN`."""
    return any(any_unknown(*x) if isinstance(x, tuple) else least(x) == UNKNOWN for x in levels)


def meet(a: Level, b: Level) -> Level:
    """Level of a value that is one of two."""
    if a is b or a == b == NUMBERS:
        return a
    escaped(a, b)  # from here on it is not known which of them is changed
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(meet, a, b))
    return least(a, b)


def alone(level: int) -> int:
    """Level of what is made in a way that `PerBlock` does not follow."""
    return level if level >= SAME else UNKNOWN


def of_kind(kind: Kind) -> Level:
    """Level of an argument of the kernel: pointers, shapes and scalars are the same for all."""
    if kind.name == "tuple":
        return tuple(map(of_kind, kind.parts))
    return SAME if kind.name in (*FLOATS, "any", "unsigned") else WHOLE


def frozen(level: Level | None):
    """A level as it is now, to be compared with."""
    if isinstance(level, tuple):
        return tuple(map(frozen, level))
    return ("contents", level.level) if isinstance(level, Contents) else level


class Leak(NamedTuple):
    """Something decides what a block does that is not known in the others."""

    what: str
    place: Place

    def __str__(self):
        return (
            f"{self.what} depends on numbers that are not followed (of memory, or through floats "
            f"or functions), line {self.place.line}: {self.place.text}"
        )


class Book:
    """What is found in the functions of a kernel.

    Attributes
    ----------
    leaks : dict of Leak
        As an ordered set.
    branches : bool
        Whether a branch without accesses depends on such numbers: operations may differ.
    stores : dict of (Place, column) to bool
        Whether the integers that a store writes are known.
    """

    def __init__(self):
        self.leaks: dict[Leak, None] = {}
        self.branches = False
        self.stores: dict[tuple[Place, int], bool] = {}
        self.results: dict[tuple, tuple[Level | None, list]] = {}
