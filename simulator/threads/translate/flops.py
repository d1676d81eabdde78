"""Floating-point operations: which statements have them, and how often each block of code runs.

A run of statements that always execute together carries one counter; the operations in it are known
from the source and the kinds of its operands.
"""

from __future__ import annotations

import ast
from collections import Counter as Tally

from ..errors import Place
from ..instructions import SCOPES
from .calls import is_function
from .infer import Analysis
from .kinds import FLOATS

_OPERATIONS = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
_COMPOUND = (ast.If, ast.For, ast.While)


def operations(analysis: Analysis, node: ast.AST) -> Tally:
    """Operations by kind that one execution of a simple statement makes.

    "add" (and subtract, also atomically), "mul", "div", "pow", "matmul" (multiplications and
    additions of tensor cores), and functions by their names. Choices, comparisons and conversions
    are none. Additions that the compiler would fuse with a product still count as two operations;
    of a conditional expression both arms count, unless constants decide it. What is computed from
    values whose type the source does not tell, such as rows of a local array within a tuple, is not
    seen.
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
        elif isinstance(one, ast.Call):
            found.update(_of_call(analysis, one))
    return found


def _as_load(target):
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load())


def _of_call(analysis: Analysis, node: ast.Call) -> dict[str, int]:
    """Operations of a call, each thread's part of what a warp does together."""
    target = analysis.static(node.func)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if target is None:
        return {}
    kinds = [analysis.kind(one) for one in node.args]
    if target.what == "cuda":
        sums = target.value in ("atomic.add", "atomic.sub") and kinds[0].dtype in FLOATS
        return {"add": 1} if sums else {"fma": 1} if name == "fma" else {}
    declared = getattr(target.value, "flops", None) if target.what == "intrinsic" else None
    if declared is not None:
        threads = SCOPES[getattr(target.value, "scope", "thread")]
        return {kind: count // threads for kind, count in declared.items()}
    floats = analysis.kind(node).name in FLOATS
    if target == ("builtin", "pow"):
        return {"pow": 1} if floats else {}
    if target.what == "intrinsic":
        floats = floats and all(kind.name in FLOATS for kind in kinds)
    return (
        {name: 1}
        if floats and (target.what in ("math", "intrinsic") or is_function(target))
        else {}
    )


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


def leaves(analysis: Analysis, statement) -> bool:
    """Whether a branch or loop holds a statement that may leave it."""
    jumps = ast.Return | ast.Break | ast.Continue
    return any(isinstance(one, jumps) for one in analysis.walk(statement))


def fixed_turns(analysis: Analysis, statement) -> int | None:
    """Turns of a loop over a constant range that nothing leaves, else None."""
    if not isinstance(statement, ast.For) or leaves(analysis, statement):
        return None
    turns = analysis.constant_range(statement.iter)
    return None if turns is None else len(turns)


def runs(analysis: Analysis, statements) -> list[tuple[list[ast.stmt], dict[Place, Tally]]]:
    """Statements in runs that execute together, each with its operations by line.

    Loops of a fixed number of turns are part of the run, with what is certain in them. A run ends
    after a branch or loop that may leave it.
    """
    found: list[tuple[list[ast.stmt], dict[Place, Tally]]] = []
    run: list[ast.stmt] = []
    tallies: dict[Place, Tally] = {}
    for statement in statements:
        run.append(statement)
        _add_certain(analysis, statement, 1, tallies)
        if isinstance(statement, _COMPOUND) and leaves(analysis, statement):
            found.append((run, tallies))
            run, tallies = [], {}
    if run:
        found.append((run, tallies))
    return found


def _add_certain(analysis, statement, times: int, tallies) -> None:
    """Add the operations of a statement that runs `times` times, loops of fixed turns included."""
    compound = isinstance(statement, _COMPOUND)
    head = _head(statement) if compound else statement
    if head is not None and (tally := operations(analysis, head)):
        mine = tallies.setdefault(analysis.place(statement), Tally())
        for name, count in tally.items():
            mine[name] += times * count
    if turns := fixed_turns(analysis, statement):
        for inner in analysis.live(statement.body):
            _add_certain(analysis, inner, times * turns, tallies)


def _head(statement):
    """The part of a compound statement that runs once with those around it."""
    if isinstance(statement, ast.If):
        return statement.test
    return statement.iter if isinstance(statement, ast.For) else None
