"""Checks of single arguments: each returns the value or says what is allowed and what it got."""

import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Real

import numpy as np

LARGEST = (1 << 31) - 1
"""Sequences and tiles are no longer, so that products of two lengths fit int64."""

LEAST_FLOAT32, LARGEST_FLOAT32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def shown(value) -> str:
    """What was received, on one line: arrays by dtype and shape, long texts cut."""
    if hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple):
        return f"{value.dtype} array of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def whole(name: str, value, least: int, most: int | None = None) -> int:
    """`value` if it is a whole number in `least`..`most`, else a ValueError."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None or not number or value < least else f"<= {most}"
        raise ValueError(f"{name} must be a whole number {allowed}, got {shown(value)}")
    return int(value)


def one_of(name: str, value, allowed: Iterable[str]) -> str:
    """`value` if it is one of the texts `allowed`, else a ValueError."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {shown(value)}")
    return value


def finite(name: str, value) -> float:
    """`value` if it is a finite number, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")
    return float(value)


def single(name: str, value) -> float:
    """`value` if it is a number that is finite in float32 too, else a ValueError."""
    value = finite(name, value)
    if abs(value) > LARGEST_FLOAT32:
        raise ValueError(f"{name} must be finite in float32 (below 3.4e38), got {value}")
    return value


def flag(name: str, value) -> bool:
    """`value` if it is True or False, else a TypeError."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def dropout_probability(name: str, value) -> float:
    """`value` if it is a number in [0, 1), else a ValueError."""
    value = finite(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")
    return value


def seed(name: str, value) -> int:
    """`value` if it is a whole number of 64 bits, else a ValueError."""
    value = whole(name, value, 0)
    if value >= 1 << 64:
        raise ValueError(f"{name} must be below 2**64, got {value}")
    return value


def takes(name: str, function: Callable, parameters: str) -> None:
    """Raise a TypeError unless `function` can be called with as many arguments as `parameters`."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # of something that is not written in Python
        return
    try:
        signature.bind(*parameters.split(", "))
    except TypeError:
        raise TypeError(f"{name} must be called as {name}({parameters}), got {signature}") from None


def index(name: str, value, count: int) -> int:
    """`value` if it is one of `count` indices, else a ValueError."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or not 0 <= value < count:
        allowed = f"lie in 0..{count - 1}" if count else "name one of 0"
        raise ValueError(f"{name} must {allowed}, got {shown(value)}")
    return int(value)


def axes(name: str, array, *names: str) -> None:
    """Raise a ValueError unless `array` has one axis for each of `names`."""
    if not isinstance(getattr(array, "shape", None), tuple):
        raise TypeError(f"{name} must be an array, got {shown(array)}")
    if len(array.shape) != len(names):
        count = f"{len(names)} axes" if len(names) > 1 else "1 axis"
        raise ValueError(
            f"{name} must have {count} ({', '.join(names)}), got shape {tuple(array.shape)}"
        )


def agree(what: str, *, layout: str = "batch, seqlen, heads, head_dim", **sizes: int) -> None:
    """Raise a ValueError that names all arrays unless they have one size in `what`."""
    if len(set(sizes.values())) > 1:
        got = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ValueError(f"{' and '.join(sizes)} must agree in {what} (layout: {layout}); {got}")
