"""How long blocks wait for their turn at dQ: a model of the Hopper backward kernel, without a GPU.

python benchmarks/order_of_dq.py

Blocks take key tiles from a list, in the order of the list, and add to the dQ of each query tile
that sees the key tile, one query tile a step. Where additions are ordered, a key tile adds to a
query tile only after the one before it has. All times are in steps of five products.
"""

from collections.abc import Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

from flash_numba.kernels.hopper_backward_heads import heads_at_once
from flash_numba.problem import Problem as Attention
from flash_numba.tiling import ceil_div

MULTIPROCESSORS = 132
"""Of an H200: blocks at a time."""
TOKENS, HIDDEN = 16384, 2048
"""Batch times seqlen, and heads times head_dim."""
HANDOVER = 0.7
"""From an addition until the next key tile may add: assumed, some microsecond over L2."""
BETWEEN = 1.0
"""From a key tile's last step to the next one's first: assumed."""
ORDERS = "none", "ascending", "descending", "ascending, last query first"
"""Key tiles add as they come; from the first on; from the last on; from the first on, each starting
with the last query tile. They are taken in that order too, the first one first if there is none."""


class Problem(NamedTuple):
    """A causal problem of `TOKENS` and `HIDDEN`.

    Attributes
    ----------
    seqlen, head_dim : int
    tile_m, tile_n : int
        Queries and keys of a tile.
    """

    seqlen: int
    head_dim: int
    tile_m: int
    tile_n: int = 128

    @property
    def heads(self) -> int:
        """Of the whole batch."""
        return TOKENS // self.seqlen * HIDDEN // self.head_dim

    def work(self, order: str) -> Iterator[tuple[int, list[int]]]:
        """Head and query tiles of each key tile, in the order in which blocks take them."""
        key_tiles, query_tiles = (ceil_div(self.seqlen, n) for n in (self.tile_n, self.tile_m))
        batch, num_heads = TOKENS // self.seqlen, HIDDEN // self.head_dim
        sizes = self.seqlen, self.seqlen, self.head_dim
        whole = Attention(*sizes, batch=batch, num_heads=num_heads, causal=True)
        at_once = heads_at_once(whole, self.tile_n, MULTIPROCESSORS)
        for first_head in range(0, self.heads, at_once):
            for number in range(key_tiles):
                n_block = key_tiles - 1 - number if order == "descending" else number
                queries = list(range(n_block * self.tile_n // self.tile_m, query_tiles))
                if order == ORDERS[3]:
                    queries.reverse()
                for head in range(first_head, min(first_head + at_once, self.heads)):
                    yield head, queries


def time_over_work(problem: Problem, order: str) -> float:
    """Steps until the last block is done, over those of a machine that never waits nor idles."""
    free_at = [0.0] * MULTIPROCESSORS
    heapify(free_at)
    may_add: dict[tuple[int, int], float] = {}
    busy = 0.0
    for head, queries in problem.work(order):
        now = free_at[0] + BETWEEN
        for m_block in queries:
            now += 1
            if order != "none":
                now = max(now, may_add.get((head, m_block), 0.0))
                may_add[head, m_block] = now + HANDOVER
        busy += BETWEEN + len(queries)
        heapreplace(free_at, now)
    return max(free_at) * MULTIPROCESSORS / busy


def table() -> list[str]:
    """Lines of a table: a row for each problem."""
    lines = [f"| head_dim | N | {' | '.join(ORDERS)} |", f"|{'---|' * (2 + len(ORDERS))}"]
    for head_dim, tile_m in ((64, 128), (128, 64)):
        for seqlen in (512, 1024, 2048, 8192):
            problem = Problem(seqlen, head_dim, tile_m)
            cells = [f"{time_over_work(problem, order):.2f}" for order in ORDERS]
            lines.append(f"| {head_dim} | {seqlen} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
