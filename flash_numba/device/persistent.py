"""The order of work of a grid that stays: each block takes one query tile after another."""

from functools import cache

from .numba_cuda import cuda, room, types


@cache
def make_work(paired: bool):
    """Rooms ``turns_of`` and ``query_tile_of``: how many query tiles a block takes, and which.

    Parameters
    ----------
    paired : bool
        For masks such as the causal one, under which a later query tile has more to do: a block
        takes a late tile of one head and then the matching early tile of the next head, so that
        all pairs are equally long. Else blocks take tiles as they come.

    Notes
    -----
    ``turns_of(batch_heads, tiles)`` is the number of turns of this block with `tiles` query tiles
    a head; ``query_tile_of(turn, tiles) -> (batch * heads + head, query tile)``. The last head of
    an odd number has no partner: then the head is `batch_heads` itself, and there is nothing to do.
    """
    together = 2 if paired else 1

    @room
    def turns_of(batch_heads, tiles):
        block, blocks = types.int64(cuda.blockIdx.x), types.int64(cuda.gridDim.x)
        units = (batch_heads + together - 1) // together * tiles
        return (units - block + blocks - 1) // blocks * together

    @room
    def query_tile_of(turn, tiles):
        unit = types.uint32(turn // together * cuda.gridDim.x + cuda.blockIdx.x)
        outer = types.int32(unit // types.uint32(tiles))
        inner = types.int32(unit % types.uint32(tiles))
        if not paired:
            return outer, inner
        if turn % 2 == 0:
            return types.int32(2 * outer), types.int32(tiles - 1 - inner)
        return types.int32(2 * outer + 1), inner

    return turns_of, query_tile_of
