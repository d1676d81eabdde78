"""The two products of flash2's forward pass, their operands read one step ahead.

A step is one outer product: a column of A times a column, or row, of B. While its multiply-adds
run, the operands of the next step are on their way from shared memory into the other of two sets
of registers, also across the turns of a loop. Layouts and order of the multiply-adds are those of
`products`.
"""

from functools import cache

from .column_copies import column_width, make_skew
from .numba_cuda import cuda, room, types
from .ptx import load4
from .unroll import unroll_2, unroll_4, unroll_full, unroll_none

EARLY = 8
"""Columns of B that a step of `make_multiply_add_ahead` finds in registers; it reads the rest."""


@cache
def make_read_side(count: int):
    """Room ``read_side(rX, side, sX, i, j)``: ``rX[side, :count] = sX[i, j:j + count]``."""

    @room
    def read_side(rX, side, sX, i, j):
        for h in range(0, count, 4):
            unroll_full()
            four = load4(sX, (i, j + h))
            rX[side, h], rX[side, h + 1], rX[side, h + 2], rX[side, h + 3] = four

    return read_side


@cache
def make_read_chunks(start: int, stop: int, lanes: int):
    """Room ``read_chunks(rX, side, sX, i, j)``: columns start to stop of a lane's part of a row.

    ``rX[side, c:c + 4] = sX[i, j + lanes * c:][:4]`` for every fourth c.
    """

    @room
    def read_chunks(rX, side, sX, i, j):
        for c in range(start, stop, 4):
            unroll_full()
            four = load4(sX, (i, j + lanes * c))
            rX[side, c], rX[side, c + 1], rX[side, c + 2], rX[side, c + 3] = four

    return read_chunks


@cache
def make_multiply_columns(tile_rows: int, tile_columns: int, depth: int, lanes: int):
    """Room ``multiply_columns(rC, sA, sB, row_group, lane)``: ``C = A @ B.T``, both transposed.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of C, multiples of 4.
    depth : int
        Columns of A and B, a multiple of 4.
    lanes : int
        Threads side by side in a row of C.

    Notes
    -----
    The same sums in the same order as `products.make_multiply_transposed`. `sA` is
    ``(depth, rows)``, `sB` lies as `column_copies` puts it. A step takes few registers, and the
    compiler then finds some that one cycle can deliver together.
    """
    read_a, read_b = make_read_side(tile_rows), make_read_side(tile_columns)
    skewed = make_skew(tile_columns)
    width, fours = column_width(lanes * tile_columns, tile_columns), depth // 4
    write_out = unroll_4 if tile_columns < tile_rows else unroll_2

    @room
    def multiply_columns(rC, sA, sB, row_group, lane):
        rA = cuda.local.array((2, tile_rows), types.float32)
        rB = cuda.local.array((2, tile_columns), types.float32)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rC[i, j] = 0
        row, column = row_group * tile_rows, skewed(lane * tile_columns)
        read_a(rA, 0, sA, 0, row)
        read_b(rB, 0, sB, 0, column)
        four = 0
        while four < fours:
            write_out()
            for e in range(4):
                unroll_full()
                now, then = e % 2, (e + 1) % 2
                ahead = four if e < 3 else min(four + 1, fours - 1)  # the last step reads in vain
                read_a(rA, then, sA, 4 * ahead + (e + 1) % 4, row)
                read_b(rB, then, sB, ahead, (e + 1) % 4 * width + column)
                for j in range(tile_columns):
                    unroll_full()
                    for h in range(tile_rows):
                        unroll_full()
                        i = h if j % 2 == 0 else tile_rows - 1 - h
                        rC[i, j] += rA[now, i] * rB[now, j]
            four += 1

    return multiply_columns


@cache
def make_multiply_add_ahead(
    tile_rows: int, tile_columns: int, lanes: int, group: int, depth: int, parts: int
):
    """Rooms ``read_first`` and ``multiply_add``: ``C += A @ B``.

    Parameters and layouts are those of `products.make_multiply_add`; `group` is even.

    Notes
    -----
    ``multiply_add(rC, rA, rB, sA, sB, rows, row_group, lane, part)`` does one of `parts` equal
    parts of the inner axis. It finds its first operands in the registers `rA` (2, tile_rows) and
    `rB` (2, tile_columns), and leaves those of the next part there;
    ``read_first(rA, rB, sA, sB, row_group, lane)`` reads the first part's.
    """
    early = min(EARLY, tile_columns)
    read_a, read_early = make_read_side(tile_rows), make_read_chunks(0, early, lanes)
    read_late = make_read_chunks(early, tile_columns, lanes)
    last = lanes - 1

    @room
    def read_first(rA, rB, sA, sB, row_group, lane):
        read_a(rA, 0, sA, 0, row_group * tile_rows)
        read_early(rB, 0, sB, 0, 4 * lane)

    @room
    def multiply_add(rC, rA, rB, sA, sB, rows, row_group, lane, part):
        row, column = row_group * tile_rows, 4 * lane
        y = types.int64(part * (lanes // parts))
        stop = y + lanes // parts
        while y < stop:
            unroll_none()
            for r in range(group):
                unroll_full()
                now, then = r % 2, (r + 1) % 2
                ahead = y if r < group - 1 else min(y + 1, last)  # the last step reads in vain
                read_late(rB, now, sB, y, r * depth + column)
                read_a(rA, then, sA, ahead, (r + 1) % group * rows + row)
                read_early(rB, then, sB, ahead, (r + 1) % group * depth + column)
                for c in range(tile_columns):
                    unroll_full()
                    for h in range(tile_rows):
                        unroll_full()
                        i = h if c % 2 == 0 else tile_rows - 1 - h
                        rC[i, c] += rA[now, i] * rB[now, c]
            y += 1

    return read_first, multiply_add
