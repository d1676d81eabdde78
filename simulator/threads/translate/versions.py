"""Variables that are given values of several types: one for each value, as Numba has it.

Numba brings functions into static single assignment form: a name that is assigned again is another
variable from there on, with a type of its own. Where ways meet that bring different ones, a new
variable takes either; its type is the one to which both convert. Here that is done to the syntax
tree, for the names that are asked for: ``v`` becomes ``v``, ``v·1``, ``v·2`` ... , and where ways
meet the last one is assigned at the end of each way.
"""

from __future__ import annotations

import ast
import copy
import re

from .source import assigned

SIGN = "·"
Versions = dict[str, str]
"""The variable that stands for a name, at one point of the text."""
Block = tuple[list[ast.stmt], Versions | None]
"""Statements, and the versions behind them: None if nothing comes there."""


def plain(text: str) -> str:
    """A variable's name, or a text with such names, as it is written."""
    return re.sub(rf"{SIGN}\d+", "", text)


def as_written(node: ast.expr) -> str:
    """The text of an expression, with the names that stand in the source."""
    return re.sub(rf"{SIGN}\d+", "", ast.unparse(node))


def versioned(
    body: list[ast.stmt], names: set[str], parameters: list[str]
) -> tuple[list[ast.stmt], set[ast.stmt]]:
    """A copy of a function's body where each of `names` has versions, with the copies at meetings.

    A copy must not fail where its way has not assigned the variable: nothing reads it then. A name
    that an inner function, a comprehension or ``:=`` knows too stays as it is.
    """
    scopes = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.GeneratorExp, ast.NamedExpr)
    inner = (one for node in body for one in ast.walk(node) if isinstance(one, scopes))
    shared = {one.id for node in inner for one in ast.walk(node) if isinstance(one, ast.Name)}
    form = _Form(names - shared)
    found, _ = form.block(copy.deepcopy(body), {one: one for one in parameters if one in names})
    return _kept(found, form.copies, _read(found, form.copies)), set(form.copies)


class _Loop:
    """Where the ways of a loop meet.

    Attributes
    ----------
    head, after : dict of str to str
        Versions when a turn begins, and behind the loop.
    """

    def __init__(self, head: Versions, after: Versions):
        self.head, self.after = head, after


class _Form(ast.NodeTransformer):
    """Renames.

    Attributes
    ----------
    at : dict of str to str
        Versions where it stands.
    copies : dict of Assign to (str, str)
        Assignments where ways meet, with the target and the source.
    """

    def __init__(self, names: set[str]):
        self._names, self._loops = names, []
        self._counts: dict[str, int] = {}
        self.at: Versions = {}
        self.copies: dict[ast.stmt, tuple[str, str]] = {}

    def _new(self, name: str) -> str:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return f"{name}{SIGN}{count}"

    def block(self, body: list[ast.stmt], at: Versions) -> Block:
        """Statements renamed from `at` on."""
        found: list[ast.stmt] = []
        for statement in body:
            self.at = at
            made, behind = self._statement(statement)
            found += made
            if behind is None:
                return found, None
            at = behind
        return found, at

    def _statement(self, node) -> Block:
        if isinstance(node, ast.If):
            return self._if(node)
        if isinstance(node, ast.For | ast.While):
            return self._loop(node)
        if isinstance(node, ast.Break | ast.Continue) and self._loops:
            loop = self._loops[-1]
            goal = loop.after if isinstance(node, ast.Break) else loop.head
            return [*self._meet(goal, self.at, node), node], None
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            node = self._as_assignment(node)
        self.at = dict(self.at)
        made = self.visit(node)
        return [made], None if isinstance(node, ast.Return) else self.at

    def _as_assignment(self, node):
        if node.target.id not in self._names:
            return node
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        total = ast.copy_location(ast.BinOp(old, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], total), node)

    def visit_Assign(self, node):
        """The value before the targets."""
        node.value = self.visit(node.value)
        node.targets = [self.visit(one) for one in node.targets]
        return node

    def visit_AnnAssign(self, node):
        """The same."""
        if node.value is not None:
            node.value = self.visit(node.value)
            node.target = self.visit(node.target)
        return node

    def visit_Name(self, node):
        """A use of the present version, or a new one."""
        if node.id not in self._names:
            return node
        name = node.id
        if isinstance(node.ctx, ast.Store):
            self.at[name] = self._new(name)
        return ast.copy_location(ast.Name(self.at.get(name, name), node.ctx), node)

    def _meet(self, goal: Versions, at: Versions, where) -> list[ast.stmt]:
        """Assignments to the versions of `goal` of those `at` the end of a way."""
        made: list[ast.stmt] = []
        for new, old in ((goal[name], at[name]) for name in goal if name in at):
            one = ast.Assign([ast.Name(new, ast.Store())], ast.Name(old, ast.Load()))
            made.append(ast.fix_missing_locations(ast.copy_location(one, where)))
            self.copies[made[-1]] = new, old
        return made

    def _if(self, node: ast.If) -> Block:
        before = self.at
        node.test = self.visit(node.test)
        node.body, first = self.block(node.body, dict(before))
        node.orelse, second = self.block(node.orelse, dict(before))
        if first is None or second is None:
            return [node], first if second is None else second
        meeting = {
            name: self._new(name)
            for name in first.keys() & second.keys()
            if first[name] != second[name]
        }
        node.body += self._meet(meeting, first, node)
        node.orelse += self._meet(meeting, second, node)
        return [node], first | second | meeting

    def _loop(self, node: ast.For | ast.While) -> Block:
        before = self.at
        if isinstance(node, ast.For):
            node.iter = self.visit(node.iter)
        changed = sorted(assigned(node) & self._names)
        loop = _Loop(*({name: self._new(name) for name in changed} for _ in range(2)))
        start = self._meet(loop.head, before, node)
        head = self.at = before | loop.head
        if isinstance(node, ast.While):
            node.test = self.visit(node.test)
        else:
            self.at = dict(head)
            node.target = self.visit(node.target)
        self._loops.append(loop)
        node.body, end = self.block(node.body, dict(self.at))
        self._loops.pop()
        if end is not None:
            node.body += self._meet(loop.head, end, node)
        node.orelse, end = self.block(node.orelse, dict(head))
        if end is not None:
            node.orelse += self._meet(loop.after, end, node)
        return [*start, node], before | loop.after


def _read(body: list[ast.stmt], copies: dict) -> set[str]:
    """Variables that something reads, be it through copies."""
    sources = {id(one.value) for one in copies}
    read = {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if id(node) not in sources
    }
    while more := {old for new, old in copies.values() if new in read} - read:
        read |= more
    return read


def _kept(body: list[ast.stmt], copies: dict, read: set[str]) -> list[ast.stmt]:
    """Less the copies for nobody, which would convert."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If | ast.For | ast.While):
            node.body, node.orelse = (
                _kept(part, copies, read) for part in (node.body, node.orelse)
            )
        if node not in copies or copies[node][0] in read:
            found.append(node)
    return found
