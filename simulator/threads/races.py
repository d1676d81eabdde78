"""Finds accesses of one element by several threads that nothing orders.

Two accesses race if different threads make them, at least one writes, not both are atomic, and
neither a barrier of the block nor, within a warp, a ``syncwarp`` lies between. Blocks are never
ordered. Threads that write equal values to one element are let be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Memory
from .errors import Finding, KernelError, Place
from .log import ATOMIC, CODE_BITS, LOAD, STORE
from .runtime import Runtime

WRITE, READ, UPDATE = 0, 1, 2
_OPERATIONS = {STORE: WRITE, LOAD: READ, ATOMIC: UPDATE}
_VERBS = {WRITE: "writes", READ: "reads", UPDATE: "updates"}


def _kind(site) -> int:
    """What an access is to others; one that orders them is like an atomic one."""
    if site is None:
        return -1
    return UPDATE if site.traffic in ("acquire", "release") else _OPERATIONS[site.operation]


class RaceFinder:
    """Shadow memory of a launch."""

    def __init__(self, runtime: Runtime, memories: list[Memory]):
        self.runtime, self.memories = runtime, memories
        self.fenced = False
        self._first_cell = np.cumsum([0] + [len(m.data) // m.granule + 1 for m in memories])
        self._order = np.argsort([m.base for m in memories])
        self._bases = np.array([m.base for m in memories])
        self._granules = np.array([m.granule for m in memories])
        self._is_global = np.array([m.space == "global" for m in memories])
        cells = int(self._first_cell[-1])
        self._stamps = np.full((2, cells), -1)
        self._unit = 0
        self._block_of = np.full((4, cells), -1, np.int32)
        self._code_of = np.zeros((4, cells), np.int32)
        self.block_number = 0

    def check(self, words: np.ndarray, threads, segments) -> None:
        """Look at the log since the last barrier.

        Raises
        ------
        KernelError
            For the first race, unless findings are collected.
        """
        if not segments:
            return
        counts = [segment.stop - segment.start for segment in segments]
        thread = np.repeat([segment.thread.tid for segment in segments], counts)
        epoch = np.repeat([segment.epoch for segment in segments], counts)
        codes = words & ((1 << CODE_BITS) - 1)
        sites = self.runtime.log.sites
        stores = np.array([bool(site and site.operation == STORE) for site in sites])
        kind = np.array([_kind(site) for site in sites])[codes]
        value = np.cumsum(stores[codes]) - 1
        real = kind >= 0
        data = (words >> CODE_BITS, codes, kind, thread, epoch, value)
        cells, *rest = self._by_cell(*(one[real] for one in data))
        codes, kind, thread, epoch, value, offset = rest
        for chosen, who in self._rounds(thread, epoch):
            bad = self._clashes(cells[chosen], kind[chosen], who)
            if bad.any():
                self._examine(chosen, cells, codes, kind, thread, epoch, value, offset, who, bad)
        self._between_blocks(cells, codes, kind)

    def _by_cell(self, address, codes, kind, thread, epoch, value):
        """One entry an element: vector accesses are taken apart."""
        memory = self._order[np.searchsorted(self._bases[self._order], address, side="right") - 1]
        sizes = np.array([site.size if site else 0 for site in self.runtime.log.sites])
        granule = self._granules[memory]
        cell = self._first_cell[memory] + (address - self._bases[memory]) // granule
        many = np.maximum(sizes[codes] // granule, 1)
        if (many == 1).all():
            return cell, codes, kind, thread, epoch, value, np.zeros(len(cell), np.int64)
        repeat = np.repeat(np.arange(len(cell)), many)
        offset = np.arange(len(repeat)) - np.repeat(np.cumsum(many) - many, many)
        rest = (one[repeat] for one in (codes, kind, thread, epoch, value))
        return (cell[repeat] + offset, *rest, offset)

    @staticmethod
    def _rounds(thread, epoch):
        """(accesses, who makes each) for each check that must find every element with one owner."""
        everything = slice(None)
        warp = thread // 32
        epochs = np.unique(epoch * 32 + warp)
        if len(epochs) == len(np.unique(warp)):
            return [(everything, thread)]
        rounds: list[tuple] = [(everything, warp)]
        for one in np.unique(epoch):
            chosen = np.flatnonzero(epoch == one)
            rounds.append((chosen, thread[chosen]))
        return rounds

    def _clashes(self, cells, kind, who):
        """Accesses of an element that somebody else wrote or updated."""
        self._unit += 1
        stamp = self._unit * 2048 + who
        written, updated = self._stamps
        written[cells[kind == WRITE]] = stamp[kind == WRITE]
        updated[cells[kind == UPDATE]] = stamp[kind == UPDATE]
        start = self._unit * 2048
        by_write = (written[cells] >= start) & (written[cells] != stamp)
        by_update = (updated[cells] >= start) & (updated[cells] != stamp) & (kind != UPDATE)
        return by_write | by_update

    def _examine(self, chosen, cells, codes, kind, thread, epoch, value, offset, who, bad):
        """Report the clashes, but for equal values written by several."""
        pick = np.arange(len(cells))[chosen]
        stored = self.runtime.log.stored
        for cell in np.unique(cells[pick][bad]).tolist():
            there = pick[cells[pick] == cell]
            writers = there[kind[there] == WRITE]
            values = [
                stored[value[i]][offset[i]]
                if isinstance(stored[value[i]], tuple)
                else stored[value[i]]
                for i in writers
            ]
            if len(writers) == len(there) and all(
                v == values[0] or (v != v and values[0] != values[0]) for v in values
            ):
                continue
            self._report(cell, there, codes, kind, thread, who, pick)
            return

    def _report(self, cell, there, codes, kind, thread, who, pick):
        owner = dict(zip(pick.tolist(), who.tolist(), strict=True))
        changes = [i for i in there.tolist() if kind[i] != READ]
        for a in changes:
            for b in there.tolist():
                if owner[a] == owner[b] or (kind[a] == kind[b] == UPDATE):
                    continue
                places = (self._place(codes[a]), self._place(codes[b]))
                text = (
                    f"thread {thread[a]} {_VERBS[kind[a]]} {self._element(cell)} and thread "
                    f"{thread[b]} {_VERBS[kind[b]]} it, with no barrier in between "
                    f"(block {self.runtime.block})"
                )
                self.runtime.report(KernelError(Finding("race", text, places)))
                return

    def _place(self, code) -> Place:
        site: Any = self.runtime.log.sites[code]
        return site.place

    def _element(self, cell: int) -> str:
        number = int(np.searchsorted(self._first_cell, cell, side="right")) - 1
        memory, at = self.memories[number], cell - int(self._first_cell[number])
        index = [at]
        if memory.shape and at < np.prod(memory.shape):
            index = [int(i) for i in np.unravel_index(at, memory.shape)]
        return f"{memory.space} {memory.name}{index}"

    def _between_blocks(self, cells, codes, kind):
        """Elements of global memory that several blocks use, at least one of them writing."""
        memory = np.searchsorted(self._first_cell, cells, side="right") - 1
        pick = self._is_global[memory]
        cells, codes, kind = cells[pick], codes[pick], kind[pick]
        block = self.block_number
        written, first_read, last_read, updated = range(4)
        against = {
            WRITE: (written, first_read, last_read, updated),
            READ: (written, updated),
            UPDATE: (written, first_read, last_read),
        }
        for one, others in against.items():
            mine = kind == one
            at = cells[mine]
            for other in others if not self.fenced else ():
                known = self._block_of[other, at]
                clash = np.flatnonzero((known >= 0) & (known != block))
                if len(clash):
                    self._report_blocks(at[clash[0]], codes[mine][clash[0]], one, other)
        self._remember(cells, codes, kind, block)

    def _remember(self, cells, codes, kind, block):
        for row, one in ((0, WRITE), (2, READ), (3, UPDATE)):
            at = cells[kind == one]
            if row == 2:
                fresh = self._block_of[1, at] < 0
                self._block_of[1, at[fresh]] = block
                self._code_of[1, at[fresh]] = codes[kind == one][fresh]
            self._block_of[row, at] = block
            self._code_of[row, at] = codes[kind == one]

    def _report_blocks(self, cell, code, mine, other):
        theirs = (WRITE, READ, READ, UPDATE)[other]
        places = (self._place(self._code_of[other, cell]), self._place(code))
        text = (
            f"block {self.runtime.block} {_VERBS[mine]} {self._element(int(cell))}, which another "
            f"block {_VERBS[theirs]}: blocks run in no order"
        )
        self.runtime.report(KernelError(Finding("race", text, places)))
