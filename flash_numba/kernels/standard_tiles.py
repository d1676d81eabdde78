"""Tile sizes of the standard rung, and its matrices in GPU memory."""

import math
from typing import NamedTuple

from ..arrays import DeviceArray
from ..problem import Problem
from .spec import padded

LANES, THREAD_ROWS = 8, 4
"""Threads side by side along the columns of a tile, and rows of a thread."""


class SquareTiles(NamedTuple):
    """Tiles of `tile` queries and `tile` keys, shared by ``2 * tile`` threads.

    Attributes
    ----------
    tile : int
        64, 32 or 16.
    """

    tile: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile // THREAD_ROWS * LANES

    @property
    def thread_n(self) -> int:
        """Columns of a thread's part of a tile of S."""
        return self.tile // LANES

    def depth(self, head_dim: int) -> int:
        """`head_dim` padded to what the threads share evenly."""
        return padded(head_dim, 4 * LANES)

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory of a block of the product kernels, the most that any needs."""
        gaps = max(self.tile, 4 * LANES)  # of grouped rows
        depth = self.depth(head_dim)
        return 4 * (self.tile * depth + gaps + self.tile * max(depth, self.tile) + gaps)

    @property
    def sums_bytes(self) -> int:
        """Shared memory for as many sums of each thread as it has scores (see `aux_sums`)."""
        return 4 * self.tile * self.tile

    def terms_at_once(self, own_keys: bool, own_queries: bool) -> int:
        """Terms that those sums serve, where keys and queries need some of their own."""
        keys, queries = THREAD_ROWS if own_keys else 1, self.thread_n if own_queries else 1
        return THREAD_ROWS * self.thread_n // (keys * queries)


def square_tiles(head_dim: int, head_dim_v: int, shared_bytes: int) -> SquareTiles:
    """The largest tiles on a GPU with `shared_bytes` a block.

    Raises
    ------
    ValueError
        If a head dimension is above 256.
    """
    widest = max(head_dim, head_dim_v)
    if widest > 256:
        raise ValueError(
            f"head_dim and head_dim_v must be at most 256, got {head_dim} and {head_dim_v}"
        )
    for tile in (64, 32, 16):
        tiles = SquareTiles(tile)
        if tiles.shared_bytes(widest) <= shared_bytes:
            return tiles
    raise ValueError(
        f"head_dim={head_dim} and head_dim_v={head_dim_v} need "
        f"more shared memory a block than the {shared_bytes} bytes of this GPU"
    )


def matrix_bytes(problem: Problem) -> int:
    """Bytes of S, or another (batch, num_heads, seqlen_q, seqlen_k) matrix, in float32.

    Rows are padded to 16 bytes.
    """
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    return 4 * rows * padded(problem.seqlen_k, 4)


def matrix(pointer: int, problem: Problem) -> DeviceArray:
    """Such a matrix."""
    shape = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
    stored = *shape[:3], padded(problem.seqlen_k, 4)
    strides = tuple(4 * math.prod(stored[axis + 1 :]) for axis in range(4))
    return DeviceArray(pointer, shape, strides, "fp32")
