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
)

FEW = 16
"""Key tiles of a sequence up to which the last one comes first, and the first one beyond."""


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
        Where its query tiles begin among those of a head.
    last_first : bool
        Its key tiles take turns from the last one back, and not from the first one on.
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
    last_first: Any


@room
def recall(sWork):
    """The `OwnedTile` of a packed batch from shared memory, where `make_key_work` put it."""
    place, queries = (sWork[0], sWork[1], sWork[2]), (sWork[3], sWork[4], sWork[5])
    return OwnedTile(*place, *queries, sWork[6], sWork[7], sWork[8], sWork[9], sWork[10] != 0)


@cache
def make_key_work(
    packed: bool,
    has_lengths: bool,
    listed: bool,
    at_once: int,
    tile_m: int,
    tile_n: int,
    uniform: bool,
):
    """Room ``key_work(sWork, Ticket, Q, K, lengths, tid) -> OwnedTile``.

    Who adds to a query tile before this block has started before it. `packed`, `has_lengths` and
    `lengths` as for `schedule.make_work_of`, with a list of key tiles; `listed` says that there is
    a block list. The heads of a packed sequence are worked on together, otherwise `at_once` of all
    heads. `sWork` has room for 12 int32 in shared memory, where what was read of a packed batch
    stays for `recall`.

    Notes
    -----
    Under a causal mask the last key tile begins at the last query tiles, where nobody is ahead of
    it: if it comes first, and all walk on through the queries, nobody ever waits long. That is best
    where a sequence has few key tiles. But then those with the most to do come last, and of a long
    sequence they keep a few multiprocessors busy when the others have ended. There the first key
    tile comes first, and all walk back from the last query tile: each a step behind the one before.
    """
    keys_of, agreed = make_keys_of(has_lengths), make_agreed(uniform)

    @room
    def in_order(place, key_tiles):
        """The key tile that comes as number `place`, and whether the last one comes first."""
        last_first = not listed and key_tiles <= FEW
        return types.int32(key_tiles - 1 - place if last_first else place), last_first

    @room
    def key_work_dense(sWork, Ticket, Q, K, lengths, tid):
        ticket = types.int32(agreed(take_ticket(Ticket, tid)))
        rows_q, rows_k = types.int32(Q.shape[1]), types.int32(K.shape[1])
        key_tiles = types.int32((rows_k + tile_n - 1) // tile_n)
        place = work_of(ticket, key_tiles, Q.shape[0], types.int32(K.shape[2]), at_once)
        number, batch, head = place
        n_block, last_first = in_order(number, key_tiles)
        seqlen_k = types.int32(keys_of(batch, rows_k, lengths))
        first_tile = types.int32(batch * types.int32((rows_q + tile_m - 1) // tile_m))
        zero = types.int32(0)
        queries, keys = (zero, rows_q, rows_q), (zero, seqlen_k, rows_k)
        return OwnedTile(batch, head, n_block, *queries, *keys, first_tile, last_first)

    @room
    def read_work(ticket, K, lengths):
        heads, index = types.uint32(K.shape[2]), types.uint32(ticket)
        row = types.int32(index // heads)
        batch, first, blocks, first_q = map_int32(load_words4_global(lengths[0], (row, 0)))
        seqlen_q, first_k, seqlen_k, rows_k = map_int32(load_words4_global(lengths[0], (row, 4)))
        rows_q = types.int32(load_words4_global(lengths[0], (row, 8))[0])
        place = types.uint32(index - types.uint32(first) * heads)
        block, last_first = in_order(types.int32(place // heads), blocks)
        first_tile = types.int32(first_q // tile_m + batch)  # each wastes a tile at most
        if blocks == 0:
            batch = types.int32(-1)
        queries, keys = (first_q, seqlen_q, rows_q), (first_k, seqlen_k, rows_k)
        head = types.int32(place % heads)
        return OwnedTile(batch, head, block, *queries, *keys, first_tile, last_first)

    @room
    def key_work_packed(sWork, Ticket, Q, K, lengths, tid):
        if tid == 0:
            work = read_work(cuda.atomic.add(Ticket, 0, 1), K, lengths)
            sWork[0], sWork[1], sWork[2] = work.batch, work.head, work.block
            sWork[3], sWork[4], sWork[5] = work.first_q, work.seqlen_q, work.rows_q
            sWork[6], sWork[7], sWork[8] = work.first_k, work.seqlen_k, work.rows_k
            sWork[9], sWork[10] = work.first_tile, work.last_first
        cuda.syncthreads()
        return recall(sWork)

    return key_work_packed if packed else key_work_dense


@room
def work_of(ticket, key_tiles, batches, kv_heads, at_once):
    """``(number, batch, kv_head)`` of the block that started as number `ticket`.

    `at_once` heads at a time, side by side; `number` counts the key tiles of a head as they come:
    who adds to a query tile before this block has then started before it.
    """
    ticket, blocks = types.uint32(ticket), types.uint32(key_tiles)
    heads, together = types.uint32(batches * kv_heads), types.uint32(at_once)
    before = types.uint32(types.uint32(ticket // types.uint32(together * blocks)) * together)
    rest = types.uint32(ticket - before * blocks)
    together = min(together, types.uint32(heads - before))
    head = types.uint32(before + rest % together)
    number = types.int32(rest // together)
    kv = types.uint32(kv_heads)
    return number, types.int32(head // kv), types.int32(head % kv)


@room
def await_turn(Turns, tile, turn):
    """Let a thread wait until `turn` blocks are done with query tile `tile` of all.

    What they wrote is visible to whom this thread meets at a barrier next.
    """
    while load_acquire(Turns, types.uint32(tile)) != turn:
        pass


@room
def leave_turn(Turns, tile, turn):
    """Let the next block in: it sees what this one's threads wrote before the last barrier."""
    store_release(Turns, types.uint32(tile), turn + 1)


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
