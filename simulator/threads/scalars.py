"""Scalars that compute as CUDA code from Numba does.

Floats are NumPy scalars, which round after every operation. A signed integer is a Python int:
Numba computes them all in 64 bits. An unsigned one is an `Unsigned`, since Numba gives uint64 for
two of them, and int64 for one with a signed one.
"""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np

from .per_block import PerBlock

F16, F32, F64, BF16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16
HALF_64, MASK_64 = 2**63, 2**64 - 1


def as_int64(x: int) -> int:
    """The int64 with the same lowest 64 bits."""
    return (x + HALF_64 & MASK_64) - HALF_64


def wrapped(x):
    """A result as int64 if it is a signed integer; anything else as it is."""
    if x.__class__ is int:
        return x if -HALF_64 <= x < HALF_64 else as_int64(x)
    if x.__class__ is PerBlock and type(x.plain) is int:
        return x.mapped(as_int64, lambda many: many)
    return x


class Unsigned(int):
    """An unsigned integer; `bits` is its width in memory."""

    __slots__ = ()
    bits = 64

    def __truediv__(self, other):
        return F64(int(self)) / other

    def __rtruediv__(self, other):
        return other / F64(int(self))

    def __neg__(self):
        """In the width of the operand, before the result is uint64."""
        return Unsigned(-int(self) & (1 << self.bits) - 1)

    def __invert__(self):
        """In the width of the operand, before the result is uint64."""
        return Unsigned(~int(self) & (1 << self.bits) - 1)

    def __abs__(self):
        return self

    __pos__ = __abs__


class Unsigned32(Unsigned):
    """Held in 32 bits."""

    __slots__ = ()
    bits = 32


class Unsigned16(Unsigned):
    """Held in 16 bits."""

    __slots__ = ()
    bits = 16


class Unsigned8(Unsigned):
    """Held in 8 bits."""

    __slots__ = ()
    bits = 8


def _as_uint64(x: int) -> Unsigned:
    return Unsigned(x & MASK_64)


def _arithmetic(operate):
    def method(self, other, swap=False):
        if other.__class__ is PerBlock:
            return NotImplemented
        a, b = int(self), other
        if isinstance(other, Unsigned):
            convert, b = _as_uint64, int(other)
        elif isinstance(other, int):
            convert, a = as_int64, as_int64(a)
        else:
            return operate(b, F64(a)) if swap else operate(F64(a), b)
        return convert(operate(b, a) if swap else operate(a, b))

    return method


def _bitwise(operate):
    def method(self, other, swap=False):
        if not isinstance(other, int) or other.__class__ is PerBlock:
            return NotImplemented
        result = operate(int(other), int(self)) if swap else operate(int(self), int(other))
        return _as_uint64(result) if isinstance(other, Unsigned) else as_int64(result)

    return method


def _shift(operate):
    def method(self, other, swap=False):
        if other.__class__ is PerBlock:
            return NotImplemented
        if swap:
            return as_int64(operate(int(other), int(self)))
        return _as_uint64(operate(int(self), int(other)))

    return method


for _make, _names in (
    (_arithmetic, ("add", "sub", "mul", "floordiv", "mod", "pow")),
    (_bitwise, ("and_", "or_", "xor")),
    (_shift, ("lshift", "rshift")),
):
    for _name in _names:
        _method = _make(getattr(operator, _name))
        _plain = _name.rstrip("_")
        setattr(Unsigned, f"__{_plain}__", _method)
        setattr(Unsigned, f"__r{_plain}__", lambda a, b, _method=_method: _method(a, b, True))


FLOATS = (float, np.floating)


def _clamped(x, bits: int, low: int, high: int) -> int:
    """A float as an integer, as ``cvt.rzi`` of PTX has it: the nearest that fits.

    NaN is 0, of 64 bits the sign's bit alone.
    """
    if x != x:
        return 0 if bits < 64 else -(1 << 63)
    return low if x < low else high if x > high else int(x)


def _signed(bits):
    half, full = 1 << (bits - 1), 1 << bits

    def cast(x):
        if x.__class__ is PerBlock:
            return x.mapped(cast, lambda many: many if bits == 64 else (many + half) % full - half)
        if isinstance(x, FLOATS):
            return _clamped(x, bits, -half, half - 1)
        return (int(x) + half) % full - half

    return cast


def _unsigned(kind):
    mask = (1 << kind.bits) - 1

    def cast(x):
        if x.__class__ is PerBlock:
            if kind.bits == 64:
                x.alike.keep(x.others >= 0)
                return x.mapped(cast, lambda many: many)
            return x.mapped(cast, lambda many: many & mask)
        if isinstance(x, FLOATS):
            return kind(_clamped(x, kind.bits, 0, mask) & mask)
        return kind(int(x) & mask)

    return cast


CASTS = {
    "float16": F16,
    "bfloat16": BF16,
    "float32": F32,
    "float64": F64,
    "int8": _signed(8),
    "int16": _signed(16),
    "int32": _signed(32),
    "int64": _signed(64),
    "uint8": _unsigned(Unsigned8),
    "uint16": _unsigned(Unsigned16),
    "uint32": _unsigned(Unsigned32),
    "uint64": _unsigned(Unsigned),
    "bool": bool,
}
"""Numba type name -> conversion, with CUDA's rounding and wrapping."""

ALIASES = {"boolean": "bool", "bool_": "bool", "intp": "int64", "uintp": "uint64"}


def dtype_name(dtype) -> str:
    """Name of a NumPy dtype or Numba type, as `CASTS` has it; "" if it is none."""
    if isinstance(dtype, np.dtype):
        name = dtype.name
    else:
        name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", ""))
    name = ALIASES.get(name, name)
    return name if name in CASTS else ""


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name in `CASTS`."""
    return np.dtype(BF16 if name == "bfloat16" else name)


def from_memory(name: str):
    """Conversion of what NumPy reads into a scalar of this module, or None if it is one."""
    if name.startswith(("float", "bfloat")):
        return None
    return CASTS[name] if name.startswith("uint") else bool if name == "bool" else int


def argument(value):
    """A scalar argument of a kernel, or a captured constant, as this module holds it."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return CASTS[value.dtype.name](value)
    if type(value) is float:
        return F64(value)
    if type(value) is int and value >= HALF_64:
        return Unsigned(value)
    return value
