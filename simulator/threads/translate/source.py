"""The syntax tree of a Python function, found through its code object."""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import types

from ..errors import Place, fail

Function = ast.FunctionDef | ast.Lambda


@functools.lru_cache(maxsize=64)
def _definitions(text: str) -> dict[tuple[str, int], list[Function]]:
    """Function and lambda nodes of a file by name and first line (decorators included)."""
    found: dict[tuple[str, int], list[Function]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
    return found


def definition(function: types.FunctionType) -> Function:
    """A copy of the node that defines `function`.

    Raises
    ------
    KernelError
        If the source cannot be read (a function made by exec or typed at a bare prompt).
    """
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    nodes = _definitions(text).get((code.co_name, code.co_firstlineno), []) if text else []
    if len(nodes) > 1:
        columns = {c for *_, c, _ in code.co_positions() if c is not None}
        nodes = [
            n
            for n in nodes
            if all(n.col_offset <= c < (n.end_col_offset or c + 1) for c in columns)
        ]
    if not nodes:
        where = Place(code.co_filename, code.co_firstlineno, code.co_name)
        raise fail(
            "unsupported",
            f"the source of {code.co_name} cannot be read; put it into a file or a notebook cell",
            where,
        )
    return copy.deepcopy(nodes[0])


def assigned(*nodes: ast.AST) -> set[str]:
    """Names that are given a value within."""
    return {
        one.id
        for node in nodes
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
