"""Which block works on what, and which tiles it visits: the simulator's schedule inside a kernel.

`tiling.make_key_tiles` is the one function that decides; here it is compiled.
"""

from functools import cache
from typing import Any, NamedTuple

from ..tiling import PARTIAL, SKIPPED, KeyTiles, make_key_tiles, make_query_span
from .functions import device_function, with_shift
from .numba_cuda import cuda, room, types
from .ptx_words import load_words4_global


@cache
def make_agreed(told: bool):
    """Room ``agreed(number)``: a uint32 that all threads of a warp have alike.

    If `told`, lane 0 tells it to the others: the number stays the same, but now the compiler knows
    that a warp agrees on it and on what follows from it, and one register for all can hold that.
    """

    @room
    def agreed(number):
        if told:
            return types.uint32(cuda.shfl_sync(0xFFFFFFFF, number, 0))
        return types.uint32(number)

    return agreed


@cache
def make_key_tiles_room(key_range, exact: bool):
    """`tiling.make_key_tiles` compiled for kernels."""
    return room(make_key_tiles(device_function(key_range), exact))


@cache
def make_warp_tiles(key_range, exact: bool, warp_rows: int):
    """Rooms ``warp_tiles(visit, row, batch, head, seqlen_q, seqlen_k, tile_n, aux)`` and ``sees``.

    The first gives the key tiles that a warp's `warp_rows` rows, of which `row` is one, visit among
    those of its block, `visit`; ``sees(own, n_block)`` says whether a tile is one of them. Near a
    diagonal a warp then leaves out the tiles that only other warps' rows see.
    """
    key_tiles, alike = make_key_tiles_room(key_range, exact), key_range is None

    @room
    def warp_tiles(visit, row, batch, head, seqlen_q, seqlen_k, tile_n, aux):
        if alike:
            return visit
        own = min(row, seqlen_q - 1) // warp_rows
        return key_tiles(own, batch, head, seqlen_q, seqlen_k, warp_rows, tile_n, aux)

    @room
    def sees(own, n_block):
        if alike:
            return True
        return (own.start <= n_block) & (n_block < own.stop)

    return warp_tiles, sees


@room
def narrowed(visit):
    """`tiling.KeyTiles` in 32-bit numbers: half the registers."""
    return KeyTiles(
        types.int32(visit.start),
        types.int32(visit.full_start),
        types.int32(visit.full_stop),
        types.int32(visit.stop),
    )


