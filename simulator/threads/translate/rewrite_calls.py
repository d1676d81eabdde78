"""Rewrites the calls in a kernel."""

from __future__ import annotations

import ast
import dis

from ..errors import fail
from ..mathematics import BUILTINS
from ..scalars import CASTS
from .kinds import FLOATS, INDEX_BITS, NUMBERS, type_name
from .rewrite import call, load
from .rewrite_access import AccessRewriter
from .versions import plain


def is_hint(operation) -> bool:
    """Whether an intrinsic is a hint to the compiler: its emulation only returns None."""
    code = getattr(operation.emulate, "__code__", None)
    if code is None or not is_plain(operation):
        return False
    names = [one.opname for one in dis.get_instructions(code)]
    loads = [one.argval for one in dis.get_instructions(code) if "CONST" in one.opname]
    known = {"RESUME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    return set(names) <= known and loads == [None]


def is_plain(operation) -> bool:
    """Whether an intrinsic needs nothing but its operands."""
    scope = getattr(operation, "scope", "thread")
    wants = getattr(operation, "traffic", "") or getattr(operation, "context", False)
    return scope == "thread" and not wants


OF_BITS = ("clz", "popc", "brev")
"""Functions of ``cuda`` that see how wide their operand is."""


class CallRewriter(AccessRewriter):
    """Adds calls to `AccessRewriter`."""

    def visit_Expr(self, node):
        """A call for its effect; one without effect goes away."""
        if isinstance(node.value, ast.Call):
            target = self.analysis.static(node.value.func)
            if target and target.what == "intrinsic" and is_hint(target.value):
                return ast.copy_location(ast.Pass(), node)
        if isinstance(node.value, ast.Constant):
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Expr(self.visit(node.value)), node)

    def visit_Call(self, node):
        """A call of whatever stands before the parenthesis."""
        target = self.analysis.static(node.func)
        if target is None:
            return self._method(node)
        if target.what == "missing":
            raise fail("unsupported", f"{target.value} is not emulated", self.analysis.place(node))
        rewrite = getattr(self, f"_call_{target.what}", None)
        if rewrite is None:
            raise self.analysis.unsupported(node, f"calling {ast.unparse(node.func)}")
        return ast.copy_location(rewrite(node, target.value), node)

    def _arguments(self, node):
        return [self.visit(one) for one in node.args], [
            ast.keyword(one.arg, self.visit(one.value)) for one in node.keywords
        ]

    def _plain(self, node, name):
        arguments, keywords = self._arguments(node)
        return ast.Call(load(name), arguments, keywords)

    def _method(self, node):
        if isinstance(node.func, ast.Attribute):
            if self.kind(node.func.value).name == "array" and node.func.attr != "reshape":
                raise self.analysis.unsupported(node, f"{node.func.attr} of an array")
            arguments, keywords = self._arguments(node)
            function = ast.Attribute(self.visit(node.func.value), node.func.attr, ast.Load())
            return ast.copy_location(ast.Call(function, arguments, keywords), node)
        raise self.analysis.unsupported(node, f"calling {ast.unparse(node.func)}")

    def _call_cast(self, node, name):
        if len(node.args) == 1 and self.kind(node.args[0]).name == name:
            return self.visit(node.args[0])
        return self._plain(node, self.bind(CASTS[name], name))

    def _call_math(self, node, function):
        return self._plain(node, self.bind(function, "math"))

    _call_class = _call_choice = _call_math

    def _call_native(self, node, function):
        if any(self.kind(one).name == "array" for one in node.args):
            raise self.analysis.unsupported(node, f"calling {ast.unparse(node.func)} with an array")
        return self._call_math(node, function)

    def _call_builtin(self, node, name):
        if name == "len" and self.kind(node.args[0]).name == "local":
            return ast.Constant(self.kind(node.args[0]).shape[0])
        new = self._plain(node, self.bind(BUILTINS[name], name))
        if name in ("max", "min"):
            wanted = self.kind(node)
            kinds = map(self.kind, node.args)
            pairs = zip(new.args, kinds, strict=True)
            new.args = [self.converted(one, kind, wanted) for one, kind in pairs]
        return self.negated(new, self.kind(node.args[0])) if name == "abs" else new

    def _call_function(self, node, function):
        """A device function, compiled for the kinds of these arguments."""
        analysis = self.analysis.callee(node, function)
        name = self.bind(self.functions.compiled(analysis), function.__name__.strip("<>"))
        arguments: list[ast.expr] = [
            one
            if isinstance(one, ast.Name) and self.kind(one).name == "local"
            else ast.Starred(self.visit(one.value), ast.Load())
            if isinstance(one, ast.Starred)
            else self.visit(one)
            for one in node.args
        ]
        keywords = [
            ast.keyword(
                one.arg,
                one.value
                if isinstance(one.value, ast.Name) and self.kind(one.value).name == "local"
                else self.visit(one.value),
            )
            for one in node.keywords
        ]
        return ast.Call(load(name), arguments, keywords)

    def _call_intrinsic(self, node, operation):
        """An instruction: its emulation, told where it stands if it may touch memory."""
        self.functions.sources.intrinsic(operation)
        if is_plain(operation) and self._is_scalar_call(node):
            result = self._plain(node, self.bind(operation.emulate, "intrinsic"))
            return result if self.kind(node).name in FLOATS else call("_argument", result)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        wrapper = self.functions.instruction(operation, called)
        arguments, keywords = self._arguments(node)
        name = self.bind(wrapper, "intrinsic")
        return ast.Call(load(name), [self.position(node), *arguments], keywords)

    def _call_cuda(self, node, path):
        if path == "local.array":
            shape, dtype, _ = self.analysis.declaration(node)
            place = self.analysis.place(node)
            self.functions.note_local(place, node.col_offset, shape, dtype)
            make = self.functions.local_maker(self._declared_name(node), shape)
            return call(self.bind(make, "local"))
        if path == "shared.array":
            return self._shared(node)
        if path == "const.array_like":
            given = self.analysis.static(node.args[0])
            if given is None or given.what != "array":
                raise self.analysis.unsupported(node, "a constant array that is made at run time")
            return load(self.functions.constant_array(self, given.value, node.args[0]))
        if path == "cg.this_grid":
            return ast.Constant(None)
        if path == "cg.grid.sync":
            self.functions.note_meeting()
        method = getattr(self.functions.device, path.replace(".", "_"), None)
        if method is None:
            raise self.analysis.unsupported(node, f"cuda.{path}")
        if path.startswith("threadfence"):
            self.functions.note_fence()
        arguments, keywords = self._arguments(node)
        if path in OF_BITS and arguments and self._has_32_bits(node.args[0]):
            arguments[0] = call(self.bind(CASTS["uint32"], "uint32"), arguments[0])
        name = self.bind(method, "cuda")
        self.functions.keep(method)
        result = ast.Call(load(name), [self.position(node), *arguments], keywords)
        kind = self.kind(node)
        if path in OF_BITS and kind.name in NUMBERS:  # of the operand's type
            return call(self.bind(CASTS[type_name(kind)], type_name(kind)), result)
        return result

    def _has_32_bits(self, node) -> bool:
        """Whether a signed integer is held in 32 bits."""
        kind = self.kind(node)
        index = isinstance(node, ast.Attribute) and kind.bits == INDEX_BITS
        return kind.name == "int" and (kind.dtype == "int32" or index)

    def _shared(self, node):
        shape, dtype, alignment = self.analysis.declaration(node)
        name = self._declared_name(node)
        make = self.functions.shared_maker(self.analysis, node, name, shape, dtype, alignment)
        return call(self.bind(make, "shared"))

    def _declared_name(self, node) -> str:
        """What the source calls the array that is declared at `node`."""
        names = [
            target.id
            for statement in self.analysis.body
            for one in ast.walk(statement)
            if isinstance(one, ast.Assign) and one.value is node
            for target in one.targets
            if isinstance(target, ast.Name)
        ]
        return plain(names[0]) if names else f"line {node.lineno}"
