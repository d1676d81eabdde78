"""Finds the kinds of a function's variables, given those of its arguments.

This is type inference in small, and an analysis of divergence: a value is uniform if all threads
that came the same way hold the same, and a branch on one that is not may part them.
"""

from __future__ import annotations

import ast
import types

from .device import COLLECTIVE_UNIFORM
from .errors import Place, fail
from .kinds import (
    ANY,
    FLOATS,
    INTEGERS,
    NONE,
    UNIFORM_INT,
    Kind,
    join,
    number,
    of_operation,
    wider,
)
from .link import Target, lookup, member, names_of
from .scalars import dtype_name
from .source import definition

INDEX_ROOTS = {"threadIdx": False, "blockIdx": True, "blockDim": True, "gridDim": True}
ALLOWED = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Expr)
ALLOWED += (ast.Return, ast.Break, ast.Continue, ast.Pass, ast.Assert)


class Analysis:
    """The kinds of one function for given kinds of its arguments.

    Parameters
    ----------
    functions : object
        ``functions.specialise(function, kinds)`` gives the analysis of a device function.
    function : Python function
    kinds : tuple of Kind
        One a parameter.
    """

    def __init__(self, functions, function: types.FunctionType, kinds: tuple[Kind, ...]):
        self.functions, self.function = functions, function
        self.captured = names_of(function)
        node = definition(function)
        self.line_of = node.lineno
        self.parameters = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        if node.args.vararg:
            raise self.unsupported(node, "a parameter with a star")
        self.body: list[ast.stmt] = (
            [ast.copy_location(ast.Return(node.body), node.body)]
            if isinstance(node, ast.Lambda)
            else node.body
        )
        self.env: dict[str, Kind] = dict(zip(self.parameters, kinds, strict=True))
        self.variables = set(self.parameters) | _assigned(self.body)
        self.returns: Kind | None = None
        self.varying_loops: set[ast.AST] = set()
        self.early_return = False
        self.is_kernel = False
        self._divergent = False
        self._loops: list[ast.AST] = []
        self._run()

    def _run(self):
        for _ in range(12):
            before = (dict(self.env), self.returns, len(self.varying_loops))
            self._statements(self.body)
            if before == (self.env, self.returns, len(self.varying_loops)):
                return

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        code = self.function.__code__
        return Place(code.co_filename, getattr(node, "lineno", self.line_of), code.co_name)

    def unsupported(self, node, what: str):
        """Error: the emulation lacks what stands at `node`."""
        return fail("unsupported", f"{what} is not emulated", self.place(node))

    # -- statements -----------------------------------------------------------------------------

    def decide(self, test) -> bool | None:
        """Truth of a condition of constants, which Numba decides when it compiles."""
        try:
            return bool(self.constant(test))
        except (ValueError, TypeError, KeyError):
            return None

    def live(self, body) -> list[ast.stmt]:
        """The statements that can run: branches decided beforehand give way to the arm taken."""
        found: list[ast.stmt] = []
        for node in body:
            truth = self.decide(node.test) if isinstance(node, ast.If) else None
            if truth is None:
                found.append(node)
            else:
                found += self.live(node.body if truth else node.orelse)
            if found and isinstance(found[-1], ast.Return | ast.Break | ast.Continue):
                break
        return found

    def walk(self, *nodes):
        """All nodes within that can run."""
        for node in nodes:
            yield node
            for _, value in ast.iter_fields(node):
                if isinstance(value, ast.AST):
                    yield from self.walk(value)
                elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from self.walk(*self.live(value))
                elif isinstance(value, list):
                    yield from self.walk(*(one for one in value if isinstance(one, ast.AST)))

    def _statements(self, body):
        for node in self.live(body):
            self._statement(node)

    def _statement(self, node):
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

    def _item(self, iterable) -> Kind:
        kind = self.kind(iterable)
        if kind.name == "range":
            return Kind("int", kind.uniform)
        if kind.name == "tuple" and kind.parts:
            item: Kind | None = None
            for part in kind.parts:
                item = join(item, part) if item else part
            return item or ANY
        return ANY

    def _bind(self, target, kind: Kind, even_if_divergent=False):
        if isinstance(target, ast.Name):
            if self._divergent and not even_if_divergent:
                kind = kind._replace(uniform=False)
            old = self.env.get(target.id)
            self.env[target.id] = kind if old is None else join(old, kind)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = kind.parts if kind.name == "tuple" else ()
            for i, one in enumerate(target.elts):
                whole = len(parts) == len(target.elts)
                self._bind(one, parts[i] if whole else Kind("any", kind.uniform))
        elif not isinstance(target, ast.Subscript):
            raise self.unsupported(target, "assignment to an attribute")

    # -- expressions ----------------------------------------------------------------------------

    def static(self, node) -> Target | None:
        """What an expression stands for, if that is known before the run."""
        if isinstance(node, ast.Name):
            if node.id in self.variables:
                kind = self.env.get(node.id, ANY)
                return kind.value if kind.name == "static" else None
            target = lookup(self.function, node.id, self.captured)
            if target is None:
                raise fail("unsupported", f"the name {node.id} is not defined", self.place(node))
            return target
        if isinstance(node, ast.Attribute):
            base = self.static(node.value)
            return member(base, node.attr) if base else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base = self.static(node.value)
            if base and isinstance(base.value, tuple) and base.what in ("const", "object"):
                from .link import classify

                return classify(base.value[node.slice.value])
        return None

    def constant(self, node):
        """Value of an expression of constants, as shapes are.

        Raises
        ------
        ValueError
            If it is not constant.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.constant(one) for one in node.elts)
        if isinstance(node, ast.BinOp):
            names = {"a": self.constant(node.left), "b": self.constant(node.right)}
            tree = ast.BinOp(ast.Name("a", ast.Load()), node.op, ast.Name("b", ast.Load()))
            text = ast.fix_missing_locations(ast.Expression(tree))
            return eval(compile(text, "<constant>", "eval"), {}, names)
        if isinstance(node, ast.UnaryOp | ast.BoolOp | ast.Compare):
            return self._constant_logic(node)
        if isinstance(node, ast.Name) and self.env.get(node.id, ANY).name == "none":
            return None
        target = self.static(node)
        if target and target.what in ("const", "object", "function", "intrinsic", "class"):
            return target.value
        raise ValueError

    def _constant_logic(self, node):
        if isinstance(node, ast.UnaryOp):
            parts = {"a": self.constant(node.operand)}
            tree: ast.expr = ast.UnaryOp(node.op, ast.Name("a", ast.Load()))
        elif isinstance(node, ast.BoolOp):
            values = [self.decide(one) for one in node.values]
            known = any(values) if isinstance(node.op, ast.Or) else values.count(False) > 0
            if None in values and not known:
                raise ValueError
            return any(values) if isinstance(node.op, ast.Or) else not values.count(False)
        else:
            if len(node.ops) > 1:
                raise ValueError
            parts = {"a": self.constant(node.left), "b": self.constant(node.comparators[0])}
            names = [ast.Name(name, ast.Load()) for name in parts]
            tree = ast.Compare(names[0], node.ops, names[1:])
        text = ast.fix_missing_locations(ast.Expression(tree))
        return eval(compile(text, "<constant>", "eval"), {}, parts)

    def kind(self, node) -> Kind:
        """Kind of an expression."""
        method = getattr(self, f"_kind_{type(node).__name__.lower()}", None)
        return method(node) if method else self._unknown(node)

    def _unknown(self, node) -> Kind:
        inner = [self.kind(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return Kind("any", bool(inner) and all(one.uniform for one in inner))

    def _kind_constant(self, node):
        return of_value(node.value)

    def _kind_name(self, node):
        if node.id in self.variables:
            return self.env.get(node.id, ANY)
        return self._kind_static(self.static(node))

    def _kind_static(self, target) -> Kind:
        if target.what == "const":
            return of_value(target.value)
        if target.what == "array":
            array = target.value
            return Kind("array", True, array.ndim, dtype_name(array.dtype))
        return Kind("static", True, value=target)

    def _kind_attribute(self, node):
        if target := self.static(node):
            if target.what == "cuda" and target.value == "laneid":
                return Kind("int")
            if target.what == "cuda" and target.value == "warpsize":
                return UNIFORM_INT
            return self._kind_static(target)
        base = self.static(node.value)
        if base and base.what == "cuda" and base.value in INDEX_ROOTS:
            return Kind("int", INDEX_ROOTS[base.value])
        kind = self.kind(node.value)
        if kind.name == "tuple" and kind.value and node.attr in kind.value.value._fields:
            return kind.parts[kind.value.value._fields.index(node.attr)]
        if kind.name in ("array", "local"):
            if node.attr in ("shape", "strides"):
                count = kind.ndim or len(kind.shape)
                return Kind("tuple", True, parts=(UNIFORM_INT,) * count)
            if node.attr in ("size", "ndim", "itemsize", "nbytes"):
                return UNIFORM_INT
        return Kind("any", kind.uniform)

    def _kind_tuple(self, node):
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return ANY
        parts = tuple(_escaped(self.kind(one)) for one in node.elts)
        return Kind("tuple", all(part.uniform for part in parts), parts=parts)

    def _kind_binop(self, node):
        return of_operation(node.op, self.kind(node.left), self.kind(node.right))

    def _kind_unaryop(self, node):
        kind = self.kind(node.operand)
        return Kind("bool", kind.uniform) if isinstance(node.op, ast.Not) else kind

    def _kind_compare(self, node):
        uniform = all(self.kind(one).uniform for one in (node.left, *node.comparators))
        return Kind("bool", uniform)

    def _kind_boolop(self, node):
        kinds = [self.kind(one) for one in node.values]
        uniform = all(kind.uniform for kind in kinds)
        same = all(kind.name == "bool" for kind in kinds)
        return Kind("bool" if same else "any", uniform)

    def _kind_ifexp(self, node):
        truth = self.decide(node.test)
        if truth is not None:
            return _escaped(self.kind(node.body if truth else node.orelse))
        kind = join(_escaped(self.kind(node.body)), _escaped(self.kind(node.orelse)))
        return kind._replace(uniform=kind.uniform and self.kind(node.test).uniform)

    def _kind_subscript(self, node):
        kind = self.kind(node.value)
        index = self.indices(node)
        if kind.name == "array":
            return self._kind_of_element(kind, index)
        if kind.name == "local" and len(index) == len(kind.shape):
            return number(kind.dtype, False)
        uniform = kind.uniform and all(self.kind(one).uniform for one in index)
        if kind.name == "tuple" and kind.parts:
            try:
                return kind.parts[self.constant(node.slice)]
            except (ValueError, IndexError, TypeError):
                return self._item(node.value)._replace(uniform=uniform)
        return Kind("any", uniform)

    def _kind_of_element(self, kind, index):
        kinds = [self.kind(one) for one in index]
        if len(kinds) == 1 and kinds[0].name == "tuple":
            kinds = list(kinds[0].parts)
        sliced = [one for one in index if isinstance(one, ast.Slice)]
        whole = len(kinds) == kind.ndim and not sliced
        if whole:
            return number(kind.dtype, False)
        if any(isinstance(one, ast.Constant) and one.value is Ellipsis for one in index):
            return ANY
        if len(kinds) > kind.ndim or any(k.name == "any" for k in kinds):
            return ANY
        return kind._replace(ndim=kind.ndim - len(kinds) + len(sliced))

    def _kind_slice(self, node):
        parts = [self.kind(one) for one in (node.lower, node.upper, node.step) if one]
        return Kind("slice", all(part.uniform for part in parts))

    @staticmethod
    def indices(node: ast.Subscript) -> list[ast.expr]:
        """The index expressions of ``a[i, j]``."""
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    # -- calls ----------------------------------------------------------------------------------

    def _kind_call(self, node) -> Kind:
        target = self.static(node.func)
        arguments = [self.kind(one) for one in node.args]
        uniform = all(kind.uniform for kind in arguments)
        if target is None:
            return self._kind_method(node, arguments)
        if target.what == "cast":
            return number(target.value, uniform)
        if target.what == "class":
            parts = tuple(_escaped(kind) for kind in arguments)
            named = {one.arg: _escaped(self.kind(one.value)) for one in node.keywords}
            parts += tuple(named.get(name, ANY) for name in target.value._fields[len(parts) :])
            uniform = all(part.uniform for part in parts)
            return Kind("tuple", uniform, parts=parts, value=target)
        if target.what == "function":
            returns = self.callee(node, target.value).returns
            return returns if returns is not None else NONE
        if target.what == "cuda":
            return self._kind_cuda(node, target.value, arguments, uniform)
        if target.what == "math":
            names = {kind.name for kind in arguments}
            known = names <= {*FLOATS, *INTEGERS} and names
            name = "float32" if names == {"float32"} else "float64" if known else "any"
            return Kind(name if target.value is not None else "any", uniform)
        if target.what == "builtin":
            return self._kind_builtin(target.value, arguments, uniform)
        if target.what == "intrinsic" and not node.keywords:
            return self.functions.result_of(target.value, arguments)
        return ANY

    def _kind_method(self, node, arguments):
        if isinstance(node.func, ast.Attribute):
            base = self.kind(node.func.value)
            if base.name == "array" and node.func.attr == "reshape":
                count = len(arguments[0].parts) if arguments[0].name == "tuple" else len(arguments)
                return base._replace(ndim=count)
        return ANY

    def _kind_builtin(self, name, arguments, uniform):
        if name == "range":
            return Kind("range", uniform)
        if name in ("len", "int"):
            return Kind("int", uniform)
        if name in ("float", "bool"):
            return Kind({"float": "float64"}.get(name, name), uniform)
        if name in ("max", "min") and len(arguments) > 1:
            kind = arguments[0].name
            for one in arguments[1:]:
                kind = wider(kind, one.name)
            return Kind(kind, uniform)
        if name == "abs" and arguments:
            return arguments[0]
        return Kind("any", uniform)

    def _kind_cuda(self, node, path, arguments, uniform):
        if path == "local.array":
            shape, dtype, _ = self.declaration(node)
            return Kind("local", False, dtype=dtype, shape=shape)
        if path == "shared.array":
            shape, dtype, _ = self.declaration(node)
            return Kind("array", True, len(shape), dtype)
        name = path.replace(".", "_")
        if name in COLLECTIVE_UNIFORM:
            return Kind("any" if name == "ballot_sync" else "int", True)
        if name.startswith("shfl") and len(arguments) > 1:
            return arguments[1]._replace(uniform=name == "shfl_sync" and arguments[2].uniform)
        if name in ("grid", "gridsize"):
            one = Kind("int", name == "gridsize")
            ndim = node.args[0].value if isinstance(node.args[0], ast.Constant) else 1
            return one if ndim == 1 else Kind("tuple", one.uniform, parts=(one,) * ndim)
        if name == "fma" and {kind.name for kind in arguments} == {"float32"}:
            return Kind("float32", uniform)
        return ANY

    def declaration(self, node) -> tuple[tuple[int, ...], str, int | None]:
        """Shape, element type and alignment of a declared shared or local array."""
        given = dict(zip(("shape", "dtype"), node.args, strict=False))
        given |= {one.arg: one.value for one in node.keywords}
        try:
            shape = self.constant(given["shape"])
            alignment = self.constant(given["alignment"]) if "alignment" in given else None
        except (ValueError, KeyError):
            raise self.unsupported(node, "an array whose shape is no constant") from None
        kind = self.static(given["dtype"]) if "dtype" in given else None
        if kind is None or kind.what != "cast":
            raise self.unsupported(node, "an array of this dtype")
        return (shape if isinstance(shape, tuple) else (shape,)), kind.value, alignment

    def callee(self, node: ast.Call, function) -> Analysis:
        """Analysis of the device function that a call reaches."""
        kinds: list[Kind] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                inner = self.kind(one.value)
                if inner.name != "tuple":
                    raise self.unsupported(node, "a star before what is no known tuple")
                kinds += inner.parts
            else:
                kinds.append(self.kind(one))
        named = {one.arg: self.kind(one.value) for one in node.keywords}
        return self.functions.specialise(function, tuple(kinds), named, self.place(node))


def of_value(value) -> Kind:
    """Kind of a constant or scalar argument."""
    if isinstance(value, tuple):
        return Kind("tuple", True, parts=tuple(of_value(one) for one in value))
    if value is None:
        return NONE
    name = "int" if type(value) is int else dtype_name(type(value))
    if isinstance(value, float) and not name.startswith("float"):
        name = "float64"
    return number({"float": "float64"}.get(name, name) or "any", True)


def _escaped(kind: Kind) -> Kind:
    """Kind of a local array once it is put where its shape is lost."""
    return ANY if kind.name == "local" else kind


def _assigned(body) -> set[str]:
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
