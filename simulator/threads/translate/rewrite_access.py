"""Rewrites accesses of arrays and assignments."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import fail
from ..log import LOAD, STORE
from ..scalars import CASTS
from .kinds import FLOATS, Kind, of_operation
from .rewrite import call, load
from .rewrite_numbers import NumberRewriter
from .versions import as_written

SIMPLE = (ast.Name, ast.Constant)


class AccessRewriter(NumberRewriter):
    """Adds subscripts and assignments to `NumberRewriter`."""

    def _index(self, node):
        self._refuse_floats(node)
        return [self.visit(one) for one in self.analysis.indices(node)]

    def _refuse_floats(self, node) -> None:
        """An index must be an integer; one that is a float only at run time is found there."""
        for one in self.analysis.indices(node):
            kind = self.kind(one).name
            if kind in FLOATS:
                hint = ""
                if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
                    hint = f": write {as_written(one.left)} // {as_written(one.right)}"
                text = f"an index must be an integer, {as_written(one)} is a {kind}{hint}"
                raise fail("exception", text, self.analysis.place(node))

    def _is_direct(self, node, kind: Kind) -> bool:
        """Whether ``a[i, j]`` names one element, known to be written with all its indices."""
        index = self.analysis.indices(node)
        count = kind.ndim if kind.name == "array" else len(kind.shape)
        known = kind.name in ("array", "local") and len(index) == count
        return known and not any(
            isinstance(one, ast.Slice | ast.Starred | ast.UnaryOp)
            or self.kind(one).name == "tuple"
            or (isinstance(one, ast.Constant) and not isinstance(one.value, int))
            for one in index
        )

    def _array_and_key(self, node):
        self._refuse_floats(node)
        base, key = self.visit(node.value), self.visit(node.slice)
        if not any(isinstance(one, ast.UnaryOp) for one in self.analysis.indices(node)):
            return base, key
        name = self.temporary()
        held = ast.NamedExpr(ast.Name(name, ast.Store()), base)
        return held, call("_wrapped", load(name), key)

    def _base(self, node, kind):
        name = isinstance(node.value, ast.Name) and kind.name == "local"
        return node.value if name else self.visit(node.value)

    @staticmethod
    def _nested(base, index, context):
        for one in index[:-1]:
            base = ast.Subscript(base, one, ast.Load())
        return ast.Subscript(base, index[-1], context)

    def visit_Subscript(self, node):
        """A load."""
        if target := self.analysis.static(node):
            return self._static(node, target)
        kind = self.kind(node.value)
        if kind.name == "tuple":
            return self.generic_visit(node)
        if not self._is_direct(node, kind):
            code = self.code(node, LOAD)
            return ast.copy_location(call("_load", *self._array_and_key(node), code), node)
        base, index = self._base(node, kind), self._index(node)
        if kind.name == "local":
            return ast.copy_location(self._nested(base, index, ast.Load()), node)
        get = ast.Attribute(base, "get", ast.Load())
        return ast.copy_location(ast.Call(get, [*index, self.code(node, LOAD)], []), node)

    def rounded(self, value, kind: Kind, dtype: str):
        """Rewritten `value`, of `kind`, as an element of a local array of `dtype`."""
        if kind.name == dtype:
            return value
        convert = CASTS[dtype]
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            constant = convert(value.value)
            if type(constant) is int:
                return ast.Constant(constant)
            self.functions.keep(constant)
            return load(self.bind(constant, "const"))
        name = self.bind(convert, dtype)
        if dtype not in FLOATS:
            return call(name, value)
        held = ast.NamedExpr(ast.Name("_v", ast.Store()), value)
        own = ast.Compare(ast.Attribute(held, "__class__", ast.Load()), [ast.Is()], [load(name)])
        return ast.IfExp(own, load("_v"), call(name, load("_v")))

    def store(self, target: ast.Subscript, value, kind: Kind) -> ast.stmt:
        """Statement that stores the rewritten `value`."""
        array = self.kind(target.value)
        if not self._is_direct(target, array):
            code = self.code(target, STORE)
            text = call("_store", *self._array_and_key(target), value, code)
            return ast.copy_location(ast.Expr(text), target)
        base, index = self._base(target, array), self._index(target)
        if array.name == "local":
            value = self.rounded(value, kind, array.dtype)
            place = self._nested(base, index, ast.Store())
            return ast.copy_location(ast.Assign([place], value), target)
        put = ast.Attribute(base, "set", ast.Load())
        text = ast.Call(put, [value, *index, self.code(target, STORE)], [])
        return ast.copy_location(ast.Expr(text), target)

    def visit_Assign(self, node):
        """Assignments, those to elements as calls that store."""
        kind, value = self.kind(node.value), self._value(node.value)
        statements: list[ast.stmt] = []
        if len(node.targets) > 1:
            name = self.temporary()
            statements.append(self._set_name(name, value, node))
            value = load(name)
        for target in node.targets:
            statements += self._assign(target, value, kind, node)
        return self._if_assigned(statements, node) if node in self.analysis.copies else statements

    @staticmethod
    def _if_assigned(statements: list[ast.stmt], node) -> list[ast.stmt]:
        """A copy of a version, left out where this way has not assigned it."""
        unbound = ast.Name(UnboundLocalError.__name__, ast.Load())
        left_out = ast.ExceptHandler(unbound, None, [ast.Pass()])
        return [ast.copy_location(ast.Try(statements, [left_out], [], []), node)]

    def _value(self, node):
        """The right side of an assignment; a local array may get a second name."""
        if isinstance(node, ast.Name) and self.kind(node).name == "local":
            return node
        return self.visit(node)

    def _set_name(self, name, value, node):
        return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), node)

    def _assign(self, target, value, kind, node) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            wanted = self.analysis.env[target.id]
            return [self._set_name(target.id, self.converted(value, kind, wanted), node)]
        if isinstance(target, ast.Subscript):
            return [self.store(target, value, kind)]
        parts = kind.parts if kind.name == "tuple" else (Kind(),) * len(target.elts)
        if kind.name == "array":
            value = call("_items", value, self.code(node, LOAD))
            parts = (self.analysis.item_of(kind),) * len(target.elts)
        names = [self.temporary() for _ in target.elts]
        unpack = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        statements: list[ast.stmt] = [ast.copy_location(ast.Assign([unpack], value), node)]
        for one, name, part in zip(target.elts, names, parts, strict=True):
            statements += self._assign(one, load(name), part, node)
        return statements

    def visit_AnnAssign(self, node):
        """As an assignment; the annotation says nothing to Numba."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node):
        """``a[i] += x`` as a load and a store."""
        target: Any = node.target
        kind = self.kind(node.value)
        if isinstance(target, ast.Name):
            return self._augment_name(node, target, kind)
        statements, target = self._with_simple_index(target, node)
        old = self.kind(target)
        read = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
        array = self.kind(target.value)
        value = self.visit(node.value)
        if array.name == "local" and old.name == kind.name and self._is_direct(target, array):
            base, index = self._base(target, array), self._index(target)
            place = self._nested(base, index, ast.Store())
            update = ast.copy_location(ast.AugAssign(place, node.op, value), node)
            return [*statements, update]
        total = ast.copy_location(ast.BinOp(self.visit(read), node.op, value), node)
        result = self._operation(total, old, kind)
        return [*statements, self.store(target, result, of_operation(node.op, old, kind))]

    def _augment_name(self, node, target, kind):
        old = self.analysis.env[target.id]
        total = ast.copy_location(ast.BinOp(load(target.id), node.op, self.visit(node.value)), node)
        value = self._operation(total, old, kind)
        value = self.converted(value, of_operation(node.op, old, kind), old)
        return self._set_name(target.id, value, node)

    def _with_simple_index(self, target, node):
        """Index expressions that are more than names are computed once, before."""
        index = self.analysis.indices(target)
        if all(isinstance(one, SIMPLE) for one in index):
            return [], target
        statements, names = [], []
        for one in index:
            if isinstance(one, (*SIMPLE, ast.Slice)):
                names.append(one)
                continue
            name = self.temporary()
            self.analysis.env[name] = self.kind(one)
            self.analysis.variables.add(name)
            statements.append(self._set_name(name, self.visit(one), node))
            names.append(ast.copy_location(load(name), one))
        key = (
            names[0] if len(names) == 1 else ast.copy_location(ast.Tuple(names, ast.Load()), target)
        )
        return statements, ast.copy_location(ast.Subscript(target.value, key, target.ctx), target)
