"""Rewrites branches and loops: notes where threads part ways, and counts the turns of loops."""

from __future__ import annotations

import ast

from ..errors import fail
from ..log import LOAD
from ..mathematics import BUILTINS
from ..runtime import TURNS_BEFORE_PAUSE
from .flops import fixed_turns, runs
from .rewrite import call, load
from .rewrite_calls import CallRewriter


def _is_names(target) -> bool:
    """Whether a loop's target is a name, or a tuple of them."""
    if isinstance(target, ast.Tuple):
        return all(map(_is_names, target.elts))
    return isinstance(target, ast.Name)


class FlowRewriter(CallRewriter):
    """Adds control flow to `CallRewriter`; `function` gives the whole rewritten function."""

    def function(self, name: str) -> ast.FunctionDef:
        """The rewritten definition."""
        analysis = self.analysis
        first = analysis.body[0]
        own_place = (
            analysis.early_return and not analysis.is_kernel and self.functions.touches(analysis)
        )
        if own_place:
            self._own_place = self.temporary()
        body = self._block(analysis.body)
        start: list[ast.stmt] = []
        if self._counts_turns:
            start.append(self._set_name("_turns", ast.Constant(0), first))
        if own_place:
            start += self._begin(self._own_place, first)
            start.append(self._turn(self._own_place, ast.Constant(0), first))
            body.append(self._leave(self._own_place, first))
        arguments = ast.arguments(
            [], [ast.arg(one) for one in analysis.parameters], None, [], [], None, []
        )
        return ast.copy_location(
            ast.FunctionDef(name, arguments, start + body or [ast.Pass()], [], None, None), first
        )

    def _block(self, statements, counted=False) -> list[ast.stmt]:
        live = self.analysis.live(statements)
        if counted or not self.functions.marking:
            return self._visited(live)
        body: list[ast.stmt] = []
        for run, tallies in runs(self.analysis, live):
            if tallies:
                body.append(self._count(self.functions.flops.new(tallies), run[0]))
            body += self._visited(run)
        return body

    def _visited(self, statements) -> list[ast.stmt]:
        body: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            body += result if isinstance(result, list) else [result]
        return body

    @staticmethod
    def _count(number: int, node) -> ast.stmt:
        cell = ast.Subscript(load("_times"), ast.Constant(number), ast.Store())
        return ast.copy_location(ast.AugAssign(cell, ast.Add(), ast.Constant(1)), node)

    def _begin(self, visit, node) -> list[ast.stmt]:
        region = ast.Constant(self.functions.region())
        return [self._set_name(visit, call("_branch", region), node)]

    @staticmethod
    def _turn(visit, arm, node):
        return ast.copy_location(ast.Expr(call("_turn", load(visit), arm)), node)

    @staticmethod
    def _leave(visit, node):
        return ast.copy_location(ast.Expr(call("_leave", load(visit))), node)

    def visit_If(self, node):
        """A branch; if threads may part at it, both arms say so."""
        parts = (
            self.functions.marking
            and not self.kind(node.test).uniform
            and self.touches(*node.body, *node.orelse)
        )
        test, body, orelse = self.visit(node.test), self._block(node.body), self._block(node.orelse)
        body = body or [ast.copy_location(ast.Pass(), node)]
        branch = ast.copy_location(ast.If(test, body, orelse), node)
        if not parts:
            return branch
        visit = self.temporary()
        branch.body = [self._turn(visit, ast.Constant(1), node), *body]
        branch.orelse = [self._turn(visit, ast.Constant(0), node), *orelse]
        return [*self._begin(visit, node), branch, self._leave(visit, node)]

    def visit_For(self, node):
        """A loop over a range, a tuple or an array, with ``enumerate`` and ``zip`` around them."""
        items, target = self._items(node.iter), node.target
        if not _is_names(target):
            raise self.analysis.unsupported(node, "a loop whose variables are not all plain names")
        counted = bool(fixed_turns(self.analysis, node))
        body = self._block(node.body, counted)
        loop = ast.For(target, items, body, self._block(node.orelse), None)
        turns = self.analysis.constant_range(node.iter)
        bounded = turns is not None and len(turns) < TURNS_BEFORE_PAUSE
        return self._loop(node, ast.copy_location(loop, node), bounded)

    def _items(self, node):
        """What a loop runs over; elements of arrays are loaded, at the loop's line."""
        if name := self.analysis.iterates(node):
            arguments = [self._items(one) for one in node.args]
            keywords = [ast.keyword(one.arg, self.visit(one.value)) for one in node.keywords]
            made = ast.Call(load(self.bind(BUILTINS[name], name)), arguments, keywords)
            return ast.copy_location(made, node)
        if self.kind(node).name == "array":
            return ast.copy_location(call("_items", self.visit(node), self.code(node, LOAD)), node)
        return self.visit(node)

    def visit_While(self, node):
        """A loop with a condition."""
        test = self.visit(node.test)
        loop = ast.While(test, self._block(node.body), self._block(node.orelse))
        return self._loop(node, ast.copy_location(loop, node), False)

    def _loop(self, node, loop, bounded):
        before: list[ast.stmt] = []
        start: list[ast.stmt] = []
        after: list[ast.stmt] = []
        tests = [node.test if isinstance(node, ast.While) else node.iter]
        varies = self.functions.marking and node in self.analysis.varying_loops
        if varies and self.touches(*node.body, *tests):
            visit, turn = self.temporary(), self.temporary()
            before += [*self._begin(visit, node), self._set_name(turn, ast.Constant(0), node)]
            start += [self._plus_one(turn, node), self._turn(visit, load(turn), node)]
            after.append(self._leave(visit, node))
        if not bounded:
            self._counts_turns, waits = True, ast.Constant(isinstance(node, ast.While))
            limit = ast.Compare(load("_turns"), [ast.Gt()], [ast.Constant(TURNS_BEFORE_PAUSE)])
            spin = self._set_name("_turns", call("_spin", self.position(node), waits), node)
            start += [
                self._plus_one("_turns", node),
                ast.copy_location(ast.If(limit, [spin], []), node),
            ]
        loop.body = start + loop.body or [ast.copy_location(ast.Pass(), node)]
        return [*before, loop, *after]

    def _plus_one(self, name, node):
        target = ast.Name(name, ast.Store())
        return ast.copy_location(ast.AugAssign(target, ast.Add(), ast.Constant(1)), node)

    def visit_Return(self, node):
        """A return; a device function that some threads leave early says that they meet again."""
        gives = node.value is not None and self.kind(node.value).name != "none"
        if gives and self.analysis.is_kernel:
            place = self.analysis.place(node)
            raise fail("unsupported", "a kernel returns nothing: Numba refuses a value", place)
        value = self.visit(node.value) if node.value else None
        if value is not None and self.analysis.returns is not None:
            value = self.converted(value, self.kind(node.value), self.analysis.returns)
        if self._own_place:
            value = call("_leave", load(self._own_place), value or ast.Constant(None))
        if self.analysis.is_kernel:
            note = ast.Expr(call("_left", ast.Constant(node.lineno)))
            return [ast.copy_location(note, node), ast.copy_location(ast.Return(value), node)]
        return ast.copy_location(ast.Return(value), node)
