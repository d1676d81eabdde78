"""Turns of blocks that add to the same rows: who comes when, and the rows that nobody adds to."""

from functools import cache
from typing import Any, NamedTuple

from .gradients import take_ticket
from .numba_cuda import cuda, room, types
from .ptx import load_acquire, store_release
from .ptx_words import load_words4_global
from .schedule import (
    make_agreed,
    make_key_tiles_room,
    make_keys_of,
    make_tile_list,
    map_int32,
    narrowed,
)
from .unroll import unroll_none


class OwnedTile(NamedTuple):
    """The key tile that a block owns, in 32-bit numbers.

    Attributes
    ----------
    batch, head, block : int
        Which sequence, -1 where there is nothing to do, which head of K, which of its key tiles.
    first_q, seqlen_q, rows_q : int
        Where the sequence's queries begin on the arrays' axis of rows, how many there are, and how
        many rows of dQ are its own.
    first_k, seqlen_k, rows_k : int
        Likewise its keys, dK and dV.
    first_tile : int
        Where its query tiles begin among those of all.
    """

    batch: Any
    head: Any
    block: Any
    first_q: Any
    seqlen_q: Any
    rows_q: Any
    first_k: Any
    seqlen_k: Any
    rows_k: Any
    first_tile: Any


@room
def recall(sWork):
    """The `OwnedTile` of a packed batch from shared memory, where `make_key_work` put it."""
    place, queries = (sWork[0], sWork[1], sWork[2]), (sWork[3], sWork[4], sWork[5])
    return OwnedTile(*place, *queries, sWork[6], sWork[7], sWork[8], sWork[9])


@cache
def make_key_work(
    packed: bool, has_lengths: bool, at_once: int, tile_m: int, tile_n: int, uniform: bool
):
    """Room ``key_work(sWork, Ticket, Q, K, lengths, tid) -> OwnedTile``.

    Who adds to a query tile before this block has started before it. `packed`, `has_lengths` and
    `lengths` as for `schedule.make_work_of`, with a list of key tiles; of a packed batch the heads
    of a sequence are worked on together and the last key tile comes first, otherwise `at_once` of
    all heads and the first key tile. `sWork` has room for 12 int32 in shared memory, where what was
    read of a packed batch stays for `recall`.
    """
    keys_of, agreed = make_keys_of(has_lengths), make_agreed(uniform)

    @room
    def key_work_dense(sWork, Ticket, Q, K, lengths, tid):
        ticket = types.int32(agreed(take_ticket(Ticket, tid)))
        key_blocks = (K.shape[1] + tile_n - 1) // tile_n
        place = work_of(ticket, key_blocks, Q.shape[0], types.int32(K.shape[2]), at_once)
        n_block, batch, head = place
        rows_q, rows_k = types.int32(Q.shape[1]), types.int32(K.shape[1])
        seqlen_k = types.int32(keys_of(batch, K.shape[1], lengths))
        zero = types.int32(0)
        return OwnedTile(batch, head, n_block, zero, rows_q, rows_q, zero, seqlen_k, rows_k, zero)

    @room
    def read_work(ticket, K, lengths):
        heads, index = types.uint32(K.shape[2]), types.uint32(ticket)
        row = types.int32(index // heads)
        batch, first, blocks, first_q = map_int32(load_words4_global(lengths[0], (row, 0)))
        seqlen_q, first_k, seqlen_k, rows_k = map_int32(load_words4_global(lengths[0], (row, 4)))
        rows_q = types.int32(load_words4_global(lengths[0], (row, 8))[0])
        place = types.uint32(index - types.uint32(first) * heads)
        block, head = types.int32(blocks - 1 - place // heads), types.int32(place % heads)
        first_tile = types.int32(first_q // tile_m + batch)  # each wastes a tile at most
        if blocks == 0:
            batch = types.int32(-1)
        queries, keys = (first_q, seqlen_q, rows_q), (first_k, seqlen_k, rows_k)
        return OwnedTile(batch, head, block, *queries, *keys, first_tile)

    @room
    def key_work_packed(sWork, Ticket, Q, K, lengths, tid):
        if tid == 0:
            work = read_work(cuda.atomic.add(Ticket, 0, 1), K, lengths)
            sWork[0], sWork[1], sWork[2] = work.batch, work.head, work.block
            sWork[3], sWork[4], sWork[5] = work.first_q, work.seqlen_q, work.rows_q
            sWork[6], sWork[7], sWork[8] = work.first_k, work.seqlen_k, work.rows_k
            sWork[9] = work.first_tile
        cuda.syncthreads()
        return recall(sWork)

    return key_work_packed if packed else key_work_dense


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
        Key tiles that add to its dQ before this one.
    is_last : bool
        None adds to it after this one.
    is_partial : bool
        Some of its scores are masked.
    """

    m_block: Any
    turn: Any
    is_last: Any
    is_partial: Any


@cache
def make_next_visit(
    key_range, exact: bool, listed: bool, tile_m: int, tile_n: int, last_first: bool = False
):
    """Room ``next_visit(m_block, stop, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles)``.

    The first `Visit` from `m_block` on, of query tiles below `stop`, in 32-bit numbers: all that is
    asked about a query tile, out of one look at the mask.

    Key tiles take turns from the first one on or, with `last_first` and without a list, from the
    last one back: under a causal mask that one begins at the last query tiles, and so is ahead of
    those that wait for it. Sequences of a packed batch are short, and waiting is a large part.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, listed_partial = make_tile_list(listed)

    @room
    def turn_of(visit, m_block, n_block, batch, head, tiles):
        if last_first:
            return types.int32(visit.stop - 1 - n_block)
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
                if last_first:
                    return Visit(m_block, turn, n_block == visit.start, partial)
                return Visit(m_block, turn, after >= visit.stop, partial)
            m_block = types.int32(m_block + 1)
        return Visit(m_block, types.int32(0), False, False)

    return next_visit


@cache
def make_clear_unvisited(
    key_range, exact: bool, listed: bool, tile_m: int, tile_n: int, some: bool, threads: int
):
    """Room ``clear_unvisited(gX, rows, tid, tiles, *where)``, `where` as for `query_span`.

    Zeros in the rows of `gX` that belong to query tiles without a key tile, and in those between
    `seqlen_q` and `rows`, written by the threads of the first key tile's block. If `some` is False
    there are none.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, _ = make_tile_list(listed)

    @room
    def clear_unvisited(gX, rows, tid, tiles, n_block, batch, head, seqlen_q, seqlen_k, aux):
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
            for row in range(seqlen_q + tid // 32, rows, threads // 32):
                for column in range(tid % 32, gX.shape[1], 32):
                    gX[row, column] = 0

    return clear_unvisited
