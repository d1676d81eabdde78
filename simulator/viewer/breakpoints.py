"""Where a run should stop: a tile, an amount of HBM traffic, a change of a row's maximum."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .replay import Replay
from .rows import max_changes

FORMS = "'tile 2,1', 'hbm 40000', 'row 97'"
MEANINGS = "tile 2,1; hbm 40000 (more elements moved); row 97 (its maximum rises)"


@dataclass(frozen=True)
class Breakpoint:
    """One condition.

    Attributes
    ----------
    kind : str
        "tile", "hbm" (elements read and written so far exceed a number) or "row" (row_max of the
        row changes).
    values : tuple of int
    """

    kind: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {','.join(str(value) for value in self.values)}"

    def events(self, replay: Replay) -> np.ndarray:
        """Events at which a run meets the condition, ascending.

        Raises
        ------
        ValueError
            If the run has no such tile or row.
        """
        if self.kind == "tile":
            m_block, n_block = self.values
            replay.find_tile(m_block, n_block)
            return np.array(
                [step.landing for step in replay.steps.of_pair(m_block, n_block)], np.int64
            )
        if self.kind == "hbm":
            event = replay.first_beyond(self.values[0])
            return np.array([] if event is None else [event], np.int64)
        return max_changes(replay, self.values[0])


def parse(text: str, allowed: str = "breakpoint") -> Breakpoint:
    """A condition as a person types it.

    Raises
    ------
    ValueError
        If it is none of `FORMS`.
    """
    words = re.fullmatch(r"\s*(tile|hbm|row)[\s:=]*([\d_]+)(?:\s*[,\s]\s*(\d+))?\s*", text)
    if words:
        kind, *numbers = words.groups()
        values = tuple(int(number) for number in numbers if number is not None)
        if len(values) == (2 if kind == "tile" else 1):
            return Breakpoint(kind, values)
    raise ValueError(f"{allowed} must look like one of {FORMS}; got {text.strip()!r}")


def place(text: str, replay: Replay, event: int = 0) -> int:
    """The event that a person means: ``2,1``, ``event 136``, ``start``, ``end``, or a breakpoint.

    Raises
    ------
    ValueError
        If it is none of them, or not in the run.
    """
    words = text.strip().lower()
    if words in ("start", "end"):
        return 0 if words == "start" else len(replay) - 1
    if match := re.fullmatch(r"event[\s:=]*(\d+)", words):
        wanted = int(match[1])
        if wanted >= len(replay):
            raise ValueError(f"event must be in 0..{len(replay) - 1}, got {wanted}")
        return wanted
    if match := re.fullmatch(r"(?:tile[\s:=]*)?(\d+)\s*[,\s]\s*(\d+)", words):
        return replay.find_tile(int(match[1]), int(match[2]), event)
    try:
        condition = parse(words)
    except ValueError:
        raise ValueError(
            f"place must look like one of '2,1', 'event 136', 'start', 'end', {FORMS}; "
            f"got {text.strip()!r}"
        ) from None
    hits = condition.events(replay)
    if not hits.size:
        raise ValueError(f"place must be one that the run reaches, got {condition}")
    return int(hits[0])


def next_hit(breakpoints: list[Breakpoint], replay: Replay, event: int) -> int | None:
    """The first event after `event` that meets a condition."""
    hits = _hits(breakpoints, replay)
    at = int(np.searchsorted(hits, event, side="right"))
    return int(hits[at]) if at < len(hits) else None


def previous_hit(breakpoints: list[Breakpoint], replay: Replay, event: int) -> int | None:
    """The last event before `event` that meets a condition."""
    hits = _hits(breakpoints, replay)
    at = int(np.searchsorted(hits, event, side="left")) - 1
    return int(hits[at]) if at >= 0 else None


def _hits(breakpoints: list[Breakpoint], replay: Replay) -> np.ndarray:
    events = [condition.events(replay) for condition in breakpoints]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *events]))
