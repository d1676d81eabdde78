"""A small runner of kernels on a CPU, for tests of numbers: one greenlet a thread, no counting.

The function is taken out of its Numba wrapper and given other globals and closure cells: rooms
become plain functions in the same way, PTX intrinsics their CPU twins, `cuda` and `types` the
stand-ins below. Threads run one at a time until each waits at a barrier or has finished.

Memory starts as NaN wherever a GPU promises nothing, and an asynchronous copy arrives only when its
thread waits for it: what is read too early is seen in the result.
"""

import types as python_types
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from flash_numba.device import numba_cuda, ptx

WARP = 32


def current() -> Any:
    """The `Thread` that runs now."""
    return getcurrent()


class _Integer:
    """A Numba integer type: a cast that keeps the low bits, as a plain Python int."""

    def __init__(self, dtype):
        info = np.iinfo(dtype)
        self.dtype, self.low, self.span = np.dtype(dtype), int(info.min), 1 << info.bits

    def __call__(self, value):
        return (int(value) - self.low) % self.span + self.low


class _Float:
    """A Numba float type: a cast."""

    def __init__(self, dtype):
        self.dtype, self.cast = np.dtype(dtype), dtype

    def __call__(self, value):
        return self.cast(value)


class Types:
    """The stand-in for Numba's `types`."""

    float32, float64 = _Float(np.float32), _Float(np.float64)
    int32, int64 = _Integer(np.int32), _Integer(np.int64)
    uint16, uint32, uint64 = _Integer(np.uint16), _Integer(np.uint32), _Integer(np.uint64)


