"""How far a result may be from the truth: derived from what an ordinary framework gets wrong.

A kernel in some element type cannot be held to float64. It is held to the *twin*
(`reference.forward` and `backward` with `dtype=`), the same computation done the ordinary way in
that type: at most twice as wrong, plus twice what one addition in that type may round away.
"""

from typing import NamedTuple

import numpy as np

from .problem import DTYPES


class Verdict(NamedTuple):
    """Whether a result is right: true if the error is at most the allowance.

    Attributes
    ----------
    error : float
        Largest absolute difference from the truth; inf if a value is not finite where the truth is,
        or not the same infinity.
    allowance : float
        From `error_budget`.
    """

    error: float
    allowance: float

    def __bool__(self) -> bool:
        return self.error <= self.allowance


def error_budget(ref, twin, dtype: str) -> float:
    """``2 max|twin - ref| + 2 max|ref + 0.3 - 0.3 - ref|``, the second in `dtype`.

    Parameters
    ----------
    ref : float64 array
        The truth.
    twin : array of the same shape
        The reference in the same element type. Where it overflows it excuses nothing.
    dtype : str
        Element type of the result under test, a key of `problem.DTYPES`; "fp32" for lse.

    Returns
    -------
    float
        The largest absolute error allowed.

    References
    ----------
    The tests of github.com/Dao-AILab/flash-attention hold their kernels to this form.
    """
    ref, twin = np.asarray(ref, np.float64), np.asarray(twin, np.float64)
    finite = np.isfinite(ref) & np.isfinite(twin)
    twin_error = np.abs(twin[finite] - ref[finite]).max(initial=0.0)
    number = DTYPES[dtype].type
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = ref[finite].astype(number)
        moved = rounded + number(0.3) - number(0.3) - rounded
    moved = np.abs(moved.astype(np.float64))
    return float(2 * twin_error + 2 * moved[np.isfinite(moved)].max(initial=0.0))


def within_budget(out, ref, twin, dtype: str) -> Verdict:
    """Hold `out` against the truth; assert what it returns, and the message shows both numbers.

    Parameters
    ----------
    out : array
        The result under test.
    ref, twin, dtype
        As for `error_budget`.
    """
    return Verdict(largest_error(out, ref), error_budget(ref, twin, dtype))


def largest_error(out, ref) -> float:
    """Largest absolute difference; inf where one of the two is finite and the other is not.

    Parameters
    ----------
    out, ref : arrays of one shape

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    out, ref = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    if out.shape != ref.shape:
        raise ValueError(f"out must have the shape of ref, {ref.shape}, got {out.shape}")
    different = out[out != ref]
    with np.errstate(invalid="ignore"):
        errors = np.abs(different - ref[out != ref])
    return float(np.where(np.isfinite(errors), errors, np.inf).max(initial=0.0))
