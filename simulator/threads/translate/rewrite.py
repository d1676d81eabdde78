"""Rewrites a kernel's syntax tree so that it runs on the emulation.

What changes: accesses of arrays become calls that log, local arrays become nested lists, calls of
CUDA functions become calls of `Device`, conversions appear where Numba converts, and branches at
which threads may part ways note where they went. All else stays as it was written, line by line.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from ..errors import fail
from ..log import Site
from ..mathematics import BUILTINS
from ..scalars import CASTS
from .infer import Analysis
from .kinds import INDEX_ROOTS, NUMBERS, Kind, type_name

ATTRIBUTES = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides", "T")
"""Of arrays, that kernels may read."""
CONVERTED = ("float64", "float32", "float16")
"""Kinds to which numbers of other kinds are converted."""


def load(name: str) -> ast.Name:
    """``name`` as an expression."""
    return ast.Name(name, ast.Load())


def call(name: str, *arguments: ast.expr) -> ast.Call:
    """``name(*arguments)``."""
    return ast.Call(load(name), list(arguments), [])


class Rewriter(ast.NodeTransformer):
    """Rewrites one analysed function.

    Parameters
    ----------
    analysis : Analysis
    functions : Functions
        Where device functions are compiled; has the `runtime`.

    Attributes
    ----------
    globals : dict
        What the rewritten text refers to.
    """

    def __init__(self, analysis: Analysis, functions):
        self.analysis, self.functions = analysis, functions
        self.runtime = functions.runtime
        self.globals: dict[str, Any] = {"_rt": self.runtime} | functions.helpers
        self._names: dict[int, str] = {}
        self._temporaries = 0
        self._before: list[ast.stmt] = []
        self._counts_turns = False
        self._own_place = None

    def generic_visit(self, node):
        """Rewrite what is inside, leaving the original tree as it is."""
        new = copy.copy(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(new, field, self.visit(value))
            elif isinstance(value, list):
                inner = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
                setattr(new, field, inner)
        return new

    def bind(self, value, hint: str) -> str:
        """Name under which the rewritten text finds `value`."""
        if id(value) not in self._names:
            name = f"_{hint}_{len(self._names)}"
            self._names[id(value)] = name
            self.globals[name] = value
        return self._names[id(value)]

    def temporary(self) -> str:
        """A fresh variable."""
        self._temporaries += 1
        return f"_t{self._temporaries}"

    def kind(self, node) -> Kind:
        """Kind of an expression of the original text."""
        return self.analysis.kind(node)

    def code(self, node, operation: str) -> ast.Constant:
        """Log code of an access at `node`."""
        site = Site(self.analysis.place(node), node.col_offset, operation)
        return ast.Constant(self.runtime.log.code(site))

    def position(self, node) -> ast.Constant:
        """Number of a source position."""
        place = self.analysis.place(node)
        return ast.Constant(self.runtime.position(place, node.col_offset))

    def touches(self, *nodes) -> bool:
        """Whether any logged access happens within."""
        for one in self.analysis.walk(*nodes):
            if isinstance(one, ast.Subscript) and self.kind(one.value).name in ("array", "any"):
                return True
            if isinstance(one, ast.Call) and self._call_touches(one):
                return True
            if isinstance(one, ast.For) and self._loads_items(one.iter):
                return True
            if isinstance(one, ast.Assign) and self._unpacks(one):
                return True
        return False

    def _unpacks(self, node: ast.Assign) -> bool:
        """Whether an assignment takes an array apart."""
        several = any(isinstance(target, ast.Tuple) for target in node.targets)
        return several and self.kind(node.value).name == "array"

    def _loads_items(self, node) -> bool:
        """Whether a loop runs over elements of an array."""
        if self.analysis.iterates(node):
            return any(map(self._loads_items, node.args))
        return self.kind(node).name == "array"

    def _call_touches(self, node) -> bool:
        target = self.analysis.static(node.func)
        what = target.what if target else "unknown"
        if target and what == "function":
            return self.functions.touches(self.analysis.callee(node, target.value))
        atomic = target and what == "cuda" and target.value.startswith("atomic")
        if atomic or what in ("unknown", "intrinsic", "native"):
            return not self._is_scalar_call(node)
        return False

    def _is_scalar_call(self, node) -> bool:
        return all(self.kind(one).name in NUMBERS for one in node.args)

    def visit_Name(self, node):
        """A variable, or what a global name stands for."""
        if node.id in self.analysis.variables:
            kind = self.analysis.env.get(node.id)
            if kind and kind.name == "local" and isinstance(node.ctx, ast.Load):
                return self._local_view(node, kind)
            if kind and kind.name == "static" and isinstance(node.ctx, ast.Load):
                return self._static(node, kind.value)
            return node
        return self._static(node, self.analysis.static(node))

    def _local_view(self, node, kind):
        shape = ast.Constant(kind.shape)
        return call("_local_view", node, ast.Constant(kind.dtype), shape)

    def _static(self, node, target):
        if target.what == "const":
            value = target.value
            if type(value) in (int, bool, str, type(None)):
                return ast.copy_location(ast.Constant(value), node)
            return load(self.bind(value, "const"))
        if target.what == "array":
            return load(self.functions.constant_array(self, target.value, node))
        if target.what == "missing":
            raise fail("unsupported", f"{target.value} is not emulated", self.analysis.place(node))
        if target.what == "cast":
            return load(self.bind(CASTS[target.value], target.value))
        if target.what == "builtin":
            return load(self.bind(BUILTINS[target.value], target.value))
        if target.what == "cuda":
            return self._cuda_value(node, target.value)
        return load(self.bind(target.value, "value"))

    def _cuda_value(self, node, path):
        thread = ast.Attribute(load("_rt"), "thread", ast.Load())
        if path == "threadIdx":
            return thread
        if path == "laneid":
            return ast.Attribute(thread, "lane", ast.Load())
        if path == "warpsize":
            return ast.Constant(32)
        names = {"blockIdx": "block", "blockDim": "block_shape", "gridDim": "grid"}
        if path in names:
            return ast.Attribute(load("_rt"), names[path], ast.Load())
        raise self.analysis.unsupported(node, f"cuda.{path} used as a value")

    def visit_Attribute(self, node):
        """``cuda.threadIdx.x``, a shape, or a member of a module."""
        if target := self.analysis.static(node):
            return self._static(node, target)
        base = self.analysis.static(node.value)
        if base and base.what == "cuda" and base.value in INDEX_ROOTS:
            return ast.Attribute(self._cuda_value(node, base.value), node.attr, ast.Load())
        kind = self.kind(node.value)
        if kind.name == "array" and node.attr not in ATTRIBUTES:
            raise self.analysis.unsupported(node, f"{node.attr} of an array")
        if kind.name == "local" and isinstance(node.value, ast.Name):
            return ast.Attribute(self._local_view(node.value, kind), node.attr, ast.Load())
        return self.generic_visit(node)

    def converted(self, node, kind: Kind, wanted: Kind):
        """Rewritten `node`, of `kind`, as `wanted` where Numba would convert it."""
        if kind.name not in NUMBERS or type_name(kind) == type_name(wanted):
            return node
        if wanted.name in CONVERTED or wanted.name == "unsigned":
            name = type_name(wanted)
        elif (kind.name, wanted.name) == ("unsigned", "int"):
            name = "int64"
        else:  # a signed integer or truth that stays one
            return node
        return call(self.bind(CASTS[name], name), node)

    def visit_IfExp(self, node):
        """A conditional expression, its arms of one type."""
        truth = self.analysis.decide(node.test)
        if truth is not None:
            return self.visit(node.body if truth else node.orelse)
        kinds = self.kind(node.body), self.kind(node.orelse)
        wanted = self.kind(node)
        parts = not self.kind(node.test).uniform and self.touches(node.body, node.orelse)
        test = self.visit(node.test)
        body, orelse = (
            self.converted(self.visit(one), kind, wanted)
            for one, kind in zip((node.body, node.orelse), kinds, strict=True)
        )
        if not parts:
            return ast.copy_location(ast.IfExp(test, body, orelse), node)
        visit, begin = self._visit_of_expression(node)
        test = call("_enter", load(visit), test)
        return ast.copy_location(call("_leave", begin, ast.IfExp(test, body, orelse)), node)

    def visit_BoolOp(self, node):
        """``and`` and ``or``, whose later operands only some threads may reach."""
        first, rest = node.values[0], node.values[1:]
        parts = not self.kind(first).uniform and self.touches(*rest)
        if not parts:
            return self.generic_visit(node)
        visit, begin = self._visit_of_expression(node)
        tail = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), node)
        values = [call("_enter", load(visit), self.visit(first)), self.visit(tail)]
        return ast.copy_location(call("_leave", begin, ast.BoolOp(node.op, values)), node)

    def _visit_of_expression(self, node):
        visit = self.temporary()
        region = ast.Constant(self.functions.region())
        begin = ast.NamedExpr(ast.Name(visit, ast.Store()), call("_branch", region))
        return visit, begin
