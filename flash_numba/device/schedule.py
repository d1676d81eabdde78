"""Which block works on what, and which tiles it visits: the simulator's schedule inside a kernel.

`tiling.make_key_tiles` is the one function that decides; here it is compiled.
"""

from functools import lru_cache

from ..tiling import PARTIAL, SKIPPED, make_key_tiles
from .functions import device_function
from .numba_cuda import cuda, room


@lru_cache(maxsize=None)
def make_key_tiles_room(key_range, exact: bool):
    """`tiling.make_key_tiles` compiled for kernels."""
    return room(make_key_tiles(device_function(key_range), exact))


@room
def block_of(batch_heads, blocks):
    """``(batch * heads + head, block)``: heads side by side, the last block first.

    With a causal mask the last query tile has the most to do: started first, it does not keep the
    other multiprocessors waiting at the end. One grid axis, so that batch and heads may be many.
    """
    index = cuda.blockIdx.x
    return index % batch_heads, blocks - 1 - index // batch_heads


@lru_cache(maxsize=None)
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


@lru_cache(maxsize=None)
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
