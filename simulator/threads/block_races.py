"""Finds what blocks do to each other: races in global memory, and shared memory left too early."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cells import READ, UPDATE, VERBS, WRITE, Accesses, Cells
from .errors import Finding, KernelError

ROWS = (WRITE, WRITE, READ, READ, UPDATE, UPDATE)
"""What is remembered of an element: the first and the last block that wrote, read and updated it.
Several may do the same without a race (write it, if the values are equal), and the last may be the
block that runs. Blocks run one after another: if another one did, it is the first or the last."""


class BlockRaces:
    """Elements of global memory that several blocks use: blocks run in no order.

    Attributes
    ----------
    fenced : bool
        Whether the kernel orders blocks by fences or turns, which are not followed here.
    """

    def __init__(self, cells: Cells):
        self.cells, self.fenced = cells, False
        self._block_of = np.full((len(ROWS), cells.count), -1, np.int32)
        self._code_of = np.zeros((len(ROWS), cells.count), np.int32)
        self._held = np.zeros(cells.count, np.uint64)

    def check(self, found: Accesses, block: int) -> None:
        """Look for elements that other blocks used before, where one of both writes.

        Parameters
        ----------
        found : Accesses
        block : int
            Number of the block, or of the blocks that run at once.
        """
        cells, codes, kind = found.cell, found.code, found.kind
        pick = self.cells.is_global[self.cells.memory_of(cells)]
        cells, codes, kind = cells[pick], codes[pick], kind[pick]
        written, read, updated = (0, 1), (2, 3), (4, 5)
        done = []
        against = {
            WRITE: (*written, *read, *updated),
            READ: (*written, *updated),
            UPDATE: (*written, *read),
        }
        for one, others in against.items():
            mine = kind == one
            at, code = cells[mine], codes[mine]
            if not len(at):
                continue
            for other in others if not self.fenced else ():
                known = self._block_of[other, at]
                clash = np.flatnonzero((known >= 0) & (known != block))
                if ROWS[other] == one == WRITE:
                    clash = clash[self._held[at[clash]] != self.cells.content(at[clash])]
                if len(clash):
                    self._report(at[clash[0]], code[clash[0]], one, other)
            done.append((one, at, code))
        for one, at, code in done:
            self._remember(at, code, one, block)

    def _remember(self, at, code, kind, block):
        first, last = (row for row, one in enumerate(ROWS) if one == kind)
        fresh = self._block_of[first, at] < 0
        if fresh.any():
            self._block_of[first, at[fresh]] = block
            self._code_of[first, at[fresh]] = code[fresh]
        self._block_of[last, at] = block
        self._code_of[last, at] = code
        if kind == WRITE:
            self._held[at] = self.cells.content(at)

    def _report(self, cell, code, mine, other):
        theirs = ROWS[other]
        places = (self.cells.place(self._code_of[other, cell]), self.cells.place(code))
        element, block = self.cells.element(int(cell)), self.cells.runtime.block
        text = (
            f"block {block} {VERBS[mine]} {element}, which another block {VERBS[theirs]}: blocks "
            "run in no order"
        )
        self.cells.runtime.report(KernelError(Finding("race", text, places)))


def check_leaving(cells: Cells, found: Accesses, segments) -> None:
    """Shared memory of another block must be left before that block ends."""
    slots = cells.slots[cells.memory_of(found.cell)]
    own: Any = np.array([one.thread.slot for one in segments])
    table = cells.runtime.order.table()
    foreign = np.flatnonzero((slots >= 0) & (slots != own[found.segment]))
    pairs = np.stack([found.segment[foreign], slots[foreign]])
    for number, slot in np.unique(pairs, axis=1).T.tolist():
        one = segments[number]
        owners = [t for t in cells.runtime.order.threads if t.slot == slot]
        if all(table[t.last_view, one.actor] >= one.moment for t in owners):
            continue
        at = foreign[(pairs == [[number], [slot]]).all(axis=0)][0]
        verb = VERBS[int(found.kind[at])]
        text = (
            f"thread {one.thread.index} of block {one.thread.block} {verb} "
            f"{cells.element(int(found.cell[at]))} of block {owners[0].block}, which may have "
            "ended: let the cluster meet before a block returns"
        )
        cells.runtime.report(KernelError(Finding("race", text, (cells.place(found.code[at]),))))
        return
