"""A posed problem on a GPU: memory for what a rung reads and writes, and the call itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arguments import Posed
from .arrays import DeviceArray, contiguous, dtype_of
from .ladder import Rung
from .problem import DTYPES
from .scores import aux_shape


class _Output(NamedTuple):
    """Memory on the GPU that a rung writes, and whose array it is."""

    array: Any
    view: DeviceArray


class _Memory:
    """Arrays of one call on the GPU: the caller's own, or copies of those on the host."""

    def __init__(self, posed: Posed):
        self.kind, self.like = posed.place.kind, posed.like
        self.on_host = posed.place.on_host
        self.stream = 0 if self.on_host else self.kind.stream(self.like)
        self.copies = []

    def read(self, view):
        """Where a rung reads an array of the caller's."""
        if view is None or isinstance(view, DeviceArray):
            return view
        from numba import cuda

        copy = cuda.to_device(np.ascontiguousarray(_bits(view)))
        self.copies.append(copy)
        return DeviceArray.of(copy)._replace(dtype=dtype_of(view))

    def write(self, shape: tuple[int, ...], dtype: str) -> _Output:
        """Room for a result, its elements unset."""
        if self.on_host:
            from numba import cuda

            stored: Any = _bits(np.empty(0, DTYPES[dtype])).dtype
            array = cuda.device_array(shape, stored)
        else:
            array = self.kind.empty(shape, dtype, self.like)
        return _Output(array, DeviceArray.of(array)._replace(dtype=dtype))

    def space(self, parts: Sequence[int]) -> _Output:
        """Room for a rung's own use, of as many bytes as `parts` have together."""
        return self.write((-(-sum(parts) // 4),), "fp32")

    def result(self, output: _Output, dtype: str | None = None) -> Any:
        """What was written, as an array of the caller's kind, if need be in another type."""
        wanted = dtype or output.view.dtype
        if self.on_host:
            found = output.array.copy_to_host().view(DTYPES[output.view.dtype])
            return self.kind.wrap(found.astype(DTYPES[wanted], copy=False), self.like)
        if wanted == output.view.dtype:
            return output.array
        return self.kind.cast(output.array, wanted)


def _bits(array: np.ndarray) -> np.ndarray:
    """16-bit numbers as the words they are: Numba copies no bfloat16."""
    return array.view(np.uint16) if array.itemsize == 2 else array


def forward(rung: Rung, posed: Posed) -> tuple[Any, Any]:
    """O and lse."""
    problem, memory = posed.problem, _Memory(posed)
    inputs = [memory.read(view) for view in (posed.q, posed.k, posed.v)]
    o = memory.write(problem.shapes["o"], problem.dtype)
    lse = memory.write(problem.shapes["lse"], "fp32")
    functions, workspace = rung.functions("forward"), []
    if hasattr(functions, "forward_workspace"):
        workspace.append(memory.space(functions.forward_workspace(problem)))
    spaces = (space.view for space in workspace)
    functions.forward(problem, *inputs, o.view, lse.view, memory.stream, *spaces)
    return memory.result(o), memory.result(lse)


def backward(rung: Rung, posed: Posed, needs: Sequence[str], do, o, lse, dlse) -> dict[str, Any]:
    """Gradients by name ("dq", ..., "dbias", "dscore_mod"), those asked for."""
    problem, memory = posed.problem, _Memory(posed)
    inputs = [memory.read(view) for view in (posed.q, posed.k, posed.v, o, lse, do)]
    outputs: dict[str, _Output] = {}
    d_aux: list[DeviceArray | None] = [None] * len(problem.score_mods)
    for name in needs:
        if name in posed.at:
            # The caller's shape, seen by the rung in the shape of its own view of the tensor.
            output = outputs[name] = memory.write(tuple(posed.tensors[name].shape), "fp32")
            shape = aux_shape(problem, problem.score_mods[posed.at[name]])
            d_aux[posed.at[name]] = contiguous(output.view.pointer, shape, "fp32")
        else:
            outputs[name] = memory.write(problem.shapes[f"d{name}"], problem.dtype)
    written = [outputs[name].view if name in outputs else None for name in ("q", "k", "v")]
    functions = rung.functions("backward")
    numbers = [number for number, total in enumerate(d_aux) if total is not None]
    workspace = memory.space(functions.workspace(problem, numbers))
    rest = memory.read(dlse), memory.stream, *([d_aux] if numbers else [])
    functions.backward(problem, *inputs, *written, workspace.view, *rest)
    return {
        f"d{name}": memory.result(output, _type_of(posed, name)) for name, output in outputs.items()
    }


def _type_of(posed: Posed, name: str) -> str:
    return dtype_of(posed.tensors[name]) if name in posed.at else posed.problem.dtype
