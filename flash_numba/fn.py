"""Elementary functions that masks and score changes may use.

A mask or score function is written once and runs in two places: on NumPy index arrays in the
reference and the simulator, and on scalars inside a compiled kernel. Operators work in both;
these are the functions that do. `flash_numba.device` teaches Numba the same names.
"""

import numpy as np


def exp(x):
    """Natural exponential of `x`."""
    return np.exp(x)


def tanh(x):
    """Hyperbolic tangent of `x`."""
    return np.tanh(x)


def sin(x):
    """Sine of `x`, in radians."""
    return np.sin(x)


def abs(x):
    """Absolute value of `x`."""
    return np.abs(x)


def where(condition, x, y):
    """`x` where `condition` holds, else `y`."""
    return np.where(condition, x, y)


def minimum(x, y):
    """The smaller of `x` and `y`."""
    return np.minimum(x, y)


def maximum(x, y):
    """The larger of `x` and `y`."""
    return np.maximum(x, y)
