"""Any moment of a recorded run, forward or back, without running it again.

`Replay` indexes an event log once: running totals, the span that each tile is resident for, and the
tile steps. Every question about "after event i" is then a few look-ups, whatever i is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..events import COMPUTE, FILL, FREE, LOAD, OPERATIONS, PRODUCT, REGISTER, EventLog

NEVER = np.iinfo(np.int64).max
SUMS = ("hbm_read", "hbm_write", "sram_load", "sram_store", "matmul_flops", "exp_count")
_META = (
    "program direction seqlen_q seqlen_k head_dim head_dim_v dtype itemsize causal window "
    "listed_tiles softmax_scale score_mods num_heads head tile_m tile_n sram_bytes kernels lines line_kernels tile_kinds"
).split()


@dataclass(frozen=True)
class Resident:
    """A tile in SRAM: its tensor, size, and the event that put it there."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    since: int


@dataclass(frozen=True)
class Step:
    """Neighbouring events of one block and one pair of tiles: events [start, stop).

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


class Replay:
    """A finished event log, ready to be looked at from any event.

    Event `i` means: after it. Positions run from 0 to ``len(replay) - 1``.

    Parameters
    ----------
    log : EventLog

    Attributes
    ----------
    tokens : list of str or None
        What each row stands for.
    stops : int array
        Landings of the steps that the tile keys stop at: pairs of tiles, and in a kernel that
        works on no pairs every step.
    most_residents : int
        The most tiles that are in SRAM at once.

    Raises
    ------
    ValueError
        If the log is empty or contradicts itself.
    """

    def __init__(self, log: EventLog):
        missing = [key for key in _META if key not in log.meta]
        if missing:
            raise ValueError(f"event log must state {', '.join(_META)}; missing {missing}")
        if not len(log):
            raise ValueError("event log must hold at least one event, got 0")
        self.log, self.meta, self.names = log, log.meta, log.names
        self.tokens = self.meta.get("tokens")
        self.columns = log.columns
        self.kinds = np.asarray(self.meta["tile_kinds"], np.int8).reshape(
            -(-self.meta["seqlen_q"] // self.meta["tile_m"]),
            -(-self.meta["seqlen_k"] // self.meta["tile_n"]),
        )
        self._name_index = {name: index for index, name in enumerate(self.names)}
        self._check()
        self._sums = {name: np.cumsum(self.columns[name]) for name in SUMS}
        self._index_tensors()
        self._index_residents()
        self._index_steps()
        self._index_watched()
        self._spans: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.columns["op"])

    # Where we are

    def step_number(self, event: int) -> int:
        """Which of `steps` an event belongs to."""
        return int(np.searchsorted(self._starts, event, side="right")) - 1

    def step(self, number: int) -> Step:
        """A step by its number."""
        start, stop = int(self._starts[number]), int(self._stops[number])
        column = self.columns
        landing = int(self._landings[number])
        return Step(
            *(int(column[name][start]) for name in ("kernel", "block", "m_block", "n_block")),
            start,
            landing,
            stop,
        )

    def step_at(self, event: int) -> Step:
        """The step that an event belongs to."""
        return self.step(self.step_number(event))

    def line(self, event: int) -> int:
        """The line of the algorithm that an event executes, an index into ``meta["lines"]``."""
        return int(self.columns["line"][event])

    def describe(self, event: int) -> str:
        """What an event did, in words: ``load K 64x32``."""
        column = self.columns
        rows, cols = int(column["rows"][event]), int(column["cols"][event])
        shape = f"{rows}x{cols}" if cols else f"{rows}"
        operation = int(column["op"][event])
        word = "registers" if operation == REGISTER else OPERATIONS[operation]
        return f"{word} {self.names[column['name'][event]]} {shape}"

    def steps_at(self, m_block: int, n_block: int) -> list[Step]:
        """Every step at a pair of tiles, in order."""
        found = np.flatnonzero((self._m == m_block) & (self._n == n_block))
        return [self.step(number) for number in found.tolist()]

    # Moving

    def next_stop(self, event: int) -> int:
        """The next landing of a tile step; the last event when there is none."""
        at = int(np.searchsorted(self.stops, event, side="right"))
        return int(self.stops[at]) if at < len(self.stops) else len(self) - 1

    def previous_stop(self, event: int) -> int:
        """The landing before an event; event 0 when there is none."""
        at = int(np.searchsorted(self.stops, event, side="left")) - 1
        return int(self.stops[at]) if at >= 0 else 0

    def stop_number(self, event: int) -> int:
        """How many tile steps have begun by an event."""
        return int(np.searchsorted(self._stop_starts, event, side="right"))

    def find_tile(self, m_block: int, n_block: int, event: int = 0) -> int:
        """Landing of a pair of tiles: in the kernel at hand, else in the last that visits it.

        Raises
        ------
        ValueError
            If there is no such pair, or the program skips it.
        """
        for name, value, limit in zip(
            ("query tile", "key tile"), (m_block, n_block), self.kinds.shape, strict=True
        ):
            if not 0 <= value < limit:
                raise ValueError(f"{name} must be in 0..{limit - 1}, got {value}")
        found = np.flatnonzero((self._m == m_block) & (self._n == n_block))
        if not found.size:
            raise ValueError(
                f"tile must be one that the mask leaves, got ({m_block}, {n_block}), "
                "which is skipped"
            )
        kernel = self.columns["kernel"][event]
        here = found[self._kernels[found] == kernel]
        return int(self._landings[here[0] if here.size else found[-1]])

    # What is where

    def residents(self, event: int) -> list[Resident]:
        """Tiles in SRAM after an event, oldest first."""
        inside = np.flatnonzero((self._put <= event) & (event < self._freed))
        column = self.columns
        tiles = []
        for i in self._put[inside].tolist():
            rows, cols = int(column["rows"][i]), int(column["cols"][i])
            shape = (rows, cols) if cols else (rows,)
            tiles.append(
                Resident(self.names[column["name"][i]], shape, int(column["nbytes"][i]), i)
            )
        return tiles

    def sram_bytes(self, event: int) -> tuple[int, int]:
        """Bytes resident after an event, and the most so far."""
        return int(self._sram[event]), int(self._sram_peak[event])

    def registers(self, event: int) -> list[Resident]:
        """What the block at hand keeps in registers (fp32)."""
        column = self.columns
        begin = int(self._block_starts[np.searchsorted(self._block_starts, event, "right") - 1])
        tiles = []
        for name, events in self._register_events.items():
            at = int(np.searchsorted(events, event, side="right")) - 1
            if at >= 0 and events[at] >= begin:
                i = int(events[at])
                rows, cols = int(column["rows"][i]), int(column["cols"][i])
                shape = (rows, cols) if cols else (rows,)
                tiles.append(Resident(self.names[name], shape, int(column["nbytes"][i]), i))
        return sorted(tiles, key=lambda tile: tile.since)

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
            moved[name] = (
                int(reads[last] - reads[first]),
                int(writes[last] - writes[first]),
            )
        return moved

    def first_beyond(self, elements: int) -> int | None:
        """The event with which HBM traffic exceeds `elements`; None if it never does."""
        traffic = self._sums["hbm_read"] + self._sums["hbm_write"]
        event = int(np.searchsorted(traffic, elements, side="right"))
        return event if event < len(self) else None

    # Which tiles are done

    def spans(self, kernel: int) -> tuple[np.ndarray, np.ndarray]:
        """(first event, last event) of every cell of a kernel's grid; NEVER where not visited.

        The grid has the shape of ``kinds``, or one column (row) if the kernel works on query
        (key) tiles alone, or one cell.
        """
        if kernel not in self._spans:
            steps = np.flatnonzero(self._kernels == kernel)
            m, n = self._m[steps], self._n[steps]
            keep = self.is_pair[steps]
            shape = self.kinds.shape
            if not keep.any():
                shape = (shape[0] if (m >= 0).any() else 1, shape[1] if (n >= 0).any() else 1)
                keep = ((m >= 0) | (shape[0] == 1)) & ((n >= 0) | (shape[1] == 1))
            m, n = np.maximum(m[keep], 0), np.maximum(n[keep], 0)
            first, last = np.full(shape, NEVER), np.full(shape, NEVER)
            first[m[::-1], n[::-1]] = self._starts[steps[keep]][::-1]
            last[m, n] = self._stops[steps[keep]] - 1
            self._spans[kernel] = first, last
        return self._spans[kernel]

    # Watched values

    def visits(self, kernel: int, m_block: int) -> np.ndarray:
        """Events, ascending, after which the values of a query tile were kept."""
        return self._visits.get((kernel, m_block), _NONE)

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

    # Indexing, once

    def _check(self) -> None:
        limits = {
            "kernel": (0, len(self.meta["kernels"])),
            "m_block": (-1, self.kinds.shape[0]),
            "n_block": (-1, self.kinds.shape[1]),
        }
        for name, (low, high) in limits.items():
            column = self.columns[name]
            if column.min() < low or column.max() >= high:
                raise ValueError(
                    f"event log is inconsistent: {name} must lie in {low}..{high - 1}, "
                    f"got {column.min()}..{column.max()}"
                )
        if len(self.meta["line_kernels"]) != len(self.meta["lines"]):
            raise ValueError("event log is inconsistent: lines and line_kernels differ in length")
        if self.tokens is not None and len(self.tokens) != self.meta["seqlen_q"]:
            raise ValueError("event log is inconsistent: tokens and seqlen_q differ in number")
        for event in self.log.watched:
            if not 0 <= event < len(self):
                raise ValueError(f"event log is inconsistent: values kept after event {event}")

    def _index_tensors(self) -> None:
        read, write, name = (self.columns[c] for c in ("hbm_read", "hbm_write", "name"))
        moving = np.flatnonzero((read > 0) | (write > 0))
        self._moves = {}
        for index in dict.fromkeys(name[moving].tolist()):
            events = moving[name[moving] == index]
            sums = [np.concatenate(([0], np.cumsum(column[events]))) for column in (read, write)]
            self._moves[self.names[index]] = (events, *sums)

    def _index_residents(self) -> None:
        op, name, nbytes = (self.columns[c] for c in ("op", "name", "nbytes"))
        events = np.flatnonzero(np.isin(op, (LOAD, FILL, FREE)) & (self.columns["in_sram"] == 1))
        change = np.zeros(len(self), np.int64)
        put: list[int] = []
        freed: list[int] = []
        waiting: dict[int, list[int]] = {}
        for event, operation, tile in zip(
            events.tolist(), op[events].tolist(), name[events].tolist(), strict=True
        ):
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
                    f"event log is inconsistent: event {event} frees {self.names[tile]}, "
                    "which is not resident"
                )
        self._put, self._freed = np.array(put, np.int64), np.array(freed, np.int64)
        self._sram = np.cumsum(change)
        self.most_residents = int(np.cumsum(np.sign(change)).max(initial=0))
        self._sram_peak = np.maximum.accumulate(self._sram)
        registers = np.flatnonzero(op == REGISTER)
        self._register_events = {
            index: registers[name[registers] == index]
            for index in dict.fromkeys(name[registers].tolist())
        }

    def _index_steps(self) -> None:
        place = np.stack(
            [self.columns[c] for c in ("kernel", "block", "head", "m_block", "n_block")]
        )
        moves = np.diff(place, axis=1) != 0
        self._starts = np.concatenate(([0], np.flatnonzero(moves.any(axis=0)) + 1))
        self._stops = np.append(self._starts[1:], len(self))
        self._block_starts = np.concatenate(([0], np.flatnonzero(moves[:2].any(axis=0)) + 1))
        shows = np.where(self.columns["op"] == FREE, -1, np.arange(len(self)))
        last = np.maximum.reduceat(shows, self._starts)
        self._landings = np.where(last < 0, self._stops - 1, last)
        self._kernels, self._m, self._n = (place[row, self._starts] for row in (0, 3, 4))
        self.is_pair = (self._m >= 0) & (self._n >= 0)
        with_pairs = np.unique(self._kernels[self.is_pair])
        stops = self.is_pair | ~np.isin(self._kernels, with_pairs)
        self.stops, self._stop_starts = self._landings[stops], self._starts[stops]

    def _index_watched(self) -> None:
        kernel, m_block = self.columns["kernel"], self.columns["m_block"]
        visits: dict[tuple[int, int], list[int]] = {}
        for event in sorted(self.log.watched):
            visits.setdefault((int(kernel[event]), int(m_block[event])), []).append(event)
        self._visits = {key: np.array(events) for key, events in visits.items()}


_NONE = np.zeros(0, np.int64)
