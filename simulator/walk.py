"""How programs walk: grids of thread blocks, and the tiles that a block visits.

Every walk follows the `Schedule` that the kernels use too. When only counts are wanted,
neighbouring tiles of one size and class are walked once and counted as often as they occur.
"""

from __future__ import annotations

from collections.abc import Iterator

from flash_numba.problem import Problem
from flash_numba.tiling import PARTIAL, Run, Schedule

from .ledger import Ledger


class Walk:
    """Where a program stands: kernel, block, head, query tile, key tile.

    Parameters
    ----------
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    batch : int
        Which sequence.
    heads : sequence of int
        Query heads that share one kv head.
    count_runs : bool
        Walk runs of alike tiles once.
    """

    def __init__(
        self, problem: Problem, tile_m: int, tile_n: int, batch: int, heads, count_runs: bool
    ):
        self.problem, self.batch, self.heads = problem, batch, tuple(heads)
        self.count_runs = count_runs
        self.ledger = Ledger()
        shared = problem.mask is None and problem.block_mask is None
        first = Schedule(problem, tile_m, tile_n, batch, self.heads[0])
        self.schedules = [
            first
            if shared or head == self.heads[0]
            else Schedule(problem, tile_m, tile_n, batch, head)
            for head in self.heads
        ]
        self.tile_m, self.tile_n = first.tile_m, first.tile_n
        self.seqlen_q, self.seqlen_k = first.seqlen_q, first.seqlen_k
        self.all_rows, self.all_cols = slice(0, self.seqlen_q), slice(0, self.seqlen_k)
        self.kernels: list[str] = []
        self._block, self._head, self._m_block, self._n_block = -1, -1, -1, -1
        self._kind = PARTIAL
        self._last_query_runs: tuple[tuple[int, int], list[Run]] = (-1, -1), []

    def end_block(self) -> None:
        """Called when a block is done."""

    def end_step(self) -> None:
        """Called when the work on a pair of tiles is done."""

    def kernel(self, name: str) -> None:
        """A new kernel begins."""
        self.kernels.append(name)
        self._block = -1

    def kv_head_grid(self) -> Iterator[range]:
        """One block for the kv head: the query heads that share it."""
        with _Block(self):
            yield range(len(self.heads))

    def head_grid(self) -> Iterator[int]:
        """One block per query head."""
        for head in range(len(self.heads)):
            with _Block(self, head):
                yield head

    def query_tile_grid(self) -> Iterator[tuple[int, int, slice]]:
        """One block per query head and query tile: (head, m_block, rows)."""
        for head, schedule in enumerate(self.schedules):
            for m_block in range(schedule.m_blocks):
                with _Block(self, head, m_block):
                    yield head, m_block, schedule.rows(m_block)

    def key_tile_grid(self) -> Iterator[tuple[int, slice]]:
        """One block per key tile: (n_block, cols)."""
        schedule = self.schedules[0]
        for n_block in range(schedule.n_blocks):
            with _Block(self, -1, -1, n_block):
                yield n_block, schedule.cols(n_block)

    def row_grid(self) -> Iterator[tuple[int, slice]]:
        """One block per query head and query tile, whatever the mask: (head, rows)."""
        for head in range(len(self.heads)):
            for m_block, times in self._all_m_blocks():
                with _Block(self, head, m_block, -1, times):
                    yield head, self.schedules[0].rows(m_block)

    def column_grid(self) -> Iterator[slice]:
        """One block per key tile, whatever the mask: cols."""
        for n_block, times in self._all_n_blocks():
            with _Block(self, -1, -1, n_block, times):
                yield self.schedules[0].cols(n_block)

    def tile_grid(self) -> Iterator[tuple[int, slice, slice]]:
        """One block per query head and pair of tiles, whatever the mask: (head, rows, cols)."""
        schedule = self.schedules[0]
        for head in range(len(self.heads)):
            for m_block, m_times in self._all_m_blocks():
                for n_block, n_times in self._all_n_blocks():
                    with _Block(self, head, m_block, n_block, m_times * n_times):
                        yield head, schedule.rows(m_block), schedule.cols(n_block)

    def key_tiles(self, head: int, m_block: int) -> Iterator[tuple[int, slice]]:
        """Key tiles that query tile `m_block` visits: (n_block, cols)."""
        schedule = self.schedules[head]
        for start, stop, kind in self._merged(schedule.key_runs(m_block)):
            for n_block, times in self._steps(start, stop, self.seqlen_k, self.tile_n):
                with _Step(self, n_block=n_block, times=times, kind=kind):
                    yield n_block, schedule.cols(n_block)

    def query_tiles(self, head: int, n_block: int) -> Iterator[tuple[int, slice]]:
        """Query tiles that visit key tile `n_block`: (m_block, rows)."""
        schedule = self.schedules[head]
        for start, stop, kind in self._merged(self._query_runs(head, n_block)):
            for m_block, times in self._steps(start, stop, self.seqlen_q, self.tile_m):
                with _Step(self, head=head, m_block=m_block, times=times, kind=kind):
                    yield m_block, schedule.rows(m_block)

    def all_key_tiles(self) -> Iterator[tuple[int, slice]]:
        """Every key tile, visited or not: (n_block, cols)."""
        for n_block, times in self._all_n_blocks():
            with _Step(self, n_block=n_block, times=times):
                yield n_block, self.schedules[0].cols(n_block)

    def all_query_tiles(self, head: int) -> Iterator[tuple[int, slice]]:
        """Every query tile, visited or not: (m_block, rows)."""
        for m_block, times in self._all_m_blocks():
            with _Step(self, head=head, m_block=m_block, times=times):
                yield m_block, self.schedules[0].rows(m_block)

    def outer_key_tiles(self) -> Iterator[tuple[int, slice]]:
        """Every key tile in turn, for a block that walks `query_tiles` inside: (n_block, cols)."""
        for n_block in range(self.schedules[0].n_blocks):
            with _Step(self, n_block=n_block, times=1):
                yield n_block, self.schedules[0].cols(n_block)

    def sees_keys(self, head: int, m_block: int) -> bool:
        """True if query tile `m_block` visits any key tile."""
        return bool(self.schedules[head].key_runs(m_block))

    def is_seen(self, n_block: int, heads=None) -> bool:
        """True if key tile `n_block` is visited, by any of `heads` (default: all of the group)."""
        heads = range(len(self.heads)) if heads is None else heads
        return any(self._query_runs(head, n_block) for head in heads)

    def _query_runs(self, head: int, n_block: int) -> list[Run]:
        schedule = self.schedules[head]
        key = id(schedule), n_block
        if self._last_query_runs[0] != key:
            self._last_query_runs = key, schedule.query_runs(n_block)
        return self._last_query_runs[1]

    def _merged(self, runs: list[Run]) -> list[Run]:
        """In counting mode neighbouring runs as one: what is masked makes no difference there."""
        if not self.count_runs:
            return runs
        merged: list[Run] = []
        for run in runs:
            if merged and merged[-1].stop == run.start:
                run = Run(merged.pop().start, run.stop, PARTIAL)
            merged.append(run)
        return merged

    def _all_m_blocks(self) -> Iterator[tuple[int, int]]:
        return self._steps(0, self.schedules[0].m_blocks, self.seqlen_q, self.tile_m)

    def _all_n_blocks(self) -> Iterator[tuple[int, int]]:
        return self._steps(0, self.schedules[0].n_blocks, self.seqlen_k, self.tile_n)

    def _steps(self, start: int, stop: int, seqlen: int, tile: int) -> Iterator[tuple[int, int]]:
        """Blocks of a run, or in counting mode one for all that are alike: (block, times)."""
        if not self.count_runs:
            for block in range(start, stop):
                yield block, 1
            return
        whole = min(stop, seqlen // tile)
        if whole > start:
            yield start, whole - start
        if stop > max(whole, start):
            yield stop - 1, 1


class _Block:
    """One thread block: where it stands, its own SRAM, and the checks at its end."""

    __slots__ = ("machine", "head", "m_block", "n_block", "times")

    def __init__(self, machine, head=-1, m_block=-1, n_block=-1, times=1):
        self.machine, self.times = machine, times
        self.head, self.m_block, self.n_block = head, m_block, n_block

    def __enter__(self):
        machine = self.machine
        machine._block += 1
        machine._head, machine._m_block, machine._n_block = self.head, self.m_block, self.n_block
        machine.ledger.times = self.times
        machine._kind = PARTIAL

    def __exit__(self, kind, error, trace):
        self.machine.ledger.times = 1
        if kind is None:
            self.machine.end_block()


class _Step:
    """One step of a walk inside a block; restores the position when it is done."""

    __slots__ = ("machine", "before", "after")

    def __init__(self, machine, times, kind=PARTIAL, head=None, m_block=None, n_block=None):
        self.machine = machine
        now = (
            machine._head,
            machine._m_block,
            machine._n_block,
            machine._kind,
            machine.ledger.times,
        )
        self.before = now
        self.after = (
            now[0] if head is None else head,
            now[1] if m_block is None else m_block,
            now[2] if n_block is None else n_block,
            kind,
            now[4] * times,
        )

    def _set(self, state):
        machine = self.machine
        machine._head, machine._m_block, machine._n_block, machine._kind, times = state
        machine.ledger.times = times

    def __enter__(self):
        self._set(self.after)

    def __exit__(self, kind, error, trace):
        machine = self.machine
        if kind is None and machine._m_block >= 0 and machine._n_block >= 0:
            machine.end_step()
        self._set(self.before)
