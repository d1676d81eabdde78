"""Kinds of what calls give."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collectives import COLLECTIVE_UNIFORM
from ..mathematics import MATH, NOT_FLOATS
from ..scalars import dtype_name
from .expressions import Expressions
from .kinds import (
    ANY,
    FLOATS,
    NONE,
    NUMBERS,
    SHAPE_BITS,
    Kind,
    escaped,
    number,
    of_operation,
    wider,
)
from .link import Target

if TYPE_CHECKING:
    from .infer import Analysis


CHOICES = (np.maximum, np.minimum, np.fmax, np.fmin)
"""NumPy's functions that give one of their operands."""


def is_function(target: Target) -> bool:
    """Whether a call is of a NumPy function of numbers that `math` has, too."""
    return target.what == "native" and getattr(target.value, "__name__", "") in MATH


class Calls(Expressions):
    """Adds calls to `Expressions`.

    Attributes
    ----------
    functions : Functions
        Where device functions are analysed.
    """

    functions: Any

    def _kind_call(self, node) -> Kind:
        target = self.static(node.func)
        arguments = [self.kind(one) for one in node.args]
        uniform = all(kind.uniform for kind in arguments)
        if target is None:
            return self._kind_method(node, arguments)
        if target.what == "cast":
            return number(target.value, uniform)
        if target.what == "class":
            parts = tuple(escaped(kind) for kind in arguments)
            named = {one.arg: escaped(self.kind(one.value)) for one in node.keywords}
            parts += tuple(named.get(name, ANY) for name in target.value._fields[len(parts) :])
            uniform = all(part.uniform for part in parts)
            return Kind("tuple", uniform, parts=parts, value=target)
        if target.what == "function":
            returns = self.callee(node, target.value).returns
            return returns if returns is not None else NONE
        if target.what == "cuda":
            return self._kind_cuda(node, target.value, arguments, uniform)
        if target.what == "math" or is_function(target):
            names = {kind.name for kind in arguments}
            known = names <= NUMBERS and names
            name = "float32" if names == {"float32"} else "float64" if known else "any"
            return Kind(NOT_FLOATS.get(target.value, name), uniform)
        if target.what == "native" and target.value in CHOICES:
            floats = arguments and all(kind.name in FLOATS for kind in arguments)
            return functools.reduce(wider, arguments) if floats else ANY
        if target.what == "choice":
            chosen = arguments[-2:]  # of where, after the condition
            return (chosen[0] if len(chosen) == 1 else wider(*chosen))._replace(uniform=uniform)
        if target.what == "builtin":
            return self._kind_builtin(target.value, arguments, uniform)
        if target.what == "intrinsic" and not node.keywords:
            return self.functions.result_of(target.value, arguments)
        return ANY

    def _kind_method(self, node, arguments):
        if isinstance(node.func, ast.Lambda):
            raise self.nested(node.func, "lambda")
        if isinstance(node.func, ast.Attribute):
            base = self.kind(node.func.value)
            if base.name == "array" and node.func.attr == "reshape":
                count = len(arguments[0].parts) if arguments[0].name == "tuple" else len(arguments)
                return base._replace(ndim=count)
        return ANY

    def _kind_builtin(self, name, arguments, uniform):
        if name == "range":
            return Kind("range", uniform, bits=max(one.bits for one in arguments))
        if name == "len":
            return Kind("int", uniform, bits=SHAPE_BITS)
        if name == "int":
            return Kind("int", uniform)
        if name in ("float", "bool"):
            return Kind({"float": "float64"}.get(name, name), uniform)
        if name in ("max", "min") and len(arguments) == 1 and arguments[0].name == "tuple":
            arguments = list(arguments[0].parts)
        if name in ("max", "min") and len(arguments) > 1:
            return functools.reduce(wider, arguments)
        if name == "pow" and len(arguments) == 2:
            return of_operation(ast.Pow(), *arguments)
        if name == "abs" and arguments:
            return arguments[0]
        return Kind("any", uniform)

    def _kind_cuda(self, node, path, arguments, uniform):
        self.functions.check_arguments(node, path, self.place(node))
        if path == "local.array":
            shape, dtype, _ = self.declaration(node)
            return Kind("local", False, dtype=dtype, shape=shape)
        if path == "const.array_like":
            return arguments[0] if arguments else ANY
        if path == "cg.this_grid":
            return Kind("static", True, value=Target("cuda", "cg.grid"))
        if path == "shared.array":
            shape, dtype, _ = self.declaration(node)
            return Kind("array", True, len(shape), dtype)
        name = path.replace(".", "_")
        if name in COLLECTIVE_UNIFORM:
            return Kind("any" if name == "ballot_sync" else "int", True)
        if name in ("clz", "popc") and arguments[0].name in NUMBERS:
            return arguments[0]
        if name.startswith("atomic") and arguments and arguments[0].name == "array":
            return number(arguments[0].dtype, False)
        if name.startswith("shfl") and len(arguments) > 1:
            return arguments[1]._replace(uniform=name == "shfl_sync" and arguments[2].uniform)
        if name in ("grid", "gridsize"):
            one = Kind("int", name == "gridsize", bits=SHAPE_BITS)
            ndim = node.args[0].value if isinstance(node.args[0], ast.Constant) else 1
            return one if ndim == 1 else Kind("tuple", one.uniform, parts=(one,) * ndim)
        if name == "fma" and {kind.name for kind in arguments} == {"float32"}:
            return Kind("float32", uniform)
        return ANY

    def declaration(self, node) -> tuple[tuple[int, ...], str, int | None]:
        """Shape, element type and alignment of a declared shared or local array."""
        given: dict[Any, ast.expr] = dict(zip(("shape", "dtype"), node.args, strict=False))
        given |= {one.arg: one.value for one in node.keywords}
        try:
            shape = self.constant(given["shape"])
            alignment = self.constant(given["alignment"]) if "alignment" in given else None
        except (ValueError, KeyError):
            raise self.unsupported(node, "an array whose shape is no constant") from None
        dtype = self._declared_dtype(node, given.get("dtype"))
        return (shape if isinstance(shape, tuple) else (shape,)), dtype, alignment

    def _declared_dtype(self, node, given: ast.expr | None) -> str:
        """Element type of a declared array: a type, a NumPy dtype, or a string that names one."""
        if given is None:
            raise self.unsupported(node, "an array without a dtype")
        target = None if isinstance(given, ast.Constant) else self.static(given)
        if target is not None and target.what == "cast":
            return target.value
        value = given.value if isinstance(given, ast.Constant) else target and target.value
        text = str(value) if isinstance(value, str | np.dtype) else ast.unparse(given)
        try:
            dtype = np.dtype(value) if isinstance(value, str | np.dtype) else None
        except TypeError:
            dtype = None
        if dtype is None or not (name := dtype_name(dtype)):
            records = dtype is not None and dtype.names
            raise self.unsupported(node, f"an array of {'records' if records else text}")
        return name

    def callee(self, node: ast.Call, function) -> Analysis:
        """Analysis of the device function that a call reaches."""
        kinds: list[Kind] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                inner = self.kind(one.value)
                if inner.name != "tuple":
                    raise self.unsupported(node, "a star before what is no known tuple")
                kinds += inner.parts
            else:
                kinds.append(self.kind(one))
        named = {one.arg: self.kind(one.value) for one in node.keywords}
        return self.functions.specialise(function, tuple(kinds), named, self.place(node))
