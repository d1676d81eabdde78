"""The steps of a run: neighbouring events of one block and one pair of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..events import FREE


@dataclass(frozen=True)
class Step:
    """Events [start, stop) of one block at one pair of tiles.

    `m_block` or `n_block` is -1 where the block is at no single query or key tile. `landing` is
    the last event before tiles are freed: the moment at which the step shows most.
    """

    kernel: int
    block: int
    m_block: int
    n_block: int
    start: int
    landing: int
    stop: int


class Steps:
    """All steps of a run.

    Parameters
    ----------
    columns : mapping of str to int64 array
        An event log's.

    Attributes
    ----------
    starts, ends : int array
        First event of each step, and first event after it.
    kernel, m_block, n_block : int array
        Where each step is.
    is_pair : bool array
        Whether a step is at a pair of tiles.
    stops : int array
        Landings of the steps that the tile keys stop at: pairs of tiles, and in a kernel that
        works on no pairs every step.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        events = len(columns["op"])
        names = ("kernel", "block", "head", "m_block", "n_block")
        place = np.stack([columns[name] for name in names])
        moves = np.diff(place, axis=1) != 0
        self.starts = np.concatenate(([0], np.flatnonzero(moves.any(axis=0)) + 1))
        self.ends = np.append(self.starts[1:], events)
        self._block_starts = np.concatenate(([0], np.flatnonzero(moves[:2].any(axis=0)) + 1))
        shows = np.where(columns["op"] == FREE, -1, np.arange(events))
        last = np.maximum.reduceat(shows, self.starts)
        self.landings = np.where(last < 0, self.ends - 1, last)
        self.kernel, self._block, _, self.m_block, self.n_block = place[:, self.starts]
        self.is_pair = (self.m_block >= 0) & (self.n_block >= 0)
        with_pairs = np.unique(self.kernel[self.is_pair])
        keep = self.is_pair | ~np.isin(self.kernel, with_pairs)
        self.stops, self._stop_starts = self.landings[keep], self.starts[keep]

    def number_at(self, event: int) -> int:
        """Which step an event belongs to."""
        return int(np.searchsorted(self.starts, event, side="right")) - 1

    def __getitem__(self, number: int) -> Step:
        columns = self.kernel, self._block, self.m_block, self.n_block
        spans = self.starts, self.landings, self.ends
        return Step(*(int(column[number]) for column in (*columns, *spans)))

    def at(self, event: int) -> Step:
        """The step that an event belongs to."""
        return self[self.number_at(event)]

    def of_pair(self, m_block: int, n_block: int) -> list[Step]:
        """Every step at a pair of tiles, in order."""
        found = np.flatnonzero((self.m_block == m_block) & (self.n_block == n_block))
        return [self[number] for number in found.tolist()]

    def block_start(self, event: int) -> int:
        """First event of the thread block that an event belongs to."""
        at = np.searchsorted(self._block_starts, event, side="right") - 1
        return int(self._block_starts[at])

    def begun(self, event: int) -> int:
        """How many of `stops` belong to steps that have begun by an event."""
        return int(np.searchsorted(self._stop_starts, event, side="right"))
