"""What the stepper can show: runs recorded when they are asked for, or one read from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_numba.problem import Problem
from flash_numba.tiling import Schedule

from ..events import EventLog
from ..hardware import H100, Gpu
from ..programs import BROKEN, PROGRAMS
from ..run import simulate
from .costs import Costs, costs_of
from .replay import Replay

MOST_PAIRS = 50_000
"""Pairs of tiles that a run may visit: its events have to stay in memory."""

MOST_TILES = 4_000_000
"""Tiles of the grid, visited or not: their classes are part of the log."""

KEPT = 4
"""Runs that stay in memory."""


@dataclass(frozen=True)
class Loaded:
    """A run ready to be shown."""

    replay: Replay
    costs: Costs

    @classmethod
    def of(cls, log: EventLog) -> Loaded:
        """A log with its index and what it is held against."""
        replay = Replay(log)
        return cls(replay, costs_of(replay))


def program_names() -> list[str]:
    """Programs that can be stepped through: those in tiles, and the broken ones."""
    return [*(name for name, program in PROGRAMS.items() if not program.idealised), *BROKEN]


class Session:
    """Records runs of one problem.

    Parameters
    ----------
    problem : Problem
    q, k, v : float arrays of shape (batch, seqlen, heads, head_dim)
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    gpu : Gpu
        Whose SRAM.
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
        gpu: Gpu = H100,
        tokens=None,
        seed: int = 0,
    ):
        self.problem, self.arrays, self.tokens, self.seed = problem, (q, k, v), tokens, seed
        self.gpu = gpu
        self.options = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "sram_bytes": gpu.shared_bytes_per_block,
        }
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
            loaded = Loaded.of(self.record(program, direction, head))
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
        chosen = BROKEN.get(program, program)
        self._check_size(head)
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
        if self.tokens is not None:
            result.log.meta["tokens"] = list(self.tokens)
        return result.log

    def _check_size(self, head: int) -> None:
        if self.problem.seqlen_q < 1:
            raise ValueError("seqlen_q must be at least 1 for a run to step through, got 0")
        tiles = self.options["tile_m"], self.options["tile_n"]
        schedule = Schedule(self.problem, *tiles, 0, head)
        grid = schedule.m_blocks * schedule.n_blocks
        if grid > MOST_TILES:
            raise ValueError(
                f"a run to step through must have a grid of at most {MOST_TILES:,} tiles, got "
                f"{schedule.m_blocks:,} x {schedule.n_blocks:,}: take larger tiles or a shorter "
                "seqlen"
            )
        pairs = int((schedule.kinds() > 0).sum())
        if pairs > MOST_PAIRS:
            raise ValueError(
                f"a run to step through must visit at most {MOST_PAIRS:,} pairs of tiles, got "
                f"{pairs:,}: take larger tiles or a shorter seqlen"
            )

    def _gradient(self) -> np.ndarray:
        p = self.problem
        shape = p.batch, p.seqlen_q, p.num_heads, p.head_dim_v
        return np.random.default_rng(self.seed).standard_normal(shape, np.float32)


class Saved:
    """One run read from a file: nothing is run again, so nothing else can be asked for.

    Parameters
    ----------
    log : EventLog
    """

    def __init__(self, log: EventLog):
        self.loaded = Loaded.of(log)

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
