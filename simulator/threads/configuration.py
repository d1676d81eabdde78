"""What a launch is told, checked as CUDA would: the kernel, its grid and its blocks."""

from __future__ import annotations

import types

import numpy as np

from .errors import fail
from .thread import Dim3
from .translate.link import classify

MOST_THREADS, MOST_BLOCK, MOST_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MOST_SHARED_BYTES = 227 * 1024
"""Limits of compute capability 9.0 (CUDA C++ Programming Guide, technical specifications)."""
MOST_STATIC_BYTES = 48 * 1024
"""Shared memory that a kernel may declare itself. ptxas takes more for targets of one architecture
alone (sm_90a, sm_100a), which Numba does not compile for unless it is told to."""


def python_function(kernel) -> types.FunctionType:
    """The Python function of a Numba dispatcher, or `kernel` itself.

    Raises
    ------
    TypeError
        If it is neither.
    """
    target = classify(kernel)
    if target.what != "function":
        raise TypeError(
            f"kernel must be a @cuda.jit kernel or a Python function, got {type(kernel).__name__}"
        )
    return target.value


def dimensions(value, name: str, most: tuple[int, int, int]) -> Dim3:
    """A grid or block size of 1 to 3 ints."""
    sizes = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int | np.integer) for n in sizes):
        raise TypeError(f"{name} must be an int or a tuple of 1 to 3 ints, got {value!r}")
    full = tuple(int(n) for n in sizes) + (1,) * (3 - len(sizes))
    if any(n < 1 or n > limit for n, limit in zip(full, most, strict=True)):
        raise fail(
            "launch",
            f"CUDA_ERROR_INVALID_VALUE: {name} must lie between (1, 1, 1) and {most}, got {full}",
        )
    return Dim3(*full)
