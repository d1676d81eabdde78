"""Compiles kernels and device functions for the emulation, once for each kind of arguments."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import numpy as np

from ..arrays import Array, items
from ..device import Device
from ..errors import Place, fail
from ..instructions import instruction
from ..local import LocalView, maker
from ..mathematics import divide
from ..memory import SharedMemory
from ..proxies import ASYNC_PROXY
from ..runtime import Runtime
from ..scalars import F64, argument, wrapped
from .fingerprint import Fingerprint
from .flops import BlockCounters
from .following import Book
from .following_calls import leaks_of
from .infer import Analysis
from .kinds import ANY, Kind, bounded, of_value
from .link import classify
from .numba_types import kind_of_type, numba_type
from .registers import run_time_indices
from .rewrite_flow import FlowRewriter

NUMBERS = (int, float, np.generic)


def _key(function, kinds) -> tuple:
    def simple(kind: Kind):
        parts = tuple(simple(part) for part in kind.parts)
        value = id(kind.value.value) if kind.value else None
        return (*kind[:5], parts, value, kind.bits)

    return (function, tuple(simple(kind) for kind in kinds))


class Functions:
    """The functions of one launch.

    Attributes
    ----------
    marking : bool
        Whether branches note where threads went (only needed to count).
    locals : dict of (Place, column) to (shape, dtype)
        The local arrays of each thread.
    meets, async_proxy : bool
        Whether a barrier of the grid is called, and instructions of the async proxy (`proxies`).
    fenced, ordered : bool
        Whether ``cuda.threadfence`` orders blocks, which no check here follows; whether it or
        acquiring and releasing does, which is followed in blocks that run at once.
    run_time_indices : list of Place
        Lines that keep local arrays out of registers.
    lines : dict
        (file, code name) of compiled functions -> name.
    """

    def __init__(self, runtime: Runtime, shared: SharedMemory, make_constant):
        self.runtime, self.shared = runtime, shared
        self.device = Device(runtime)
        self.marking = runtime.counting
        self.locals: dict[tuple[Place, int], tuple] = {}
        self.run_time_indices: list[Place] = []
        self.lines: dict[tuple[str, str], str] = {}
        self.dynamic_types: set[str] = set()
        self.flops = BlockCounters()
        self.helpers = {
            "_times": self.flops.times,
            "_branch": runtime.branch,
            "_turn": runtime.turn,
            "_leave": runtime.leave,
            "_spin": runtime.spin,
            "_left": runtime.left,
            "_argument": argument,
            "_int64": wrapped,
            "_enter": self._enter,
            "_load": self._load,
            "_store": self._store,
            "_wrapped": self._wrapped,
            "_items": items,
            "_divide": divide,
            "_local_view": LocalView,
        }
        self.sources = Fingerprint()
        self._make_constant = make_constant
        self._analyses: dict[tuple, Analysis | None] = {}
        self._compiled: dict[int, Any] = {}
        self._touches: dict[int, bool] = {}
        self._instructions: dict[int, Any] = {}
        self._constants: dict[int, Array] = {}
        self._kept: list = []
        self._regions = 0
        self.fenced = self.ordered = self.meets = self.async_proxy = False
        self._positions: dict[tuple, int] = {}

    def check_arguments(self, node: ast.Call, path: str, place: Place) -> None:
        """Refuse a call of ``cuda.<path>`` with arguments that it does not take."""
        method = getattr(self.device, path.replace(".", "_"), None)
        if method is None or any(isinstance(one, ast.Starred) for one in node.args):
            return
        try:
            named = {one.arg: one for one in node.keywords if one.arg}
            inspect.signature(method).bind(None, *node.args, **named)
        except TypeError as error:
            raise fail("exception", f"cuda.{path}: {error}", place) from None

    def specialise(self, function, kinds, named, place: Place) -> Analysis:
        """Analysis of a device function for these arguments."""
        signature = inspect.signature(function)
        try:
            bound = signature.bind(*kinds, **named)
        except TypeError as error:
            raise fail("exception", f"{function.__name__}: {error}", place) from None
        given = []
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                text = f"the keyword-only parameter {name} of {function.__name__}"
                raise fail("unsupported", f"{text} is nothing that Numba compiles", place)
            kind = bound.arguments.get(name)
            if kind is None:
                value = classify(parameter.default)
                plain = value.what == "const"
                kind = of_value(value.value) if plain else Kind("static", True, value=value)
            given.append(bounded(kind))
        key = _key(function, given)
        if key not in self._analyses:
            self._analyses[key] = None
            analysis = Analysis(self, function, tuple(given))
            analysis.is_kernel = False
            self._analyses[key] = analysis
        analysis = self._analyses[key]
        if analysis is None:
            raise fail("unsupported", f"{function.__name__} calls itself: not emulated", place)
        return analysis

    def kernel(self, function, kinds):
        """The rewritten kernel."""
        analysis = Analysis(self, function, kinds)
        analysis.is_kernel = True
        self.book = leaks_of(analysis) if self.runtime.alike is not None else Book()
        return self.compiled(analysis)

    def touches(self, analysis: Analysis) -> bool:
        """Whether a function accesses memory that is logged."""
        key = id(analysis)
        if key not in self._touches:
            self._touches[key] = FlowRewriter(analysis, self).touches(*analysis.body)
            self._kept.append(analysis)
        return self._touches[key]

    def compiled(self, analysis: Analysis):
        """The Python function that runs instead of an analysed one."""
        if id(analysis) in self._compiled:
            return self._compiled[id(analysis)]
        self.run_time_indices += run_time_indices(analysis)
        code = analysis.function.__code__
        rewriter = FlowRewriter(analysis, self)
        self.sources.function(analysis.function, analysis.written)
        name = code.co_name.strip("<>")
        node = rewriter.function(name)
        module = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(module, code.co_filename, "exec"), rewriter.globals)
        function = rewriter.globals[name]
        function.__code__ = _with_cuda_floats(function.__code__)
        defaults = analysis.function.__defaults__
        function.__defaults__ = defaults
        self.lines[code.co_filename, name] = code.co_name
        self._compiled[id(analysis)] = function
        self._kept.append(analysis)
        return function

    def note_fence(self) -> None:
        """The kernel calls ``cuda.threadfence``."""
        self.fenced = self.ordered = True

    def note_meeting(self) -> None:
        """The kernel has a barrier of the grid."""
        self.meets = True

    def region(self) -> int:
        """A new number for a branch."""
        self._regions += 1
        return self._regions

    def keep(self, value) -> None:
        """Keep `value` alive, since names are given by identity."""
        self._kept.append(value)

    def result_of(self, operation, kinds) -> Kind:
        """Kind of what an intrinsic gives, asked of its own typing function."""
        try:
            signature, _ = operation._defn(None, *(numba_type(kind) for kind in kinds))
            return kind_of_type(signature.return_type)
        except Exception:
            return ANY

    def note_local(self, place: Place, column: int, shape, dtype: str) -> None:
        """A local array is declared at `place`."""
        self.locals[place, column] = (shape, dtype)

    def local_maker(self, name, shape):
        """Function that makes a local array; see `local.maker`."""
        make = maker(name, shape)
        self.keep(make)
        return make

    def shared_maker(self, analysis, node, name, shape, dtype, alignment):
        """Function that gives the block's shared array declared at `node`."""
        key = (analysis.function, node.lineno, node.col_offset)
        shared, runtime = self.shared, self.runtime
        if shape == (0,):
            self.dynamic_types.add(dtype)

            def make():
                sizes = [np.dtype(F64 if one == "" else one).itemsize for one in self.dynamic_types]
                return shared.dynamic(name, dtype, min(sizes)).there(runtime.thread.slot)

        else:
            array = shared.static(key, name, shape, dtype, alignment)

            def make():
                return array.there(runtime.thread.slot)

        self.keep(make)
        return make

    def constant_array(self, rewriter, value: np.ndarray, node) -> str:
        """Name of a captured NumPy array, which Numba makes a constant of the kernel."""
        if id(value) not in self._constants:
            name = getattr(node, "id", getattr(node, "attr", "constant"))
            self._constants[id(value)] = self._make_constant(value, name)
            self.keep(value)
        return rewriter.bind(self._constants[id(value)], "array")

    def _enter(self, visit, condition):
        self.runtime.turn(visit, 1 if condition else 0)
        return condition

    def _wrapped(self, array, key):
        """An index with a literal like -1 in it, counted from the end."""
        if array.__class__ is not Array or not isinstance(key, tuple):
            return key
        return tuple(
            i + n if isinstance(i, int) and i < 0 else i
            for i, n in zip(key, array.shape, strict=False)
        )

    def _load(self, array, key, code):
        if array.__class__ is Array:
            if key.__class__ is tuple and len(key) == array.ndim and _plain(key):
                return array.get(*key, code)
            self._at(code)
        elif isinstance(array, NUMBERS):
            raise self._no_array(array, code)
        return array[key]

    def _store(self, array, key, value, code):
        if array.__class__ is Array:
            if key.__class__ is tuple and len(key) == array.ndim and _plain(key):
                array.set(value, *key, code)
                return
            self._at(code)
        elif isinstance(array, NUMBERS):
            raise self._no_array(array, code)
        array[key] = value

    def _no_array(self, value, code):
        self._at(code)
        text = f"the number {value} is indexed as if it were an array: was it passed for one?"
        return self.runtime.error("exception", text)

    def _at(self, code):
        runtime = self.runtime
        site = runtime.log.sites[code]
        key = (site.place, site.column)
        where = self._positions.get(key)
        if where is None:
            where = self._positions[key] = runtime.position(*key)
        runtime.here, runtime.traffic = where, ""

    def instruction(self, operation, called: str):
        """The emulation of an intrinsic that may touch memory, wait, or needs several threads."""
        if id(operation) not in self._instructions:
            if getattr(operation, "traffic", "") in ("acquire", "release"):
                self.ordered = True
            if getattr(operation, "traffic", "") in ASYNC_PROXY:
                self.async_proxy = True
            self._instructions[id(operation)] = instruction(self.runtime, operation, called)
        return self._instructions[id(operation)]

    def fingerprint(self) -> str:
        """See `Report.fingerprint`."""
        return str(self.sources)


def _plain(key) -> bool:
    return all(isinstance(one, int) for one in key)


def _with_cuda_floats(code: types.CodeType) -> types.CodeType:
    """Float literals are float64 in CUDA code from Numba, not Python's untyped floats."""

    def converted(value):
        if type(value) is float:
            return F64(value)
        if type(value) is tuple:
            return tuple(converted(one) for one in value)
        return value

    return code.replace(co_consts=tuple(converted(one) for one in code.co_consts))
