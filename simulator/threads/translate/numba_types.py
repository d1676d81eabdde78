"""Kinds as Numba types and back, to ask an intrinsic's typing function what it gives."""

from __future__ import annotations

import sys

from ..scalars import dtype_name
from .kinds import ANY, NONE, Kind, number


def _types():
    return sys.modules.get("numba.cuda.types") or sys.modules["numba.core.types"]


def numba_type(kind: Kind):
    """The Numba type of a kind.

    Raises
    ------
    ValueError
        If the kind does not say enough.
    """
    types = _types()
    if kind.name == "tuple":
        return types.Tuple([numba_type(part) for part in kind.parts])
    if kind.name == "array":
        return types.Array(getattr(types, kind.dtype), kind.ndim, "A")
    if kind.name == "local":
        return types.Array(getattr(types, kind.dtype), len(kind.shape), "C")
    names = {"int": "int64", "unsigned": "uint32", "bool": "boolean", "none": "none"}
    if kind.name in ("any", "static", "range", "slice"):
        raise ValueError
    return getattr(types, names.get(kind.name, kind.name))


def kind_of_type(given) -> Kind:
    """The kind of values of a Numba type."""
    types = _types()
    if isinstance(given, types.BaseTuple):
        parts = tuple(kind_of_type(part) for part in given)
        return Kind("tuple", parts=parts)
    if isinstance(given, types.Array):
        dtype = dtype_name(given.dtype)
        return Kind("array", True, given.ndim, dtype) if dtype else ANY
    if str(given) == "none":
        return NONE
    name = dtype_name(given)
    return number(name, False) if name else ANY
