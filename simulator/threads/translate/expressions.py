"""Kinds of expressions."""

from __future__ import annotations

import ast

from ..scalars import dtype_name
from .constants import Constants
from .kinds import (
    ANY,
    INDEX_BITS,
    INDEX_ROOTS,
    SHAPE_BITS,
    UNIFORM_INT,
    Kind,
    escaped,
    join,
    number,
    of_operation,
    of_value,
)


class Expressions(Constants):
    """Adds `kind` to `Constants`."""

    def kind(self, node) -> Kind:
        """Kind of an expression."""
        method = getattr(self, f"_kind_{type(node).__name__.lower()}", None)
        return method(node) if method else self._unknown(node)

    def _unknown(self, node) -> Kind:
        inner = [self.kind(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return Kind("any", bool(inner) and all(one.uniform for one in inner))

    def _kind_constant(self, node):
        return of_value(node.value)

    def _kind_name(self, node):
        if node.id in self.variables:
            return self.env.get(node.id, ANY)
        return self._kind_static(self.static(node))

    def _kind_static(self, target) -> Kind:
        if target.what == "const":
            return of_value(target.value)
        if target.what == "array":
            array = target.value
            return Kind("array", True, array.ndim, dtype_name(array.dtype))
        return Kind("static", True, value=target)

    def _kind_attribute(self, node):
        if target := self.static(node):
            if target.what == "cuda" and target.value == "laneid":
                return Kind("int", bits=INDEX_BITS)
            if target.what == "cuda" and target.value == "warpsize":
                return UNIFORM_INT
            return self._kind_static(target)
        base = self.static(node.value)
        if base and base.what == "cuda" and base.value in INDEX_ROOTS:
            return Kind("int", INDEX_ROOTS[base.value], bits=INDEX_BITS)
        kind = self.kind(node.value)
        if kind.name == "tuple" and kind.value and node.attr in kind.value.value._fields:
            return kind.parts[kind.value.value._fields.index(node.attr)]
        if kind.name in ("array", "local"):
            if node.attr in ("shape", "strides"):
                count = kind.ndim or len(kind.shape)
                return Kind("tuple", True, parts=(UNIFORM_INT,) * count)
            if node.attr in ("size", "ndim", "itemsize", "nbytes"):
                return UNIFORM_INT
            if kind.name == "array" and node.attr == "T":
                return kind
        return Kind("any", kind.uniform)

    def _kind_lambda(self, node):
        raise self.nested(node, "lambda")

    def _kind_tuple(self, node):
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return ANY
        parts = tuple(escaped(self.kind(one)) for one in node.elts)
        return Kind("tuple", all(part.uniform for part in parts), parts=parts)

    def _kind_binop(self, node):
        return of_operation(node.op, self.kind(node.left), self.kind(node.right))

    def _kind_unaryop(self, node):
        kind = self.kind(node.operand)
        if isinstance(node.op, ast.Not):
            return Kind("bool", kind.uniform)
        if kind.name == "bool" and isinstance(node.op, ast.USub | ast.UAdd):
            return Kind("int", kind.uniform, bits=2)
        if kind.name == "unsigned":
            return kind._replace(dtype="uint64")
        return kind._replace(dtype="", bits=min(kind.bits + 1, 64)) if kind.name == "int" else kind

    def _kind_compare(self, node):
        uniform = all(self.kind(one).uniform for one in (node.left, *node.comparators))
        return Kind("bool", uniform)

    def _kind_boolop(self, node):
        kinds = [self.kind(one) for one in node.values]
        uniform = all(kind.uniform for kind in kinds)
        same = all(kind.name == "bool" for kind in kinds)
        return Kind("bool" if same else "any", uniform)

    def _kind_ifexp(self, node):
        truth = self.decide(node.test)
        if truth is not None:
            return escaped(self.kind(node.body if truth else node.orelse))
        kind = join(escaped(self.kind(node.body)), escaped(self.kind(node.orelse)))
        return kind._replace(uniform=kind.uniform and self.kind(node.test).uniform)

    def _kind_subscript(self, node):
        kind = self.kind(node.value)
        index = self.indices(node)
        if kind.name == "array":
            return self._kind_of_element(kind, index)
        if kind.name == "local" and len(index) == len(kind.shape):
            return number(kind.dtype, False)
        uniform = kind.uniform and all(self.kind(one).uniform for one in index)
        if kind.name == "tuple" and kind.parts:
            try:
                return kind.parts[self.constant(node.slice)]
            except (ValueError, IndexError, TypeError):
                return self._item(node.value)._replace(uniform=uniform)
        return Kind("any", uniform)

    def _kind_of_element(self, kind, index):
        kinds = [self.kind(one) for one in index]
        if len(kinds) == 1 and kinds[0].name == "tuple":
            kinds = list(kinds[0].parts)
        sliced = [one for one in index if isinstance(one, ast.Slice)]
        whole = len(kinds) == kind.ndim and not sliced
        if whole:
            return number(kind.dtype, False)
        if any(isinstance(one, ast.Constant) and one.value is Ellipsis for one in index):
            return ANY
        if len(kinds) > kind.ndim or any(k.name == "any" for k in kinds):
            return ANY
        same = all(self.kind(one).uniform for one in sliced)
        return kind._replace(ndim=kind.ndim - len(kinds) + len(sliced), uniform=same)

    def _kind_slice(self, node):
        parts = [self.kind(one) for one in (node.lower, node.upper, node.step) if one]
        return Kind("slice", all(part.uniform for part in parts))

    @staticmethod
    def indices(node: ast.Subscript) -> list[ast.expr]:
        """The index expressions of ``a[i, j]``."""
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    def iterates(self, node) -> str | None:
        """``"enumerate"`` or ``"zip"`` for a call of it."""
        target = self.static(node.func) if isinstance(node, ast.Call) else None
        return target.value if target in (("builtin", "enumerate"), ("builtin", "zip")) else None

    @staticmethod
    def item_of(array: Kind) -> Kind:
        """Kind of what a loop over an array runs over."""
        if array.ndim > 1:
            return array._replace(ndim=array.ndim - 1)
        return number(array.dtype, False)

    def _item(self, iterable) -> Kind:
        name = self.iterates(iterable)
        if name == "enumerate":
            turn = Kind("int", self.kind(iterable).uniform, bits=SHAPE_BITS)
            return Kind("tuple", False, parts=(turn, self._item(iterable.args[0])))
        if name == "zip":
            return Kind("tuple", False, parts=tuple(self._item(one) for one in iterable.args))
        kind = self.kind(iterable)
        if kind.name == "array":
            return self.item_of(kind)
        if kind.name == "local":
            return number(kind.dtype, False) if len(kind.shape) == 1 else ANY
        if kind.name == "range":
            return Kind("int", kind.uniform, bits=kind.bits)
        if kind.name == "tuple" and kind.parts:
            item: Kind | None = None
            for part in kind.parts:
                item = join(item, part) if item else part
            return item or ANY
        return ANY
