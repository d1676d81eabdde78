"""One row's state at one moment: the numbers before and after a tile, and how they follow.

Forward: row_max a -> b, the factor e^(a-b) that older sums are rescaled by, and
row_sum d = c·e^(a-b) + (this tile's share). Backward: dS = scale·P·(dP - delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .replay import Replay

WRITERS = {
    "row_max": ("m",),
    "rescale": ("m",),
    "row_sum": ("l", "m"),
    "O": ("O",),
    "P": ("P", "S"),
    "dS": ("dS", "dP"),
}
"""Tiles whose computation gives a watched value, the likelier name first: a program may compute
row_sum together with m, or P in place of S."""

START = {"row_max": -math.inf, "row_sum": 0.0}
"""Where a row begins, before its first tile."""


@dataclass(frozen=True)
class Row:
    """A row after an event.

    Attributes
    ----------
    row, m_block : int
        The row, and the query tile that it lies in.
    status : str
        "waiting" (its first tile is to come), "current" (the tile at hand is of its query tile),
        "between" (other tiles are at hand) or "done".
    n_block : int
        Key tile of the values; -1 while waiting.
    before, after : dict of str to float or float64 array
        Watched values before and after that tile.
    known : set of str
        Values of `after` that have been computed by the event; the others are still to come.
    recorded : bool
        False if the run had no numbers.
    """

    row: int
    m_block: int
    status: str
    n_block: int
    before: dict[str, Any]
    after: dict[str, Any]
    known: frozenset[str]
    recorded: bool

    @property
    def rescale(self) -> float:
        """e^(a-b), the factor that a new maximum puts on older sums; 0 before the first key."""
        a, b = self.before["row_max"], self.after["row_max"]
        return 0.0 if a == -math.inf else math.exp(a - b)

    @property
    def added(self) -> float:
        """What the tile adds to row_sum: d - c·e^(a-b)."""
        return self.after["row_sum"] - self.before["row_sum"] * self.rescale

    @property
    def lse(self) -> float | None:
        """Log-sum-exp of the row so far, row_max + log row_sum."""
        values = self.after if {"row_max", "row_sum"} <= self.known else self.before
        if not {"row_max", "row_sum"} <= values.keys():
            return None
        total = values["row_sum"]
        return values["row_max"] + math.log(total) if total > 0 else -math.inf

    def d_p(self, column: int, scale: float) -> float | None:
        """DP of one key, from dS = scale·P·(dP - delta); None where P is 0 and dS says nothing."""
        weight = float(self.after["P"][column]) * scale
        if abs(weight) < 1e-30:
            return None
        return float(self.after["dS"][column]) / weight + self.after["delta"]


def row_at(replay: Replay, event: int, row: int) -> Row:
    """The state of a row after an event.

    Parameters
    ----------
    replay : Replay
    event : int
    row : int
        In 0..seqlen_q - 1.

    Raises
    ------
    ValueError
        If there is no such row.
    """
    _check_row(replay, row)
    m_block, local = divmod(row, replay.meta["tile_m"])
    step = replay.steps.at(event)
    visits = replay.visits(step.kernel, m_block)
    recorded = bool(replay.log.watched)
    current = step.m_block == m_block and step.n_block >= 0
    begun = int(np.searchsorted(visits, step.stop if current else event + 1, side="left"))
    if begun == 0:
        return Row(row, m_block, "waiting", -1, {}, {}, frozenset(), recorded)
    at = int(visits[begun - 1])
    after = _values(replay, at, local)
    earlier = int(visits[begun - 2]) if begun > 1 else None
    before = START | _values(replay, earlier, local) if earlier is not None else dict(START)
    if "O" in after:
        before.setdefault("O", np.zeros_like(after["O"]))
    known = frozenset(after)
    if current and at >= step.start:
        known = frozenset(
            key for key in after if key not in WRITERS or replay.writer(step, WRITERS[key]) <= event
        )
        status = "current"
    else:
        status = "done" if begun == len(visits) else "between"
    n_block = int(replay.columns["n_block"][at])
    return Row(row, m_block, status, n_block, before, after, known, recorded)


def followed_row(replay: Replay, event: int) -> int:
    """The row to show when none was picked, of the query tile at hand.

    It is the one whose maximum rises most often, so that a rescale is seen, the first of several;
    the middle row where the kernel at hand keeps no maximum or visits one tile.
    """
    step, tile_m = replay.steps.at(event), replay.meta["tile_m"]
    m_block = step.m_block
    if m_block < 0:
        blocks = replay.columns["m_block"]
        later = np.flatnonzero(blocks[event:] >= 0)
        m_block = int(blocks[event + later[0]]) if later.size else int(max(blocks.max(), 0))
    first = m_block * tile_m
    rows = min(tile_m, replay.meta["seqlen_q"] - first)
    rises = replay.rises(step.kernel, m_block)
    return first + (rows // 2 if rises is None else int(rises.argmax()))


def max_changes(replay: Replay, row: int) -> np.ndarray:
    """Events at which row_max of a row changes, ascending."""
    _check_row(replay, row)
    m_block, local = divmod(row, replay.meta["tile_m"])
    changes = []
    for kernel in range(len(replay.meta["kernels"])):
        last = -math.inf
        for at in replay.visits(kernel, m_block).tolist():
            values = replay.log.watched[at]
            if "row_max" in values and values["row_max"][local] != last:
                last = values["row_max"][local]
                changes.append(replay.writer(replay.steps.at(at), WRITERS["row_max"]))
    return np.array(changes, np.int64)


def _check_row(replay: Replay, row: int) -> None:
    if not 0 <= row < replay.meta["seqlen_q"]:
        raise ValueError(f"row must be in 0..{replay.meta['seqlen_q'] - 1}, got {row}")


def _values(replay: Replay, event: int, local: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, array in replay.log.watched[event].items():
        if local < len(array):
            entry = array[local]
            values[key] = entry.astype(np.float64) if entry.ndim else float(entry)
    return values
