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
def make_multiply_add_ahead(tile_rows: int, tile_columns: int, lanes: int, group: int, depth: int):
    """Room ``multiply_add(rC, sA, sB, rows, row_group, lane)``: ``C += A @ B``.

    Parameters and layouts are those of `products.make_multiply_add`; `group` is even.
    """
    read_a, read_four = make_read_side(tile_rows), make_read_side(4)

    @room
    def read_rest(rB, side, sB, i, j):
        for c in range(4, tile_columns, 4):
            unroll_full()
            four = load4(sB, (i, j + lanes * c))
            rB[side, c], rB[side, c + 1], rB[side, c + 2], rB[side, c + 3] = four

    @room
    def multiply_add(rC, sA, sB, rows, row_group, lane):
        rA = cuda.local.array((2, tile_rows), types.float32)
        rB = cuda.local.array((2, tile_columns), types.float32)
        row, column = row_group * tile_rows, 4 * lane
        read_a(rA, 0, sA, 0, row)
        read_four(rB, 0, sB, 0, column)
        y = 0
        while y < lanes:
            unroll_none()
            for r in range(group):
                unroll_full()
                now, then = r % 2, (r + 1) % 2
                ahead = y if r < group - 1 else min(y + 1, lanes - 1)  # the last step reads in vain
                read_rest(rB, now, sB, y, r * depth + column)
                read_a(rA, then, sA, ahead, (r + 1) % group * rows + row)
                read_four(rB, then, sB, ahead, (r + 1) % group * depth + column)
                for c in range(tile_columns):
                    unroll_full()
                    for h in range(tile_rows):
                        unroll_full()
                        i = h if c % 2 == 0 else tile_rows - 1 - h
                        rC[i, c] += rA[now, i] * rB[now, c]
            y += 1

    return multiply_add
