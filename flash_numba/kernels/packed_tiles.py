"""The tiles of a packed batch, listed on the GPU: nobody on the host needs to know a length.

Tiles of a sequence lie side by side in the list, and sequences with much to do come first, so that
a long one does not keep the other multiprocessors waiting at the end. Lengths that make no sense
are clipped: whatever `cu_seqlens` and `seqused` hold, nothing outside of the tensors is touched.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from ..arrays import DeviceArray, broadcast, contiguous
from ..device.numba_cuda import cuda, kernel, room, types
from ..device.ptx_words import store_words4_global
from ..device.unroll import unroll_4, unroll_none
from ..launch import launch
from ..problem import Problem
from ..sequences import Packed
from ..tiling import ceil_div
from .spec import padded

SEQUENCES, STARTS = 256, 257
"""Sequences that a block lists, a thread each, longest first among themselves; their ends."""

WARPS, TWICE = 8, 16
"""Warps of a block, and as many again."""

COLUMNS = 12
"""Numbers of a row of the list, read four at once: `device.schedule.make_work_of`."""


@room
def clipped(x, low, high):
    """`x` within low..high, in 32 bits."""
    return types.int32(min(max(x, low), high))


@room
def highest_so_far(x, lane):
    """The highest of `x` (int32) among the lanes of a warp up to this one."""
    step = types.int32(1)
    while step < 32:
        unroll_none()
        lower = cuda.shfl_up_sync(0xFFFFFFFF, x, step)
        if lane >= step:
            x = max(x, lower)
        step = types.int32(2 * step)
    return x


@cache
def make_used_of(given: bool):
    """Room ``used_of(Used, index, batch, rows)``: how many rows of a sequence count.

    `Used` is ``(int32 array (batch,),)`` if `given`, else ().
    """

    @room
    def used_of(Used, index, batch, rows):
        if index >= batch:
            return types.int32(0)
        if given:
            return clipped(Used[0][index], 0, rows)
        return rows

    return used_of


@cache
def make_list_tiles(tile: int, of_keys: bool, used_q: bool, used_k: bool):
    """The kernel that lists tiles of `tile` queries or, with `of_keys`, keys.

    Returns
    -------
    kernel
        ``list_tiles(CuQ, CuK, UsedQ, UsedK, total_q, total_k, Shift, Tiles)``: CuQ and CuK int32
        (batch + 1,); UsedQ and UsedK ``(int32 array (batch,),)`` or, if there is none, (). Shift
        (batch,) int64 is written: keys minus queries. Tiles (rows, 12) int32 is written: a row for
        each tile with the sequence's number, its first row in the list, how many it has, where its
        queries begin, how many count, the same of its keys, how many rows of results it has on the
        list's side and on the other; rows that no tile needs have a count of 0.

    Notes
    -----
    Rows of the tensors that are in no sequence belong to two more sequences, in which none counts:
    number `batch` from the last one's end on, and one more up to the first one's beginning. Each
    sequence wastes less than a tile, or is one that wastes a whole one, so the list of those from
    number i on may begin at ``(cu_seqlens[i] - cu_seqlens[0]) // tile + i``.

    A list of keys has a tile of each sequence, even one without keys: somebody must write zeros for
    its queries.
    """
    used_q_of, used_k_of = make_used_of(used_q), make_used_of(used_k)
    fewest = 1 if of_keys else 0

    @room
    def start_of(Cu, index, total):
        if index >= Cu.shape[0]:
            return types.int32(total)
        return clipped(Cu[index], 0, total)

    @room
    def highest_before(Cu, begin, tid, total):
        """Where sequences before number `begin` begin at the latest, in the last thread."""
        highest, index = types.int32(0), types.int32(tid)
        while index < begin:
            unroll_none()
            highest = max(highest, start_of(Cu, index, total))
            index = types.int32(index + SEQUENCES)
        return highest

    @room
    def put_starts(sStarts, sHighest, start, follow, tid):
        """Sequences begin at `start`, but none before an earlier one; the next block's at `follow`.

        `sHighest` holds the highest starts of warps of this block, then of blocks before.
        """
        for warp in range(WARPS):
            unroll_none()
            if warp < tid // 32:
                start = max(start, sHighest[warp])
            start = max(start, sHighest[WARPS + warp])
        sStarts[tid] = start
        if tid == SEQUENCES - 1:
            sStarts[SEQUENCES] = max(start, follow)

    @room
    def rows_of(sStarts, tid, index, batch, origin):
        """First row and number of rows; sequence `batch + 1` is what lies before the first one."""
        if index > batch:
            return types.int32(0), origin if index == batch + 1 else types.int32(0)
        return sStarts[tid], types.int32(sStarts[tid + 1] - sStarts[tid])

    @kernel(SEQUENCES)
    def list_tiles(CuQ, CuK, UsedQ, UsedK, total_q, total_k, Shift, Tiles):
        tid = types.int32(cuda.threadIdx.x)
        warp, lane = types.int32(tid // 32), types.int32(tid % 32)
        batch, begin = types.int32(CuQ.shape[0] - 1), types.int32(cuda.blockIdx.x * SEQUENCES)
        index, follow = types.int32(begin + tid), types.int32(begin + SEQUENCES)
        sStartQ = cuda.shared.array(STARTS, types.int32)
        sStartK = cuda.shared.array(STARTS, types.int32)
        sHighest = cuda.shared.array((2, TWICE), types.int32)
        sTiles = cuda.shared.array(SEQUENCES, types.int32)
        sWork = cuda.shared.array(SEQUENCES, types.int32)
        sFirst = cuda.shared.array(SEQUENCES, types.int32)
        sWho = cuda.shared.array(SEQUENCES, types.int32)
        sRow = cuda.shared.array((SEQUENCES, 6), types.int32)

        # Where sequences begin: all is read before anything waits.
        start_q, start_k = start_of(CuQ, index, total_q), start_of(CuK, index, total_k)
        follow_q, follow_k = start_of(CuQ, follow, total_q), start_of(CuK, follow, total_k)
        origin_q, origin_k = start_of(CuQ, 0, total_q), start_of(CuK, 0, total_k)
        before_q = highest_so_far(highest_before(CuQ, begin, tid, total_q), lane)
        before_k = highest_so_far(highest_before(CuK, begin, tid, total_k), lane)
        start_q, start_k = highest_so_far(start_q, lane), highest_so_far(start_k, lane)
        if lane == 31:
            sHighest[0, warp], sHighest[0, WARPS + warp] = start_q, before_q
            sHighest[1, warp], sHighest[1, WARPS + warp] = start_k, before_k
        cuda.syncthreads()
        put_starts(sStartQ, sHighest[0], start_q, follow_q, tid)
        put_starts(sStartK, sHighest[1], start_k, follow_k, tid)
        cuda.syncthreads()

        # What is to be done for each.
        first_q, rows_q = rows_of(sStartQ, tid, index, batch, origin_q)
        first_k, rows_k = rows_of(sStartK, tid, index, batch, origin_k)
        seqlen_q = used_q_of(UsedQ, index, batch, rows_q)
        seqlen_k = used_k_of(UsedK, index, batch, rows_k)
        rows, others = (rows_k, rows_q) if of_keys else (rows_q, rows_k)
        if index < batch:
            Shift[index] = seqlen_k - seqlen_q
        tiles = types.int32(max((rows + tile - 1) // tile, fewest))
        work = seqlen_q if of_keys else seqlen_k
        sTiles[tid], sWork[tid] = tiles, work
        sRow[tid, 0], sRow[tid, 1] = first_q, seqlen_q
        sRow[tid, 2], sRow[tid, 3] = first_k, seqlen_k
        sRow[tid, 4], sRow[tid, 5] = rows, others
        cuda.syncthreads()

        # The order: those with the most to do come first.
        listed = types.int32(min(batch + 2 - begin, SEQUENCES))
        rank, first, other = types.int32(0), types.int32(0), types.int32(0)
        while other < listed:
            unroll_4()
            more = types.int32(sWork[other] - work)
            if more > 0 or (more == 0 and other < tid):
                rank = types.int32(rank + 1)
                first = types.int32(first + sTiles[other])
            other = types.int32(other + 1)
        if tid < listed:
            sFirst[rank], sWho[rank] = first, tid
        cuda.syncthreads()

        # A thread for each row of the list.
        sStarts, origin = (sStartK, origin_k) if of_keys else (sStartQ, origin_q)
        start, stop = (sStarts[0] - origin) // tile + begin, types.int64(Tiles.shape[0])
        if follow < batch + 2:
            stop = min(stop, (sStarts[SEQUENCES] - origin) // tile + follow)
        row = types.int32(start + tid)
        while row < stop:
            unroll_none()
            place, rank, above = types.int32(row - start), types.int32(0), listed
            while above - rank > 1:  # the last sequence that begins at or before this row
                unroll_none()
                middle = types.int32((rank + above) // 2)
                if sFirst[middle] <= place:
                    rank = middle
                else:
                    above = middle
            who, first = sWho[rank], sFirst[rank]
            count = sTiles[who] if place < first + sTiles[who] else types.int32(0)
            known = max(min(begin + who, batch - 1), 0)  # a sequence that masks know
            words = known, start + first, count, sRow[who, 0]
            store_words4_global(Tiles, (row, 0), words)
            words = sRow[who, 1], sRow[who, 2], sRow[who, 3], sRow[who, 4]
            store_words4_global(Tiles, (row, 4), words)
            Tiles[row, 8] = sRow[who, 5]
            row = types.int32(row + SEQUENCES)

    return list_tiles


def workspace(problem: Problem, tile_m: int = 0, tile_n: int = 0) -> tuple[int, int, int]:
    """Bytes for Shift and for lists of query tiles and of key tiles; a tile of 0 has no list.

    All are 0 unless the batch is packed. Shift comes first: `sequences.Sequences` finds it there.
    """
    if problem.sequences is None:
        return 0, 0, 0
    q_rows, k_rows = (
        _rows(problem, tile, of_keys) if tile else 0
        for tile, of_keys in ((tile_m, False), (tile_n, True))
    )
    return padded(8 * (problem.batch + 1), 16), 4 * COLUMNS * q_rows, 4 * COLUMNS * k_rows


def _rows(problem: Problem, tile: int, of_keys: bool) -> int:
    """Rows of a list: each sequence, and what is outside of all, wastes a tile at most."""
    assert problem.sequences is not None
    total = problem.sequences.total_k if of_keys else problem.sequences.total_q
    return total // tile + problem.batch + 2


def list_tiles(
    problem: Problem,
    packed: Packed | None,
    at_shift: int,
    at_list: int,
    tile: int,
    of_keys: bool,
    stream,
) -> tuple[int, tuple[DeviceArray, ...]]:
    """Launch what lists the tiles of a packed batch.

    Parameters
    ----------
    problem : Problem
    packed : Packed or None
        None if the batch is not packed.
    at_shift, at_list : int
        Addresses of the parts of `workspace`.
    tile, of_keys : int, bool
        As for `make_list_tiles`.

    Returns
    -------
    blocks : int
        What a launch needs for one head.
    lengths : tuple of DeviceArray
        What `schedule.make_work_of` wants of a packed batch; else ().
    """
    if problem.sequences is None or packed is None:
        seqlen = problem.seqlen_k if of_keys else problem.seqlen_q
        return problem.batch * ceil_div(seqlen, tile), ()
    used = packed.seqused_q, packed.seqused_k
    kernel = make_list_tiles(tile, of_keys, *(x is not None for x in used))
    totals = problem.sequences.total_q, problem.sequences.total_k
    shift = contiguous(at_shift, (problem.batch + 1,), "int64")
    listed = contiguous(at_list, (_rows(problem, tile, of_keys), COLUMNS), "int32")
    given = *packed[:2], *(() if x is None else (x,) for x in used)
    blocks = ceil_div(problem.batch + 2, SEQUENCES)
    launch(kernel, blocks, SEQUENCES, 0, (*given, *totals, shift, listed), stream)
    return listed.shape[0], (listed,)


def as_batches(arrays: Iterable[Any], batches: int) -> list[Any]:
    """Packed tensors with the axis of the batch that kernels expect, of stride 0."""
    return [None if x is None else broadcast(x, (batches, *x.shape)) for x in arrays]