class Cuda:
    """The stand-in for `numba.cuda`, as the threads of one block see it."""

    def __init__(self, block):
        self.block = block
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(array=_local_array)
        self.atomic = SimpleNamespace(add=_atomic_add)

    @property
    def threadIdx(self):
        """Index of the thread within its block."""
        return SimpleNamespace(x=current().index)

    @property
    def blockIdx(self):
        """Index of the block within the grid."""
        return SimpleNamespace(x=self.block.index)

    @property
    def blockDim(self):
        """Threads of the block."""
        return SimpleNamespace(x=self.block.size)

    @property
    def gridDim(self):
        """Blocks of the grid."""
        return SimpleNamespace(x=self.block.blocks)

    def _shared_array(self, shape, dtype):
        if shape == 0:
            return self.block.dynamic
        # All threads come by the same declarations in the same order.
        thread = current()
        thread.arrays += 1
        fresh = _local_array(shape, dtype)
        return self.block.static.setdefault(thread.arrays, fresh)

    def syncthreads(self):
        """Barrier of the block; threads that have finished do not hold it up."""
        self.block.meet("block", 0, self.block.size, None, lambda offers: offers)

    def syncwarp(self):
        """Barrier of the warp."""
        self._in_warp(None, lambda offers: offers)

    def shfl_xor_sync(self, mask, value, distance):
        """The `value` of the lane whose number differs in the bits of `distance`."""
        return self._in_warp(value, lambda offers: [offers[i ^ distance] for i in range(WARP)])

    def any_sync(self, mask, predicate):
        """Whether any lane's `predicate` holds."""
        return self._in_warp(predicate, lambda offers: [any(offers)] * WARP)

    def _in_warp(self, value, answer):
        return self.block.meet("warp", current().index // WARP, WARP, value, answer)


def _local_array(shape, dtype):
    fill = np.nan if dtype.dtype.kind == "f" else 0
    return np.full(shape, fill, dtype.dtype)


def _atomic_add(array, index, value):
    old = array[index]
    array[index] += value
    return int(old)


class Thread(greenlet):
    """A CUDA thread: its number, what it waits for, and copies that have not arrived."""

    def __init__(self, body: Callable, index: int):
        super().__init__(body)
        self.index = index
        self.waits_for: Any = None
        self.offer: Any = None
        self.answer: Any = None
        self.copies: list[tuple] = []
        self.arrays = 0


class Block:
    """The threads of one block and their shared memory."""

    def __init__(self, kernel, index: int, blocks: int, threads: int, shared_bytes: int, order):
        self.index, self.blocks, self.size = index, blocks, threads
        self.dynamic = np.full(shared_bytes // 4, np.nan, np.float32)
        self.static: dict[int, np.ndarray] = {}
        self.order = order
        self.function: Any = _Translator(self).function(kernel.py_func)

    def meet(self, kind: str, group: int, members: int, offer, answer: Callable):
        """Wait until `members` threads of `group` offer something; `answer` maps offers to results.

        The offers come in the order of the threads' numbers.
        """
        thread = current()
        thread.waits_for, thread.offer = (kind, group, members), (offer, answer)
        self.main.switch()
        return thread.answer

    def run(self, arguments: Sequence) -> None:
        """Run all threads to their end."""
        self.main = getcurrent()
        threads = [Thread(lambda: self._thread(arguments), i) for i in range(self.size)]
        live = [threads[i] for i in self.order]
        while live:
            for thread in live:
                if thread.waits_for is None:
                    thread.switch()
            live = [thread for thread in live if not thread.dead]
            if live and not self._release(live):
                stuck = sorted({str(thread.waits_for) for thread in live})
                raise RuntimeError(f"threads wait for each other for ever: {', '.join(stuck)}")

    def _thread(self, arguments):
        with np.errstate(all="ignore"):  # a greenlet does not inherit it
            self.function(*arguments)

    @staticmethod
    def _release(live: list[Thread]) -> bool:
        groups: dict[tuple, list[Thread]] = {}
        for thread in live:
            groups.setdefault(thread.waits_for, []).append(thread)
        released = False
        for (kind, _, members), group in groups.items():
            complete = len(group) == members or (kind == "block" and len(group) == len(live))
            if not complete:
                continue
            group.sort(key=lambda thread: thread.index)
            results = group[0].offer[1]([thread.offer[0] for thread in group])
            for thread, result in zip(group, results, strict=True):
                thread.answer, thread.waits_for = result, None
            released = True
        return released


class _Translator:
    """Rewrites what a kernel refers to into what runs here."""

    def __init__(self, block: Block):
        self.done: dict[int, object] = {}
        self.cuda = Cuda(block)

    def value(self, value):
        """The stand-in of a global or a closure variable."""
        if value is numba_cuda.cuda:
            return self.cuda
        if value is numba_cuda.types:
            return Types
        if value is ptx.copy16_async:
            return lambda *operands: current().copies.append(operands)
        if value is ptx.copy_wait_all:
            return _copies_arrive
        if hasattr(value, "emulate"):
            return value.emulate
        if hasattr(value, "py_func"):
            return self.function(value.py_func)
        return value

    def function(self, function):
        """`function` with other globals and closure cells."""
        if id(function) not in self.done:
            names = function.__code__.co_names
            own = {
                n: self.value(function.__globals__[n]) for n in names if n in function.__globals__
            }
            cells = function.__closure__ or ()
            closure = tuple(python_types.CellType(self.value(cell.cell_contents)) for cell in cells)
            self.done[id(function)] = python_types.FunctionType(
                function.__code__, own, function.__name__, function.__defaults__, closure
            )
        return self.done[id(function)]


def _copies_arrive():
    thread = current()
    for operands in thread.copies:
        ptx.copy16_async.emulate(*operands)
    thread.copies.clear()


def run(kernel, blocks, threads, shared_bytes, arguments, order: Sequence[int] | None = None):
    """Run a kernel on NumPy arrays; what it writes is in them afterwards.

    Parameters
    ----------
    kernel : numba kernel
    blocks : int or sequence of int
        Blocks of the grid, or the numbers of those to run, in this order, of a larger grid.
    threads : int
        Threads of a block, a multiple of 32.
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : sequence
        Arrays (16-bit floats as uint16), numbers, and nested tuples of them.
    order : sequence of int, optional
        The order in which threads get to run between barriers; a result that depends on it shows
        a missing barrier.
    """
    chosen = range(blocks) if isinstance(blocks, int) else blocks
    for index in chosen:
        turns = range(threads) if order is None else order
        Block(kernel, index, len(chosen), threads, shared_bytes, turns).run(arguments)
