"""What is known of a value before a kernel runs."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from ..scalars import dtype_name, numpy_dtype

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "int")
NUMBERS = {*FLOATS, *INTEGERS, "unsigned"}
INDEX_ROOTS = {"threadIdx": False, "blockIdx": True, "blockDim": True, "gridDim": True}
"""Index objects of ``cuda``, and whether they are the same for all threads of a block."""


class Kind(NamedTuple):
    """The kind of a value.

    Attributes
    ----------
    name : str
        "bool", "int" (signed), "unsigned", a name in `FLOATS`, "array", "local", "tuple", "static"
        (a function or type, known now), "none", or "any".
    uniform : bool
        The same in all threads that came the same way.
    ndim : int
        Axes of an array.
    dtype : str
        Element type of an array or local array; type of a number where it is not int64.
    shape : tuple of int
        Of a local array.
    parts : tuple of Kind
        Of a tuple.
    value : object
        Of a static; the class of a named tuple.
    bits : int
        Of an "int", a range or a loop's turns: all values are signed integers of so many bits.
    """

    name: str = "any"
    uniform: bool = False
    ndim: int = 0
    dtype: str = ""
    shape: tuple = ()
    parts: tuple = ()
    value: Any = None
    bits: int = 64


ANY = Kind()
NONE = Kind("none", True)
INDEX_BITS, SHAPE_BITS = 33, 48
"""Of blockIdx and the like, and of a number of elements or bytes in the memory of a machine."""
UNIFORM_INT = Kind("int", True, bits=SHAPE_BITS)


def number(name: str, uniform: bool) -> Kind:
    """Kind of a scalar of a type in `scalars.CASTS`."""
    if name.startswith("uint"):
        return Kind("unsigned", uniform, dtype=name)
    if name.startswith("int"):
        narrow = name if name != "int64" else ""
        return Kind("int", uniform, dtype=narrow, bits=int(name.removeprefix("int")))
    return Kind(name, uniform)


def bounded(kind: Kind) -> Kind:
    """A kind with bits rounded up, so that few differ and a variable's soon stay as they are."""
    if kind.name == "tuple":
        return kind._replace(parts=tuple(map(bounded, kind.parts)))
    return kind._replace(bits=next(n for n in (INDEX_BITS, SHAPE_BITS, 64) if kind.bits <= n))


def result_bits(op: ast.operator, a: Kind, b: Kind) -> int:
    """Bits of ``a op b`` of signed integers before it wraps: above 64, it may have to."""
    x, y = (2 if one.name == "bool" else one.bits for one in (a, b))
    if isinstance(op, ast.Add | ast.Sub):
        return max(x, y) + 1
    if isinstance(op, ast.Mult):
        return x + y
    if isinstance(op, ast.LShift | ast.Pow):
        most = 2 ** min(y - 1, 7)
        return x + most if isinstance(op, ast.LShift) else x * most
    if isinstance(op, ast.Mod):
        return y
    return x if isinstance(op, ast.FloorDiv | ast.RShift) else max(x, y)


def as_float(kind: Kind) -> str:
    """Name of the float type in which Numba computes with a number beside a float."""
    if kind.name in FLOATS:
        return kind.name
    if kind.name == "bool" or kind.dtype == "int8":
        return "float16"
    return "float32" if kind.dtype in ("uint8", "int16") else "float64"


def wider_float(a: Kind, b: Kind) -> str:
    """Name of the float type that holds both, of which one is a float."""
    names = {as_float(a), as_float(b)}
    if len(names) == 1:
        return names.pop()
    return "float32" if names == {"float16", "float32"} else "float64"


def type_name(kind: Kind) -> str:
    """Name of a number's type, as `scalars.CASTS` has it; "" of what is no number."""
    if kind.name not in NUMBERS:
        return ""
    return (kind.dtype or "int64") if kind.name in ("int", "unsigned") else kind.name


def form(kind: Kind) -> tuple | None:
    """What of a number's or an array's kind is its type; None of anything else."""
    if kind.name in ("array", "local"):
        return kind.name, kind.dtype, kind.ndim, kind.shape
    return (type_name(kind),) if kind.name in NUMBERS else None


def wider(a: Kind, b: Kind) -> Kind:
    """Kind to which Numba converts two scalars that meet in a variable or a choice: NumPy's."""
    uniform, names = a.uniform and b.uniform, {a.name, b.name}
    if not names <= NUMBERS:
        same = a.name == b.name
        return Kind(a.name if same else "any", uniform, dtype=a.dtype * (a.dtype == b.dtype))
    promoted = np.promote_types(*(numpy_dtype(type_name(one)) for one in (a, b)))
    kind = number(dtype_name(promoted), uniform)
    bits = max(2 if one.name == "bool" else one.bits for one in (a, b))
    return kind._replace(bits=bits) if a.name == b.name == "int" else kind


def join(a: Kind | None, b: Kind | None) -> Kind:
    """Kind of a value that is one of two."""
    if a is None or b is None:
        return a or b or ANY
    if a == b:
        return a
    uniform = a.uniform and b.uniform
    if a.name == b.name == "tuple" and len(a.parts) == len(b.parts):
        parts = tuple(join(x, y) for x, y in zip(a.parts, b.parts, strict=True))
        return Kind("tuple", uniform, parts=parts, value=a.value if a.value == b.value else None)
    bits = max(a.bits, b.bits)
    if a._replace(uniform=uniform, bits=bits) == b._replace(uniform=uniform, bits=bits):
        return a._replace(uniform=uniform, bits=bits)
    return wider(a, b)


def of_operation(op: ast.operator, a: Kind, b: Kind) -> Kind:
    """Kind of ``a op b``."""
    uniform = a.uniform and b.uniform
    if not {a.name, b.name} <= NUMBERS:
        return Kind("any", uniform)
    if a.name in FLOATS or b.name in FLOATS:
        return Kind(_float_of_operation(op, a, b), uniform)
    if isinstance(op, ast.Div):
        return Kind("float64", uniform)
    logic = isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor)
    if logic and a.name == b.name == "bool":
        return Kind("bool", uniform)
    left = a.name == "unsigned"
    if left and (b.name == "unsigned" or isinstance(op, ast.LShift | ast.RShift)):
        return Kind("unsigned", uniform, dtype="uint64")
    bits = 64 if left or b.name == "unsigned" else min(result_bits(op, a, b), 64)
    return Kind("int", uniform, bits=bits)


def _float_of_operation(op: ast.operator, a: Kind, b: Kind) -> str:
    power = isinstance(op, ast.Pow)
    name = as_float(a) if power and b.name not in FLOATS else wider_float(a, b)
    wide = power or isinstance(op, ast.FloorDiv | ast.Mod)
    return "float32" if wide and name == "float16" else name


def of_value(value) -> Kind:
    """Kind of a constant or scalar argument."""
    if isinstance(value, tuple):
        return Kind("tuple", True, parts=tuple(of_value(one) for one in value))
    if value is None:
        return NONE
    if type(value) is int:
        bits = value.bit_length() + 1
        return (
            Kind("int", True, bits=bits) if bits <= 64 else Kind("unsigned", True, dtype="uint64")
        )
    name = dtype_name(type(value))
    if isinstance(value, float) and not name.startswith("float"):
        name = "float64"
    return number({"float": "float64"}.get(name, name) or "any", True)


def escaped(kind: Kind) -> Kind:
    """Kind of a local array once it is put where its shape is lost."""
    return ANY if kind.name == "local" else kind
