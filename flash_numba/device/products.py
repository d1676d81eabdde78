"""The two products of a tile, as outer products in registers.

Threads form a grid of row groups and column lanes. Bit 0 and the high bits of a thread's number
choose its row group, the bits between its lane: then each half of a warp needs one pass over
shared memory for a 16-byte load, whether it reads by group or by lane.

A factor is kept where the next instruction finds it: neighbours in the order of the multiply-adds
share an operand, which the register file then need not deliver again (the tile is walked to and
fro, like an ox ploughs a field).
"""

from functools import cache

from .numba_cuda import cuda, room, types
from .ptx import load4, store4
from .unroll import unroll_4, unroll_full, unroll_none


@cache
def make_place(lanes: int):
    """Room ``place(tid) -> (row group, lane)`` for `lanes` column lanes (8 or 16)."""

    @room
    def place(tid):
        return tid // (2 * lanes) * 2 + tid % 2, tid // 2 % lanes

    return place


@cache
def make_read_column(tile_rows: int):
    """Room ``read_column(rA, sA, i, j)``: ``rA[:] = sA[i, j:j + tile_rows]``, a multiple of 4."""

    @room
    def read_column(rA, sA, i, j):
        for h in range(0, tile_rows, 4):
            unroll_full()
            rA[h], rA[h + 1], rA[h + 2], rA[h + 3] = load4(sA, (i, j + h))

    return read_column


@cache
def make_read_row(tile_columns: int, depth: int, lanes: int, grouped: bool):
    """Room ``read_row(rB, sB, lane, j, d)``: four neighbours of B's row of the lane's column j.

    Column j of a lane is row ``lane * tile_columns + j`` of B, in grouped rows, if `grouped`, else
    row ``lane + lanes * j`` of a plain 2-D `sB` (whose padding keeps the lanes' banks apart).
    """

    @room
    def read_row(rB, sB, lane, j, d):
        if grouped:
            rB[j, 0], rB[j, 1], rB[j, 2], rB[j, 3] = load4(sB, (lane, j * depth + d))
        else:
            rB[j, 0], rB[j, 1], rB[j, 2], rB[j, 3] = load4(sB, (lane + lanes * j, d))

    return read_row


@cache
def make_multiply_transposed(
    tile_rows: int, tile_columns: int, depth: int, lanes: int = 0, grouped: bool = True
):
    """Room ``multiply_transposed(rC, sA, sB, row_group, lane)``: ``C = A @ B.T``.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of C.
    depth : int
        Columns of A and B, a multiple of 4.

    Notes
    -----
    `sA` is transposed ``(depth, rows)``; `lanes` and `grouped` tell `make_read_row` how `sB` lies.
    """
    read_column = make_read_column(tile_rows)
    read_row = make_read_row(tile_columns, depth, lanes, grouped)

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
                read_row(rB, sB, lane, j, d)
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


@cache
def make_multiply_rows(tile_rows: int, tile_columns: int, depth: int):
    """Room ``multiply_rows(rC, sA, sB, row_group, lane)``: ``C = A @ B.T``, both as rows.

    Parameters
    ----------
    tile_rows, tile_columns : int
        Shape of a thread's part of C.
    depth : int
        Columns of A and B, a multiple of 4.

    Notes
    -----
    `sA` is in grouped rows of `tile_rows`, `sB` in grouped rows of `tile_columns`.
    """
    read_a = make_read_row(tile_rows, depth, 0, True)
    read_b = make_read_row(tile_columns, depth, 0, True)

    @room
    def multiply_rows(rC, sA, sB, row_group, lane):
        rA = cuda.local.array((tile_rows, 4), types.float32)
        rB = cuda.local.array((tile_columns, 4), types.float32)
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rC[i, j] = 0
        d = 0
        while d < depth:
            unroll_4()
            for i in range(tile_rows):
                unroll_full()
                read_a(rA, sA, row_group, i, d)
            for j in range(tile_columns):
                unroll_full()
                read_b(rB, sB, lane, j, d)
            for e in range(4):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    for h in range(tile_rows):
                        unroll_full()
                        i = h if j % 2 == 0 else tile_rows - 1 - h
                        rC[i, j] += rA[i, e] * rB[j, e]
            d += 4

    return multiply_rows


