"""The steps of a block: pairs of a query tile and a key tile, the same for all its roles."""

from functools import cache
from typing import NamedTuple

from ..device.numba_cuda import room, types
from ..device.persistent import make_work
from ..device.schedule import make_key_tiles_room, make_keys_of, make_tile_list
from .spec import Spec


class Step(NamedTuple):
    """One key tile of one query tile.

    Attributes
    ----------
    turn : int
        Which of the block's query tiles; `turns` of them after the last step.
    batch, head, m_block : int
        The query tile.
    n_block, stop : int
        The key tile, and the end of those that may be visited.
    full_start, full_stop : int
        Key tiles between them need no mask.
    seqlen_k : int
        The sequence's own number of keys.
    empty : int
        Query tiles passed so far that see no key.
    """

    turn: int
    batch: int
    head: int
    m_block: int
    n_block: int
    stop: int
    full_start: int
    full_stop: int
    seqlen_k: int
    empty: int


@cache
def make_walk(spec: Spec, tile_m: int, tile_n: int):
    """Rooms ``turns(LSE)``, ``tile_of``, ``step_of``, ``next_key``, ``next_step``, ``is_partial``.

    ``tile_of(turn, LSE) -> (batch, head, m_block)`` is the query tile of a turn (a batch that does
    not exist: none).
    ``step_of(turn, turns, empty, LSE, keys, range_aux, lengths, listed)`` is the first step of the
    query tile of a turn, or of the next one that sees a key; ``next_step(step, turns, ...)`` the
    step after one. ``next_key(step, n_block, listed)`` is the query tile's next key tile, or
    `stop`; ``is_partial(step, n_block, listed)`` says whether one needs the mask.
    """
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    keys_of = make_keys_of(spec.has_lengths)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    turns_of, query_tile_of = make_work(spec.key_range is not None)

    @room
    def sizes_of(LSE):
        # all heads, and query tiles of one: in 32 bits, whose divisions are short
        tiles = types.uint32(LSE.shape[2] + tile_m - 1) // types.uint32(tile_m)
        return types.int32(LSE.shape[0] * LSE.shape[1]), types.int32(tiles)

    @room
    def turns(LSE):
        batch_heads, tiles = sizes_of(LSE)
        return types.int32(turns_of(batch_heads, tiles))

    @room
    def tile_of(turn, LSE):
        _, tiles = sizes_of(LSE)
        batch_head, m_block = query_tile_of(turn, tiles)
        heads = types.int32(LSE.shape[1])
        batch = types.int32(types.uint32(batch_head) // types.uint32(heads))
        return batch, types.int32(batch_head - batch * heads), m_block

    @room
    def step_of(turn, turns, empty, LSE, keys, range_aux, lengths, listed):
        seqlen_q = LSE.shape[2]
        batch = head = m_block = n_block = stop = full_start = full_stop = types.int32(0)
        seqlen_k = types.int32(0)
        while turn < turns:
            batch, head, m_block = tile_of(turn, LSE)
            if batch < LSE.shape[0]:
                seqlen_k = types.int32(keys_of(batch, keys, lengths))
                visit = key_tiles(
                    m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux
                )
                stop = types.int32(visit.stop)
                full_start, full_stop = types.int32(visit.full_start), types.int32(visit.full_stop)
                first = next_key_tile(visit.start, visit.stop, m_block, batch, head, listed)
                n_block = types.int32(first)
                if n_block < stop:
                    break
                empty = types.int32(empty + 1)
            turn = types.int32(turn + 1)
        return Step(
            turn, batch, head, m_block, n_block, stop, full_start, full_stop, seqlen_k, empty
        )

    @room
    def next_key(step, n_block, listed):
        after = types.int32(n_block + 1)
        after = next_key_tile(after, step.stop, step.m_block, step.batch, step.head, listed)
        return types.int32(after)

    @room
    def next_step(step, turns, LSE, keys, range_aux, lengths, listed):
        after = next_key(step, step.n_block, listed)
        if after < step.stop:
            return Step(
                step.turn, step.batch, step.head, step.m_block, after, step.stop,
                step.full_start, step.full_stop, step.seqlen_k, step.empty,
            )  # fmt: skip
        turn = types.int32(step.turn + 1)
        return step_of(turn, turns, step.empty, LSE, keys, range_aux, lengths, listed)

    @room
    def is_partial(step, n_block, listed):
        partial = (n_block < step.full_start) | (n_block >= step.full_stop)
        partial |= listed_partial(n_block, step.m_block, step.batch, step.head, listed)
        return partial | (types.int32((n_block + 1) * tile_n) > step.seqlen_k)

    return turns, tile_of, step_of, next_key, next_step, is_partial
