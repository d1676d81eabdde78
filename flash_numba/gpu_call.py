"""A posed problem on a GPU: memory for what a pass writes, and the call itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .addresses import known_as
from .arguments import Posed
from .arrays import DeviceArray, dtype_of
from .driver import in_context
from .ladder import Rung
from .passes import Output, Pass, plan_backward, plan_forward
from .problem import DTYPES, Problem


class _Repeated(NamedTuple):
    """A dict of views that can be the key of a cache: pairs of name and view."""

    pairs: tuple[tuple[str, DeviceArray], ...]

    @classmethod
    def of(cls, views: Mapping[str, DeviceArray]) -> _Repeated:
        """The key of views, whose addresses count by their alignment only."""
        return cls(tuple((name, known_as(view, name)) for name, view in views.items()))


@lru_cache(maxsize=256)
def _known_forward(rung: Rung, problem: Problem, device: str, views: _Repeated) -> Pass:
    return plan_forward(rung, problem, dict(views.pairs))


@lru_cache(maxsize=256)
def _known_backward(rung: Rung, problem: Problem, device: str, views: _Repeated, needs) -> Pass:
    return plan_backward(rung, problem, dict(views.pairs), needs, {}, {})


class _Memory:
    """Arrays of one call on the GPU: the caller's own, or copies of those on the host."""

    def __init__(self, posed: Posed):
        self.kind, self.like = posed.place.kind, posed.like
        self.on_host = posed.place.on_host
        self.device = _device_of_copies() if self.on_host else posed.place.device
        self.stream = 0 if self.on_host else self.kind.stream(self.like)
        self.copies = []

    def read(self, arrays: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Where a rung reads arrays of the caller's, less those that are None."""
        return {name: self._view(array) for name, array in arrays.items() if array is not None}

    def _view(self, array) -> DeviceArray:
        if isinstance(array, DeviceArray):
            return array
        from numba import cuda

        copy = cuda.to_device(np.ascontiguousarray(_bits(array)))
        self.copies.append(copy)
        return DeviceArray.of(copy)._replace(dtype=dtype_of(array))

    def run(self, planned: Pass, views: Mapping[str, DeviceArray], seed: int) -> list[Any]:
        """Run a pass on new arrays for its results, which are returned."""
        results = [self._write(output) for output in planned.outputs]
        memory = [self._write(space) for space in planned.memory]
        addresses = [views[name].pointer for name in planned.inputs]
        addresses += [DeviceArray.of(array).pointer for array in (*results, *memory)]
        given = (*addresses, seed & 0xFFFFFFFF, seed >> 32)
        in_context(int(self.device.partition(":")[2] or 0), planned.run, given, self.stream)
        return results

    def _write(self, output: Output):
        if not self.on_host:
            return self.kind.empty(output.shape, output.dtype, self.like)
        from numba import cuda

        stored: Any = _bits(np.empty(0, DTYPES[output.dtype])).dtype
        return cuda.device_array(output.shape, stored)

    def result(self, array, output: Output, dtype: str) -> Any:
        """What was written, as an array of the caller's kind, if need be in another type."""
        if self.on_host:
            found = array.copy_to_host().view(DTYPES[output.dtype])
            return self.kind.wrap(found.astype(DTYPES[dtype], copy=False), self.like)
        return array if dtype == output.dtype else self.kind.cast(array, dtype)


def _device_of_copies() -> str:
    from numba import cuda

    return f"cuda:{cuda.get_current_device().id}"


def _bits(array: np.ndarray) -> np.ndarray:
    """16-bit numbers as the words they are: Numba copies no bfloat16."""
    return array.view(np.uint16) if array.itemsize == 2 else array


def forward(rung: Rung, posed: Posed) -> tuple[Any, Any]:
    """O and lse."""
    problem, memory = posed.problem, _Memory(posed)
    views = memory.read(posed.arrays)
    if posed.repeated:
        planned = _known_forward(rung, problem, memory.device, _Repeated.of(views))
    else:
        planned = plan_forward(rung, problem, views)
    arrays = memory.run(planned, views, problem.seed)
    o, lse = (
        memory.result(array, output, output.dtype)
        for array, output in zip(arrays, planned.outputs, strict=True)
    )
    return o, lse


def backward(rung: Rung, posed: Posed, needs: Sequence[str], do, o, lse, dlse) -> dict[str, Any]:
    """Gradients by name ("dq", ..., "dbias", "dscore_mod"), those asked for."""
    problem, memory = posed.problem, _Memory(posed)
    views = memory.read({**posed.arrays, "o": o, "lse": lse, "do": do, "dlse": dlse})
    if posed.repeated:
        key = _Repeated.of(views)
        planned = _known_backward(rung, problem, memory.device, key, tuple(needs))
    else:
        shapes = {name: tuple(posed.tensors[name].shape) for name in posed.at if name in needs}
        planned = plan_backward(rung, problem, views, needs, posed.at, shapes)
    arrays = memory.run(planned, views, problem.seed)
    return {
        output.name: memory.result(array, output, _type_of(posed, name))
        for name, array, output in zip(needs, arrays, planned.outputs, strict=True)
    }


def _type_of(posed: Posed, name: str) -> str:
    return dtype_of(posed.tensors[name]) if name in posed.at else posed.problem.dtype
