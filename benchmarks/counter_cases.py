"""Which kernels are counted on a GPU, on which problems; add a row to `CASES` to add a kernel.

A case is one pass of one rung on one problem: a few launches. `launches` lists them as a GPU of
compute capability 9.0 gets them, over host memory laid out as on the GPU, without a GPU: this is
what the thread runner traces, and what the counters of `counters.py` are compared with.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flash_numba import ladder, masks
from flash_numba import launch as launch_module
from flash_numba.arrays import DeviceArray, dtype_of
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.kernels.steps import STEPS, module_of
from flash_numba.problem import DTYPES, Problem
from flash_numba.scores import aux_shape
from flash_numba.sequences import Packed, Sequences, Side
from simulator.threads import Report, trace

COMPUTE_CAPABILITY = (9, 0)
MULTIPROCESSORS = 132
"""Of an H200; the Hopper kernel starts a block on each."""


class Case(NamedTuple):
    """A pass to count.

    Attributes
    ----------
    rung : str
        Name of a rung of the ladder, or of a step to flash2.
    direction : "forward" or "backward"
    kind : str
        What is special about the problem.
    problem : dict
        Arguments of `Problem`, but for those that JSON cannot hold: ``seqlens_q`` and ``seqlens_k``
        are the lengths of packed sequences; a ``bias`` of each head, the same for all batches, is
        added to the scores, and its gradient is asked for.
    traced : bool
        Whether the tests trace it: the others are counted for their DRAM traffic or for reading.
    options : tuple of (str, value)
        Further arguments of the rung's function.
    """

    rung: str
    direction: str
    kind: str
    problem: dict[str, Any]
    traced: bool = True
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """``rung-direction-kind``."""
        return f"{self.rung}-{self.direction}-{self.kind}"

    def posed(self) -> tuple[Problem, Packed | None]:
        """The problem, and where its sequences lie if it is packed."""
        given, packed = dict(self.problem), None
        if given.pop("bias", False):
            shape = given["num_heads"], given["seqlen_q"], given["seqlen_k"]
            bias = np.random.default_rng(0).standard_normal(shape, np.float32)
            given["score_mods"] = [masks.bias(np.broadcast_to(bias, (given["batch"], *shape)))]
        if "seqlens_q" in given:
            lengths = given.pop("seqlens_q"), given.pop("seqlens_k")
            cu_q, cu_k = (np.cumsum([0, *one], dtype=np.int32) for one in lengths)
            queries, keys = Side.of(int(cu_q[-1]), cu_q), Side.of(int(cu_k[-1]), cu_k)
            given |= {"seqlen_q": queries.total, "seqlen_k": keys.total, "batch": len(lengths[0])}
            given["sequences"] = Sequences(queries.total, keys.total, queries, keys)
            packed = Packed(cu_q, cu_k)
        return Problem(**given), packed


def _sizes(seqlen_q, seqlen_k, head_dim, heads, **options) -> dict[str, Any]:
    return {
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "head_dim": head_dim,
        "num_heads": heads,
        **options,
    }


FULL = _sizes(256, 128, 64, 32)
CAUSAL = _sizes(256, 256, 64, 16, causal=True)
TAILS = _sizes(104, 150, 64, 8, num_kv_heads=4, causal=True)
SHORT = _sizes(64, 128, 64, 2, num_kv_heads=1, causal=True)
ODD = _sizes(40, 50, 64, 2, num_kv_heads=1, causal=True)
EVEN = _sizes(128, 128, 64, 2, num_kv_heads=1, causal=True)
WIDE = _sizes(64, 64, 192, 1, causal=True)
LARGE = _sizes(1024, 1024, 64, 16)
PAST_L2 = _sizes(1024, 1024, 64, 32)
"""Each of S and P is twice an H200's L2."""
PAIR = _sizes(70, 150, 64, 2, num_kv_heads=1, causal=True)
PACKED = {"seqlens_q": [20, 0, 45], "seqlens_k": [30, 9, 60], "head_dim": 64, "num_heads": 1}
BIASED = _sizes(64, 64, 64, 1, batch=2, bias=True)
HALF = {"dtype": "fp16"}
CASES = [
    Case("standard", "forward", "full", FULL),
    Case("standard", "backward", "tails-gqa", PAIR),
    Case("standard", "backward", "odd", ODD),
    Case("standard", "backward", "short", SHORT),
    Case("flash1", "forward", "full", FULL, False),
    Case("flash1", "forward", "short", SHORT),
    Case("flash1", "forward", "half", FULL | HALF, False),
    Case("flash1", "forward", "short-half", SHORT | HALF),
    Case("flash1", "forward", "tails-gqa", TAILS),
    Case("flash1", "backward", "short", SHORT),
    Case("flash2", "forward", "full", FULL),
    Case("flash2", "forward", "causal", CAUSAL, False),
    Case("flash2", "forward", "half", FULL | HALF, False),
    Case("flash2", "forward", "wide", _sizes(128, 64, 128, 16)),
    Case("flash2", "forward", "tails-gqa", TAILS),
    Case("flash2", "backward", "short", SHORT),
    Case("tensor_core", "forward", "full", FULL | HALF),
    Case("tensor_core", "forward", "tails-gqa", TAILS | HALF),
    Case("tensor_core", "backward", "short", SHORT | HALF, False),
    Case("tensor_core", "backward", "even", EVEN | HALF),
    Case("tensor_core", "backward", "two-kernels", EVEN | HALF | {"softmax_scale": -0.125}),
    Case("hopper", "forward", "short", SHORT | HALF),
    Case("hopper", "forward", "large", LARGE | HALF, False),
    Case("hopper", "backward", "even", EVEN | HALF),
    Case("hopper", "backward", "as-they-come", EVEN | HALF, options=(("ordered", False),)),
    Case("hopper", "backward", "wide", WIDE | HALF),
    Case("hopper", "backward", "large", LARGE | HALF, False),
    Case("tensor_core", "forward", "packed", PACKED | HALF),
    Case("tensor_core", "backward", "packed", PACKED | HALF),
    Case("tensor_core", "backward", "packed-causal", PACKED | HALF | {"causal": True}),
    Case("flash2", "backward", "bias", BIASED),
    Case("tensor_core", "forward", "large", LARGE | HALF, False),
    Case("tensor_core", "backward", "large", LARGE | HALF, False),
    Case("standard", "forward", "past-l2", PAST_L2, False),
    Case("flash1", "forward", "large", LARGE, False),
    Case("flash2", "forward", "large", LARGE, False),
    Case("flash2", "backward", "large", LARGE, False),
    *(Case(step, "forward", "full", FULL) for step in STEPS if step != "flash2"),
]
"""Many heads make the counters large; the runner needs to trace only one block of those alike."""


