"""Dropout inside kernels: the same Philox words as `flash_numba.dropout`."""

import math
from functools import cache

from ..dropout import PHILOX_M0, PHILOX_M1, PHILOX_ROUNDS, PHILOX_W0, PHILOX_W1
from .numba_cuda import cuda, room, types
from .scores import make_position
from .unroll import unroll_full, unroll_none

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
def make_keep_bits(active: bool, tile_rows: int, tile_columns: int, rows_are_keys: bool = False):
    """Rooms ``keep_bits`` and ``drop_kept``: which weights stay, and zero or 1/(1-p) times P.

    ``keep_bits(first_q, first_k, batch_head, dropout)`` has a bit for each weight of a thread's
    tile, of at most 64, so that a backward pass draws the words once and keeps them in a register
    or two; ``drop_kept(rP, bits, dropout)`` multiplies. Parameters as for `make_drop_weights`. Four
    neighbouring keys share a draw.
    """
    queries, keys = (tile_columns, tile_rows) if rows_are_keys else (tile_rows, tile_columns)
    run = math.gcd(keys, 4)  # keys of a tile begin at a multiple of it
    runs = keys // run

    @room
    def keep_bits(first_q, first_k, batch_head, dropout):
        bits = types.uint64(0)
        if active:
            seed_low, seed_high, threshold, _ = dropout
            for at in range(queries * runs):
                unroll_none()
                k_idx = first_k + at % runs * run
                words = philox(
                    types.uint64(k_idx // 4),
                    types.uint64(first_q + at // runs),
                    types.uint64(batch_head),
                    types.uint64(0),
                    seed_low,
                    seed_high,
                )
                for i in range(run):
                    unroll_full()
                    word = words[i] if run == 4 else words[(k_idx + i) % 4]
                    if word >= threshold:
                        bits |= types.uint64(1) << types.uint64(at * run + i)
        return bits

    @room
    def drop_kept(rP, bits, dropout):
        if active:
            for i in range(tile_rows):
                unroll_full()
                for j in range(tile_columns):
                    unroll_full()
                    at = j * keys + i if rows_are_keys else i * keys + j
                    kept = (bits >> types.uint64(at)) & types.uint64(1)
                    rP[i, j] *= dropout[3] if kept != 0 else types.float32(0)

    return keep_bits, drop_kept


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
    if not fragment and tile_rows * tile_columns <= 64:
        keep_bits, drop_kept = make_keep_bits(active, tile_rows, tile_columns, rows_are_keys)

        @room
        def drop_at_once(rP, first_q, first_k, batch_head, dropout):
            drop_kept(rP, keep_bits(first_q, first_k, batch_head, dropout), dropout)

        return drop_at_once
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
