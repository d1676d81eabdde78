"""Where the tiles of a step lie in a block's shared memory."""

import math
from typing import NamedTuple

from ..spec import ForwardTiles


class Layout(NamedTuple):
    """Arrays one after the other.

    Attributes
    ----------
    shapes : tuple of tuples of int
    starts : tuple of int
        Where each begins, in floats.
    bytes : int
        Of all together.
    """

    shapes: tuple
    starts: tuple
    bytes: int

    @classmethod
    def of(cls, *shapes: tuple[int, int]) -> "Layout":
        """The layout of float32 arrays of these shapes."""
        sizes = [math.prod(shape) for shape in shapes]
        starts = tuple(sum(sizes[:i]) for i in range(len(sizes)))
        return cls(shapes, starts, 4 * sum(sizes))


def grouped_rows(tiles: ForwardTiles) -> Layout:
    """sQ, sK, sV and sP, all in grouped rows (see `device.copies`)."""
    row_groups = tiles.threads // tiles.lanes
    return Layout.of(
        (row_groups, tiles.thread_m * tiles.depth + 4),
        (tiles.lanes, tiles.thread_n * tiles.depth + 4),
        (tiles.lanes, tiles.thread_n * tiles.depth_v + 4),
        (row_groups, tiles.thread_m * tiles.tile_n + 4),
    )
