"""One greenlet a thread: a kernel's own Python function, executed as CUDA would.

The function is taken out of its Numba wrapper and given other globals and closure cells: rooms
become plain functions in the same way, PTX intrinsics their CPU twins, `cuda` and `types` the
stand-ins of this package. Threads run one at a time until each waits at a barrier or has finished.

Memory starts as NaN wherever a GPU promises nothing, and an asynchronous copy arrives only when its
thread waits for it: what is read too early is seen in the result.
"""

import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from flash_numba.device import numba_cuda, ptx

from .standins import Cuda, Types, current


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
