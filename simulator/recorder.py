"""Writes what a machine does into an event log, and after every tile step the watched values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import events as ev
from .hbm import Region
from .memory import SRAM, Tile


class Recorder:
    """One run's log in the making.

    Parameters
    ----------
    log : EventLog
        Filled with every event.
    lines : mapping of str to sequence of str
        The program's kernels, each with the lines of its algorithm.
    """

    def __init__(self, log: ev.EventLog, lines: Mapping[str, Sequence[str]]):
        self.log = log
        pairs = [(kernel, line) for kernel, group in lines.items() for line in group]
        self._line_index = {pair: number for number, pair in enumerate(pairs)}
        self._line = 0
        self._watching: dict[str, Tile] = {}

    def event(
        self,
        place: tuple[int, ...],
        kernel_line: tuple[str, str] | None,
        op: int,
        tile: Tile | None,
        region: Region | None,
        cost: Mapping[str, int],
    ) -> None:
        """Add an event.

        Parameters
        ----------
        place : tuple of int
            Kernel, block, head, query tile, key tile.
        kernel_line : tuple of str, optional
            Kernel and line of the algorithm; None = still the line before.
        op : int
            Index into `events.OPERATIONS`.
        tile : Tile or None
            What it is about; None for a constant that goes to `region`.
        region : Region or None
            Where in HBM it goes.
        cost : mapping of str to int
            The last columns of the log that are not 0.
        """
        if kernel_line is not None:
            self._line = self._line_index[kernel_line]
        if region is not None:
            name, shape = region.tensor.name, region.shape
        else:
            assert tile is not None
            name, shape = tile.name, tile.shape
        row = (
            op,
            self._line,
            self.log.name_index(name),
            shape[0],
            shape[1] if len(shape) > 1 else 0,
            tile.nbytes if tile is not None else 0,
            int(tile is not None and tile.space is SRAM),
            *place,
            cost.get("hbm_read", 0),
            cost.get("hbm_write", 0),
            cost.get("sram_load", 0),
            cost.get("sram_store", 0),
            cost.get("matmul_flops", 0),
            cost.get("exp_count", 0),
        )
        self.log.append(row)

    def watch(self, tiles: dict[str, Tile]) -> None:
        """From now on keep the values of these tiles."""
        self._watching = tiles

    def end_step(self) -> None:
        """Keep the watched values as they are after the last event."""
        if self._watching:
            self.log.watched[len(self.log) - 1] = {
                name: tile.data[:, : ev.WATCHED_COLUMNS].copy()
                if tile.data.ndim == 2
                else tile.data
                for name, tile in self._watching.items()
            }
