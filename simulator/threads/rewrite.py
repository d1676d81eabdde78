"""Rewrites a kernel's syntax tree so that it runs on the emulation.

What changes: accesses of arrays become calls that log, local arrays become nested lists, calls of
CUDA functions become calls of `Device`, conversions appear where Numba converts, and branches at
which threads may part ways note where they went. All else stays as it was written, line by line.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from .errors import fail
from .infer import INDEX_ROOTS, Analysis
from .kinds import FLOATS, INTEGERS, Kind, of_operation
from .log import LOAD, STORE, Site
from .scalars import BUILTINS, CASTS, F64

CONVERTED = ("int", "float32", "float16", "bool")
SIMPLE = (ast.Name, ast.Constant)


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

    # -- small tools ----------------------------------------------------------------------------

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
        return False

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
        known = (*FLOATS, *INTEGERS, "unsigned")
        return all(self.kind(one).name in known for one in node.args)

    # -- names and attributes -------------------------------------------------------------------

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
        if kind.name == "local" and isinstance(node.value, ast.Name):
            return ast.Attribute(self._local_view(node.value, kind), node.attr, ast.Load())
        return self.generic_visit(node)

    # -- arithmetic -----------------------------------------------------------------------------

    def converted(self, node, kind: Kind, wanted: str):
        """Rewritten `node`, of `kind`, as float64 where Numba would convert it."""
        if wanted == "float64" and kind.name in CONVERTED:
            return call(self.bind(F64, "float64"), node)
        return node

    def visit_BinOp(self, node):
        """Numba's conversions: a float32 with an integer is float64."""
        a, b = self.kind(node.left), self.kind(node.right)
        node = ast.copy_location(
            ast.BinOp(self.visit(node.left), node.op, self.visit(node.right)), node
        )
        return self._operation(node, a, b)

    def _operation(self, node, a: Kind, b: Kind):
        if a.name in ("float16", "float32") and b.name in INTEGERS:
            node.left = self.converted(node.left, a, "float64")
        elif b.name in ("float16", "float32") and a.name in INTEGERS:
            node.right = self.converted(node.right, b, "float64")
        elif isinstance(node.op, ast.Div) and not (a.name in FLOATS or b.name in FLOATS):
            return ast.copy_location(call("_divide", node.left, node.right), node)
        return node

    def visit_IfExp(self, node):
        """A conditional expression, its arms of one type."""
        truth = self.analysis.decide(node.test)
        if truth is not None:
            return self.visit(node.body if truth else node.orelse)
        kinds = self.kind(node.body), self.kind(node.orelse)
        wanted = self.kind(node).name
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

    # -- accesses -------------------------------------------------------------------------------

    def _index(self, node):
        return [self.visit(one) for one in self.analysis.indices(node)]

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

    def _key(self, node):
        return self.visit(node.slice)

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
            base, code = self.visit(node.value), self.code(node, LOAD)
            return ast.copy_location(call("_load", base, self._key(node), code), node)
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
            base, code = self.visit(target.value), self.code(target, STORE)
            text = call("_store", base, self._key(target), value, code)
            return ast.copy_location(ast.Expr(text), target)
        base, index = self._base(target, array), self._index(target)
        if array.name == "local":
            value = self.rounded(value, kind, array.dtype)
            place = self._nested(base, index, ast.Store())
            return ast.copy_location(ast.Assign([place], value), target)
        put = ast.Attribute(base, "set", ast.Load())
        text = ast.Call(put, [value, *index, self.code(target, STORE)], [])
        return ast.copy_location(ast.Expr(text), target)

    # -- assignments ----------------------------------------------------------------------------

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
        return statements

    def _value(self, node):
        """The right side of an assignment; a local array may get a second name."""
        if isinstance(node, ast.Name) and self.kind(node).name == "local":
            return node
        return self.visit(node)

    def _set_name(self, name, value, node):
        return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), node)

    def _assign(self, target, value, kind, node) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            wanted = self.analysis.env[target.id].name
            return [self._set_name(target.id, self.converted(value, kind, wanted), node)]
        if isinstance(target, ast.Subscript):
            return [self.store(target, value, kind)]
        parts = kind.parts if kind.name == "tuple" else (Kind(),) * len(target.elts)
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
        target, kind = node.target, self.kind(node.value)
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
        value = self.converted(value, of_operation(node.op, old, kind), old.name)
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