def case_named(name: str) -> Case:
    """The case of that name."""
    found = [case for case in CASES if case.name == name]
    if not found:
        raise ValueError(f"case must be one of {[case.name for case in CASES]}, got {name!r}")
    return found[0]


class Launch(NamedTuple):
    """A launch of a kernel over host memory.

    Attributes
    ----------
    kernel : Numba dispatcher
    blocks, threads, shared_bytes : int
    arguments : tuple
        NumPy arrays, numbers and nested tuples.
    """

    kernel: Any
    blocks: int
    threads: int
    shared_bytes: int
    arguments: tuple

    @property
    def name(self) -> str:
        """Name of the kernel's function."""
        return self.kernel.py_func.__name__


class HostMemory:
    """Host arrays that stand for allocations on a GPU, found again by address."""

    def __init__(self):
        self.owners: list[np.ndarray] = []

    def array(self, shape, dtype: str, fill=None) -> DeviceArray:
        """A new array, of random numbers or filled with one."""
        rng = np.random.default_rng(len(self.owners))
        numbers = rng.standard_normal(shape, np.float32) if fill is None else np.full(shape, fill)
        array = numbers.astype(DTYPES[dtype])
        bits = array.view(np.uint16) if array.itemsize == 2 else array
        self.owners.append(bits.reshape(-1).view(np.uint8))
        strides = tuple(array.strides)
        return DeviceArray(self.owners[-1].ctypes.data, array.shape, strides, dtype)

    def upload(self, array: np.ndarray) -> DeviceArray:
        """A copy of an array."""
        copy = np.array(array)
        self.owners.append(copy.reshape(-1).view(np.uint8))
        return DeviceArray(copy.ctypes.data, copy.shape, tuple(copy.strides), dtype_of(copy))

    def bytes_at(self, pointer: int) -> tuple[np.ndarray, int]:
        """The allocation that an address lies in, and where in it."""
        for owner in self.owners:
            start = pointer - owner.ctypes.data
            if 0 <= start < max(owner.size, 1):
                return owner, start
        raise LookupError(f"no allocation holds address {pointer:#x}")

    def seen(self, argument):
        """An argument of a kernel with its memory, as the thread runner takes it."""
        if isinstance(argument, float):
            return np.float32(argument)
        if isinstance(argument, TensorMap):
            return argument._replace(array=self.seen(argument.array))
        if not isinstance(argument, DeviceArray):
            return tuple(map(self.seen, argument)) if isinstance(argument, tuple) else argument
        owner, start = self.bytes_at(argument.pointer)
        dtype = np.dtype(DTYPES.get(argument.dtype, argument.dtype))
        stored = np.dtype(np.uint16) if dtype.itemsize == 2 else dtype
        return np.ndarray(argument.shape, stored, owner.data, start, argument.strides)

    def zero(self, pointer: int, size: int, stream: int = 0) -> None:
        """What `flash_numba.launch.fill_zero` does."""
        owner, start = self.bytes_at(pointer)
        owner[start : start + size] = 0


