"""Rooms of the backward pass: weights from lse, and sums over blocks in a fixed order."""

import math
from functools import cache

from .numba_cuda import cuda, room, types
from .online_softmax import LOG2_E
from .ptx import exp2, load_acquire, load_uncached, recomputed, rounded_product, store_release
from .unroll import unroll_full


@cache
def make_clear(rows: int, columns: int):
    """Room ``clear(rX)``: zeros in a register tile."""

    @room
    def clear(rX):
        for i in range(rows):
            unroll_full()
            for j in range(columns):
                unroll_full()
                rX[i, j] = 0

    return clear


@cache
def make_keep(rows: int, columns: int):
    """Room ``keep(rX, rY)``: ``rX = rY``, register tiles."""

    @room
    def keep(rX, rY):
        for i in range(rows):
            unroll_full()
            for j in range(columns):
                unroll_full()
                rX[i, j] = rY[i, j]

    return keep


@cache
def make_softmax_gradient(tile_rows: int, tile_columns: int):
    """Rooms ``subtract_delta(rdP, rDelta)`` and ``weights(rS, rdP, rLse)``; columns are queries.

    The first turns dP into dP - delta. The second turns scores into P = exp(S - lse) and
    `rdP` into dS = P∘(dP - delta), which is 0 wherever P is 0.

    References
    ----------
    Dao, "FlashAttention-2", 2023, Algorithm 2, lines 11 to 14.
    """

    @room
    def subtract_delta(rdP, rDelta):
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                rdP[i, j] -= rDelta[j]

    @room
    def weights(rS, rdP, rLse):
        for j in range(tile_columns):
            unroll_full()
            shift = rLse[j]
            # A row that saw no key has lse -inf, and its weights are 0.
            if shift == types.float32(-math.inf):
                shift = types.float32(math.inf)
            for i in range(tile_rows):
                unroll_full()
                p = exp2(rounded_product(rS[i, j] - shift, types.float32(LOG2_E)))
                rS[i, j] = p
                rdP[i, j] = p * rdP[i, j] if p != 0 else types.float32(0)

    return subtract_delta, weights


@room
def take_ticket(Ticket, tid):
    """How many blocks have started before this one; the same number for all threads."""
    sTicket = cuda.shared.array(1, types.int32)
    if tid == 0:
        sTicket[0] = cuda.atomic.add(Ticket, 0, 1)
    cuda.syncthreads()
    return types.int64(sTicket[0])


@room
def wait_for_turn(Turns, batch, head, block, turn, tid):
    """Hold the block until `turn` others are done with ``Turns[batch, head, block]``."""
    if tid == 0:
        while load_acquire(Turns, (batch, head, block)) != turn:
            pass
    cuda.syncthreads()


@room
def end_turn(Turns, batch, head, block, turn, tid):
    """Let the next block in; what this one wrote is visible to it."""
    cuda.syncthreads()
    if tid == 0:
        store_release(Turns, (batch, head, block), turn + 1)


@cache
def make_add_rows(columns: int, tile_rows: int, tile_columns: int, lanes: int):
    """Room ``add_rows(gX, rX, first_row, row_stop, lane, factor)``: ``gX += factor * rX``.

    Column j of the register tile is column ``lane + lanes * j`` of `gX`, a float32 view (rows,
    columns) that other blocks of the same launch have written to. In place of an element beyond the
    end a thread reads one of its own once more, and drops it.
    """
    all_exist = columns % (lanes * tile_columns) == 0
    lean = columns > 128  # a block then has no registers to keep addresses in
    number = types.int32 if lean else types.int64

    @room
    def add_rows(gX, rX, first_row, row_stop, lane, factor):
        rOld = cuda.local.array((tile_rows, tile_columns), types.float32)
        rows = number(min(row_stop - first_row, tile_rows))
        if rows > 0 and (all_exist or lane < columns):
            if lean:
                rows, lane = number(recomputed(rows)), recomputed(lane)
            for i in range(tile_rows):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    column = lane + lanes * j
                    if not all_exist:
                        column = column if column < columns else lane
                    rOld[i, j] = load_uncached(gX, (first_row + min(i, rows - 1), column))
            for i in range(tile_rows):
                unroll_full()
                if i < rows:
                    for j in range(tile_columns):
                        unroll_full()
                        column = lane + lanes * j
                        if all_exist or column < columns:
                            gX[first_row + i, column] = rOld[i, j] + factor * rX[i, j]

    return add_rows
