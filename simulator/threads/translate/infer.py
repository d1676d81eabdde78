"""Finds the kinds of a function's variables, given those of its arguments.

This is type inference in small, and an analysis of divergence: a value is uniform if all threads
that came the same way hold the same, and a branch on one that is not may part them.
"""

from __future__ import annotations

import ast
import types

from ..errors import fail
from .calls import Calls
from .kinds import ANY, NONE, Kind, bounded, form, join, of_operation
from .link import names_of
from .source import assigned, definition
from .versions import plain, versioned

ALLOWED = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Expr)
ALLOWED += (ast.Return, ast.Break, ast.Continue, ast.Pass, ast.Assert)
REFUSED = {
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.List: "a list",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a generator",
    ast.JoinedStr: "a formatted string",
}
"""Expressions that Numba compiles for a CPU only."""


class Analysis(Calls):
    """The kinds of one function for given kinds of its arguments.

    Parameters
    ----------
    functions : object
        ``functions.specialise(function, kinds)`` gives the analysis of a device function.
    function : Python function
    kinds : tuple of Kind
        One a parameter.

    Attributes
    ----------
    written, body : list of ast.stmt
        The statements as they are written, and with versions of variables that hold values of
        several types (`versions`).
    copies : set of ast.stmt
        Assignments in `body` of one version to another.
    """

    def __init__(self, functions, function: types.FunctionType, kinds: tuple[Kind, ...]):
        self.functions, self.function = functions, function
        self.captured = names_of(function)
        node = definition(function)
        self.line_of = node.lineno
        self.parameters = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        if node.args.vararg:
            raise self.unsupported(node, "a parameter with a star")
        self.written: list[ast.stmt] = (
            [ast.copy_location(ast.Return(node.body), node.body)]
            if isinstance(node, ast.Lambda)
            else node.body
        )
        self.is_kernel = False
        self._find(self.written, set(), kinds)
        known: set[str] = set()
        while self._mixed - known:
            known |= self._mixed
            self._find(*versioned(self.written, known, self.parameters), kinds)
        self._refuse()

    def _find(self, body: list[ast.stmt], copies: set[ast.stmt], kinds):
        """Find the kinds in `body`, and names in it that hold values of several types."""
        self.body, self.copies = body, copies
        self.env: dict[str, Kind] = dict(zip(self.parameters, kinds, strict=True))
        self.variables = set(self.parameters) | assigned(*body)
        self.returns: Kind | None = None
        self.varying_loops: set[ast.AST] = set()
        self.early_return = False
        self._divergent = False
        self._loops: list[ast.AST] = []
        self._mixed: set[str] = set()
        for _ in range(40):
            before = (dict(self.env), self.returns, len(self.varying_loops))
            self._statements(self.body)
            if before == (self.env, self.returns, len(self.varying_loops)):
                break

    def _refuse(self):
        """What Numba's CUDA target does not compile is an error here, too."""
        nodes = list(self.walk(*self.live(self.body)))
        allowed = {id(one) for node in nodes for one in _tuples(node)}
        for node in nodes:
            if type(node) in REFUSED and id(node) not in allowed:
                text = f"{REFUSED[type(node)]} is nothing that Numba compiles for CUDA"
                raise fail("unsupported", text, self.place(node))

    def _statements(self, body):
        for node in self.live(body):
            self._statement(node)

    def _statement(self, node):
        if isinstance(node, ast.FunctionDef):
            raise self.nested(node, node.name)
        if not isinstance(node, ALLOWED):
            raise self.unsupported(node, f"the statement {type(node).__name__.lower()}")
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, self.kind(node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, self.kind(node.value))
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                old = self.env.get(node.target.id, ANY)
                self._bind(node.target, of_operation(node.op, old, self.kind(node.value)))
        elif isinstance(node, ast.If):
            self._arms(node)
        elif isinstance(node, ast.For | ast.While):
            self._loop(node)
        elif isinstance(node, ast.Return):
            kind = self.kind(node.value) if node.value else NONE
            if self._divergent:
                kind = kind._replace(uniform=False)
                self.early_return = True
                self.varying_loops.update(self._loops)
            self.returns = kind if self.returns is None else join(self.returns, kind)
        elif isinstance(node, ast.Break | ast.Continue) and self._divergent and self._loops:
            self.varying_loops.add(self._loops[-1])
        elif isinstance(node, ast.Expr):
            self.kind(node.value)

    def _arms(self, node):
        outer = self._divergent
        self._divergent = outer or not self.kind(node.test).uniform
        self._statements(node.body)
        self._statements(node.orelse)
        self._divergent = outer

    def _loop(self, node):
        outer = self._divergent
        self._loops.append(node)
        if isinstance(node, ast.For):
            uniform = self.kind(node.iter).uniform
            item = self._item(node.iter)
            if node not in self.varying_loops and uniform:
                self._bind(node.target, item, even_if_divergent=True)
            else:
                self._bind(node.target, item._replace(uniform=False))
        else:
            uniform = self.kind(node.test).uniform
        if not uniform:
            self.varying_loops.add(node)
        self._divergent = outer or node in self.varying_loops
        self._statements(node.body)
        self._divergent = outer
        self._statements(node.orelse)
        self._loops.pop()

    def _bind(self, target, kind: Kind, even_if_divergent=False):
        if isinstance(target, ast.Name):
            if self._divergent and not even_if_divergent:
                kind = kind._replace(uniform=False)
            old = self.env.get(target.id)
            new = kind if old is None else join(old, kind)
            types = {form(old or kind), form(kind)}
            if len(types) > 1 and None not in types and plain(target.id) == target.id:
                self._mixed.add(target.id)
            grows = old is not None and new.bits > old.bits
            self.env[target.id] = bounded(new) if grows else new
        elif isinstance(target, ast.Tuple | ast.List):
            parts = kind.parts if kind.name == "tuple" else ()
            if kind.name == "array":
                parts = (self.item_of(kind),) * len(target.elts)
            for i, one in enumerate(target.elts):
                whole = len(parts) == len(target.elts)
                self._bind(one, parts[i] if whole else Kind("any", kind.uniform))
        elif isinstance(target, ast.Starred):
            raise self.unsupported(target, "a star on the left of an assignment")
        elif not isinstance(target, ast.Subscript):
            raise self.unsupported(target, "assignment to an attribute")


def _tuples(node: ast.AST) -> list[ast.expr]:
    """Lists that Python makes tuples: constants to run over or to look in, and names to unpack."""
    if isinstance(node, ast.List) and isinstance(node.ctx, ast.Store):
        return [node]
    lists = [node.iter] if isinstance(node, ast.For) else getattr(node, "comparators", [])
    return [
        one
        for one in lists
        if isinstance(one, ast.List) and all(isinstance(part, ast.Constant) for part in one.elts)
    ]