@contextlib.contextmanager
def _recording(memory: HostMemory, found: list[Launch]) -> Iterator[None]:
    """Launches of all kernel modules go into `found` instead of to a GPU."""

    def launch(kernel, blocks, threads, shared_bytes, arguments, stream=0):
        if blocks:
            seen = tuple(map(memory.seen, arguments))
            found.append(Launch(kernel, blocks, threads, shared_bytes, seen))

    instead = {
        "launch": launch,
        "fill_zero": memory.zero,
        "compute_capability": lambda: COMPUTE_CAPABILITY,
        "multiprocessors": lambda: MULTIPROCESSORS,
        "upload": lambda values: (launch_module.upload(values, memory.upload)[0], []),
    }
    changed = []
    for name, module in list(sys.modules.items()):
        if name.startswith("flash_numba.kernels"):
            for attribute in instead.keys() & vars(module).keys():
                changed.append((module, attribute, getattr(module, attribute)))
    try:
        for module, attribute, _ in changed:
            setattr(module, attribute, instead[attribute])
        yield
    finally:
        for module, attribute, value in changed:
            setattr(module, attribute, value)


def functions_of(case: Case) -> Any:
    """The module with a case's ``forward`` or ``backward``, of a rung or a step; imported."""
    if case.rung in STEPS and case.rung != "flash2":
        return module_of(case.rung)
    rung = next(one for one in ladder.RUNGS if one.name == case.rung)
    for module in rung.modules or ():
        importlib.import_module(module, "flash_numba")
    return rung.functions(case.direction)


def run(case: Case, make, copy, stream: int = 0) -> None:
    """Run a case.

    Parameters
    ----------
    case : Case
    make : function
        ``make(shape, dtype, fill)`` gives memory as a `DeviceArray`: random, or filled with `fill`.
    copy : function
        ``copy(array)`` gives a NumPy array's copy as one.
    stream : int
        CUDA stream handle.
    """
    problem, packed = case.posed()
    functions = functions_of(case)
    given: dict[str, Any] = dict(case.options)
    if packed is not None:
        given["packed"] = Packed(copy(packed.cu_seqlens_q), copy(packed.cu_seqlens_k))
    q, k, v = (make(problem.shapes[name], problem.dtype, None) for name in ("q", "k", "v"))
    out = make(problem.shapes["o"], problem.dtype, 0)
    lse = make(problem.shapes["lse"], "fp32", 0)
    if case.direction == "forward":
        space = getattr(functions, "forward_workspace", None)
        if space is not None:
            given["memory"] = make((sum(space(problem)) // 4,), "fp32", 0)
        functions.forward(problem, q, k, v, out, lse, stream, **given)
        return
    dout = make(problem.shapes["o"], problem.dtype, None)
    gradients = [make(problem.shapes[name], problem.dtype, 0) for name in ("q", "k", "v")]
    learned = [make(aux_shape(problem, mod), "fp32", 0) for mod in problem.score_mods]
    size = sum(functions.workspace(problem, range(len(learned))))
    memory = make((-(-size // 4),), "fp32", 0)
    given |= {"stream": stream, "d_aux": learned}
    functions.backward(problem, q, k, v, out, lse, dout, *gradients, memory, **given)


def launches(case: Case) -> list[Launch]:
    """The launches of a case over host memory, in order."""
    functions_of(case)
    memory, found = HostMemory(), []
    with _recording(memory, found):
        run(case, memory.array, memory.upload)
    return found


def traced(launch: Launch, **options) -> Report:
    """A trace of a launch that counts; ``blocks=()`` runs none, for the fingerprint."""
    run = trace(launch.kernel, **{"check": False, "blocks": "representative"} | options)
    return run[launch.blocks, launch.threads, 0, launch.shared_bytes](*launch.arguments)
