"""Floating-point operations: which statements have them, and how often each block of code runs.

A run of statements that always execute together carries one counter; the operations in it are known
from the source and the kinds of its operands.
"""

from __future__ import annotations

import ast
from collections import Counter as Tally

from ..errors import Place
from .infer import Analysis
from .kinds import FLOATS

_OPERATIONS = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "div"}
_COMPOUND = (ast.If, ast.For, ast.While)


def operations(analysis: Analysis, node: ast.AST) -> Tally:
    """Operations by kind that one execution of a simple statement makes.

    "add" (and subtract), "mul", "div", and functions by their names. Additions that the compiler
    would fuse with a product still count as two operations.
    """
    found: Tally = Tally()
    for one in analysis.walk(node):
        if isinstance(one, ast.BinOp) and analysis.kind(one).name in FLOATS:
            if name := _OPERATIONS.get(type(one.op)):
                found[name] += 1
        elif isinstance(one, ast.AugAssign):
            target = ast.copy_location(_as_load(one.target), one)
            total = ast.copy_location(ast.BinOp(target, one.op, one.value), one)
            if analysis.kind(total).name in FLOATS and type(one.op) in _OPERATIONS:
                found[_OPERATIONS[type(one.op)]] += 1
        elif isinstance(one, ast.Call) and (name := _function(analysis, one)):
            found[name] += 1
    return found


def _as_load(target):
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load())


def _function(analysis, node) -> str | None:
    target = analysis.static(node.func)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if target is None:
        return None
    if target.what == "cuda" and name == "fma":
        return "fma"
    if target.what in ("math", "intrinsic") and analysis.kind(node).name in FLOATS:
        return name
    return None


class BlockCounters:
    """How often each run of statements with operations was executed, over all threads.

    Attributes
    ----------
    times : list of int
        Grows with `new`; rewritten text adds to it.
    """

    def __init__(self):
        self.times: list[int] = []
        self.tallies: list[dict[Place, Tally]] = []

    def new(self, tallies: dict[Place, Tally]) -> int:
        """Number of a counter for a run of statements with these operations."""
        self.times.append(0)
        self.tallies.append(tallies)
        return len(self.times) - 1

    def totals(self) -> dict[Place, Tally]:
        """Operations by line and kind."""
        found: dict[Place, Tally] = {}
        for times, tallies in zip(self.times, self.tallies, strict=True):
            for place, tally in tallies.items() if times else ():
                mine = found.setdefault(place, Tally())
                for name, count in tally.items():
                    mine[name] += times * count
        return found


def runs(analysis: Analysis, statements) -> list[tuple[list[ast.stmt], dict[Place, Tally]]]:
    """Statements in runs that execute together, each with its operations by line.

    A run ends after a branch or loop that may leave it.
    """
    found: list[tuple[list[ast.stmt], dict[Place, Tally]]] = []
    run: list[ast.stmt] = []
    tallies: dict[Place, Tally] = {}
    for statement in statements:
        run.append(statement)
        simple = not isinstance(statement, _COMPOUND)
        head = statement if simple else _head(statement)
        if head is not None and (tally := operations(analysis, head)):
            place = analysis.place(statement)
            tallies[place] = tallies.get(place, Tally()) + tally
        if not simple and any(
            isinstance(one, ast.Return | ast.Break | ast.Continue)
            for one in analysis.walk(statement)
        ):
            found.append((run, tallies))
            run, tallies = [], {}
    if run:
        found.append((run, tallies))
    return found


def _head(statement):
    """The part of a compound statement that runs once with those around it."""
    if isinstance(statement, ast.If):
        return statement.test
    return statement.iter if isinstance(statement, ast.For) else None
