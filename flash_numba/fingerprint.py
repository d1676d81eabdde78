"""What a kernel does, as a text: equal for kernels that compile alike, in every process.

Functions of this package are named, since `kernel_store.environment` has their sources; what they
enclose, and every other function - a user's masks and score changes - is written out: its bytecode,
constants, enclosed values and globals. What cannot be written out surely has no fingerprint.
"""

import builtins
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_PACKAGE = __name__.partition(".")[0]
_TRUSTED = (_PACKAGE, "numba", "numpy", "math", "operator", "builtins", "llvmlite", "cuda")


class Unknown(Exception):
    """Something has no fingerprint."""


def fingerprint(thing) -> str:
    """A text that says what `thing` is.

    Parameters
    ----------
    thing
        Kernels, functions, numbers, texts, types, NumPy arrays, and tuples, lists, sets and dicts
        of them.

    Raises
    ------
    Unknown
        If two different things could have this text.
    """
    return "\n".join(_lines(thing, {}))


def _lines(thing, seen: dict[int, int]) -> Iterator[str]:
    """Lines of a thing; `seen` numbers the functions written already."""
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        yield f"{type(thing).__name__} {thing!r}"
    elif isinstance(thing, tuple | list):
        yield f"{_named(type(thing))} of {len(thing)}"
        for part in thing:
            yield from _lines(part, seen)
    elif isinstance(thing, frozenset | set):
        yield f"{type(thing).__name__} {sorted(fingerprint(part) for part in thing)}"
    elif isinstance(thing, dict):
        yield f"dict of {len(thing)}"
        for pair in thing.items():
            yield from _lines(pair, seen)
    elif isinstance(thing, np.ndarray | np.generic):
        array = np.asarray(thing)
        if array.dtype.hasobject:
            raise Unknown(f"an array of {array.dtype}")
        yield f"{type(thing).__name__} {array.dtype.str} {array.shape} {array.tobytes().hex()}"
    elif isinstance(thing, np.dtype):
        yield f"dtype {thing.str}"
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, types.CodeType):
        yield from _code(thing, seen)
    elif isinstance(thing, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        yield _named(thing)
    else:
        yield from _compiled(thing, seen)


def _named(thing) -> str:
    """Name of a module, class or function of a package whose version is known."""
    module = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    if not _trusted(module):
        raise Unknown(f"{thing!r}")
    return f"{module} {thing.__name__} {getattr(thing, '__qualname__', '')}"


def _trusted(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _TRUSTED


def _function(function, seen) -> Iterator[str]:
    if id(function) in seen:  # it lives as long as what refers to it
        yield f"function {seen[id(function)]}"
        return
    seen[id(function)] = len(seen)
    yield f"function {function.__module__} {function.__qualname__}"
    yield from _lines((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _lines(cell.cell_contents, seen)
        except ValueError:
            raise Unknown(f"{function!r} encloses a name without a value") from None
    if (function.__module__ or "").partition(".")[0] == _PACKAGE:
        return
    yield from _lines(function.__code__, seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            value = function.__globals__[name]
            if isinstance(value, types.FunctionType) and not _trusted(value.__module__):
                # Compiled code calls it only through an overload that is registered elsewhere.
                raise Unknown(f"{value!r}")
            yield f"global {name}"
            yield from _lines(value, seen)
        elif not hasattr(builtins, name):
            yield f"name {name}"


def _names(code) -> set[str]:
    """Names that bytecode looks up, nested functions included."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _code(code, seen) -> Iterator[str]:
    yield f"code {code.co_flags} {code.co_argcount} {code.co_code.hex()}"
    yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    yield from _lines(code.co_consts, seen)


def _compiled(thing: Any, seen) -> Iterator[str]:
    """A kernel, device function, intrinsic or type of Numba's."""
    if not any(base.__module__.partition(".")[0] == "numba" for base in type(thing).__mro__):
        raise Unknown(f"{thing!r}")
    yield f"numba {type(thing).__name__}"
    if hasattr(thing, "py_func"):
        yield from _lines(thing.py_func, seen)
        yield from _lines(_plain_options(thing.targetoptions), seen)
    elif hasattr(thing, "_defn"):  # an intrinsic
        yield from _lines(thing._defn, seen)
    elif hasattr(thing, "mangling_args"):  # a type: its text is what Numba tells it by
        yield str(thing)
    else:
        raise Unknown(f"{thing!r}")


def _plain_options(options: dict) -> dict:
    return {name: value for name, value in sorted(options.items()) if value}
