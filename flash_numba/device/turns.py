"""Turns of blocks that add to the same rows: who comes when, and the rows that nobody adds to."""

from functools import cache

from .numba_cuda import room, types
from .ptx import load_acquire, store_release
from .schedule import make_key_tiles_room, make_tile_list


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


@cache
def make_is_last(key_range, exact: bool, listed: bool, tile_m: int, tile_n: int):
    """Room ``is_last(m_block, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles)``.

    Whether no key tile behind this one is visited by the query tile.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, _ = make_tile_list(listed)

    @room
    def is_last(m_block, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles):
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
        return next_key_tile(n_block + 1, visit.stop, m_block, batch, head, tiles) >= visit.stop

    return is_last


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
