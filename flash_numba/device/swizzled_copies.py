"""Moving tiles of 16-bit elements between global memory and shared memory, swizzled there."""

from functools import cache

from .fragment_products import CHUNK, swizzled
from .numba_cuda import room, types
from .ptx_copies import copy16_async, copy_commit, copy_wait_group
from .ptx_words import load_words4, load_words4_global, store_words4, store_words4_global
from .unroll import unroll_full

LANES = 8
"""Threads that copy one row together: 8 chunks of 16 bytes are a whole 128-byte line."""


@cache
def make_load_tile(
    columns: int,
    depth: int,
    rows: int,
    threads: int,
    chunks: bool,
    pitch: int,
    asynchronous: bool = True,
):
    """Room ``load_tile(shared, at, gX, first_row, row_stop, tid)``: a tile, from index `at` on.

    Parameters
    ----------
    columns : int
        Columns of `gX`, a 2-D view of 16-bit elements (rows, columns).
    depth : int
        Columns of the tile, at least `columns`, a multiple of 16.
    rows : int
        Rows of the tile, a multiple of ``threads // 8``.
    threads : int
        Threads of the block, all of which take part.
    chunks : bool
        All rows are whole 16-byte chunks; else elements are copied one by one.
    pitch : int
        Elements from one row of the tile to the next.
    asynchronous : bool
        Of chunks, only start the copies (``cp.async``, cc 8.0): `make_arrivals`.

    Notes
    -----
    Reads each valid element once. Rows from `row_stop` on, and columns that `gX` has not, are
    zeros.
    """
    rows_at_once = threads // LANES
    if rows % rows_at_once:
        raise ValueError(
            f"rows must be a multiple of threads / {LANES}, got rows={rows} and threads={threads}"
        )

    @room
    def copy_chunk(shared, to, gX, row, column, row_stop):
        if chunks and asynchronous:
            copy16_async(shared, to, gX, (row, column), (row < row_stop) & (column < columns))
        elif chunks:
            words = (types.uint32(0), types.uint32(0), types.uint32(0), types.uint32(0))
            if (row < row_stop) & (column < columns):
                words = load_words4_global(gX, (row, column))
            store_words4(shared, to, words)
        else:
            for e in range(CHUNK):
                unroll_full()
                inside = (row < row_stop) & (column + e < columns)
                shared[to + e] = gX[row, column + e] if inside else 0

    @room
    def load_tile(shared, at, gX, first_row, row_stop, tid):
        lane = tid % LANES * CHUNK
        for p in range(rows // rows_at_once):
            unroll_full()
            row = tid // LANES + p * rows_at_once
            for c in range(0, depth, 64):
                unroll_full()
                if c + 64 <= depth or c + lane < depth:
                    to = at + swizzled(row, c + lane, pitch)
                    copy_chunk(shared, to, gX, types.int32(first_row + row), c + lane, row_stop)

    return load_tile


@cache
def make_arrivals(asynchronous: bool, pending: int = 0):
    """Rooms ``commit()`` and ``arrive()``: close a group of copies, wait for those of this thread.

    The latest `pending` groups need not have arrived. A barrier must follow `arrive`. Copies that
    are not `asynchronous` need neither.
    """

    @room
    def commit():
        if asynchronous:
            copy_commit()

    @room
    def arrive():
        if asynchronous:
            copy_wait_group(pending)

    return commit, arrive


@cache
def make_store_tile(columns: int, rows: int, pitch: int, chunks: bool):
    """Room ``store_tile(gX, first_row, row_stop, shared, at, lane)``: a warp's rows to memory.

    Parameters
    ----------
    columns : int
        Columns of `gX`.
    rows : int
        Rows that the warp stores, from row `first_row` of `gX` on, a multiple of 4.
    pitch : int
        Of the swizzled tile, whose row `first_row` begins at index `at`.
    chunks : bool
        As for `make_load_tile`; 16-byte stores.

    Notes
    -----
    Writes each valid element once.
    """

    @room
    def store_tile(gX, first_row, row_stop, shared, at, lane):
        for p in range(rows // 4):
            unroll_full()
            row = lane // LANES + 4 * p
            for c in range(0, columns, 64):
                unroll_full()
                column = c + lane % LANES * CHUNK
                if first_row + row < row_stop and column < columns:
                    place = at + swizzled(row, column, pitch)
                    if chunks:
                        words = load_words4(shared, place)
                        store_words4_global(gX, (first_row + row, column), words)
                    else:
                        for e in range(CHUNK):
                            unroll_full()
                            if column + e < columns:
                                gX[first_row + row, column + e] = shared[place + e]

    return store_tile
