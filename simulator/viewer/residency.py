"""What is on chip after any event: which span of events each tile is resident for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..events import FILL, FREE, LOAD, REGISTER

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Resident:
    """A tile on chip: its tensor, size, and the event that put it there."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    since: int


class Residency:
    """Tiles in SRAM and in registers.

    Parameters
    ----------
    columns : mapping of str to int64 array
        An event log's.
    names : sequence of str
        An event log's.

    Attributes
    ----------
    most_tiles : int
        The most tiles that are in SRAM at once.

    Raises
    ------
    ValueError
        If a tile is freed that is not resident.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], names):
        self._columns, self._names = columns, names
        op, name, nbytes = (columns[c] for c in ("op", "name", "nbytes"))
        events = np.flatnonzero(np.isin(op, (LOAD, FILL, FREE)) & (columns["in_sram"] == 1))
        change = np.zeros(len(op), np.int64)
        put: list[int] = []
        freed: list[int] = []
        waiting: dict[int, list[int]] = {}
        rows = zip(events.tolist(), op[events].tolist(), name[events].tolist(), strict=True)
        for event, operation, tile in rows:
            same = waiting.setdefault(tile, [])
            if operation != FREE:
                same.append(len(put))
                put.append(event)
                freed.append(NEVER)
                change[event] = nbytes[event]
            elif same:
                number = same.pop(0)
                freed[number] = event
                change[event] = -nbytes[put[number]]
            else:
                raise ValueError(
                    f"event log is inconsistent: event {event} frees {names[tile]}, "
                    "which is not resident"
                )
        self._put, self._freed = np.array(put, np.int64), np.array(freed, np.int64)
        self._bytes = np.cumsum(change)
        self._peak = np.maximum.accumulate(self._bytes)
        self.most_tiles = int(np.cumsum(np.sign(change)).max(initial=0))
        registers = np.flatnonzero(op == REGISTER)
        self._registers = {
            index: registers[name[registers] == index] for index in np.unique(name[registers])
        }

    def in_sram(self, event: int) -> list[Resident]:
        """Tiles in SRAM after an event, oldest first."""
        inside = np.flatnonzero((self._put <= event) & (event < self._freed))
        return [self._tile(i) for i in self._put[inside].tolist()]

    def nbytes(self, event: int) -> tuple[int, int]:
        """Bytes resident in SRAM after an event, and the most so far."""
        return int(self._bytes[event]), int(self._peak[event])

    def in_registers(self, event: int, since: int) -> list[Resident]:
        """What was put into registers in events [since, event], the last of each name."""
        found = []
        for events in self._registers.values():
            at = int(np.searchsorted(events, event, side="right")) - 1
            if at >= 0 and events[at] >= since:
                found.append(int(events[at]))
        return [self._tile(i) for i in sorted(found)]

    def _tile(self, event: int) -> Resident:
        rows, cols, nbytes, name = (
            int(self._columns[column][event]) for column in ("rows", "cols", "nbytes", "name")
        )
        return Resident(self._names[name], (rows, cols) if cols else (rows,), nbytes, event)
