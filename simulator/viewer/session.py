"""What the stepper can show: runs recorded when they are asked for, or one read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from flash_numba.problem import Problem

from ..events import EventLog
from ..programs import PROGRAMS, Pass, Program, flash2
from ..run import H100_SRAM_BYTES, simulate
from .costs import Costs, costs_of
from .replay import Replay

BROKEN = Program(
    "flash2_without_rescale",
    "flash2 with the bug of every first attempt: O keeps the scale of an older maximum",
    Pass(partial(flash2.forward, rescale=False), flash2.FORWARD_LINES),
    Pass(flash2.backward, flash2.BACKWARD_LINES),
)
"""A program to watch going wrong."""

KEPT = 4
"""Runs that stay in memory."""


@dataclass(frozen=True)
class Loaded:
    """A run ready to be shown."""

    replay: Replay
    costs: Costs

    @classmethod
    def of(cls, log: EventLog, tokens=None) -> Loaded:
        """A log with its index and what it is held against."""
        replay = Replay(log, tokens)
        return cls(replay, costs_of(replay))


def program_names() -> list[str]:
    """Programs that can be stepped through."""
    return [*PROGRAMS, BROKEN.name]


class Session:
    """Records runs of one problem.

    Parameters
    ----------
    problem : Problem
    q, k, v : float arrays of shape (batch, seqlen, heads, head_dim)
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    sram_bytes : int
        Capacity of SRAM.
    tokens : sequence of str, optional
        What each row stands for.
    seed : int
        Of the gradient that a backward is given.
    """

    def __init__(
        self,
        problem: Problem,
        q,
        k,
        v,
        *,
        tile_m: int = 64,
        tile_n: int = 64,
        sram_bytes: int | None = H100_SRAM_BYTES,
        tokens=None,
        seed: int = 0,
    ):
        self.problem, self.arrays, self.tokens, self.seed = problem, (q, k, v), tokens, seed
        self.options = {"tile_m": tile_m, "tile_n": tile_n, "sram_bytes": sram_bytes}
        self._runs: dict[tuple, Loaded] = {}

    def run(self, program: str, direction: str, head: int) -> Loaded:
        """A run, recorded unless it is still at hand.

        Raises
        ------
        ValueError
            If there is no such program or head, or its tiles do not fit into SRAM.
        """
        key = program, direction, head
        if key not in self._runs:
            loaded = Loaded.of(self.record(program, direction, head), self.tokens)
            while len(self._runs) >= KEPT:
                self._runs.pop(next(iter(self._runs)))
            self._runs[key] = loaded
        return self._runs[key]

    def record(self, program: str, direction: str, head: int) -> EventLog:
        """The event log of a run."""
        if program not in program_names():
            raise ValueError(
                f"program must be one of {', '.join(program_names())}; got {program!r}"
            )
        chosen = BROKEN if program == BROKEN.name else program
        do = self._gradient() if direction == "backward" else None
        result = simulate(
            chosen,
            self.problem,
            *self.arrays,
            do,
            direction=direction,
            head=head,
            record=True,
            **self.options,
        )
        assert result.log is not None
        return result.log

    def _gradient(self) -> np.ndarray:
        p = self.problem
        shape = p.batch, p.seqlen_q, p.num_heads, p.head_dim_v
        return np.random.default_rng(self.seed).standard_normal(shape, np.float32)


class Saved:
    """One run read from a file: nothing is run again, so nothing else can be asked for.

    Parameters
    ----------
    log : EventLog
    tokens : sequence of str, optional
    """

    def __init__(self, log: EventLog, tokens=None):
        self.loaded = Loaded.of(log, tokens)

    def run(self, program: str, direction: str, head: int) -> Loaded:
        """The saved run.

        Raises
        ------
        ValueError
            If another one is asked for.
        """
        meta = self.loaded.replay.meta
        saved = meta["program"], meta["direction"], meta["head"]
        if (program, direction, head) != saved:
            raise ValueError(
                f"a replayed log holds {saved[0]} {saved[1]} of head {saved[2]} alone; "
                f"got {program} {direction} of head {head}"
            )
        return self.loaded
