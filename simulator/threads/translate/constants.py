"""What is constant in a function: names that stand for things known now, decided branches."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import Place, fail
from .kinds import ANY, Kind
from .link import Target, classify, lookup, member


class Constants:
    """A function's names; base of `Analysis`.

    Attributes
    ----------
    function : Python function
    captured : dict
        Its captured variables.
    variables : set of str
        Names that it assigns, and its parameters.
    env : dict of str to Kind
        What is known of them.
    """

    function: Any
    captured: dict
    variables: set[str]
    env: dict[str, Kind]
    line_of: int

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        code = self.function.__code__
        return Place(code.co_filename, getattr(node, "lineno", self.line_of), code.co_name)

    def unsupported(self, node, what: str):
        """Error: the emulation lacks what stands at `node`."""
        return fail("unsupported", f"{what} is not emulated", self.place(node))

    def nested(self, node, name: str):
        """Error: a function is made within another one at `node`."""
        text = f"a function that is made within another one ({name}) is not emulated: write it "
        text += "outside, as @cuda.jit(device=True), and hand it what it uses"
        return fail("unsupported", text, self.place(node))

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
            truth = self.decide(node.test) if isinstance(node, ast.IfExp) else None
            if truth is not None:
                yield from self.walk(node.body if truth else node.orelse)
                continue
            yield node
            for _, value in ast.iter_fields(node):
                if isinstance(value, ast.AST):
                    yield from self.walk(value)
                elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from self.walk(*self.live(value))
                elif isinstance(value, list):
                    yield from self.walk(*(one for one in value if isinstance(one, ast.AST)))

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
        if isinstance(node, ast.Call) and self._is_grid(node):
            return Target("cuda", "cg.grid")
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base = self.static(node.value)
            if base and isinstance(base.value, tuple) and base.what in ("const", "object"):
                return classify(base.value[self.constant(node.slice)])
        return None

    def _is_grid(self, node: ast.Call) -> bool:
        """Whether a call is ``cuda.cg.this_grid()``."""
        path = isinstance(node.func, ast.Attribute | ast.Name) and self.static(node.func)
        return path == ("cuda", "cg.this_grid")

    def constant(self, node) -> Any:
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

    def constant_range(self, node) -> range | None:
        """The range that an expression stands for, if its bounds are constant."""
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        target = self.static(node.func)
        if target is None or target != ("builtin", "range"):
            return None
        try:
            return range(*(self.constant(one) for one in node.args))
        except (ValueError, TypeError):
            return None

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
            names: list[ast.expr] = [ast.Name(name, ast.Load()) for name in parts]
            tree = ast.Compare(names[0], node.ops, names[1:])
        text = ast.fix_missing_locations(ast.Expression(tree))
        return eval(compile(text, "<constant>", "eval"), {}, parts)
