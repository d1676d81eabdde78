"""Sums over the tiles that a group of query heads visits: all that a closed form needs to know.

Causal and window masks let row q see the keys of ``[q + shift - left, q + shift + right]``, so a
query tile visits the key tiles between two ends that only grow from tile to tile: the sums follow
from the ends. For other masks the visited tiles are given.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flash_numba.problem import Problem


@dataclass(frozen=True)
class Visits:
    """Sums over visited pairs (i, j) of a query tile of r_i rows and a key tile of c_j keys.

    Attributes
    ----------
    queries : int
        Rows of Q, all query heads together.
    keys : int
        Keys, counted once a kv head.
    keys_by_head : int
        Keys, counted once a query head; 0 for listed tiles, whose programs do not need it.
    area, row_loads, key_loads : int
        Sums of r·c, of r and of c over all visited pairs of all query heads.
    active_queries : int
        Rows in query tiles that visit some key tile.
    active_keys : int
        Keys, once a kv head, in key tiles that some query tile of some of its heads visits.
    largest : tuple of (int, int)
        Pairs (r, c), one of which is the largest visited pair whatever grows with r and c.
    tile_rows : int
        Rows of the largest query tile, visiting or not.
    """

    queries: int = 0
    keys: int = 0
    keys_by_head: int = 0
    area: int = 0
    row_loads: int = 0
    key_loads: int = 0
    active_queries: int = 0
    active_keys: int = 0
    largest: tuple[tuple[int, int], ...] = ()
    tile_rows: int = 0

    def __add__(self, other: Visits) -> Visits:
        """The sums over both; sets of pairs join."""
        summed: dict[str, Any] = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        summed["tile_rows"] = max(self.tile_rows, other.tile_rows)
        return Visits(**summed)


def range_visits(
    problem: Problem,
    tile_m: int,
    tile_n: int,
    *,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    masked: bool,
) -> Visits:
    """Visits of `heads` alike query heads of sequences with so many queries and keys.

    Under causal and window if `masked`, else of the whole matrix.
    """
    first = np.arange(0, queries, tile_m, dtype=np.int64)
    last = np.minimum(first + tile_m, queries)
    left, right = _sides(problem, queries + keys) if masked else (None, None)
    shift = keys - queries
    low = np.zeros_like(first) if left is None else np.clip(first + shift - left, 0, keys)
    high = np.full_like(last, keys) if right is None else np.clip(last + shift + right, 0, keys)
    start = low // tile_n
    stop = np.where(high > low, -(-high // tile_n), start)
    tiles = stop - start
    cols = np.minimum(stop * tile_n, keys) - start * tile_n
    rows, active = last - first, tiles > 0
    # The ranges of neighbouring rows overlap or touch, so their union has no gap.
    union = 0
    if active.any():
        union = min(int(stop[active][-1]) * tile_n, keys) - int(start[active][0]) * tile_n
    return Visits(
        queries=heads * queries,
        keys=kv_heads * keys,
        keys_by_head=heads * keys,
        area=heads * int(rows @ cols),
        row_loads=heads * int(rows @ tiles),
        key_loads=heads * int(cols.sum()),
        active_queries=heads * int(rows[active].sum()),
        active_keys=kv_heads * union,
        largest=_largest(rows, np.minimum(cols, tile_n)),
        tile_rows=min(tile_m, queries),
    )


def listed_visits(
    problem: Problem, tile_m: int, tile_n: int, *, keys: int, visited: np.ndarray
) -> Visits:
    """Visits of the query heads that share one kv head.

    Parameters
    ----------
    keys : int
        The sequence's own number of keys.
    visited : bool array of shape (heads of the group, query tiles, key tiles)
    """
    queries, heads = problem.seqlen_q, len(visited)
    rows, cols = _sizes(queries, tile_m), _sizes(keys, tile_n)
    visited = visited[:, :, : len(cols)]
    times = visited.sum(axis=0, dtype=np.int64)
    return Visits(
        queries=heads * queries,
        keys=keys,
        area=int(rows @ times @ cols),
        row_loads=int((rows @ times).sum()),
        key_loads=int((times @ cols).sum()),
        active_queries=int((visited.any(axis=2) @ rows).sum()),
        active_keys=int(visited.any(axis=(0, 1)) @ cols),
        largest=_largest(rows, (visited * cols).max(axis=(0, 2), initial=0)),
        tile_rows=min(tile_m, queries),
    )


def _sides(problem: Problem, far: int) -> tuple[int | None, int | None]:
    """Keys seen before and after the own position; `far` reaches every key."""
    left, right = problem.window
    if problem.causal:
        right = 0
    return (
        None if left is None else min(left, far),
        None if right is None else min(right, far),
    )


def _sizes(length: int, tile: int) -> np.ndarray:
    return np.diff(np.minimum(np.arange(0, length + tile, tile, dtype=np.int64), length))


def _largest(rows: np.ndarray, widest: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The widest visited pair among whole query tiles and of the last one, which may be a tail."""
    found = []
    for part in (slice(None, -1), slice(-1, None)):
        if widest[part].any():
            found.append((int(rows[part].max()), int(widest[part].max())))
    return tuple(found)
