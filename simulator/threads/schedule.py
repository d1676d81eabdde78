"""Runs the threads of a block, one greenlet each, in a fixed order.

A thread runs until it waits: at a barrier, in a warp collective, for a condition, or after many
turns of a loop. When all threads that a wait needs have come, their results are worked out and they
go on in order. When nobody can go on, the kernel hangs, and who waits where is the error.

Blocks of a cluster, and all blocks of a kernel with a barrier of the grid, run at once: their
threads are numbered through.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from greenlet import getcurrent, greenlet

from .alike import Unprovable
from .errors import Finding, KernelError, Place
from .explain import explain
from .order import Order
from .runtime import PAUSE, Runtime
from .thread import EVERYBODY, Dim3, Thread, Wait


def ranges(numbers) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


class Team:
    """The threads of a block, or of several that run at once.

    Parameters
    ----------
    runtime : Runtime
    blocks : list of Dim3
        Their indices.
    at_barrier : function or None
        Called with (threads, segments) when all threads have met, and at the end.
    kernel_lines : dict
        File and code name of every rewritten function -> name, to find lines in tracebacks.
    order : sequence of int, optional
        Numbers of a block's threads in the order in which they begin.
    """

    def __init__(self, runtime: Runtime, blocks: list[Dim3], at_barrier, kernel_lines, order=None):
        self.runtime, self.at_barrier = runtime, at_barrier
        self.kernel_lines, self.blocks = kernel_lines, blocks
        shape = runtime.block_shape
        self.of_block = math.prod(shape)
        self.threads = [
            Thread(slot * self.of_block + number, shape, block, slot)
            for slot, block in enumerate(blocks)
            for number in range(self.of_block)
        ]
        self.alive = (1 << len(self.threads)) - 1
        numbers = order or range(self.of_block)
        starts = range(0, len(self.threads), self.of_block)
        self.ready = deque(self.threads[start + number] for start in starts for number in numbers)
        self.in_barrier: list[list[Thread]] = [[] for _ in blocks]
        self.in_grid_barrier: list[Thread] = []
        self.groups: dict[tuple, list[Thread]] = {}
        self.blocked: list[Thread] = []
        runtime.begin(Order(self.threads), len(blocks))

    def run(self, function, args) -> None:
        """Run all threads to their ends."""

        def body(_):
            with np.errstate(all="ignore"):
                function(*args)

        self.runtime.hub = getcurrent()
        for thread in self.threads:
            thread.greenlet = greenlet(body)
        try:
            while self.alive:
                while self.ready:
                    self._resume(self.ready.popleft())
                if self.alive and not self._unblock():
                    self._hang()
        except KernelError:
            if self.runtime.suspects:
                self.runtime.cut()
                self._meet()
            raise
        self._meet()

    def _resume(self, thread: Thread) -> None:
        runtime = self.runtime
        runtime.thread, runtime.block = thread, thread.block
        result, thread.result, thread.waiting = thread.result, None, None
        try:
            wait = thread.greenlet.switch(result)
        except (KernelError, Unprovable):
            raise
        except Exception as error:
            raise explain(self.runtime, self.kernel_lines, error) from error
        runtime.cut()
        if thread.greenlet.dead:
            thread.last_view = thread.view
            for look in thread.at_end.values():
                look()
            bit = 1 << thread.tid
            self.alive &= ~bit
            for key in list(self.groups):
                if key[2] & bit:
                    self._release(key)
        elif wait == PAUSE:
            self._unblock()  # what it turns for may be up to one of those
            self.ready.append(thread)
        else:
            self._arrive(thread, wait)

    def _arrive(self, thread: Thread, wait: Wait) -> None:
        thread.waiting = wait
        if wait.condition is not None:
            self.blocked.append(thread)
        elif wait.members is None:
            self.in_barrier[thread.slot].append(thread)
            if len(self.in_barrier[thread.slot]) == self.of_block:
                self._open_barrier(thread.slot)
        elif wait.members == EVERYBODY:
            self.in_grid_barrier.append(thread)
            if len(self.in_grid_barrier) == len(self.threads):
                members, self.in_grid_barrier = self.in_grid_barrier, []
                self._count_barrier(members, len(self.blocks))
                self._meet()
                self._go_on(members)
        else:
            key = (wait.operation, wait.position, wait.members)
            self.groups.setdefault(key, []).append(thread)
            self._release(key)

    def _unblock(self) -> bool:
        """Let those go on whose condition holds; whether there are any."""
        waiting, self.blocked = self.blocked, []
        for thread in waiting:
            (self.ready if thread.waiting.condition() else self.blocked).append(thread)
        return bool(self.ready)

    def _release(self, key: tuple) -> None:
        members = self.groups.get(key, ())
        needed = (key[2] & self.alive).bit_count()
        if not members or len(members) < needed:
            return
        del self.groups[key]
        self._expect_all(key, members)
        self._go_on(sorted(members, key=lambda t: t.tid))

    def _expect_all(self, key: tuple, members) -> None:
        """Threads that take part may be absent only if they returned before this call."""
        _, position, bits = key
        line = self.runtime.positions[position][0].line
        absent = [
            thread
            for thread in self.threads
            if bits >> thread.tid & 1
            and thread.greenlet.dead
            and (thread.left_at is None or thread.left_at > line)
        ]
        if absent:
            self.runtime.thread, self.runtime.here = members[0], position
            wait = members[0].waiting
            raise self.runtime.error(
                "shuffle",
                f"the mask {wait.detail} of {wait.operation} names lanes "
                f"{ranges(thread.lane for thread in absent)}, which never call it"
                if wait.detail
                else f"{wait.operation} needs threads {ranges(one.tid for one in absent)}, which "
                "never call it",
            )

    def _go_on(self, members: list[Thread]) -> None:
        runtime = self.runtime
        runtime.thread, runtime.members = members[0], members
        runtime.block = members[0].block
        runtime.here = members[0].waiting.position
        payloads = {thread: thread.waiting.payload for thread in members}
        results = members[0].waiting.resolve(payloads)
        runtime.thread = members[0]
        runtime.cut()
        runtime.members = None
        for thread in members:
            thread.result = results.get(thread)
        self.ready.extend(members)

    def _open_barrier(self, slot: int) -> None:
        members = self.in_barrier[slot]
        waits = {(t.waiting.operation, t.waiting.position) for t in members}
        if len(waits) > 1:
            raise self._stuck("barrier", "threads of a block meet in different barriers")
        self.in_barrier[slot] = []
        self._count_barrier(members, 1)
        if len(self.blocks) == 1:
            self._meet()
        else:
            self.runtime.order.meet(members)
        self._go_on(members)

    def _count_barrier(self, members: list[Thread], times: int) -> None:
        place, _ = self.runtime.positions[members[0].waiting.position]
        self.runtime.barriers[place] += times

    def _meet(self) -> None:
        if self.at_barrier is not None:
            self.at_barrier(self.threads, self.runtime.segments)
        self.runtime.judge()
        self.runtime.clear()
        for thread in self.threads:
            thread.counts.clear()

    def _hang(self) -> None:
        finished = [t for t in self.threads if t.greenlet.dead]
        waits = {(t.waiting.position, t.waiting.members) for t in self.threads if t.waiting}
        if self.in_grid_barrier:
            raise self._stuck("barrier", "some threads of the grid never reach this barrier")
        if any(self.in_barrier) and finished and len(waits) == 1:
            raise self._stuck("barrier", "some threads of the block never reach this barrier")
        if len(waits) > 1 and all(members is None for _, members in waits):
            raise self._stuck("barrier", "threads of a block wait in different barriers")
        raise self._stuck("deadlock", "no thread of the block can go on")

    def _stuck(self, kind: str, message: str) -> KernelError:
        groups: dict[tuple[str, Place], list[Thread]] = {}
        for thread in self.threads:
            if thread.waiting:
                place = self.runtime.positions[thread.waiting.position][0]
                groups.setdefault((str(thread.waiting), place), []).append(thread)
        parts = [
            f"{self._named(threads)} wait in {name} at line {place.line}"
            for (name, place), threads in groups.items()
        ]
        if finished := [t for t in self.threads if t.greenlet.dead]:
            parts.append(f"{self._named(finished)} have returned")
        where = f" (block {self.blocks[0]})" if len(self.blocks) == 1 else ""
        text = f"{message}{where}: {'; '.join(parts)}"
        return KernelError(Finding(kind, text, tuple(dict.fromkeys(p for _, p in groups))))

    def _named(self, threads: list[Thread]) -> str:
        """Threads in words: ``threads 0-31``, and of which block if there are several."""
        if len(self.blocks) == 1:
            return f"threads {ranges(one.number for one in threads)}"
        slots: dict[Dim3, list[int]] = {}
        for one in threads:
            slots.setdefault(one.block, []).append(one.number)
        return " and ".join(f"threads {ranges(n)} of block {b}" for b, n in slots.items())
