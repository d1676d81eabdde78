"""A short name for what a kernel is made of, which changes when its source does.

Comments, docstrings, line numbers and file names do not count; captured plain constants do.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from typing import Any

from .link import names_of

PLAIN = int | float | str | bool | tuple | type(None)


class Fingerprint:
    """Collects the functions and intrinsics of a kernel."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def function(self, function: types.FunctionType, body: list[ast.stmt]) -> None:
        """Add a kernel or device function with the statements of its body."""
        text = "\n".join(ast.unparse(one) for one in body if not _is_docstring(one))
        self._add(function, text)

    def intrinsic(self, operation: Any) -> None:
        """Add an intrinsic, by the source of what generates its instructions."""
        function = getattr(operation, "_defn", None)
        if isinstance(function, types.FunctionType):
            source = textwrap.dedent(inspect.getsource(function))
            tree = ast.parse(source)
            self._add(function, ast.unparse(tree))

    def _add(self, function, text: str) -> None:
        constants = {
            name: repr(value)
            for name, value in names_of(function).items()
            if isinstance(value, PLAIN) and "0x" not in repr(value)
        }
        key = f"{function.__name__} {sorted(constants.items())}"
        self._texts[key] = text

    def __str__(self) -> str:
        whole = "\n".join(f"{key}: {text}" for key, text in sorted(self._texts.items()))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
