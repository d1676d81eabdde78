"""The two products of a tile as dot products of rows: what steps 4 and 5 have and flash2 replaces.

Both factors of S = Q Kᵀ, and P, lie in shared memory in grouped rows (see `device.copies`). A
thread reads four neighbours of a row at a time: as many words as an outer product reads, but a
factor of a multiply-add is never the one that the instruction before had.
"""

from functools import cache

from ...device.numba_cuda import cuda, room, types
from ...device.ptx import load4, store4
from ...device.unroll import unroll_full, unroll_none


@cache
def make_multiply_rows(tile_rows: int, tile_columns: int, depth: int):
    """Room ``multiply_rows(rC, sA, sB, row_group, lane)``: ``C = A @ B.T``.

    `sA` in grouped rows of `tile_rows`, `sB` of `tile_columns`; `depth` their columns.
    """

    @room
    def multiply_rows(rC, sA, sB, row_group, lane):
        rA = cuda.local.array((tile_rows, 4), types.float32)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rC[i, j] = 0
        d = 0
        while d < depth:
            unroll_none()
            for i in range(tile_rows):
                unroll_full()
                rA[i, 0], rA[i, 1], rA[i, 2], rA[i, 3] = load4(sA, (row_group, i * depth + d))
            for j in range(tile_columns):
                unroll_full()
                b0, b1, b2, b3 = load4(sB, (lane, j * depth + d))
                for i in range(tile_rows):
                    unroll_full()
                    rC[i, j] += rA[i, 0] * b0
                    rC[i, j] += rA[i, 1] * b1
                    rC[i, j] += rA[i, 2] * b2
                    rC[i, j] += rA[i, 3] * b3
            d += 4

    return multiply_rows


@cache
def make_multiply_add_rows(tile_rows: int, tile_columns: int, lanes: int, group: int, depth: int):
    """Room ``multiply_add_rows(rC, sA, sB, row_group, lane)``: ``C += A @ B``.

    `sA` in grouped rows of `tile_rows` and ``lanes * group`` columns, `sB` in grouped rows of
    `group` and `depth` columns; C's columns are spread over the lanes in chunks of 4.
    """
    inner = lanes * group

    @room
    def multiply_add_rows(rC, sA, sB, row_group, lane):
        rA = cuda.local.array((tile_rows, 4), types.float32)
        n = 0
        while n < inner:
            unroll_none()
            for i in range(tile_rows):
                unroll_full()
                rA[i, 0], rA[i, 1], rA[i, 2], rA[i, 3] = load4(sA, (row_group, i * inner + n))
            for r in range(4):
                unroll_full()
                row = n + r
                for c in range(0, tile_columns, 4):
                    unroll_full()
                    column = row % group * depth + 4 * lane + lanes * c
                    b0, b1, b2, b3 = load4(sB, (row // group, column))
                    for i in range(tile_rows):
                        unroll_full()
                        rC[i, c] += rA[i, r] * b0
                        rC[i, c + 1] += rA[i, r] * b1
                        rC[i, c + 2] += rA[i, r] * b2
                        rC[i, c + 3] += rA[i, r] * b3
            n += 4

    return multiply_add_rows


@cache
def make_share_rows(tile_rows: int, tile_columns: int, lanes: int):
    """Room ``share_rows(sP, rP, row_group, lane)``: a thread's tile in grouped rows."""
    inner = lanes * tile_columns

    @room
    def share_rows(sP, rP, row_group, lane):
        for i in range(tile_rows):
            unroll_full()
            for j in range(0, tile_columns, 4):
                unroll_full()
                four = (rP[i, j], rP[i, j + 1], rP[i, j + 2], rP[i, j + 3])
                store4(sP, (row_group, i * inner + lane * tile_columns + j), four)

    return share_rows
