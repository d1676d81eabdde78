"""A GPU made of host memory: arrays with a CUDA interface, and a rung that asks the reference.

What the front door does for a GPU - choosing a rung, handing over pointers, shapes, strides and the
stream, making results - runs here as it is; only the kernels and Numba's memory are stand-ins.
"""

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from flash_numba import arrays, ladder, reference
from flash_numba.addresses import owner_of
from flash_numba.arrays import DeviceArray
from flash_numba.ladder import Gpu, NoGpu, Rung
from flash_numba.plan import SEED
from flash_numba.problem import DTYPES, Problem
from flash_numba.sequences import Sequences, Side

GPU = Gpu("Fake GPU", (8, 0))


class CudaArray:
    """Host memory that passes for an array in GPU memory."""

    def __init__(self, array: np.ndarray, stream: int = 7):
        self.array, self.stream = array, stream
        self.shape, self.dtype = array.shape, array.dtype

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            # Where nothing is to be stored is nowhere, as with Numba.
            "data": (self.array.ctypes.data if self.array.size else 0, False),
            "strides": self.array.strides,
            "stream": self.stream,
            "version": 3,
        }

    def copy_to_device(self, array: np.ndarray) -> None:
        self.array[:] = array

    def copy_to_host(self) -> np.ndarray:
        return self.array.copy()


def memory(view: DeviceArray) -> np.ndarray:
    """The array that a kernel would see through `view`."""
    dtype = DTYPES.get(view.dtype) or np.dtype(view.dtype)
    pairs = zip(view.shape, view.strides, strict=True)
    last = sum((size - 1) * step for size, step in pairs) + dtype.itemsize
    buffer: Any = (ctypes.c_char * max(last, 1)).from_address(view.pointer)
    return np.ndarray(view.shape, dtype, buffer, strides=view.strides)


def each(change, part) -> Any:
    """`part` with every DeviceArray changed, also those in the aux of a problem's functions."""
    if isinstance(part, DeviceArray) or hasattr(part, "data_ptr"):
        return change(DeviceArray.of(part))
    if isinstance(part, tuple | list):
        return tuple(each(change, inner) for inner in part)
    if isinstance(part, Problem):
        mods = tuple(replace(mod, aux=each(change, mod.aux)) for mod in part.score_mods)
        mask = part.mask and replace(part.mask, aux=each(change, part.mask.aux))
        return replace(part, score_mods=mods, mask=mask)
    return part


def with_lengths(problem: Problem, packed: tuple) -> Problem:
    """The problem of a packed batch with the lengths that its arrays say when it runs."""
    if problem.sequences is None:
        return problem
    totals = problem.sequences.total_q, problem.sequences.total_k
    cu_q, cu_k, *used = (None if x is None else memory(x) for x in packed[:4])
    sides = map(Side.of, totals, (cu_q, cu_k), used)
    return replace(problem, sequences=Sequences(*totals, *sides))


class Step:
    """A step of a plan that calls a function on the memory there is when it runs."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def ready(self, names):
        def run(addresses, stream):
            def found(view):
                name, offset = owner_of(view.pointer)
                start = 0 if name is None else addresses[names.index(name)]
                return view._replace(pointer=start + offset)

            def seeded(part):
                if not isinstance(part, Problem) or "seed_low" not in names:
                    return part
                low, high = (addresses[names.index(name)] for name in SEED)
                return replace(part, seed=high << 32 | low)

            self.function(*map(seeded, each(found, self.arguments)), stream=stream)

        return run


class Functions:
    """A rung's functions; keeps what they planned and what was run."""

    def __init__(self):
        self.planned, self.calls = [], []

    def forward(self, problem, q, k, v, o, lse, plan, space=None, packed=()):
        self.planned.append(problem)
        plan.steps.append(Step(self.run_forward, problem, q, k, v, o, lse, packed))

    def run_forward(self, problem, q, k, v, o, lse, packed, stream):
        problem = with_lengths(problem, packed)
        self.calls.append(SimpleNamespace(problem=problem, q=q, k=k, v=v, o=o, stream=stream))
        memory(o)[:], memory(lse)[:] = reference.forward(
            each(memory, problem), memory(q), memory(k), memory(v)
        )

    def workspace(self, problem, numbers=()):
        return 16, 21

    def backward(
        self, problem, q, k, v, o, lse, do, dq, dk, dv, space, dlse=None,
        plan: Any = None, d_aux=(), packed=(),
    ):  # fmt: skip
        self.planned.append(problem)
        arguments = problem, q, k, v, do, dq, dk, dv, space, dlse, d_aux, packed
        plan.steps.append(Step(self.run_backward, *arguments))

    def run_backward(self, problem, q, k, v, do, dq, dk, dv, space, dlse, d_aux, packed, stream):
        problem = with_lengths(problem, packed)
        given = SimpleNamespace(problem=problem, dq=dq, dk=dk, dv=dv, d_aux=d_aux, stream=stream)
        self.calls.append(given)
        assert memory(space).nbytes == 40
        dlse = None if dlse is None else memory(dlse)
        found = reference.backward(
            each(memory, problem), memory(q), memory(k), memory(v), memory(do), dlse
        )
        for view, gradient in ((dq, found.dq), (dk, found.dk), (dv, found.dv)):
            if view is not None:
                memory(view)[:] = gradient
        with_gradient = [n for n, mod in enumerate(problem.score_mods) if mod.aux_index is not None]
        for number, gradient in zip(with_gradient, found.aux, strict=True):
            if d_aux and d_aux[number] is not None:
                memory(d_aux[number])[:] = gradient


class WithForwardWorkspace(Functions):
    """The same of a rung whose forward pass needs memory."""

    def forward_workspace(self, problem):
        return 12, 9

    def forward(self, problem, q, k, v, o, lse, plan, space=None, packed=()):
        assert space is not None
        plan.steps.append(Step(self.run_clear, problem, space))
        super().forward(problem, q, k, v, o, lse, plan, packed=packed)

    def run_clear(self, problem, space, stream):
        assert memory(space).nbytes == 24
        memory(space)[:] = 0


def install(
    monkeypatch, gpu: Gpu | NoGpu = GPU, functions: Functions | None = None, **needs
) -> Functions:
    """Put the fake GPU in place of this machine's, with the one rung "fake" on it."""
    found = functions = functions or Functions()

    class FakeRung(Rung):
        def functions(self, direction):
            return found

    def blank(shape, dtype) -> CudaArray:
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xFF)  # NaN in every float type
        return CudaArray(array)

    rung = FakeRung("fake", "the reference", ("fake", "fake"), ("flash2", "flash2"), **needs)
    monkeypatch.setattr(ladder, "RUNGS", (rung,))
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: gpu)
    kind = arrays.kind_of("q", CudaArray(np.empty(1)))
    monkeypatch.setattr(type(kind), "device", lambda self, array: "cuda:0")
    monkeypatch.setattr(
        type(kind), "empty", lambda self, shape, dtype, like: blank(shape, DTYPES[dtype])
    )
    try:
        from numba import cuda
    except ImportError:
        return functions

    def to_device(array):
        assert array.dtype.kind in "biuf", f"Numba has no type for {array.dtype}"
        return CudaArray(array.copy())

    monkeypatch.setattr(cuda, "get_current_device", lambda: SimpleNamespace(id=0))
    monkeypatch.setattr(cuda, "to_device", to_device)
    done = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(cuda, "default_stream", lambda: done)
    monkeypatch.setattr(cuda, "device_array", blank)
    return functions
