"""The order of work of a grid that stays: each block takes one query tile after another."""

from .numba_cuda import cuda, room, types


@room
def item_of(turn):
    """Number of the piece of work that this block takes in its turn `turn` = 0, 1, ...

    Blocks take pieces in ascending order one turn and in descending order the next: where pieces
    are sorted by length, no block always has the longest of its turn.
    """
    block, blocks = types.int64(cuda.blockIdx.x), types.int64(cuda.gridDim.x)
    if turn % 2 == 0:
        return turn * blocks + block
    return turn * blocks + blocks - 1 - block


@room
def query_tile_of(item, batch_heads, blocks, together):
    """``(batch * heads + head, query tile)`` of piece `item`.

    `together` heads are neighbours in the order: their last query tiles come first, which a causal
    mask makes the longest. 1 keeps a head's query tiles together, which share its K and V in L2.
    """
    group = types.uint32(together * blocks)
    first = types.int64(types.uint32(item) // group) * together
    heads = types.uint32(min(together, batch_heads - first))
    rest = types.uint32(types.uint32(item) % group)
    return first + types.int64(rest % heads), blocks - 1 - types.int64(rest // heads)
