"""What is known of a value before a kernel runs."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from ..scalars import dtype_name

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "int")
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
        Element type of an array or local array.
    shape : tuple of int
        Of a local array.
    parts : tuple of Kind
        Of a tuple.
    value : object
        Of a static; the class of a named tuple.
    """

    name: str = "any"
    uniform: bool = False
    ndim: int = 0
    dtype: str = ""
    shape: tuple = ()
    parts: tuple = ()
    value: Any = None


ANY = Kind()
NONE = Kind("none", True)
UNIFORM_INT = Kind("int", True)


def number(name: str, uniform: bool) -> Kind:
    """Kind of a scalar of a type in `scalars.CASTS`."""
    if name.startswith("uint"):
        return Kind("unsigned", uniform)
    return Kind("int" if name.startswith("int") else name, uniform)


def wider(a: str, b: str) -> str:
    """Name of the type to which Numba converts two scalars that meet."""
    if a == b:
        return a
    if a in INTEGERS and b in INTEGERS:
        return "int"
    if a in (*FLOATS, *INTEGERS) and b in (*FLOATS, *INTEGERS):
        both = {a, b}
        return "float32" if both == {"float16", "float32"} else "float64"
    return "any"


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
    if a._replace(uniform=uniform) == b._replace(uniform=uniform):
        return a._replace(uniform=uniform)
    return Kind(wider(a.name, b.name), uniform)


def of_operation(op: ast.operator, a: Kind, b: Kind) -> Kind:
    """Kind of ``a op b``."""
    uniform = a.uniform and b.uniform
    if a.name in INTEGERS and b.name in INTEGERS:
        if isinstance(op, ast.Div):
            return Kind("float64", uniform)
        logic = isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor)
        return Kind("bool" if logic and a.name == b.name == "bool" else "int", uniform)
    if a.name in FLOATS or b.name in FLOATS:
        return Kind(wider(a.name, b.name), uniform)
    return Kind("any", uniform)


def of_value(value) -> Kind:
    """Kind of a constant or scalar argument."""
    if isinstance(value, tuple):
        return Kind("tuple", True, parts=tuple(of_value(one) for one in value))
    if value is None:
        return NONE
    name = "int" if type(value) is int else dtype_name(type(value))
    if isinstance(value, float) and not name.startswith("float"):
        name = "float64"
    return number({"float": "float64"}.get(name, name) or "any", True)


def escaped(kind: Kind) -> Kind:
    """Kind of a local array once it is put where its shape is lost."""
    return ANY if kind.name == "local" else kind
