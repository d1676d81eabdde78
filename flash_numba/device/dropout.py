"""Dropout inside kernels: the same Philox words as `flash_numba.dropout`."""

from functools import cache

from ..dropout import PHILOX_M0, PHILOX_M1, PHILOX_ROUNDS, PHILOX_W0, PHILOX_W1
from .numba_cuda import cuda, room, types
from .scores import make_position
from .unroll import unroll_full

LOW = 0xFFFFFFFF


@room
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 on 32-bit words held in uint64."""
    for _ in range(PHILOX_ROUNDS):
        unroll_full()
        product_0 = c0 * types.uint64(PHILOX_M0)
        product_1 = c2 * types.uint64(PHILOX_M1)
        c0 = (product_1 >> types.uint64(32)) ^ c1 ^ k0
        c1 = product_1 & types.uint64(LOW)
        c2 = (product_0 >> types.uint64(32)) ^ c3 ^ k1
        c3 = product_0 & types.uint64(LOW)
        k0 = (k0 + types.uint64(PHILOX_W0)) & types.uint64(LOW)
        k1 = (k1 + types.uint64(PHILOX_W1)) & types.uint64(LOW)
    return c0, c1, c2, c3


@room
def keep_factor(q_idx, k_idx, batch_head, dropout):
    """0 for a dropped weight, 1/(1-p) for one that is kept."""
    seed_low, seed_high, threshold, rescale = dropout
    words = philox(
        types.uint64(k_idx // 4),
        types.uint64(q_idx),
        types.uint64(batch_head),
        types.uint64(0),
        seed_low,
        seed_high,
    )
    word = words[k_idx % 4]
    return rescale if word >= threshold else types.float32(0)


@cache
def make_drop_weights(
    active: bool,
    tile_rows: int,
    tile_columns: int,
    rows_are_keys: bool = False,
    fragment: bool = False,
):
    """Room ``drop_weights(rP, first_q, first_k, batch_head, dropout)``: zero or 1/(1-p) times P.

    Parameters
    ----------
    active : bool
        False: the room does nothing and `dropout` is ().
    tile_rows, tile_columns : int
        Shape of a thread's part of P.
    rows_are_keys, fragment : bool
        As in `scores.make_position`.

    Notes
    -----
    `dropout` is ``(seed_low, seed_high, threshold, 1 / (1 - p))``.
    """
    position = make_position(rows_are_keys, fragment)

    @room
    def drop_weights(rP, first_q, first_k, batch_head, dropout):
        if active:
            for i in range(tile_rows):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    q_idx, k_idx = position(first_q, first_k, i, j)
                    rP[i, j] *= keep_factor(q_idx, k_idx, batch_head, dropout)

    return drop_weights


@cache
def make_drop_tile(active: bool, tile: int, group: int, threads: int):
    """Room ``drop_tile(sP, first_q, first_k, batch_head, dropout, tid)``: so in shared memory.

    Parameters
    ----------
    active : bool
        As for `make_drop_weights`.
    tile, group : int
        `sP` is a tile of ``tile`` queries and keys in grouped rows (see `copies`).
    threads : int
        Threads of the block, all of which take part.
    """

    @room
    def drop_tile(sP, first_q, first_k, batch_head, dropout, tid):
        if active:
            cuda.syncthreads()
            at = types.int64(tid)
            while at < tile * tile:
                q, k = at // tile, at % tile
                factor = keep_factor(first_q + q, first_k + k, batch_head, dropout)
                sP[q // group, q % group * tile + k] *= factor
                at += threads

    return drop_tile
