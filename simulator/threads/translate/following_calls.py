"""Levels of calls (see `following`); `leaks_of` is the entrance."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from .following_expressions import Expressions
from .infer import Analysis
from .kinds import FLOATS, Kind
from .known import (
    FOLLOWED,
    NUMBERS,
    SAME,
    UNKNOWN,
    WHOLE,
    Book,
    Contents,
    Level,
    alone,
    any_unknown,
    escaped,
    frozen,
    least,
    of_kind,
)
from .rewrite_calls import is_plain

FOLLOWING = ("abs", "bool", "int", "max", "min")
"""Built-in functions that work on `PerBlock`."""
SCALARS = (*FLOATS, "bool", "int", "unsigned", "none", "static")
COUNTED = ("syncthreads", "cg_grid_sync", "atomic_", "threadfence")
"""Functions of ``cuda`` whose calls show in a report, by how their names begin."""
MESSAGES = ("shfl", "any_", "all_", "eq_", "ballot", "match_any", "syncthreads", "popc", "brev")
MESSAGES += ("clz", "ffs", "selp")
"""Those that give what `PerBlock` can follow, or refuse it."""


def leaks_of(analysis: Analysis) -> Book:
    """What decides about accesses in a kernel that cannot be followed in other blocks."""
    book = Book()
    kinds = [analysis.env[name] for name in analysis.parameters]
    Calls(book, analysis, [of_kind(kind) for kind in kinds], False)
    return book


class Calls(Expressions):
    """Adds calls to `Expressions`."""

    def _level_call(self, node):
        target = self.analysis.static(node.func)
        if target is None:
            return self._level_method(node)
        method = getattr(self, f"_call_{target.what}", None)
        if method is not None:
            return method(node, target.value)
        return alone(self._least(node))

    def _nodes(self, node) -> list[ast.expr]:
        return [*node.args, *(one.value for one in node.keywords)]

    def _least(self, node) -> int:
        return least(*(self.level(one) for one in self._nodes(node)))

    def _level_method(self, node):
        level = self._least(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            if level != WHOLE:
                self.leak("a shape", node)
            return self.level(node.func.value)
        return UNKNOWN

    def _call_cast(self, node, name):
        level = self._least(node)
        if name in FLOATS or name == "uint64":
            return min(SAME, alone(level)) if name in FLOATS else min(SAME, level)
        return WHOLE if level == SAME else level

    def _call_choice(self, node, function):
        return self._least(node)

    def _call_class(self, node, cls):
        parts = [self.level(one) for one in node.args]
        named = {one.arg: self.level(one.value) for one in node.keywords}
        escaped(*parts, *named.values())
        return (*parts, *(named.get(name, WHOLE) for name in cls._fields[len(parts) :]))

    def _call_builtin(self, node, name):
        if name == "len":
            return WHOLE
        if name == "range":
            return least(*map(self.level, node.args))
        levels = [self.level(one) for one in node.args]
        if name in ("max", "min") and len(levels) == 1 and isinstance(levels[0], tuple):
            return alone(least(levels[0]))
        level = least(*levels)
        if name in FOLLOWING:
            return WHOLE if name in ("int", "bool") and level == SAME else level
        return alone(level)

    def _call_cuda(self, node, path):
        name = path.replace(".", "_")
        if name == "local_array":
            return self.declared.setdefault(id(node), Contents(WHOLE))
        if name in ("shared_array", "const_array_like", "cg_this_grid", "gridsize"):
            return WHOLE
        if name.startswith(COUNTED):
            self.touch(node, "a barrier" if name.startswith("sync") else "an access")
        levels = [least(self.level(one)) for one in self._nodes(node)]
        if name == "grid":
            kind = self.analysis.kind(node)
            return (FOLLOWED,) * len(kind.parts) if kind.name == "tuple" else FOLLOWED
        if name.startswith("atomic_"):
            if name != "atomic_compare_and_swap" and levels[1] == UNKNOWN:
                self.leak("an index", node)
            if levels[0] == UNKNOWN:
                self.leak("where an array lies", node)
            return UNKNOWN
        level = least(*levels)
        return level if name.startswith(MESSAGES) else alone(level)

    def _call_function(self, node, function):
        """A device function; what it does to local arrays is done to those of the call."""
        analysis = self.analysis.callee(node, function)
        bound = inspect.signature(function).bind(*self._given(node), **self._named(node))
        levels = [bound.arguments.get(name, WHOLE) for name in analysis.parameters]
        key = (id(analysis), *map(frozen, levels), self.blind)
        if key not in self.book.results:
            fresh = [Contents(x.level) if isinstance(x, Contents) else x for x in levels]
            inner = type(self)(self.book, analysis, fresh, self.blind)
            self.book.results[key] = inner.returns, fresh
        returns, after = self.book.results[key]
        for one, found in zip(levels, after, strict=True):
            if isinstance(one, Contents):
                one.lower(least(found))
        return self._here(WHOLE if returns is None else returns)

    def _given(self, node) -> list[Level]:
        found: list[Level] = []
        for one in node.args:
            level = self.level(one.value if isinstance(one, ast.Starred) else one)
            if isinstance(one, ast.Starred):
                count = len(self.analysis.kind(one.value).parts)
                found += level if isinstance(level, tuple) else (least(level),) * count
            else:
                found.append(level)
        return found

    def _named(self, node) -> dict[str, Level]:
        return {one.arg: self.level(one.value) for one in node.keywords}

    def _call_intrinsic(self, node, operation: Any):
        """An instruction: all of its operands may decide, but for those it says are `values`."""
        values = getattr(operation, "values", None)
        nodes = self._nodes(node)
        levels = [self.level(one) for one in nodes]
        escaped(*levels)
        kinds = [
            Kind("float32") if level == NUMBERS else self.analysis.kind(one)
            for one, level in zip(nodes, levels, strict=True)
        ]
        deciding = [i for i in range(len(nodes)) if values is None or i not in values]
        known = least(*(levels[i] for i in deciding))
        memory = not all(kinds[i].name in (*SCALARS, "tuple") for i in deciding)
        if memory or operation_waits(operation):
            self._accesses(node, operation, deciding, levels, kinds)
        if getattr(operation, "follows", False):
            return known
        plain = not memory and is_plain(operation)
        if plain and known >= SAME:
            return SAME
        return UNKNOWN if values is None else NUMBERS

    def _accesses(self, node, operation, deciding, levels, kinds) -> None:
        name = getattr(operation, "__name__", "an instruction")
        self.touch(node)
        if not hasattr(operation, "values"):
            self.leak(f"what {name} accesses (it declares no `values`)", node)
        for i in deciding:
            if any_unknown(levels[i]) and not _is_float(kinds[i]):
                self.leak(f"operand {i + 1} of {name}", node)


def operation_waits(operation) -> bool:
    """Whether an intrinsic may access memory or wait without being handed an array."""
    return bool(getattr(operation, "traffic", "") or getattr(operation, "context", False))


def _is_float(kind: Kind) -> bool:
    """Whether values of a kind are floats, which are no indices."""
    if kind.name == "tuple":
        return bool(kind.parts) and all(map(_is_float, kind.parts))
    return kind.name in FLOATS or (kind.name == "local" and kind.dtype in FLOATS)
