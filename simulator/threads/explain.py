"""What exceptions of Python inside of a kernel mean."""

from __future__ import annotations

import ast
import linecache
import types
from typing import Any

from .access import TEXT_NAME
from .errors import KernelError, Place
from .runtime import Runtime
from .translate.versions import plain


def explain(runtime: Runtime, kernel_lines: dict, error: Exception) -> KernelError:
    """The error of the running thread that an exception is, at the kernel's line.

    Parameters
    ----------
    runtime : Runtime
    kernel_lines : dict of (file, code name) to str
        The rewritten functions; the innermost one that the exception passed is the place.
    error : Exception
    """
    trace: Any = error.__traceback__
    place = last = innermost = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if name := kernel_lines.get((code.co_filename, code.co_name)):
            place, last = Place(code.co_filename, trace.tb_lineno, name), trace
        innermost, trace = code.co_filename, trace.tb_next
    kind, text = "exception", f"{type(error).__name__}: {error}"
    if isinstance(error, IndexError) and str(error).startswith("list") and last is not None:
        kind, text = "out of bounds", outside(last)
    elif isinstance(error, TypeError) and (
        innermost == TEXT_NAME or str(error).startswith("list indices")
    ):
        text = "an index must be an integer: a float came"
    elif isinstance(error, UnboundLocalError):
        kind, text = "uninitialised read", plain(str(error))
    elif kind_of := getattr(error, "finding_kind", None):
        kind, text = kind_of, str(error)
    return runtime.error(kind, text, place, *getattr(error, "finding_places", ()))


def outside(trace: types.TracebackType) -> str:
    """Which local array, a nested list here, is indexed outside of its shape, and where.

    Parameters
    ----------
    trace : traceback
        Of the kernel's own frame, in which a list was indexed. As much is said as its line tells.
    """
    names = trace.tb_frame.f_locals
    for node in ast.walk(_expression(trace)):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        name, shape = node.value.id, _shape(names.get(node.value.id))
        if not shape:
            continue
        index = _value(node.slice, names)
        if index is None:
            return f"local array {name} of shape {shape} is indexed outside of it"
        parts = index if isinstance(index, tuple) else (index,)
        if any(not -n <= i < n for i, n in zip(parts, shape, strict=False)):
            return f"local array {name} of shape {shape} is indexed at {index}"
    return "a local array is indexed outside of its shape"


def _expression(trace: types.TracebackType) -> ast.AST:
    """What the source says where a traceback ends."""
    code = trace.tb_frame.f_code
    line, last, start, stop = list(code.co_positions())[trace.tb_lasti // 2]
    if line is None or line != last:
        return ast.Module([], [])
    text = linecache.getline(code.co_filename, line).encode()[start:stop].decode()
    try:
        return ast.parse(text.strip())
    except SyntaxError:
        return ast.Module([], [])


def _shape(value) -> tuple[int, ...]:
    """That of nested lists; () of anything else."""
    return (len(value), *_shape(value[0] if value else None)) if isinstance(value, list) else ()


def _value(index: ast.expr, names: dict) -> int | tuple[int, ...] | None:
    """The integers that an index is, or None if it is made of more than variables and numbers."""
    inner = [one.id for one in ast.walk(index) if isinstance(one, ast.Name)]
    if any(isinstance(one, ast.Call | ast.Subscript | ast.Attribute) for one in ast.walk(index)):
        return None
    if any(not isinstance(names.get(name), int) for name in inner):
        return None
    text = compile(ast.Expression(index), "<index>", "eval")
    value = eval(text, {}, {name: int(names[name]) for name in inner})
    parts = value if isinstance(value, tuple) else (value,)
    return value if all(isinstance(one, int) for one in parts) else None
