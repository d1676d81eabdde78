"""Levels of expressions but calls (see `following`)."""

from __future__ import annotations

import ast

from .following import Statements
from .kinds import INDEX_ROOTS
from .known import (
    FOLLOWED,
    NUMBERS,
    SAME,
    UNKNOWN,
    WHOLE,
    Contents,
    Level,
    alone,
    any_unknown,
    escaped,
    least,
    meet,
    of_kind,
)

PAIRWISE = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
"""Comparisons that `PerBlock` makes."""


class Expressions(Statements):
    """Adds `level` to `Statements`."""

    def level(self, node) -> Level:
        """Level of an expression."""
        method = getattr(self, f"_level_{type(node).__name__.lower()}", None)
        if method is not None:
            return method(node)
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return alone(least(UNKNOWN if not parts else WHOLE, *map(self.level, parts)))

    def _level_constant(self, node):
        return SAME if isinstance(node.value, float) else WHOLE

    def _level_name(self, node):
        if node.id in self.analysis.variables:
            return self.env.get(node.id, WHOLE)
        return of_kind(self.analysis.kind(node))

    def _level_attribute(self, node):
        if self.analysis.static(node):
            return of_kind(self.analysis.kind(node))
        base = self.analysis.static(node.value)
        if base and base.what == "cuda" and base.value in INDEX_ROOTS:
            return FOLLOWED if base.value == "blockIdx" else WHOLE
        kind, level = self.analysis.kind(node.value), self.level(node.value)
        if kind.name == "tuple" and kind.value and isinstance(level, tuple):
            fields = kind.value.value._fields
            return level[fields.index(node.attr)] if node.attr in fields else UNKNOWN
        if kind.name in ("array", "local"):
            return level if node.attr == "T" else WHOLE
        return alone(least(level))

    def _level_tuple(self, node):
        parts = tuple(map(self.level, node.elts))
        escaped(*parts)
        return parts

    _level_list = _level_tuple

    def _level_binop(self, node):
        level = least(self.level(node.left), self.level(node.right))
        both = {self.analysis.kind(node.left).name, self.analysis.kind(node.right).name}
        if isinstance(node.op, ast.Div) or both == {"unsigned"}:  # 64 bits, floats beside signed
            return min(SAME, alone(level)) if isinstance(node.op, ast.Div) else min(SAME, level)
        return level

    def _level_unaryop(self, node):
        return least(self.level(node.operand))

    def _level_compare(self, node):
        nodes = (node.left, *node.comparators)
        level = self._in_turn(nodes)
        if not all(isinstance(op, PAIRWISE) for op in node.ops):
            return alone(level)
        return WHOLE if level == SAME else level

    def _level_boolop(self, node):
        return self._in_turn(node.values)

    def _in_turn(self, nodes) -> int:
        """Of expressions each of which may decide whether the next one is looked at."""
        outer, level = self.blind, WHOLE
        for node in nodes:
            level = least(level, self.level(node))
            self.blind = self.blind or level == UNKNOWN
        self.blind = outer
        return level

    def _level_ifexp(self, node):
        truth = self.analysis.decide(node.test)
        if truth is not None:
            return self.level(node.body if truth else node.orelse)
        test, outer = least(self.level(node.test)), self.blind
        self.blind = outer or test == UNKNOWN
        level = meet(self.level(node.body), self.level(node.orelse))
        self.blind = outer
        return UNKNOWN if test == UNKNOWN else level

    def _level_slice(self, node):
        return least(*(self.level(one) for one in (node.lower, node.upper, node.step) if one))

    def _level_subscript(self, node):
        if self.analysis.static(node):
            return of_kind(self.analysis.kind(node))
        kind, base = self.analysis.kind(node.value), self.level(node.value)
        indices = self.analysis.indices(node)
        levels = [self.level(one) for one in indices]
        index = least(*levels)
        if isinstance(base, Contents):
            if kind.name == "local" and len(indices) < len(kind.shape):
                return base
            return base.level if index == WHOLE else UNKNOWN
        if base == NUMBERS:
            return base
        if isinstance(base, tuple):
            try:
                return base[self.analysis.constant(node.slice)]
            except (ValueError, IndexError, TypeError):
                return least(base) if index >= SAME else UNKNOWN
        if kind.name not in ("array", "any"):
            return least(base) if index >= SAME else UNKNOWN
        if any_unknown(*levels):
            self.leak("an index", node)
        elif least(base) == UNKNOWN:
            self.leak("where an array lies", node)
        found = self.analysis.kind(node)
        where = min(least(base), index)
        if kind.name == "array" and found.name == "array":
            return where
        self.touch(node)
        return self.element(kind, where) if kind.name == "array" else UNKNOWN
