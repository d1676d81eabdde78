"""A posed problem on a GPU: the plan of a pass, memory for what it writes, and the call itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .addresses import NAMES, known_as, unknown
from .arguments import Posed
from .arrays import DeviceArray, contiguous, dtype_of
from .driver import NoContext, enter
from .ladder import Rung
from .plan import SEED, Plan
from .problem import DTYPES, Problem
from .scores import aux_shape
from .sequences import Packed


class Output(NamedTuple):
    """An array that a pass writes.

    Attributes
    ----------
    name : str
        Of `addresses.NAMES`.
    shape : tuple of int
    dtype : str
        A key of `problem.DTYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def view(self) -> DeviceArray:
        """The array, contiguous, at an address that is not known yet."""
        return contiguous(unknown(self.name), self.shape, self.dtype)


class Pass(NamedTuple):
    """A forward or backward pass on any arrays of certain shapes, strides and alignment.

    Attributes
    ----------
    plan : Plan
    inputs : tuple of str
        Names of the arrays it reads, in the order of `addresses.NAMES`.
    outputs : tuple of Output
    memory : tuple of Output
        What it needs for its own use: one array, or none.
    run : callable
        ``run(addresses, stream)`` with the addresses of inputs, outputs and memory, in this order,
        and the words of the seed behind them.
    problem : Problem or None
        Keeps alive what the plan's launches read besides.
    """

    plan: Plan
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    memory: tuple[Output, ...]
    run: Callable[[Sequence[int], int], None]
    problem: Problem | None = None

    @classmethod
    def of(cls, plan: Plan, inputs, outputs, memory, problem: Problem | None = None) -> Pass:
        """The pass of a recorded plan."""
        inputs = tuple(sorted(inputs, key=NAMES.index))
        outputs, memory = tuple(outputs), tuple(memory)
        names = (*inputs, *(output.name for output in (*outputs, *memory)), *SEED)
        return cls(plan, inputs, outputs, memory, plan.ready(names), problem)


def plan_forward(
    rung: Rung, problem: Problem, views: Mapping[str, DeviceArray], plan: Plan | None = None
) -> Pass:
    """The forward pass of a rung.

    Parameters
    ----------
    rung : Rung
    problem : Problem
    views : dict of str to DeviceArray
        What it reads: "q", "k", "v" and arrays that the problem's functions read. Of their
        addresses, only the alignment matters.
    plan : Plan, optional
        An empty one, to record it in.
    """
    functions, plan = rung.functions("forward"), plan or Plan()
    parts = getattr(functions, "forward_workspace", lambda problem: ())(problem)
    outputs = [Output("o", problem.shapes["o"], problem.dtype)]
    outputs.append(Output("lse", problem.shapes["lse"], "fp32"))
    memory = _workspace(parts)
    inputs = (known_as(views[name], name) for name in ("q", "k", "v"))
    written = (output.view() for output in outputs)
    spaces = (space.view() for space in memory)
    functions.forward(problem, *inputs, *written, plan, *spaces, **_packed(problem, views))
    return Pass.of(plan, views, outputs, memory, problem)


def plan_backward(
    rung: Rung,
    problem: Problem,
    views: Mapping[str, DeviceArray],
    needs: Sequence[str],
    at: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    plan: Plan | None = None,
) -> Pass:
    """The backward pass of a rung.

    Parameters
    ----------
    rung, problem
        As for `plan_forward`.
    views : dict of str to DeviceArray
        What it reads: beside that of the forward pass "o", "lse", "do" and, if there is one,
        "dlse".
    needs : sequence of str
        Which gradients it writes.
    at : dict of str to int
        As in `Posed`.
    shapes : dict of str to tuple of int
        The tensors' own, under the names in `at`.
    plan : Plan, optional
        As for `plan_forward`.
    """
    functions, plan = rung.functions("backward"), plan or Plan()
    outputs, written = [], {}
    d_aux: list[DeviceArray | None] = [None] * len(problem.score_mods)
    for name in needs:
        if name in at:
            # The caller's shape, seen by the rung in the shape of its own view of the tensor.
            output = Output(f"d{name}", shapes[name], "fp32")
            shape = aux_shape(problem, problem.score_mods[at[name]])
            if math.prod(output.shape):  # strides of an empty tensor do not say what is broadcast
                d_aux[at[name]] = contiguous(unknown(output.name), shape, "fp32")
        else:
            output = Output(f"d{name}", problem.shapes[f"d{name}"], problem.dtype)
            written[name] = output.view()
        outputs.append(output)
    numbers = [number for number, total in enumerate(d_aux) if total is not None]
    memory = _workspace(functions.workspace(problem, numbers))
    inputs = (known_as(views[name], name) for name in ("q", "k", "v", "o", "lse", "do"))
    dlse = known_as(views["dlse"], "dlse") if "dlse" in views else None
    gradients = (written.get(name) for name in ("q", "k", "v"))
    rest = dlse, plan, *([d_aux] if numbers else [])
    space = memory[0].view()
    functions.backward(problem, *inputs, *gradients, space, *rest, **_packed(problem, views))
    return Pass.of(plan, views, outputs, memory, problem)


def _packed(problem: Problem, views: Mapping[str, DeviceArray]) -> dict[str, Any]:
    """What a rung's functions are handed besides of a packed batch."""
    if problem.sequences is None:
        return {}
    cu_q, cu_k, used_q, used_k = (
        known_as(views[name], name) if name in views else None for name in Packed._fields[:4]
    )
    return {"packed": Packed(cu_q, cu_k, used_q, used_k)}


def _workspace(parts: Sequence[int]) -> list[Output]:
    return [Output("memory", (-(-sum(parts) // 4),), "fp32")] if parts else []


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
        try:
            planned.run(given, self.stream)
        except NoContext:  # of the first launch: nothing has run
            enter(int(self.device.partition(":")[2] or 0))
            planned.run(given, self.stream)
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
