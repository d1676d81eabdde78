"""FlashAttention-1's softmax of one tile in shared memory, a thread a row.

References
----------
Dao et al., "FlashAttention", NeurIPS 2022, Algorithm 1, lines 10 to 13.
"""

import math
from functools import cache

from .dropout import keep_factor
from .numba_cuda import room, types


@room
def finite(x):
    """`x`, but 0 for -inf, so that it can be subtracted: exp(-inf - 0) = 0."""
    return x if x != types.float32(-math.inf) else types.float32(0)


@cache
def make_tile_softmax(tile_rows: int, tile_columns: int, group: int, has_dropout: bool):
    """Rooms ``tile_softmax`` and ``merge`` of one row.

    Parameters
    ----------
    tile_rows, tile_columns, group : int
        S of that shape lies in `sS` as `products.make_share` puts it, with `group` columns a
        thread: column k of row i at ``[k // group, k % group * tile_rows + i]``.
    has_dropout : bool
        Whether weights are dropped; see `dropout.make_drop_weights`.

    Notes
    -----
    ``tile_softmax(sS, i, q_idx, first_k, batch_head, dropout) -> (m̃, l̃)`` puts
    P̃ = exp(S - m̃), m̃ the largest score of row i and l̃ the sum of its weights, in place of S;
    dropped weights become 0 and count in l̃. ``merge(m, l, m̃, l̃) -> (m, l, old, new)`` gives the
    row's maximum and sum, and the shares of O and of P̃ V in the new O.
    """

    @room
    def tile_softmax(sS, i, q_idx, first_k, batch_head, dropout):
        tile_max = types.float32(-math.inf)
        for k in range(tile_columns):
            tile_max = max(tile_max, sS[k // group, k % group * tile_rows + i])
        tile_sum = types.float32(0)
        for k in range(tile_columns):
            p = math.exp(sS[k // group, k % group * tile_rows + i] - finite(tile_max))
            tile_sum += p
            if has_dropout:
                p *= keep_factor(q_idx, first_k + k, batch_head, dropout)
            sS[k // group, k % group * tile_rows + i] = p
        return tile_max, tile_sum

    @room
    def merge(old_max, old_sum, tile_max, tile_sum):
        row_max = max(old_max, tile_max)
        alpha = math.exp(old_max - finite(row_max))
        beta = math.exp(tile_max - finite(row_max))
        row_sum = alpha * old_sum + beta * tile_sum
        divisor = row_sum if row_sum != 0 else types.float32(1)
        return row_max, row_sum, alpha * old_sum / divisor, beta / divisor

    return tile_softmax, merge
