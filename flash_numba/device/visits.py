"""Which query tiles visit a key tile: one thread looks ahead, and notes it for its block."""

from functools import cache
from typing import Any, NamedTuple

from .numba_cuda import room, types
from .schedule import make_key_tiles_room, make_tile_list, narrowed
from .unroll import unroll_none

SLOTS = 8
"""Visits that are noted at a time, a power of two: the last one, this one and the next two."""

EXISTS, LAST, PARTIAL = 1, 2, 4
"""What is noted of a visit, added up."""


class Visit(NamedTuple):
    """A query tile that visits the block's key tile.

    Attributes
    ----------
    exists : bool
        Whether there is one; the rest means nothing if not.
    m_block : int
        Which query tile.
    turn : int
        Key tiles that add to its dQ before this one.
    is_last : bool
        None adds to it after this one.
    is_partial : bool
        Some of its scores are masked.
    """

    exists: Any
    m_block: Any
    turn: Any
    is_last: Any
    is_partial: Any


@cache
def make_visit_of(noted: bool, tile_n: int):
    """Room ``visit_of(sVisits, number, first, walk, n_block, seqlen_k) -> Visit``.

    Visit `number`, of which the head's first one is `first`. Where it is `noted`, as
    `make_note_visit` does it, what is not used is not read. Else every query tile visits every key
    tile, and ``walk = (start, stop, last_first)`` says it all: what `make_note_visit` wants.
    """

    @room
    def visit_as_noted(sVisits, number, first, walk, n_block, seqlen_k):
        slot = types.uint32(number & (SLOTS - 1))
        kind = sVisits[slot, 0]
        kinds = kind != 0, (kind & LAST) != 0, (kind & PARTIAL) != 0
        return Visit(kinds[0], sVisits[slot, 1], sVisits[slot, 2], kinds[1], kinds[2])

    @room
    def visit_of_all(sVisits, number, first, walk, n_block, seqlen_k):
        start, stop, last_first = walk
        index, last = types.int32(number - first), types.int32((seqlen_k - 1) // tile_n)
        m_block = types.int32(start + index if last_first else stop - 1 - index)
        turn = types.int32(last - n_block if last_first else n_block)
        is_last = n_block == (0 if last_first else last)
        exists = (index < stop - start) & (n_block * tile_n < seqlen_k)
        return Visit(exists, m_block, turn, is_last, (n_block + 1) * tile_n > seqlen_k)

    return visit_as_noted if noted else visit_of_all


@room
def walked(sVisits, number):
    """Where the walk goes on after visit `number`: an `index` for `make_note_visit`."""
    return sVisits[types.uint32(number & (SLOTS - 1)), 3]


@cache
def make_note_visit(key_range, exact: bool, listed: bool, tile_m: int, tile_n: int):
    """Room that finds a visit of a key tile and notes it for all threads of the block.

    ``note_visit(sVisits, number, index, start, stop, last_first, n_block, batch, head, seqlen_q,
    seqlen_k, aux, tiles)``: visit `number` is the first query tile from `index` on, of those in
    [start, stop), that visits key tile `n_block`; `last_first` as in `OwnedTile`. Query tiles are
    walked through from `start` on or, if the first key tile comes first, from the end back.
    `sVisits` is int32 (SLOTS, 4) in shared memory.

    One thread looks at the mask, two steps ahead, and the others read a few numbers when they need
    them. If all did, each would need the registers for it.
    """
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, listed_partial = make_tile_list(listed)

    @room
    def turn_of(visit, last_first, m_block, n_block, batch, head, tiles):
        if not listed:
            return types.int32(visit.stop - 1 - n_block if last_first else n_block - visit.start)
        turn = types.int32(0)
        earlier = next_key_tile(visit.start, n_block, m_block, batch, head, tiles)
        while earlier < n_block:
            turn = types.int32(turn + 1)  # int32 + int32 is int64 to Numba
            earlier = next_key_tile(earlier + 1, n_block, m_block, batch, head, tiles)
        return turn

    @room
    def note_visit(
        sVisits, number, index, start, stop, last_first, n_block, batch, head, seqlen_q, seqlen_k,
        aux, tiles,
    ):  # fmt: skip
        index, many, behind = types.int32(index), types.int32(stop - start), n_block + 1
        kind, m_block, turn = types.int32(0), types.int32(0), types.int32(0)
        while index < many and kind == 0:
            unroll_none()
            m_block = types.int32(start + index if last_first else stop - 1 - index)
            visit = narrowed(
                key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
            )
            visits = visit.start <= n_block and n_block < visit.stop
            if visits and next_key_tile(n_block, behind, m_block, batch, head, tiles) == n_block:
                turn = turn_of(visit, last_first, m_block, n_block, batch, head, tiles)
                after = next_key_tile(behind, visit.stop, m_block, batch, head, tiles)
                is_last = n_block == visit.start if last_first else after >= visit.stop
                partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
                partial |= behind * tile_n > seqlen_k
                partial |= listed_partial(n_block, m_block, batch, head, tiles)
                kind = types.int32(EXISTS + (LAST if is_last else 0) + (PARTIAL if partial else 0))
            index = types.int32(index + 1)
        slot = types.uint32(number & (SLOTS - 1))
        sVisits[slot, 0], sVisits[slot, 1], sVisits[slot, 2] = kind, m_block, turn
        sVisits[slot, 3] = index

    return note_visit