@cache
def make_multiply_add_rows(tile_rows: int, tile_columns: int, lanes: int, inner: int, depth: int):
    """Room ``multiply_add_rows(rC, sA, sB, row_group, lane)``: ``C += A @ B``, both as rows.

    Parameters
    ----------
    tile_rows, tile_columns, lanes, depth
        As for `make_multiply_add`.
    inner : int
        Columns of A and rows of B, a multiple of 4.

    Notes
    -----
    `sA` is in grouped rows of `tile_rows`, `sB` in grouped rows of 4.
    """
    read_a = make_read_row(tile_rows, inner, 0, True)

    @room
    def multiply_add_rows(rC, sA, sB, row_group, lane):
        rA = cuda.local.array((tile_rows, 4), types.float32)
        rB = cuda.local.array(4, types.float32)
        r = 0
        while r < inner:
            unroll_none()
            for i in range(tile_rows):
                unroll_full()
                read_a(rA, sA, row_group, i, r)
            for e in range(4):
                unroll_full()
                for c in range(0, tile_columns, 4):
                    unroll_full()
                    at = e * depth + 4 * lane + lanes * c
                    rB[0], rB[1], rB[2], rB[3] = load4(sB, (r // 4, at))
                    for j in range(4):
                        unroll_full()
                        for h in range(tile_rows):
                            unroll_full()
                            i = h if j % 2 == 0 else tile_rows - 1 - h
                            rC[i, c + j] += rA[i, e] * rB[j]
            r += 4

    return multiply_add_rows


@cache
def make_multiply_add(tile_rows: int, tile_columns: int, lanes: int, group: int, depth: int):
    """Room ``multiply_add(rC, sA, sB, rows, row_group, lane)``: ``C += A @ B``.

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


@cache
def make_apart(tile_rows: int, groups: int):
    """Room ``apart(row_group)``: which rows of P a row group takes.

    Two neighbouring row groups store together. With 16 floats between them, and 4 between lanes,
    their stores of 16 bytes meet no bank conflict; where there are too few `groups` of `tile_rows`
    rows for that, nothing moves.
    """
    step = 16 // tile_rows

    @room
    def apart(row_group):
        if groups % (2 * step):
            return row_group
        pair = row_group // 2
        return pair // step * (2 * step) + row_group % 2 * step + pair % step

    return apart


@cache
def make_share(tile_rows: int, tile_columns: int):
    """Room ``share(sP, rP, rows, row_group, lane)``: a thread's tile where `multiply_add` reads it.

    Only lanes of the own warp read it: ``cuda.syncwarp()`` before and after is enough.
    """

    @room
    def share(sP, rP, rows, row_group, lane):
        for j in range(tile_columns):
            unroll_full()
            for i in range(0, tile_rows, 4):
                unroll_full()
                four = (rP[i, j], rP[i + 1, j], rP[i + 2, j], rP[i + 3, j])
                store4(sP, (lane, j * rows + row_group * tile_rows + i), four)

    return share


@cache
def make_share_rows(tile_rows: int, tile_columns: int):
    """Room ``share_rows(sP, rP, row_group, lane)``: the tile row by row, as `sA` of a product.

    Element (i, j) goes to ``sP[row_group * tile_rows + i, lane * tile_columns + j]``.
    """

    @room
    def share_rows(sP, rP, row_group, lane):
        for i in range(tile_rows):
            unroll_full()
            row, column = row_group * tile_rows + i, lane * tile_columns
            if tile_columns == 4:
                store4(sP, (row, column), (rP[i, 0], rP[i, 1], rP[i, 2], rP[i, 3]))
            else:
                for j in range(tile_columns):
                    unroll_full()
                    sP[row, column + j] = rP[i, j]

    return share_rows
