"""Which key tiles a query tile visits, and what a tile needs on chip.

`make_key_tiles` builds the function that answers the first question. The simulator calls it on
arrays of query tiles, a kernel compiles it and calls it on its own: one schedule for both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from . import fn
from .checks import LARGEST, index, shown, whole
from .masks import Mask
from .problem import Problem, check_problem
from .scores import evaluate, range_on_arrays

SKIPPED, PARTIAL, FULL = 0, 1, 2
"""A tile's class: never visited, visited with masking, visited whole."""


class KeyTiles(NamedTuple):
    """Key tiles of a query tile: visit [start, stop); [full_start, full_stop) need no mask.

    ``start <= full_start <= full_stop <= stop`` always holds. Whole numbers; arrays of them where
    the question was about an array of query tiles.
    """

    start: Any
    full_start: Any
    full_stop: Any
    stop: Any


@cache
def make_key_tiles(key_range: Callable | None, exact: bool) -> Callable:
    """The function that gives a query tile's `KeyTiles` under a mask.

    Parameters
    ----------
    key_range, exact
        As in `masks.Mask`. Kernels pass the compiled device function of `key_range`.

    Returns
    -------
    callable
        ``key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)``; `m_block` is
        a number or an array, `seqlen_k` the sequence's own number of keys. A row's range may lie
        outside the sequence; it is clipped here.
    """

    def key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux):
        tiles = (seqlen_k + tile_n - 1) // tile_n
        if key_range is None:
            first_lo, first_hi, last_lo, last_hi = 0, seqlen_k, 0, seqlen_k
        else:
            first_row = m_block * tile_m
            last_row = fn.minimum(first_row + tile_m, seqlen_q) - 1
            first_lo, first_hi = key_range(batch, head, first_row, aux)
            last_lo, last_hi = key_range(batch, head, last_row, aux)
        # Visited: from the first row's first key to the last row's last one.
        lo = fn.minimum(fn.maximum(first_lo, 0), seqlen_k)
        hi = fn.minimum(fn.maximum(last_hi, lo), seqlen_k)
        start = lo // tile_n
        stop = fn.where(hi > lo, (hi + tile_n - 1) // tile_n, start)
        if not exact:
            return KeyTiles(start, start, start, stop)
        # Full: seen by all rows. The tail tile counts as ending where the sequence ends.
        full_lo = fn.maximum(last_lo, 0)
        full_hi = fn.where(first_hi >= seqlen_k, tiles * tile_n, fn.maximum(first_hi, 0))
        full_start = fn.minimum(fn.maximum((full_lo + tile_n - 1) // tile_n, start), stop)
        full_stop = fn.minimum(fn.maximum(full_hi // tile_n, full_start), stop)
        return KeyTiles(start, full_start, full_stop, stop)

    return key_tiles


@cache
def make_query_span(key_range: Callable | None) -> Callable:
    """The function that bounds the query tiles that visit a key tile.

    Parameters
    ----------
    key_range
        As in `masks.Mask`. Kernels pass the compiled device function.

    Returns
    -------
    callable
        ``query_span(n_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)`` gives
        ``(start, stop)``: every query tile that visits key tile `n_block` lies in [start, stop).
        Found by bisection, as both ends of `key_range` never decrease.
    """

    def query_span(n_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux):
        blocks = (seqlen_q + tile_m - 1) // tile_m
        if key_range is None:
            return 0, blocks
        start, above = 0, blocks
        while start < above:  # first tile whose last row sees past the key tile's first key
            middle = (start + above) // 2
            row = fn.minimum((middle + 1) * tile_m, seqlen_q) - 1
            if key_range(batch, head, row, aux)[1] > n_block * tile_n:
                above = middle
            else:
                start = middle + 1
        stop, above = start, blocks
        while stop < above:  # first tile whose first row begins past the key tile's last key
            middle = (stop + above) // 2
            if key_range(batch, head, middle * tile_m, aux)[0] >= (n_block + 1) * tile_n:
                above = middle
            else:
                stop = middle + 1
        return start, stop

    return query_span


def ceil_div(a: int, b: int) -> int:
    """Tiles of size `b` that cover `a` elements."""
    return -(-a // b)


@dataclass(frozen=True, eq=False)
class BlockMask:
    """A list of visited tiles for a mask that has no key range, made once and used often.

    Attributes
    ----------
    mask : Mask
        The mask that partial tiles still apply.
    tile_m, tile_n : int
        Tile sizes that the list was made for.
    kinds : int8 array of shape (batch or 1, heads or 1, query tiles, key tiles)
        SKIPPED, PARTIAL or FULL.
    """

    mask: Mask
    tile_m: int
    tile_n: int
    kinds: np.ndarray

    @classmethod
    def from_mask(
        cls,
        mask: Mask,
        problem: Problem,
        tile_m: int,
        tile_n: int,
        *,
        batches: int = 1,
        heads: int = 1,
    ) -> "BlockMask":
        """Evaluate `mask` on every pair of positions and class every tile.

        `batches` and `heads` are 1 where the mask does not depend on them. With one entry a
        sequence, keys beyond its own length do not count. Needs time (not memory) proportional to
        seqlen_q * seqlen_k.
        """
        check_problem(problem)
        if not isinstance(mask, Mask):
            raise TypeError(f"mask must be a Mask, got {shown(mask)}")
        tile_m, tile_n = (
            whole(name, size, 1, LARGEST) for name, size in (("tile_m", tile_m), ("tile_n", tile_n))
        )
        for name, count, most in (
            ("batches", batches, problem.batch),
            ("heads", heads, problem.num_heads),
        ):
            if whole(name, count, 0) not in (1, most):
                raise ValueError(f"{name} must be 1 or {most} (the problem's), got {count}")
        result = cls(mask, tile_m, tile_n, np.zeros((batches, heads, 0, 0), np.int8))
        kinds = np.full((batches, heads, *result.grid(problem)), SKIPPED, np.int8)
        for batch, head, m_block in np.ndindex(kinds.shape[:3]):
            seqlen_k = problem.key_length(batch) if batches == problem.batch else problem.seqlen_k
            starts = np.arange(0, seqlen_k, tile_n)
            if starts.size == 0:
                continue
            rows = np.arange(m_block * tile_m, min((m_block + 1) * tile_m, problem.seqlen_q))
            where = batch, head, rows[:, None], np.arange(seqlen_k)[None, :]
            keep = evaluate(f"mask {mask.name!r}", mask.keep, *where, aux=mask.aux)
            keep = np.broadcast_to(np.asarray(keep, bool), (rows.size, seqlen_k))
            some = np.logical_or.reduceat(keep.any(axis=0), starts)
            every = np.logical_and.reduceat(keep.all(axis=0), starts)
            found = np.where(every, FULL, np.where(some, PARTIAL, SKIPPED))
            kinds[batch, head, m_block, : starts.size] = found
        return replace(result, kinds=kinds)

    def grid(self, problem: Problem) -> tuple[int, int]:
        """Query tiles and key tiles that cover a problem."""
        return ceil_div(problem.seqlen_q, self.tile_m), ceil_div(problem.seqlen_k, self.tile_n)

    def check_tiles(self, tile_m: int, tile_n: int) -> None:
        """Raise a ValueError unless the list was made for these tile sizes."""
        if (self.tile_m, self.tile_n) != (tile_m, tile_n):
            raise ValueError(
                f"block_mask was made for tiles of {self.tile_m}x{self.tile_n}, "
                f"got tile_m={tile_m} and tile_n={tile_n}"
            )

    def tile_kinds(self, batch: int, head: int) -> np.ndarray:
        """The (query tiles, key tiles) classes of one head."""
        batches, heads = self.kinds.shape[:2]
        return self.kinds[batch if batches > 1 else 0, head if heads > 1 else 0]


class Run(NamedTuple):
    """Neighbouring tiles of one class: blocks [start, stop)."""

    start: int
    stop: int
    kind: int


class Schedule:
    """The tiles that one head visits, in the order in which programs and kernels visit them.

    Parameters
    ----------
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    batch, head : int
        Which sequence and query head.

    Attributes
    ----------
    seqlen_q, seqlen_k : int
        Queries, and the sequence's own number of keys.
    m_blocks, n_blocks : int
        Query tiles and key tiles that cover them.
    """

    def __init__(self, problem: Problem, tile_m: int, tile_n: int, batch: int = 0, head: int = 0):
        check_problem(problem)
        self.tile_m = whole("tile_m", tile_m, 1, LARGEST)
        self.tile_n = whole("tile_n", tile_n, 1, LARGEST)
        batch = index("batch", batch, problem.batch)
        head = index("head", head, problem.num_heads)
        self.seqlen_q = problem.seqlen_q
        self.seqlen_k = problem.key_length(batch)
        self.m_blocks = ceil_div(self.seqlen_q, self.tile_m)
        self.n_blocks = ceil_div(self.seqlen_k, self.tile_n)
        mask = problem.range_mask
        key_range = None
        if mask is not None and mask.key_range is not None:
            key_range = range_on_arrays(mask.key_range)
        given = problem.mask  # causal and window are known to be monotone
        if given is not None and given.key_range is not None:
            rows = np.arange(self.seqlen_q)
            ends = range_on_arrays(given.key_range)(batch, head, rows, given.aux)
            _check_monotone(given.name, ends)
        key_tiles = make_key_tiles(key_range, mask is None or mask.exact)
        sizes = self.seqlen_q, self.seqlen_k, self.tile_m, self.tile_n
        m_block = np.arange(self.m_blocks)
        found = key_tiles(m_block, batch, head, *sizes, mask.aux if mask else ())
        self._tiles = KeyTiles(*(np.broadcast_to(column, self.m_blocks) for column in found))
        self._listed = None
        if problem.block_mask is not None:
            problem.block_mask.check_tiles(self.tile_m, self.tile_n)
            listed = problem.block_mask.tile_kinds(batch, head)
            self._listed = listed[: self.m_blocks, : self.n_blocks]

    def rows(self, m_block: int) -> slice:
        """Valid rows of a query tile."""
        return slice(m_block * self.tile_m, min((m_block + 1) * self.tile_m, self.seqlen_q))

    def cols(self, n_block: int) -> slice:
        """Valid rows of a key tile (columns of S)."""
        return slice(n_block * self.tile_n, min((n_block + 1) * self.tile_n, self.seqlen_k))

    def key_runs(self, m_block: int) -> list[Run]:
        """Key tiles that query tile `m_block` visits, as runs of one class, in order."""
        start, full_start, full_stop, stop = (int(column[m_block]) for column in self._tiles)
        if self._listed is not None:
            kinds = np.full(self.n_blocks, SKIPPED, np.int8)
            kinds[start:stop] = PARTIAL
            kinds[full_start:full_stop] = FULL
            return _runs(np.minimum(kinds, self._listed[m_block]))
        runs = (
            Run(start, full_start, PARTIAL),
            Run(full_start, full_stop, FULL),
            Run(full_stop, stop, PARTIAL),
        )
        return [run for run in runs if run.stop > run.start]

    def query_runs(self, n_block: int) -> list[Run]:
        """Query tiles that visit key tile `n_block`, as runs of one class, in order."""
        start, full_start, full_stop, stop = self._tiles
        visited = (start <= n_block) & (n_block < stop)
        full = (full_start <= n_block) & (n_block < full_stop)
        kinds = visited.astype(np.int8) + full  # SKIPPED, PARTIAL, FULL = 0, 1, 2
        if self._listed is not None:
            kinds = np.minimum(kinds, self._listed[:, n_block])
        return _runs(kinds)

    def kinds(self) -> np.ndarray:
        """The class of every tile: int8 array of shape (query tiles, key tiles)."""
        grid = np.full((self.m_blocks, self.n_blocks), SKIPPED, np.int8)
        for m_block in range(self.m_blocks):
            for start, stop, kind in self.key_runs(m_block):
                grid[m_block, start:stop] = kind
        return grid


def _runs(kinds: np.ndarray) -> list[Run]:
    edges = np.flatnonzero(np.diff(kinds)) + 1
    bounds = [0, *edges.tolist(), len(kinds)]
    return [Run(a, b, int(kinds[a])) for a, b in pairwise(bounds) if b > a and kinds[a] != SKIPPED]


def _check_monotone(name: str, ends) -> None:
    for end in ends:
        falls = np.flatnonzero(np.diff(end) < 0) if np.ndim(end) else np.empty(0)
        if falls.size:
            raise ValueError(
                f"key_range of mask {name!r} must not decrease as q_idx grows, "
                f"got a fall between rows {falls[0]} and {falls[0] + 1}"
            )
