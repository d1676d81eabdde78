"""Tiles of 16-bit elements in shared memory that a warp reads by ``ldmatrix``, without conflicts.

A tile lies row after row, each `pitch` elements long (a multiple of 64: 128 bytes, all 32 banks).
``ldmatrix`` reads the same 16-byte chunk of 8 neighbouring rows at once: 8 rows whose chunks lie
one below the other would take the same 4 banks and 8 passes. So chunk c of row r is stored at place
``c ^ (r % 8)`` of its 128 bytes: neighbouring rows have a chunk in 8 different places, and one pass
serves them all. A row written chunk by chunk fills all 32 banks as before. A lane's address changes
from one step along the row to the next by an exclusive or with a constant, and from one step down
the rows by an addition.
"""

from .numba_cuda import room

CHUNK = 8
"""Elements of 16 bytes."""


def pitch_of(depth: int) -> int:
    """Elements from one row of a swizzled tile to the next."""
    return -(-depth // 64) * 64


@room
def swizzled(row, column, pitch):
    """Index of an element of a swizzled tile."""
    return row * pitch + (column ^ (row % 8 * CHUNK))


@room
def lane_of_rows(lane, pitch):
    """Where a lane's row of `ldmatrix_x4` begins, for 16 x 16 elements in the order of A.

    Also for B of a product A @ B out of rows of B, by `ldmatrix_x4_trans`: its registers are then
    two B fragments, (0, 1) and (2, 3), 8 columns apart.
    """
    return swizzled(lane % 16, lane // 16 * CHUNK, pitch)


@room
def lane_of_columns(lane, pitch):
    """The same for B of a product A @ B.T out of 16 rows of B, by `ldmatrix_x4`.

    The registers are two B fragments, (0, 1) and (2, 3), of 8 rows each.
    """
    return swizzled(lane // 16 * 8 + lane % 8, lane // 8 % 2 * CHUNK, pitch)
