"""What the names in a kernel stand for: CUDA functions, types, device functions, constants."""

from __future__ import annotations

import builtins
import math
import sys
import types
from typing import Any, NamedTuple

import numpy as np

from flash_numba import fn

from ..device import Device
from ..mathematics import BUILTINS, LIBDEVICE, MATH, larger, smaller
from ..scalars import argument, dtype_name


class Target(NamedTuple):
    """A value known before the kernel runs.

    Attributes
    ----------
    what : str
        "cuda" (value: dotted path), "cast" (type name), "function" (Python function),
        "intrinsic" (the operation), "class" (a named tuple), "math" or "native" (what to call
        instead), "choice" (what to call that gives one of its operands), "builtin" (name),
        "module", "object", "array" (NumPy array), "const" (plain value), "missing" (what is not
        emulated, in words).
    value : object
    """

    what: str
    value: Any


SPECIAL = {"shared.array", "local.array", "threadIdx", "blockIdx", "blockDim", "gridDim"}
SPECIAL |= {"laneid", "warpsize", "const.array_like", "cg.this_grid", "cg.grid"}
_PREFIXES = ("shared", "local", "atomic", "const", "cg", "fp16")
_MATH = {
    id(getattr(math, name)): function for name, function in MATH.items() if hasattr(math, name)
}
_SHARED_ROOM: dict[Any, Target] = {
    **{getattr(fn, name): Target("math", MATH[name]) for name in ("exp", "tanh", "sin")},
    fn.abs: Target("choice", abs),
    fn.minimum: Target("choice", smaller),
    fn.maximum: Target("choice", larger),
    fn.where: Target("choice", lambda condition, x, y: x if condition else y),
}
PLAIN = (sum, ord, complex, isinstance)
"""Built-in functions that do on the CPU what they do in a kernel."""
_BUILTINS = {id(getattr(builtins, name)): name for name in BUILTINS}


def _is_numba(name: str) -> bool:
    return name.split(".")[0] in ("numba", "numba_cuda")


def _cuda_module():
    return sys.modules.get("numba.cuda")


def _stubs() -> dict[int, str]:
    """Objects that ``from numba.cuda import name`` binds, by identity."""
    cuda = _cuda_module()
    names = [name for name in dir(Device) if not name.startswith("_")]
    names += [path for path in SPECIAL if "." not in path] + list(_PREFIXES)
    return {id(getattr(cuda, n)): n for n in names if hasattr(cuda, n)} if cuda else {}


def cuda_path(path: str) -> Target:
    """Target of ``cuda.<path>``."""
    if path in SPECIAL or path in _PREFIXES or hasattr(Device, path.replace(".", "_")):
        return Target("cuda", path)
    if path.startswith("fp16."):  # a module that is there only once something was compiled
        return Target("missing", f"cuda.{path}")
    value: Any = _cuda_module()
    for name in path.split("."):
        value = getattr(value, name, None)
    if isinstance(value, types.ModuleType) or (value is not None and dtype_name(value)):
        return classify(value)
    return Target("missing", f"cuda.{path}")


def _class_of_callable(value) -> Target | None:
    if hasattr(value, "emulate"):
        return Target("intrinsic", value)
    if type(value).__name__ == "_Intrinsic":
        return Target("missing", f"the intrinsic {getattr(value, '__name__', value)}")
    for attribute in ("py_func", "fn"):
        function = getattr(value, attribute, None)
        if isinstance(function, types.FunctionType):
            return Target("function", function)
    if isinstance(value, types.FunctionType):
        module = value.__module__ or ""
        if module.endswith("cuda.libdevice"):
            return libdevice(value.__name__)
        native = module.split(".")[0] in ("numpy", "math")
        return Target("native" if native else "function", value)
    return None


def libdevice(name: str) -> Target:
    """Target of ``libdevice.<name>``."""
    if name in LIBDEVICE:
        return Target("math", LIBDEVICE[name])
    return Target("missing", f"libdevice.{name}")


def classify(value) -> Target:
    """What a global or captured value is to a kernel."""
    if isinstance(value, types.FunctionType) and value in _SHARED_ROOM:
        return _SHARED_ROOM[value]
    if isinstance(value, types.ModuleType):
        if value.__name__ == "numba.cuda.fp16":
            return Target("cuda", "fp16")
        return Target("cuda", "") if value is _cuda_module() else Target("module", value)
    if id(value) in _MATH:
        return Target("math", _MATH[id(value)])
    if id(value) in _BUILTINS:
        return Target("builtin", _BUILTINS[id(value)])
    if isinstance(value, bool | int | float | str | type(None) | np.generic):
        return Target("const", argument(_plain(value)))
    if isinstance(value, np.ndarray):
        return Target("array", value)
    if isinstance(value, type) and issubclass(value, np.generic) and dtype_name(value):
        return Target("cast", dtype_name(value))
    if _is_numba(type(value).__module__) and hasattr(value, "name") and dtype_name(value):
        return Target("cast", dtype_name(value))
    if (path := _stubs().get(id(value))) is not None:
        return Target("cuda", path)
    if (found := _class_of_callable(value)) is not None:
        return found
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        return Target("class", value)
    if getattr(builtins, getattr(value, "__name__", ""), None) is value and value not in PLAIN:
        return Target("missing", f"{value.__name__}, which Numba does not compile for CUDA,")
    if getattr(value, "__module__", "") == "numpy" and not isinstance(value, np.ufunc):
        return Target("missing", f"np.{value.__name__}, which makes or needs whole arrays,")
    if isinstance(value, tuple):
        return Target("const" if all(_is_const(v) for v in value) else "object", value)
    return Target("native" if callable(value) and not isinstance(value, type) else "object", value)


def _plain(value):
    """A member of an enumeration as the int that it is."""
    return int(value) if isinstance(value, int) and type(value) is not bool else value


def _is_const(value) -> bool:
    return classify(value).what == "const"


def member(target: Target, name: str) -> Target | None:
    """Target of ``<target>.name``, or None if it is only known at run time."""
    if target.what == "cuda":
        if target.value in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
            return None
        return cuda_path(f"{target.value}.{name}".lstrip("."))
    if target.what == "module":
        if target.value.__name__.endswith("cuda.libdevice"):
            return libdevice(name)
        if not hasattr(target.value, name):
            return Target("missing", f"{target.value.__name__}.{name}")
        return classify(getattr(target.value, name))
    if target.what in ("object", "const") and hasattr(target.value, name):
        return classify(getattr(target.value, name))
    return None


def names_of(function: types.FunctionType) -> dict[str, Any]:
    """Captured variables of a function by name."""
    cells = function.__closure__ or ()
    found = {}
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def lookup(function: types.FunctionType, name: str, captured: dict[str, Any]) -> Target | None:
    """Target of a name that is not a variable of the function."""
    for scope in (captured, function.__globals__, vars(builtins)):
        if name in scope:
            return classify(scope[name])
    return None
