"""The two products of a tile, as outer products in registers.

Threads form a grid of row groups and column lanes. Bit 0 and the high bits of a thread's number
choose its row group, the bits between its lane: then each half of a warp needs one pass over
shared memory for a 16-byte load, whether it reads by group or by lane.

A factor is kept where the next instruction finds it: neighbours in the order of the multiply-adds
share an operand, which the register file then need not deliver again (the tile is walked to and
fro, like an ox ploughs a field).
"""

from functools import lru_cache

from .numba_cuda import cuda, room, types
from .ptx import load4
from .unroll import unroll_4, unroll_full, unroll_none


@lru_cache(maxsize=None)
def make_place(lanes: int):
    """Room ``place(tid) -> (row group, lane)`` for `lanes` column lanes (8 or 16)."""

    @room
    def place(tid):
        return tid // (2 * lanes) * 2 + tid % 2, tid // 2 % lanes

    return place


@lru_cache(maxsize=None)
def make_read_column(tile_rows: int):
    """Room ``read_column(rA, sA, i, j)``: ``rA[:] = sA[i, j:j + tile_rows]``, a multiple of 4."""

    @room
    def read_column(rA, sA, i, j):
        for h in range(0, tile_rows, 4):
            unroll_full()
            rA[h], rA[h + 1], rA[h + 2], rA[h + 3] = load4(sA, (i, j + h))

    return read_column


@lru_cache(maxsize=None)
def make_multiply_transposed(tile_rows: int, tile_columns: int, depth: int):
    """Room ``multiply_transposed(rC, sA, sB, row_group, lane)``: ``C = A @ B.T``.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of C.
    depth : int
        Columns of A and B, a multiple of 4.

    Notes
    -----
    `sA` is transposed ``(depth, rows)``, `sB` in grouped rows, one group a lane (see `copies`).
    """
    read_column = make_read_column(tile_rows)

    @room
    def multiply_transposed(rC, sA, sB, row_group, lane):
        rA = cuda.local.array(tile_rows, types.float32)
        rB = cuda.local.array((tile_columns, 4), types.float32)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rC[i, j] = 0
        d = 0
        while d < depth:
            unroll_4()
            for j in range(tile_columns):
                unroll_full()
                rB[j, 0], rB[j, 1], rB[j, 2], rB[j, 3] = load4(sB, (lane, j * depth + d))
            for e in range(4):
                unroll_full()
                read_column(rA, sA, d + e, row_group * tile_rows)
                for j in range(tile_columns):
                    unroll_full()
                    for h in range(tile_rows):
                        unroll_full()
                        i = h if j % 2 == 0 else tile_rows - 1 - h
                        rC[i, j] += rA[i] * rB[j, e]
            d += 4

    return multiply_transposed


@lru_cache(maxsize=None)
def make_multiply_add(tile_rows: int, tile_columns: int, lanes: int, group: int, depth: int):
    """Room ``multiply_add(rC, sA, sB, row_group, lane)``: ``C += A @ B``.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of C; its columns are spread over the lanes in chunks of 4.
    lanes, group : int
        The inner axis has ``lanes * group`` elements.
    depth : int
        Columns of B.

    Notes
    -----
    `sA` is ``(lanes, group * rows + 4)``: inner element r, row i at ``[r // group, r % group * rows
    + i]``; `sB` is in grouped rows of `group`.
    """
    read_column = make_read_column(tile_rows)

    @room
    def multiply_add(rC, sA, sB, rows, row_group, lane):
        rA = cuda.local.array(tile_rows, types.float32)
        rB = cuda.local.array(4, types.float32)
        y = 0
        while y < lanes:
            unroll_none()
            for r in range(group):
                unroll_full()
                read_column(rA, sA, y, r * rows + row_group * tile_rows)
                for c in range(0, tile_columns, 4):
                    unroll_full()
                    rB[0], rB[1], rB[2], rB[3] = load4(sB, (y, r * depth + 4 * lane + lanes * c))
                    for j in range(4):
                        unroll_full()
                        for h in range(tile_rows):
                            unroll_full()
                            i = h if j % 2 == 0 else tile_rows - 1 - h
                            rC[i, c + j] += rA[i] * rB[j]
            y += 1

    return multiply_add


@lru_cache(maxsize=None)
def make_share(tile_rows: int, tile_columns: int):
    """Room ``share(sP, rP, rows, row_group, lane)``: a thread's tile where `multiply_add` reads it.

    Only lanes of the own warp read it: ``cuda.syncwarp()`` before and after is enough.
    """
    from .ptx import store4

    @room
    def share(sP, rP, rows, row_group, lane):
        for j in range(tile_columns):
            unroll_full()
            for i in range(0, tile_rows, 4):
                unroll_full()
                four = (rP[i, j], rP[i + 1, j], rP[i + 2, j], rP[i + 3, j])
                store4(sP, (lane, j * rows + row_group * tile_rows + i), four)

    return share
