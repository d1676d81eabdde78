"""Moving tiles between global memory (g), shared memory (s) and registers (r).

A tile lies in shared memory in one of two layouts, both free of bank conflicts as the products
read them:

- *grouped rows* ``(rows // group, group * depth + 4)``: row r begins at
  ``[r // group, r % group * depth]``.
  A thread of a product reads one group; the 4 extra floats put neighbouring groups in other banks.
- *transposed* ``(depth, rows)``: lanes read neighbouring rows of one column.
"""

from functools import cache

from .elements import element
from .numba_cuda import cuda, room, types
from .ptx import load4_global, store4, store4_global
from .ptx_copies import copy16_async, copy_commit, copy_wait_all, copy_wait_group
from .unroll import unroll_4, unroll_8, unroll_full

LANES = 8
"""Threads that copy one row together: 8 chunks of 16 bytes are a whole 128-byte line."""


@cache
def make_read4(dtype: str, columns: int, vectors: bool):
    """Room ``read4(gX, row, column, row_stop)``: four neighbours as float32, 0 outside.

    Parameters
    ----------
    dtype : str
        Element type of `gX`, a 2-D view (rows, columns).
    columns : int
        Columns that exist; the rest of a padded tile reads 0.
    vectors : bool
        One 8- or 16-byte load. Needs a last axis without gaps, rows on such boundaries and
        `columns` a multiple of 4.

    Notes
    -----
    No load waits for a branch: out of range, an element in range is read and dropped.
    """
    convert = element(dtype).load

    @room
    def keep(x, inside):
        return convert(x) if inside else types.float32(0)

    @room
    def read4_at_once(gX, row, column, row_stop):
        inside = (row < row_stop) & (column < columns)
        safe_column = column if column < columns else 0
        a, b, c, d = load4_global(gX, (min(row, row_stop - 1), safe_column))
        return keep(a, inside), keep(b, inside), keep(c, inside), keep(d, inside)

    @room
    def read1(gX, row, column, row_stop):
        x = gX[min(row, row_stop - 1), min(column, columns - 1)]
        return keep(x, (row < row_stop) & (column < columns))

    @room
    def read4_one_by_one(gX, row, column, row_stop):
        return (
            read1(gX, row, column, row_stop),
            read1(gX, row, column + 1, row_stop),
            read1(gX, row, column + 2, row_stop),
            read1(gX, row, column + 3, row_stop),
        )

    return read4_at_once if vectors else read4_one_by_one


@cache
def make_load_rows(
    dtype: str,
    columns: int,
    depth: int,
    rows: int,
    group: int,
    threads: int,
    vectors: bool,
    asynchronous: bool,
):
    """Room ``load_rows(sX, gX, first_row, row_stop, tid)``: a tile in grouped rows.

    Parameters
    ----------
    dtype, columns, vectors
        As for `make_read4`.
    depth : int
        Columns of the tile, `columns` padded to a multiple of 32.
    rows, group : int
        Rows of the tile; rows of a group.
    threads : int
        Threads of the block, all of which take part.
    asynchronous : bool
        Only start the copy (``cp.async``); `wait_for_copies` must follow. fp32 vectors only.

    Notes
    -----
    Reads each valid element of the tile once. Rows from `row_stop` on are zeros.
    """
    rows_at_once = threads // LANES
    if rows_at_once % group or rows % rows_at_once:
        raise ValueError(
            f"rows must be a multiple of threads / {LANES}, and that of group; "
            f"got rows={rows}, threads={threads} and group={group}"
        )
    passes, chunks, words = rows // rows_at_once, depth // (4 * LANES), depth // LANES
    group_step = rows_at_once // group
    read4 = make_read4(dtype, columns, vectors)

    @room
    def load_rows_async(sX, gX, first_row, row_stop, tid):
        column = tid % LANES * 4
        row = tid // LANES
        g, inner = row // group, row % group * depth + column
        for p in range(passes):
            unroll_full()
            at = first_row + row + p * rows_at_once
            for c in range(chunks):
                unroll_full()
                skip = c * 4 * LANES
                valid = (at < row_stop) & (column + skip < columns)
                place = (g + p * group_step, inner + skip)
                copy16_async(sX, place, gX, (at, column + skip), valid)

    @room
    def load_rows(sX, gX, first_row, row_stop, tid):
        rX = cuda.local.array(words, types.float32)
        column = tid % LANES * 4
        row = tid // LANES
        g, inner = row // group, row % group * depth + column
        for p in range(passes):
            unroll_full()
            at = first_row + row + p * rows_at_once
            for c in range(chunks):
                unroll_full()
                four = read4(gX, at, column + c * 4 * LANES, row_stop)
                rX[4 * c], rX[4 * c + 1], rX[4 * c + 2], rX[4 * c + 3] = four
            for c in range(chunks):
                unroll_full()
                four = (rX[4 * c], rX[4 * c + 1], rX[4 * c + 2], rX[4 * c + 3])
                store4(sX, (g + p * group_step, inner + c * 4 * LANES), four)

    return load_rows_async if asynchronous else load_rows


