"""Functions of scalars: `math`, built-ins and libdevice, rounded as on the device."""

from __future__ import annotations

import builtins
import math
import operator

import numpy as np

from .per_block import PerBlock, PerBlockTruth, block_range, either
from .scalars import CASTS, F16, F32, F64, FLOATS


def divide(a, b):
    """``a / b``: integers divide as float64, and nothing divides by zero with an exception."""
    if isinstance(a, int):
        a = F64(a)
    if isinstance(b, int):
        b = F64(b)
    return a / b


def as_int(x):
    """``int``; a float beyond int64 is its nearest."""
    if isinstance(x, FLOATS):
        return CASTS["int64"](x)
    return x if x.__class__ is PerBlock else int(x)


def truncated(x):
    """``math.trunc``, of float32, too, and of floats beyond int64."""
    return as_int(x) if isinstance(x, FLOATS) else math.trunc(x)


def larger(a, b, *rest):
    """``max``: a NaN loses to a number, as ``fmax`` has it."""
    truth = a > b
    if truth.__class__ is PerBlockTruth:
        c = either(a, b, max, np.maximum)
    else:
        c = a if truth or b != b else b
    return larger(c, *rest) if rest else c


def smaller(a, b, *rest):
    """``min``: a NaN loses to a number, as ``fmin`` has it."""
    truth = a < b
    if truth.__class__ is PerBlockTruth:
        c = either(a, b, min, np.minimum)
    else:
        c = a if truth or b != b else b
    return smaller(c, *rest) if rest else c


def largest(first, *rest):
    """``max`` of several numbers, or of a tuple."""
    return larger(first, *rest) if rest else larger(*first)


def smallest(first, *rest):
    """``min`` of several numbers, or of a tuple."""
    return smaller(first, *rest) if rest else smaller(*first)


def fma(a, b, c):
    """``a * b + c`` rounded once (float32 in float64 arithmetic, exact but for double rounding)."""
    if a.__class__ is F32 and b.__class__ is F32 and c.__class__ is F32:
        return F32(F64(a) * F64(b) + F64(c))
    return F64(a) * F64(b) + F64(c)


def _rounded(function, at_domain_error=math.nan, at_overflow=math.inf):
    def call(*values):
        single = all(x.__class__ is F32 or x.__class__ is F16 for x in values)
        try:
            result = function(*values)
        except ValueError:
            result = at_domain_error
        except OverflowError:
            result = at_overflow
        return F32(result) if single else F64(result)

    return call


def _log(function):
    def call(x):
        if x > 0:
            return function(x)
        return -math.inf if x == 0 else math.nan

    return _rounded(call)


def _rsqrt(x):
    return 1 / math.sqrt(x) if x > 0 else math.inf if x == 0 else math.nan


def _exp2(x):
    return 2.0 ** float(x)


_PLAIN = (
    "exp expm1 sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc "
    "gamma lgamma pow hypot fmod copysign ldexp fabs degrees radians"
)
MATH = {name: _rounded(getattr(math, name)) for name in _PLAIN.split()}
MATH |= {name: _log(getattr(math, name)) for name in ("log", "log2", "log10", "log1p")}
MATH["log1p"] = _rounded(math.log1p, -math.inf)
MATH["exp2"] = _rounded(_exp2)
MATH["rsqrt"] = _rounded(_rsqrt)
MATH |= {"floor": math.floor, "ceil": math.ceil, "trunc": truncated, "isnan": math.isnan}
MATH |= {"isinf": math.isinf, "isfinite": math.isfinite}
"""Functions of `math`, float32 in, float32 out."""
NOT_FLOATS = dict.fromkeys((math.floor, math.ceil, truncated), "int")
NOT_FLOATS |= dict.fromkeys((math.isnan, math.isinf, math.isfinite), "bool")
"""Those that give something else."""

BUILTINS = {
    "abs": builtins.abs,
    "bool": bool,
    "divmod": divmod,
    "enumerate": enumerate,
    "float": F64,
    "int": as_int,
    "len": len,
    "max": largest,
    "min": smallest,
    "pow": pow,
    "print": print,
    "range": block_range,
    "round": round,
    "slice": slice,
    "tuple": tuple,
    "zip": zip,
}
"""Built-in functions that device code may call."""

LIBDEVICE = {
    name + suffix: function
    for suffix in ("", "f")
    for name, function in MATH.items()
    if function not in NOT_FLOATS
}
LIBDEVICE |= {
    name + suffix: function
    for suffix in ("", "f")
    for name, function in (("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc))
}
LIBDEVICE |= {f"fast_{name}f": MATH[name] for name in ("exp", "log", "log2", "log10", "sin", "cos")}
LIBDEVICE |= {"fast_powf": MATH["pow"], "fast_fdividef": divide, "fdividef": divide}
LIBDEVICE |= {"fmaf": fma, "fma": fma, "fmaxf": larger, "fminf": smaller, "fmax": larger}
LIBDEVICE |= {
    "fmin": smaller,
    "fmaf_rn": fma,
    "fma_rn": fma,
    "frcp_rn": lambda x: divide(F32(1), x),
}
LIBDEVICE |= {"fadd_rn": operator.add, "fmul_rn": operator.mul, "fsub_rn": operator.sub}
LIBDEVICE |= {"fdiv_rn": divide}
"""Functions of `numba.cuda.libdevice` that are emulated."""
