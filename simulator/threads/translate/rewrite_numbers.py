"""Rewrites arithmetic: Numba's conversions, and integers that wrap.

A signed result is wrapped only where it may not fit into 64 bits (`kinds.result_bits`). Unsigned
ones wrap by themselves (`scalars.Unsigned`).
"""

from __future__ import annotations

import ast

from ..scalars import CASTS, HALF_64, argument
from .kinds import FLOATS, INTEGERS, NUMBERS, Kind, of_operation, result_bits
from .rewrite import Rewriter, call, load

GROWING = (ast.Add, ast.Sub, ast.Mult, ast.LShift, ast.Pow)
"""Operations whose result may not fit the type of the operands."""


class NumberRewriter(Rewriter):
    """Adds arithmetic to `Rewriter`."""

    def visit_BinOp(self, node):
        """Numba's conversions: a float32 with an integer of 32 or 64 bits is float64."""
        a, b = self.kind(node.left), self.kind(node.right)
        node = ast.copy_location(
            ast.BinOp(self.visit(node.left), node.op, self.visit(node.right)), node
        )
        return self._operation(node, a, b)

    def _operation(self, node, a: Kind, b: Kind):
        if {a.name, b.name} <= NUMBERS and (a.name in FLOATS) != (b.name in FLOATS):
            wanted = of_operation(node.op, a, b)
            if a.name not in INTEGERS:  # NumPy's floats take on signed ones by themselves
                node.left = self.converted(node.left, a, wanted)
            if b.name not in INTEGERS:
                node.right = self.converted(node.right, b, wanted)
        elif isinstance(node.op, ast.Div) and not (a.name in FLOATS or b.name in FLOATS):
            return ast.copy_location(call("_divide", node.left, node.right), node)
        integers = a.name in (*INTEGERS, "any") and b.name in (*INTEGERS, "any")
        if integers and isinstance(node.op, GROWING) and result_bits(node.op, a, b) > 64:
            return ast.copy_location(call("_int64", node), node)
        return node

    def visit_Constant(self, node):
        """Integers that only uint64 holds are unsigned."""
        if type(node.value) is not int or node.value < HALF_64:
            return node
        value = argument(node.value)
        self.functions.keep(value)
        return ast.copy_location(load(self.bind(value, "const")), node)

    def visit_UnaryOp(self, node):
        """A negative is made in the width of the operand, and is int64 then."""
        new = self.generic_visit(node)
        if isinstance(node.op, ast.USub):
            new = self.negated(new, self.kind(node.operand))
        return ast.copy_location(new, node)

    def negated(self, new, kind: Kind):
        """A rewritten negative or absolute of a value of `kind`, in its width."""
        if kind.name not in ("int", "any"):
            return new
        if kind.dtype:
            return call(self.bind(CASTS[kind.dtype], kind.dtype), new)
        return call("_int64", new) if kind.bits >= 64 else new