@cache
def make_wait_for_copies(asynchronous: bool):
    """Room ``wait_for_copies()``: this thread's copies are done. A barrier must follow."""

    @room
    def wait_for_copies():
        if asynchronous:
            copy_wait_all()

    return wait_for_copies


@cache
def make_copy_groups(asynchronous: bool):
    """Rooms ``close_copies()`` and ``wait_for_copies()``.

    The first closes the copies that this thread has started, the second waits for them: a wait that
    closes them itself takes its turn behind all that was asked of shared memory meanwhile. A
    barrier must follow.
    """

    @room
    def close_copies():
        if asynchronous:
            copy_commit()

    @room
    def wait_for_copies():
        if asynchronous:
            copy_wait_group(0)

    return close_copies, wait_for_copies


@cache
def make_load_transposed(
    dtype: str, columns: int, depth: int, rows: int, threads: int, vectors: bool, ahead: int = 4
):
    """Room ``load_transposed(sX, gX, first_row, row_stop, factor, tid)``: ``sX = factor * gX.T``.

    Parameters are those of `make_load_rows`; `rows` is a power of two. Lanes take neighbouring
    rows, so that the stores to shared memory meet no bank conflict. `ahead`, 4 or 8, loads are on
    their way at a time.
    """
    read4 = make_read4(dtype, columns, vectors)
    chunks = rows * depth // 4
    write_out = unroll_8 if ahead == 8 else unroll_4

    @room
    def load_transposed(sX, gX, first_row, row_stop, factor, tid):
        chunk = tid
        while chunk < chunks:
            write_out()
            row = chunk % rows
            column = chunk // rows * 4
            a, b, c, d = read4(gX, first_row + row, column, row_stop)
            sX[column, row] = a * factor
            sX[column + 1, row] = b * factor
            sX[column + 2, row] = c * factor
            sX[column + 3, row] = d * factor
            chunk += threads

    return load_transposed


@cache
def make_store_rows(
    dtype: str, columns: int, tile_rows: int, tile_columns: int, spread: int, vectors: bool
):
    """Room ``store_rows(gX, rX, first_row, row_stop, lane, factor)``: a thread's part of a tile.

    Parameters
    ----------
    dtype, columns, vectors
        As for `make_read4`, of the array written.
    tile_rows, tile_columns : int
        Shape of the register tile `rX`; row i of it goes to ``first_row + i``.
    spread : int
        Lanes that share the rows: column c of `rX` is column
        ``c % 4 + 4 * (lane + spread * (c // 4))``.

    Notes
    -----
    Writes each valid element of the tile once, times `factor`.
    """
    convert = element(dtype).store

    @room
    def write4(gX, row, column, values):
        a, b, c, d = values
        if vectors:
            if column < columns:
                store4_global(gX, (row, column), (convert(a), convert(b), convert(c), convert(d)))
        else:
            if column < columns:
                gX[row, column] = convert(a)
            if column + 1 < columns:
                gX[row, column + 1] = convert(b)
            if column + 2 < columns:
                gX[row, column + 2] = convert(c)
            if column + 3 < columns:
                gX[row, column + 3] = convert(d)

    @room
    def store_rows(gX, rX, first_row, row_stop, lane, factor):
        for i in range(tile_rows):
            unroll_full()
            if first_row + i < row_stop:
                for c in range(0, tile_columns, 4):
                    unroll_full()
                    four = (
                        rX[i, c] * factor,
                        rX[i, c + 1] * factor,
                        rX[i, c + 2] * factor,
                        rX[i, c + 3] * factor,
                    )
                    write4(gX, first_row + i, 4 * lane + spread * c, four)

    return store_rows


@cache
def make_read_vector(tile_columns: int):
    """Room ``read_vector(rX, gX, first, stop, outside)``: neighbours of a float32 vector.

    ``rX[j] = gX[first + j]``, or `outside` from `stop` on.
    """

    @room
    def read_vector(rX, gX, first, stop, outside):
        for j in range(tile_columns):
            unroll_full()
            x = gX[min(first + j, stop - 1)]
            rX[j] = x if first + j < stop else outside

    return read_vector
