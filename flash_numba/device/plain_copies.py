"""Copies as plain as can be, an element a thread; nothing outside of the tensor is touched.

What a launch reads and writes of each tensor is therefore what the simulator counts, to the
element. Tiles that lie wholly inside may be read as `copies` does it, four elements at once: it
does not wait for a branch, and is faster.
"""

from functools import cache

from . import copies
from .elements import element
from .numba_cuda import room, types
from .ptx import store4_global
from .unroll import unroll_full

PATCH_ROWS, PATCH_COLUMNS = 8, 4
"""What a warp moves into a transposed tile: 16 bytes of a row together, few bank conflicts."""


@cache
def make_load_rows(
    dtype: str, depth: int, rows: int, group: int, threads: int, vectors: bool = False
):
    """Room ``load_rows(sX, gX, first_row, row_stop, tid)``: a tile in grouped rows (see `copies`).

    Parameters
    ----------
    dtype : str
        Element type of `gX`, a 2-D view (rows, columns).
    depth : int
        Columns of the tile, at least those of `gX`.
    rows, group : int
        Rows of the tile; rows of a group.
    threads : int
        Threads of the block, all of which take part.
    vectors : bool
        Copy a tile that lies wholly inside as `copies` does, four elements at once.

    Notes
    -----
    Rows from `row_stop` on, and columns that `gX` has not, are zeros.
    """
    convert = element(dtype).load

    @room
    def load_part(sX, gX, first_row, row_stop, tid):
        at = types.int64(tid)
        while at < rows * depth:
            row, column = at // depth, at % depth
            x = types.float32(0)
            if first_row + row < row_stop and column < gX.shape[1]:
                x = convert(gX[first_row + row, column])
            sX[row // group, row % group * depth + column] = x
            at += threads

    if not vectors or depth % (4 * copies.LANES):
        return load_part
    load_whole = copies.make_load_rows(dtype, depth, depth, rows, group, threads, True, False)

    @room
    def load_rows(sX, gX, first_row, row_stop, tid):
        if (first_row + rows <= row_stop) & (depth <= gX.shape[1]):
            load_whole(sX, gX, first_row, row_stop, tid)
        else:
            load_part(sX, gX, first_row, row_stop, tid)

    return load_rows


@cache
def make_load_transposed(dtype: str, depth: int, rows: int, threads: int):
    """Room ``load_transposed(sX, gX, first_row, row_stop, tid)``: ``sX = gX.T``; see above."""
    convert = element(dtype).load

    @room
    def load_transposed(sX, gX, first_row, row_stop, tid):
        at = types.int64(tid)
        while at < rows * depth:
            column = at // (PATCH_COLUMNS * rows) * PATCH_COLUMNS + at % PATCH_COLUMNS
            row = at // PATCH_COLUMNS % rows
            x = types.float32(0)
            if first_row + row < row_stop and column < gX.shape[1]:
                x = convert(gX[first_row + row, column])
            sX[column, row] = x
            at += threads

    return load_transposed


@cache
def make_fill_rows(threads: int):
    """Room ``fill_rows(gX, value, tid)``: `value` everywhere in a float32 view (rows, columns)."""

    @room
    def fill_rows(gX, value, tid):
        at = types.int64(tid)
        while at < gX.shape[0] * gX.shape[1]:
            gX[at // gX.shape[1], at % gX.shape[1]] = value
            at += threads

    return fill_rows


@cache
def make_merge_rows(columns: int, tile_rows: int, tile_columns: int, spread: int):
    """Room ``merge_rows(gX, rX, sOld, sNew, first, first_row, row_stop, lane)``.

    ``gX = sOld * gX + sNew * rX``, row by row, for a thread's part of a tile: row i of `rX` is row
    ``first_row + i`` of `gX`, a float32 view of `columns` columns, and ``first + i`` of the factors
    in shared memory.
    Columns lie as in `copies.make_store_rows`.
    """

    @room
    def merge_rows(gX, rX, sOld, sNew, first, first_row, row_stop, lane):
        for i in range(tile_rows):
            unroll_full()
            row = first_row + i
            if row < row_stop:
                old, new = sOld[first + i], sNew[first + i]
                for c in range(tile_columns):
                    unroll_full()
                    column = c % 4 + 4 * (lane + spread * (c // 4))
                    if column < columns:
                        gX[row, column] = old * gX[row, column] + new * rX[i, c]

    return merge_rows


@cache
def make_add_rows(columns: int, tile_rows: int, tile_columns: int, lanes: int):
    """Room ``add_rows(gX, rX, first_row, row_stop, lane, factor)``: ``gX += factor * rX``.

    Column j of the register tile is column ``lane + lanes * j`` of `gX`, a float32
    view of `columns` columns.
    """

    @room
    def add_rows(gX, rX, first_row, row_stop, lane, factor):
        for i in range(tile_rows):
            unroll_full()
            if first_row + i < row_stop:
                for j in range(tile_columns):
                    unroll_full()
                    column = lane + lanes * j
                    if column < columns:
                        gX[first_row + i, column] += factor * rX[i, j]

    return add_rows


@cache
def make_row_dot(dtype: str, depth: int, group: int):
    """Room ``row_dot(sA, i, gB, row)``: row i of a tile in grouped rows times row `row` of `gB`.

    In the order of the product A Bᵀ of `products`: with a single key, dP - rowsum(dO∘O) is 0.
    """
    convert = element(dtype).load

    @room
    def row_dot(sA, i, gB, row):
        total = types.float32(0)
        for column in range(gB.shape[1]):
            total += sA[i // group, i % group * depth + column] * convert(gB[row, column])
        return total

    return row_dot


@cache
def make_store_matrix(tile_rows: int, tile_columns: int):
    """Room ``store_matrix(gX, rX, first_row, row_stop, first_column, column_stop)``.

    A thread's part of a matrix such as S, neighbours in neighbouring columns. `gX` is a float32
    view (rows, columns) whose rows begin on 16-byte boundaries, as does `first_column`.
    """
    width = 4 if tile_columns % 4 == 0 else 1

    @room
    def store_matrix(gX, rX, first_row, row_stop, first_column, column_stop):
        for i in range(tile_rows):
            unroll_full()
            row = first_row + i
            if row < row_stop:
                for j in range(0, tile_columns, width):
                    unroll_full()
                    column = first_column + j
                    if width == 4 and column + 4 <= column_stop:
                        four = (rX[i, j], rX[i, j + 1], rX[i, j + 2], rX[i, j + 3])
                        store4_global(gX, (row, column), four)
                    else:
                        for e in range(width):
                            unroll_full()
                            if column + e < column_stop:
                                gX[row, column + e] = rX[i, j + e]

    return store_matrix
