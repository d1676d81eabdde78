"""Any moment of a recorded run, forward or back, without running it again.

`Replay` indexes an event log once: running totals, the span that each tile is resident for, and the
tile steps. Every question about "after event i" is then a few look-ups, whatever i is.
"""

from __future__ import annotations

import numpy as np

from ..events import COMPUTE, OPERATIONS, PRODUCT, REGISTER, EventLog
from .checked import checked_kinds
from .residency import NEVER, Residency, Resident
from .steps import Step, Steps

SUMS = ("hbm_read", "hbm_write", "sram_load", "sram_store", "matmul_flops", "exp_count")
"""Columns with running totals."""


class Replay:
    """A finished event log, ready to be looked at from any event.

    Event `i` means: after it. Positions run from 0 to ``len(replay) - 1``.

    Parameters
    ----------
    log : EventLog

    Attributes
    ----------
    kinds : int8 array of shape (query tiles, key tiles)
        Classes of the tiles, as `flash_numba.tiling` numbers them.
    tokens : list of str or None
        What each row stands for.
    steps : Steps
    residency : Residency

    Raises
    ------
    ValueError
        If the log is empty or contradicts itself.
    """

    def __init__(self, log: EventLog):
        self.kinds = checked_kinds(log)
        self.log, self.meta, self.names = log, log.meta, log.names
        self.tokens, self.columns = self.meta.get("tokens"), log.columns
        self.residency = Residency(self.columns, self.names)
        self.steps = Steps(self.columns)
        self._name_index = {name: index for index, name in enumerate(self.names)}
        self._sums = {name: np.cumsum(self.columns[name]) for name in SUMS}
        self._moves = self._index_tensors()
        self._visits = self._index_watched()
        self._rises: dict[tuple[int, int], np.ndarray | None] = {}
        self._spans: dict[int, tuple[np.ndarray, np.ndarray, tuple[bool, bool]]] = {}

    def __len__(self) -> int:
        return len(self.columns["op"])

    def line(self, event: int) -> int:
        """The line of the algorithm that an event executes, an index into ``meta["lines"]``."""
        return int(self.columns["line"][event])

    def describe(self, event: int) -> str:
        """What an event did, in words: ``load K 64x32``."""
        rows, cols, operation, name = (
            int(self.columns[column][event]) for column in ("rows", "cols", "op", "name")
        )
        shape = f"{rows}x{cols}" if cols else f"{rows}"
        word = "registers" if operation == REGISTER else OPERATIONS[operation]
        return f"{word} {self.names[name]} {shape}"

    # Moving

    def next_stop(self, event: int) -> int:
        """The next landing of a tile step; the last event when there is none."""
        stops = self.steps.stops
        at = int(np.searchsorted(stops, event, side="right"))
        return int(stops[at]) if at < len(stops) else len(self) - 1

    def previous_stop(self, event: int) -> int:
        """The landing before an event; event 0 when there is none."""
        at = int(np.searchsorted(self.steps.stops, event, side="left")) - 1
        return int(self.steps.stops[at]) if at >= 0 else 0

    def find_tile(self, m_block: int, n_block: int, event: int = 0) -> int:
        """Landing of a pair of tiles: in the kernel at hand, else in the last that visits it.

        Raises
        ------
        ValueError
            If there is no such pair, or the program skips it.
        """
        names = ("query tile", "key tile")
        for name, value, limit in zip(names, (m_block, n_block), self.kinds.shape, strict=True):
            if not 0 <= value < limit:
                raise ValueError(f"{name} must be in 0..{limit - 1}, got {value}")
        found = self.steps.of_pair(m_block, n_block)
        if not found:
            raise ValueError(
                f"tile must be one that the mask leaves, got ({m_block}, {n_block}), "
                "which is skipped"
            )
        here = [step for step in found if step.kernel == self.columns["kernel"][event]]
        return (here[0] if here else found[-1]).landing

    # What is where

    def residents(self, event: int) -> list[Resident]:
        """Tiles in SRAM after an event, oldest first."""
        return self.residency.in_sram(event)

    def registers(self, event: int) -> list[Resident]:
        """What the block at hand keeps in registers (fp32)."""
        return self.residency.in_registers(event, self.steps.block_start(event))

    # What it cost

    def total(self, what: str, event: int, start: int = 0) -> int:
        """Sum of a column of `SUMS` over events [start, event]."""
        sums = self._sums[what]
        return int(sums[event]) - (int(sums[start - 1]) if start else 0)

    def tensors(self, event: int, start: int = 0) -> dict[str, tuple[int, int]]:
        """(read, written) elements of each tensor in HBM over events [start, event]."""
        moved = {}
        for name, (events, reads, writes) in self._moves.items():
            last = int(np.searchsorted(events, event, side="right"))
            first = int(np.searchsorted(events, start, side="left"))
            moved[name] = int(reads[last] - reads[first]), int(writes[last] - writes[first])
        return moved

    def first_beyond(self, elements: int) -> int | None:
        """The event with which HBM traffic exceeds `elements`; None if it never does."""
        traffic = self._sums["hbm_read"] + self._sums["hbm_write"]
        event = int(np.searchsorted(traffic, elements, side="right"))
        return event if event < len(self) else None

    # Which tiles are done

    def spans(self, kernel: int) -> tuple[np.ndarray, np.ndarray, tuple[bool, bool]]:
        """First and last event of every cell of a kernel's grid, NEVER where it is not visited.

        The grid has the shape of `kinds`; one column (row) if the kernel works on query (key)
        tiles alone, or one cell. The pair says whether there is an axis of query tiles and one of
        key tiles.
        """
        if kernel not in self._spans:
            steps = self.steps
            numbers = np.flatnonzero(steps.kernel == kernel)
            pairs = numbers[steps.is_pair[numbers]]
            axes = True, True
            if not pairs.size:
                blocks = steps.m_block[numbers], steps.n_block[numbers]
                axes = bool((blocks[0] >= 0).any()), bool((blocks[1] >= 0).any())
                keep = ((blocks[0] >= 0) | (not axes[0])) & ((blocks[1] >= 0) | (not axes[1]))
                pairs = numbers[keep]
            shape = tuple(
                size if axis else 1 for size, axis in zip(self.kinds.shape, axes, strict=True)
            )
            m = steps.m_block[pairs] if axes[0] else np.zeros(len(pairs), np.int64)
            n = steps.n_block[pairs] if axes[1] else np.zeros(len(pairs), np.int64)
            first, last = np.full(shape, NEVER), np.full(shape, NEVER)
            first[m[::-1], n[::-1]] = steps.starts[pairs][::-1]
            last[m, n] = steps.ends[pairs] - 1
            self._spans[kernel] = first, last, axes
        return self._spans[kernel]

    # Watched values

    def visits(self, kernel: int, m_block: int) -> np.ndarray:
        """Events, ascending, after which the values of a query tile were kept."""
        return self._visits.get((kernel, m_block), np.zeros(0, np.int64))

    def rises(self, kernel: int, m_block: int) -> np.ndarray | None:
        """How often row_max rises after a row's first key; None if that is not known."""
        if (kernel, m_block) not in self._rises:
            kept = [self.log.watched[at] for at in self.visits(kernel, m_block).tolist()]
            maxima = [values["row_max"] for values in kept if "row_max" in values]
            before, after = np.array(maxima[:-1]), np.array(maxima[1:])
            rises = ((after > before) & (before > -np.inf)).sum(axis=0) if maxima[1:] else None
            self._rises[kernel, m_block] = rises
        return self._rises[kernel, m_block]

    def writer(self, step: Step, names: tuple[str, ...]) -> int:
        """The event of a step that gives a tile its last value.

        That is the last computation of a tile of the first of `names` that the step computes; the
        landing if it computes none of them.
        """
        op = self.columns["op"][step.start : step.stop]
        computed = np.where(
            np.isin(op, (PRODUCT, COMPUTE)), self.columns["name"][step.start : step.stop], -1
        )
        for name in names:
            found = np.flatnonzero(computed == self._name_index.get(name, -2))
            if found.size:
                return step.start + int(found[-1])
        return step.landing

    def _index_tensors(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        read, write, name = (self.columns[c] for c in ("hbm_read", "hbm_write", "name"))
        moving = np.flatnonzero((read > 0) | (write > 0))
        moves = {}
        for index in dict.fromkeys(name[moving].tolist()):
            events = moving[name[moving] == index]
            reads, writes = (np.append(0, np.cumsum(column[events])) for column in (read, write))
            moves[self.names[index]] = events, reads, writes
        return moves

    def _index_watched(self) -> dict[tuple[int, int], np.ndarray]:
        kernel, m_block = self.columns["kernel"], self.columns["m_block"]
        visits: dict[tuple[int, int], list[int]] = {}
        for event in sorted(self.log.watched):
            visits.setdefault((int(kernel[event]), int(m_block[event])), []).append(event)
        return {key: np.array(events) for key, events in visits.items()}
