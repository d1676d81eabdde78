"""Turns of blocks that add to the same rows: who comes when, and the rows that nobody adds to."""

from functools import cache
from typing import Any, NamedTuple

from .numba_cuda import room, types
from .ptx import load_acquire, store_release
from .schedule import make_key_tiles_room, make_tile_list, narrowed
from .unroll import unroll_none


@room
def work_of(ticket, key_blocks, batches, kv_heads, at_once):
    """``(n_block, batch, kv_head)`` of the block that started as number `ticket`.

    `at_once` heads at a time, side by side, and of each the first key tile first: who adds to a
    query tile before this block has then started before it.
    """
    number, blocks = types.uint32(ticket), types.uint32(key_blocks)
    heads, together = types.uint32(batches * kv_heads), types.uint32(at_once)
    before = types.uint32(types.uint32(number // types.uint32(together * blocks)) * together)
    rest = types.uint32(number - before * blocks)
    together = min(together, types.uint32(heads - before))
    head = types.uint32(before + rest % together)
    n_block = types.int32(rest // together)
    kv = types.uint32(kv_heads)
    return n_block, types.int32(head // kv), types.int32(head % kv)


@room
def await_turn(Turns, batch, head, block, turn):
    """Let a thread wait until `turn` blocks are done with ``Turns[batch, head, block]``.

    What they wrote is visible to whom this thread meets at a barrier next.
    """
    while load_acquire(Turns, (batch, head, block)) != turn:
        pass


@room
def leave_turn(Turns, batch, head, block, turn):
    """Let the next block in: it sees what this one's threads wrote before the last barrier."""
    store_release(Turns, (batch, head, block), turn + 1)


class Visit(NamedTuple):
    """A query tile that visits the block's key tile.

    Attributes
    ----------
    m_block : int
        Which; as many as there are where no further one visits.
    turn : int
        Key tiles that it visits before this one.
    is_last : bool
        It visits none behind this one.
    is_partial : bool
        Some of its scores are masked.
    """

    m_block: Any
    turn: Any
    is_last: Any
    is_partial: Any


@cache
def make_next_visit(key_range, exact: bool, listed: bool, tile_m: int, tile_n: int):
    """Room ``next_visit(m_block, stop, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles)``.

    The first `Visit` from `m_block` on, of query tiles below `stop`, in 32-bit numbers: all that is
    asked about a query tile, out of one look at the mask.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, listed_partial = make_tile_list(listed)

    @room
    def turn_of(visit, m_block, n_block, batch, head, tiles):
        if not listed:
            return types.int32(n_block - visit.start)
        turn = types.int32(0)
        earlier = next_key_tile(visit.start, n_block, m_block, batch, head, tiles)
        while earlier < n_block:
            turn = types.int32(turn + 1)  # int32 + int32 is int64 to Numba
            earlier = next_key_tile(earlier + 1, n_block, m_block, batch, head, tiles)
        return turn

    @room
    def next_visit(m_block, stop, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles):
        m_block, behind = types.int32(m_block), types.int32(n_block + 1)
        while m_block < stop:
            unroll_none()
            visit = narrowed(
                key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
            )
            visits = visit.start <= n_block and n_block < visit.stop
            if visits and next_key_tile(n_block, behind, m_block, batch, head, tiles) == n_block:
                turn = turn_of(visit, m_block, n_block, batch, head, tiles)
                after = next_key_tile(behind, visit.stop, m_block, batch, head, tiles)
                partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
                partial |= behind * tile_n > seqlen_k
                partial |= listed_partial(n_block, m_block, batch, head, tiles)
                return Visit(m_block, turn, after >= visit.stop, partial)
            m_block = types.int32(m_block + 1)
        return Visit(m_block, types.int32(0), False, False)

    return next_visit


@cache
def make_clear_unvisited(
    key_range, exact: bool, listed: bool, tile_m: int, tile_n: int, some: bool, threads: int
):
    """Room ``clear_unvisited(gX, tid, tiles, n_block, batch, head, seqlen_q, seqlen_k, aux)``.

    Zeros in the rows of `gX` that belong to query tiles without a key tile, written by the threads
    of the first key tile's block. If `some` is False there are none.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, _ = make_tile_list(listed)

    @room
    def clear_unvisited(gX, tid, tiles, n_block, batch, head, seqlen_q, seqlen_k, aux):
        if some and n_block == 0:
            block = types.int32(tid)
            while block * tile_m < seqlen_q:
                visit = key_tiles(block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
                first = next_key_tile(visit.start, visit.stop, block, batch, head, tiles)
                if first >= visit.stop:
                    for row in range(block * tile_m, min((block + 1) * tile_m, seqlen_q)):
                        for column in range(gX.shape[1]):
                            gX[row, column] = 0
                block += threads

    return clear_unvisited
