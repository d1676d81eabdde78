"""Finds what blocks do to each other: races in global memory, and shared memory left too early."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cells import READ, UPDATE, VERBS, WRITE, Accesses, Cells
from .errors import Finding, KernelError

ROWS = (WRITE, READ, READ, UPDATE, UPDATE)
"""What is remembered of an element: which block wrote it last, and the first and the last that
read and that updated it. Many may do that without a race, and the last may be the block that runs;
blocks run one after another, so if another one did, it is the first or the last."""
FIRST = (1, 3)
"""Rows that keep the first."""


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
        written, *read_or_updated = range(len(ROWS))
        first_read, last_read, first_updated, last_updated = read_or_updated
        against = {
            WRITE: (written, *read_or_updated),
            READ: (written, first_updated, last_updated),
            UPDATE: (written, first_read, last_read),
        }
        for one, others in against.items():
            mine = kind == one
            at = cells[mine]
            for other in others if not self.fenced else ():
                known = self._block_of[other, at]
                clash = np.flatnonzero((known >= 0) & (known != block))
                if len(clash):
                    self._report(at[clash[0]], codes[mine][clash[0]], one, other)
        self._remember(cells, codes, kind, block)

    def _remember(self, cells, codes, kind, block):
        for row, one in enumerate(ROWS):
            at, code = cells[kind == one], codes[kind == one]
            if row in FIRST:
                fresh = self._block_of[row, at] < 0
                at, code = at[fresh], code[fresh]
            self._block_of[row, at] = block
            self._code_of[row, at] = code

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
