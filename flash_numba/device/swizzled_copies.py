"""Moving tiles of 16-bit elements between global memory and shared memory, swizzled there."""

from functools import cache

from .numba_cuda import cuda, room, types
from .ptx_copies import copy16_async, copy_commit, copy_wait_group
from .ptx_words import load_words4, load_words4_global, store_words4, store_words4_global
from .swizzle import CHUNK, swizzled
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
    one_place: bool = False,
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
    one_place : bool
        A thread computes where its first row lies; the others, a multiple of 8 rows below, where
        the swizzle is the same, are constants from there. Else it computes where each lies, which
        takes instructions in place of a register. The forward kernel has one place; the gradients'
        kernels have no register left for it.

    Notes
    -----
    Reads each valid element once. Rows from `row_stop` on, and columns that `gX` has not, are
    zeros.
    """
    rows_at_once = threads // LANES
    if rows % rows_at_once or (one_place and rows_at_once % CHUNK):
        raise ValueError(
            f"rows must be a multiple of threads / {LANES}, and that one of 8 where there is one "
            f"place, got rows={rows} and threads={threads}"
        )

    @room
    def copy_chunk(shared, to, gX, row, column, valid):
        if chunks and asynchronous:
            copy16_async(shared, to, gX, (row, column), valid & (column < columns))
        elif chunks:
            words = (types.uint32(0), types.uint32(0), types.uint32(0), types.uint32(0))
            if valid & (column < columns):
                words = load_words4_global(gX, (row, column))
            store_words4(shared, to, words)
        else:
            for e in range(CHUNK):
                unroll_full()
                inside = valid & (column + e < columns)
                shared[to + e] = gX[row, column + e] if inside else 0

    @room
    def load_each(shared, at, gX, first_row, row_stop, tid):
        lane = tid % LANES * CHUNK
        for p in range(rows // rows_at_once):
            unroll_full()
            row = tid // LANES + p * rows_at_once
            for c in range(0, depth, 64):
                unroll_full()
                if c + 64 <= depth or c + lane < depth:
                    to, from_row = at + swizzled(row, c + lane, pitch), types.int32(first_row + row)
                    copy_chunk(shared, to, gX, from_row, c + lane, from_row < row_stop)

    @room
    def load_from_one_place(shared, at, gX, first_row, row_stop, tid):
        own_row, lane = types.int32(tid // LANES), tid % LANES * CHUNK
        place, from_row = at + swizzled(own_row, lane, pitch), types.int64(first_row) + own_row
        left = types.int32(types.int32(row_stop) - types.int32(first_row) - own_row)
        for p in range(0, rows, rows_at_once):
            unroll_full()
            for c in range(0, depth, 64):
                unroll_full()
                if c + 64 <= depth or c + lane < depth:
                    to = place + (p * pitch + c)
                    copy_chunk(shared, to, gX, from_row + p, c + lane, p < left)

    return load_from_one_place if one_place else load_each


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
def make_store_tile(columns: int, rows: int, pitch: int, chunks: bool, at_once: bool = False):
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
    at_once : bool
        Of chunks, read all from shared memory before the first is stored, so that no read waits
        behind a store; they are in registers meanwhile. Else a chunk is read and stored at a time.
        The forward kernel stores at once; the gradients' kernels were only timed with the other
        way.

    Notes
    -----
    Writes each valid element once.
    """
    steps, across = rows // 4, -(-columns // 64)
    shape = (steps, across, 4)

    @room
    def store_at_once(gX, first_row, row_stop, shared, at, lane):
        words = cuda.local.array(shape, types.uint32)
        own_row, column = lane // LANES, lane % LANES * CHUNK
        even = at + swizzled(own_row, column, pitch)
        odd = at + swizzled(own_row + 4, column, pitch)
        for p in range(steps):
            unroll_full()
            place = (odd if p % 2 else even) + p // 2 * 8 * pitch
            for c in range(across):
                unroll_full()
                if 64 * c + 64 <= columns or 64 * c + column < columns:
                    four = load_words4(shared, place + 64 * c)
                    words[p, c, 0], words[p, c, 1], words[p, c, 2], words[p, c, 3] = four
        to_row = types.int64(first_row) + own_row
        left = types.int32(types.int32(row_stop) - types.int32(first_row) - own_row)
        for p in range(steps):
            unroll_full()
            for c in range(across):
                unroll_full()
                if 4 * p < left and 64 * c + column < columns:
                    four = (words[p, c, 0], words[p, c, 1], words[p, c, 2], words[p, c, 3])
                    store_words4_global(gX, (to_row + 4 * p, 64 * c + column), four)

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

    return store_at_once if at_once and chunks else store_tile
