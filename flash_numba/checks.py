"""Checks of single arguments: each returns the value or says what is allowed and what it got."""

import math
from numbers import Real

import numpy as np


def whole(name: str, value, least: int) -> int:
    """`value` if it is a whole number >= `least`, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


def finite(name: str, value) -> float:
    """`value` if it is a finite number, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def flag(name: str, value) -> bool:
    """`value` if it is True or False, else a TypeError."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def dropout_probability(name: str, value) -> float:
    """`value` if it is a number in [0, 1), else a ValueError."""
    value = finite(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return value


def seed(name: str, value) -> int:
    """`value` if it is a whole number of 64 bits, else a ValueError."""
    value = whole(name, value, 0)
    if value >= 1 << 64:
        raise ValueError(f"{name} must be below 2**64, got {value}")
    return value


def index(name: str, value, count: int) -> int:
    """`value` if it is one of `count` indices, else a ValueError."""
    wrong_type = isinstance(value, bool) or not isinstance(value, int | np.integer)
    if wrong_type or not 0 <= value < count:
        raise ValueError(f"{name} must lie in 0..{count - 1}, got {value!r}")
    return int(value)


def axes(name: str, array, *names: str) -> None:
    """Raise a ValueError unless `array` has one axis for each of `names`."""
    if len(array.shape) != len(names):
        count = f"{len(names)} axes" if len(names) > 1 else "1 axis"
        raise ValueError(
            f"{name} must have {count} ({', '.join(names)}), got shape {tuple(array.shape)}"
        )


def agree(what: str, **sizes: int) -> None:
    """Raise a ValueError that names all arrays unless they have one size in `what`."""
    if len(set(sizes.values())) > 1:
        got = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ValueError(
            f"{' and '.join(sizes)} must agree in {what} "
            f"(layout: batch, seqlen, heads, head_dim); {got}"
        )
