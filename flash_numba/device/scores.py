"""What happens to a tile of scores between the product and the softmax, element by element.

Each maker returns a room for one way of holding the tile: rows are queries and columns keys, or,
in the kernel that owns a key tile, the other way round.
"""

import math
from functools import cache

from .functions import chain, chain_derivative, device_function
from .numba_cuda import room, types
from .ptx import rounded_product
from .unroll import unroll_full

LOG2_E = math.log2(math.e)


@cache
def make_position(rows_are_keys: bool, fragment: bool = False):
    """Room ``position(first_q, first_k, i, j) -> (q_idx, k_idx)`` of element (i, j) of a tile.

    Parameters
    ----------
    rows_are_keys : bool
        True where rows of the tile are keys.
    fragment : bool
        True where the tile is a lane's part of tensor-core sums (see `fragments`).
    """

    @room
    def position(first_q, first_k, i, j):
        if fragment:
            i, j = 8 * i, 8 * (j // 2) + j % 2
        if rows_are_keys:
            return first_q + j, first_k + i
        return first_q + i, first_k + j

    return position


@cache
def make_mask_scores(
    keep, tile_rows: int, tile_columns: int, rows_are_keys: bool = False, fragment: bool = False
):
    """Room ``mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux)``.

    Scores of keys that the query may not see, or that do not exist, become -inf.

    Parameters
    ----------
    keep : callable or None
        `masks.Mask.keep`; None = every existing key is visible.
    tile_rows, tile_columns : int
        Shape of a thread's part of the scores.
    rows_are_keys, fragment : bool
        As in `make_position`.

    Notes
    -----
    Positions are clamped into the sequence before `keep` sees them, which may index tensors.
    """
    visible = device_function(keep)
    position = make_position(rows_are_keys, fragment)

    @room
    def allowed(q_idx, k_idx, seqlen_q, seqlen_k, batch, head, aux):
        if visible is None:
            return k_idx < seqlen_k
        q_safe, k_safe = min(q_idx, seqlen_q - 1), min(k_idx, seqlen_k - 1)
        return (k_idx < seqlen_k) & bool(visible(batch, head, q_safe, k_safe, aux))

    @room
    def mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux):
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                q_idx, k_idx = position(first_q, first_k, i, j)
                if not allowed(q_idx, k_idx, seqlen_q, seqlen_k, batch, head, aux):
                    rS[i, j] = -math.inf

    return mask_scores


@cache
def make_change_scores(
    changes: tuple,
    tile_rows: int,
    tile_columns: int,
    rows_are_keys: bool = False,
    fragment: bool = False,
):
    """Room ``change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux)``.

    Parameters
    ----------
    changes : tuple of callables
        `masks.ScoreMod.apply` of each change, in order.
    tile_rows, tile_columns : int
        Shape of a thread's part of the scores.
    rows_are_keys : bool
        True where rows of the tile are keys.
    fragment : bool
        As in `make_position`.
    """
    change = chain(changes)
    changed = len(changes) > 0
    position = make_position(rows_are_keys, fragment)

    @room
    def change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux):
        if not changed:
            return
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                q_idx, k_idx = position(first_q, first_k, i, j)
                q_idx, k_idx = min(q_idx, seqlen_q - 1), min(k_idx, seqlen_k - 1)
                rS[i, j] = change(rS[i, j], batch, head, q_idx, k_idx, aux)

    return change_scores


@cache
def make_change_scores_backward(
    changes: tuple,
    derivatives: tuple,
    tile_rows: int,
    tile_columns: int,
    rows_are_keys: bool = True,
    fragment: bool = False,
):
    """Room ``change_scores_backward(rS, rG, ...)``, the rest as in `make_change_scores`.

    `rS` as `make_change_scores` does it, and `rG` times the derivative of the changes at the
    incoming score.
    """
    change = chain(changes)
    derivative = chain_derivative(changes, derivatives)
    changed = len(changes) > 0
    position = make_position(rows_are_keys, fragment)

    @room
    def change_scores_backward(rS, rG, first_q, first_k, seqlen_q, seqlen_k, batch, head, aux):
        if changed:
            for i in range(tile_rows):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    q_idx, k_idx = position(first_q, first_k, i, j)
                    q_idx, k_idx = min(q_idx, seqlen_q - 1), min(k_idx, seqlen_k - 1)
                    slope = derivative(rS[i, j], batch, head, q_idx, k_idx, aux)
                    score = change(rS[i, j], batch, head, q_idx, k_idx, aux)
                    rG[i, j] *= types.float32(slope)
                    rS[i, j] = score

    return change_scores_backward


@cache
def make_scale_scores(folded: bool, tile_rows: int, tile_columns: int):
    """Room ``scale_scores(rS, scale)``: ``rS *= scale``, unless it is part of a factor already.

    Forward and backward pass must get the same bits: scores of some 10,000 are no use if they
    differ in the last place. So the scale is folded into Q or K only if it is a power of two (see
    `is_power_of_two`), and this product is not fused with what follows.
    """

    @room
    def scale_scores(rS, scale):
        if not folded:
            for i in range(tile_rows):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    rS[i, j] = rounded_product(rS[i, j], scale)

    return scale_scores


def is_power_of_two(scale: float) -> bool:
    """Whether a product with `scale` is exact (up to overflow and underflow)."""
    return abs(math.frexp(scale)[0]) == 0.5
