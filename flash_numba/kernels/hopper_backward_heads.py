"""How many heads' key tiles the Hopper backward kernel works on side by side."""

from ..problem import Problem
from ..tiling import ceil_div
from .hopper_backward_tiles import NARROW, is_masked

KEYS_AT_ONCE = 4096
"""Keys of a head that should be worked on at a time: they share Q, dO and dQ's sums in L2."""

IN_L2 = 32 << 20
"""Bytes of Q, dO and dQ's sums that L2 keeps. Under a mask key tiles of a head are at queries far
apart, so that whole heads must stay there."""

BACKWARDS_AT_ONCE = 384
"""The same where queries are walked from the last one back: a key tile follows the one before it in
every step."""


def heads_at_once(problem: Problem, tile_n: int, blocks: int, keys: int = KEYS_AT_ONCE) -> int:
    """kv heads that are worked on side by side, so that `blocks` blocks have key tiles.

    `keys` of a head should be worked on at a time.

    With a mask, if it can be, no smaller group of heads is left for the end, whose longest key
    tiles would be worked on alone.
    """
    heads = problem.batch * problem.num_kv_heads
    key_tiles = ceil_div(problem.seqlen_k, tile_n)
    most = ceil_div(blocks, max(1, min(key_tiles, keys // tile_n)))
    if not is_masked(problem):
        return most
    if max(problem.head_dim, problem.head_dim_v) <= NARROW:
        row_bytes = (2 + 4) * problem.head_dim + 2 * problem.head_dim_v
        fit = IN_L2 // max(1, problem.group * problem.seqlen_q * row_bytes)
        most = min(most, max(fit, ceil_div(blocks, max(1, key_tiles))))
    even = [count for count in range(most, most // 2, -1) if heads % count == 0]
    return even[0] if even else most