@room
def whole_tiles(visit, seqlen_k, tile_n):
    """`visit`, in which a tile that reaches beyond the last key is not full."""
    full_stop = types.int32(min(visit.full_stop, seqlen_k // tile_n))
    return KeyTiles(visit.start, visit.full_start, full_stop, visit.stop)


@room
def block_of(batch_heads, blocks):
    """``(batch * heads + head, block)``: heads side by side, the last block first.

    With a causal mask the last query tile has the most to do: started first, it does not keep the
    other multiprocessors waiting at the end. One grid axis, so that batch and heads may be many.
    """
    index = cuda.blockIdx.x
    return index % batch_heads, blocks - 1 - index // batch_heads


@cache
def make_block_of(rows_first: bool):
    """Room ``block_of(num_heads, batch_heads, blocks) -> (batch, head, block)`` in 32-bit numbers.

    As `block_of`, divisions being several times cheaper in 32 bits; or, with `rows_first`, blocks
    side by side: without a mask all have the same to do, and neighbours that read the same K and V
    find them in L2.
    """

    @room
    def block_of_32(num_heads, batch_heads, blocks):
        index, many = types.uint32(cuda.blockIdx.x), types.uint32(batch_heads)
        if rows_first:
            many = types.uint32(blocks)
        outer, inner = types.uint32(index // many), types.uint32(index % many)
        batch_head = outer if rows_first else inner
        block = types.int32(inner) if rows_first else types.int32(blocks - 1 - outer)
        heads = types.uint32(num_heads)
        return types.int32(batch_head // heads), types.int32(batch_head % heads), block

    return block_of_32


class Work(NamedTuple):
    """What a block works on, in 32-bit numbers.

    Attributes
    ----------
    batch : int
        Which sequence; -1 where there is nothing to do.
    head, block : int
        Which head, and which of the sequence's tiles.
    blocks : int
        Tiles of the sequence.
    first_q, seqlen_q : int
        Where its queries begin on the arrays' axis of rows, and how many there are.
    first_k, seqlen_k : int
        Likewise its keys.
    rows : int
        Rows that results have room for, of which those without a query, or key, become zeros.
    """

    batch: Any
    head: Any
    block: Any
    blocks: Any
    first_q: Any
    seqlen_q: Any
    first_k: Any
    seqlen_k: Any
    rows: Any


@room
def map_int32(words):
    """Four words as signed numbers."""
    a, b, c, d = words
    return types.int32(a), types.int32(b), types.int32(c), types.int32(d)


_agreed = make_agreed(True)


@room
def read_agreed(Tiles, row, column):
    """Four numbers of a row of a list of tiles, in registers that all threads of a warp share.

    As vectors' registers they would cost what spills, where otherwise there are parameters.
    """
    a, b, c, d = map_int32(load_words4_global(Tiles, (row, column)))
    a, b = types.int32(_agreed(a)), types.int32(_agreed(b))
    return a, b, types.int32(_agreed(c)), types.int32(_agreed(d))


@cache
def make_work_of(packed: bool, has_lengths: bool, rows_first: bool, of_keys: bool = False):
    """Room ``work_of(num_heads, Q, K, tile, lengths) -> Work``.

    Parameters
    ----------
    packed : bool
        Sequences lie behind each other: `lengths` is ``(Tiles,)``, a row for each tile (see
        `kernels.packed_tiles`). Else it is as `make_keys_of` says.
    has_lengths, rows_first : bool
        As for `make_keys_of` and `make_block_of`.
    of_keys : bool
        Tiles are of keys, and heads those of K; else of queries.
    """
    block_of, keys_of = make_block_of(rows_first), make_keys_of(has_lengths)

    @room
    def work_of_dense(num_heads, Q, K, tile, lengths):
        seqlen_q = types.int32(Q.shape[1])
        rows = types.int32(K.shape[1]) if of_keys else seqlen_q
        blocks = types.int32((rows + tile - 1) // tile)
        batch, head, block = block_of(num_heads, Q.shape[0] * num_heads, blocks)
        seqlen_k = types.int32(keys_of(batch, K.shape[1], lengths))
        zero = types.int32(0)
        return Work(batch, head, block, blocks, zero, seqlen_q, zero, seqlen_k, rows)

    @room
    def work_of_packed(num_heads, Q, K, tile, lengths):
        heads, index = types.uint32(num_heads), types.uint32(cuda.blockIdx.x)
        row = types.int32(index // heads)
        batch, first, blocks, first_q = read_agreed(lengths[0], row, 0)
        seqlen_q, first_k, seqlen_k, rows = read_agreed(lengths[0], row, 4)
        # The tiles of a sequence are neighbours, so those of all its heads are too.
        place = types.uint32(index - types.uint32(first) * heads)
        many = types.uint32(max(blocks, 1)) if rows_first else heads
        outer, inner = types.int32(place // many), types.int32(place % many)
        head = outer if rows_first else inner
        block = inner if rows_first else types.int32(blocks - 1 - outer)
        if blocks == 0:
            batch = types.int32(-1)
        if not of_keys and block * tile >= seqlen_q:
            seqlen_k = types.int32(0)  # nobody asks
        return Work(batch, head, block, blocks, first_q, seqlen_q, first_k, seqlen_k, rows)

    return work_of_packed if packed else work_of_dense


@cache
def make_own_aux(packed: bool, keep, key_range):
    """Room ``own_aux(mask_aux, range_aux, seqlen_q, seqlen_k)``: both as a block wants them.

    The sequences of a packed batch have diagonals of their own: where masks read them from memory,
    by the number of the sequence, a block that knows its sequence puts its own number in place.
    """
    own_mask, own_range = with_shift(keep), with_shift(key_range)

    @room
    def own_aux(mask_aux, range_aux, seqlen_q, seqlen_k):
        if packed:
            shift = types.int32(seqlen_k - seqlen_q)
            return own_mask(mask_aux, shift), own_range(range_aux, shift)
        return mask_aux, range_aux

    return own_aux


@cache
def make_sees_tile(key_range, rows: int, tile_n: int):
    """Room ``sees_tile(first_q, n_block, seqlen_q, batch, head, aux)``: must a warp visit a tile.

    False if no row of the `rows` from `first_q` on sees a key of the tile, by the mask's
    `key_range` (None: all keys).
    """
    bounds = device_function(key_range)

    @room
    def sees_tile(first_q, n_block, seqlen_q, batch, head, aux):
        if first_q >= seqlen_q:
            return False
        if bounds is None:
            return True
        lo, _ = bounds(batch, head, first_q, aux)
        _, hi = bounds(batch, head, min(first_q + rows, seqlen_q) - 1, aux)
        return lo < (n_block + 1) * tile_n and hi > n_block * tile_n

    return sees_tile


@cache
def make_keys_of(listed: bool):
    """Room ``keys_of(batch, seqlen_k, lengths)``: the sequence's own number of keys.

    `lengths` is ``(int64 array of shape (batch,),)`` if `listed`, else ().
    """

    @room
    def keys_of(batch, seqlen_k, lengths):
        if listed:
            return lengths[0][batch]
        return seqlen_k

    return keys_of


@cache
def make_tile_list(listed: bool):
    """Rooms for a block list ``(int8 array of shape (batch, heads, query tiles, key tiles),)``.

    ``next_key_tile(n_block, stop, m_block, batch, head, tiles)`` is the first listed key tile from
    `n_block` on, or `stop`; ``is_partial(...)`` says whether the list wants it masked. Without a
    list (`listed` False, `tiles` ()) every tile is listed.
    """

    @room
    def next_key_tile(n_block, stop, m_block, batch, head, tiles):
        if listed:
            while n_block < stop and tiles[0][batch, head, m_block, n_block] == SKIPPED:
                n_block += 1
        return n_block

    @room
    def listed_partial(n_block, m_block, batch, head, tiles):
        if listed:
            return tiles[0][batch, head, m_block, n_block] == PARTIAL
        return False

    return next_key_tile, listed_partial


@cache
def make_query_walk(key_range, exact: bool, listed: bool, tile_m: int, tile_n: int):
    """Rooms with which the owner of a key tile walks over the query tiles that visit it.

    ``span(n_block, batch, head, seqlen_q, seqlen_k, aux) -> (start, stop)`` holds them all;
    ``next_query_tile(m_block, stop, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles)`` is the
    first of them from `m_block` on, or `stop`; ``turn_of(m_block, ...)`` says how many key tiles
    the query tile visits before this one, ``is_partial(m_block, ...)`` whether to mask.
    """
    query_span = room(make_query_span(device_function(key_range)))
    key_tiles = make_key_tiles_room(key_range, exact)
    next_key_tile, listed_partial = make_tile_list(listed)

    @room
    def span(n_block, batch, head, seqlen_q, seqlen_k, aux):
        return query_span(n_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)

    @room
    def next_query_tile(m_block, stop, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles):
        while m_block < stop:
            visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
            if visit.start <= n_block and n_block < visit.stop:
                end = n_block + 1
                if next_key_tile(n_block, end, m_block, batch, head, tiles) == n_block:
                    return m_block
            m_block += 1
        return m_block

    @room
    def turn_of(m_block, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles):
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
        if not listed:
            return n_block - visit.start
        turn = 0
        earlier = next_key_tile(visit.start, n_block, m_block, batch, head, tiles)
        while earlier < n_block:
            turn += 1
            earlier = next_key_tile(earlier + 1, n_block, m_block, batch, head, tiles)
        return turn

    @room
    def is_partial(m_block, n_block, batch, head, seqlen_q, seqlen_k, aux, tiles):
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, aux)
        partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
        partial |= (n_block + 1) * tile_n > seqlen_k
        return partial | listed_partial(n_block, m_block, batch, head, tiles)

    return span, next_query_tile, turn_of, is_partial
