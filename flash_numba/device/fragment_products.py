"""Products of tiles by a warp's tensor-core instructions, operands swizzled in shared memory.

`swizzle` says how a tile lies there. A warp's part of a result C lies as in `fragments`: two rows
of a lane to each 16 of the warp.
"""

from functools import cache

from .numba_cuda import room
from .ptx_matrix import (
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_m16n8k8_fp16,
    mma_m16n8k16_bf16,
    mma_m16n8k16_fp16,
    pack_bf16,
    pack_fp16,
    pack_fp16_by_parts,
)
from .ptx_words import store_word
from .swizzle import swizzled
from .unroll import unroll_full


@cache
def make_mma(dtype: str, ampere: bool = True):
    """Rooms ``accumulate(rC, i, j, a, b)`` and ``pack(low, high)`` for "fp16" or "bf16".

    ``accumulate`` adds the product of an A and a B fragment to rows i, i+1 and columns j, j+1.
    Without `ampere` (cc 8.0) it takes two steps of 8 instead of one of 16, for fp16 only.
    """
    multiply = {"fp16": mma_m16n8k16_fp16, "bf16": mma_m16n8k16_bf16}[dtype]

    @room
    def multiply_by_halves(a, b, c):
        return mma_m16n8k8_fp16((a[2], a[3]), (b[1],), mma_m16n8k8_fp16((a[0], a[1]), (b[0],), c))

    if not ampere:
        multiply = multiply_by_halves

    @room
    def accumulate(rC, i, j, a, b):
        c = (rC[i, j], rC[i, j + 1], rC[i + 1, j], rC[i + 1, j + 1])
        rC[i, j], rC[i, j + 1], rC[i + 1, j], rC[i + 1, j + 1] = multiply(a, b, c)

    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]
    return accumulate, pack if ampere else pack_fp16_by_parts


@cache
def make_read_rows(row_blocks: int, depth: int, pitch: int):
    """Room ``read_rows(rA, shared, a_at)``: all A fragments of a warp's rows, to be kept.

    `rA` has shape (depth // 16, row_blocks, 4); `a_at` is `lane_of_rows` of the first row.
    """

    @room
    def read_rows(rA, shared, a_at):
        for k in range(depth // 16):
            unroll_full()
            for m in range(row_blocks):
                unroll_full()
                at = (a_at ^ (k * 16 % 64)) + (k * 16 // 64 * 64 + m * 16 * pitch)
                rA[k, m, 0], rA[k, m, 1], rA[k, m, 2], rA[k, m, 3] = ldmatrix_x4(shared, at)

    return read_rows


@room
def nothing(step, args):
    """What is done between products if nothing else is."""


@cache
def make_multiply_transposed(
    dtype: str,
    row_blocks: int,
    tile_n: int,
    depth: int,
    pitch_a: int,
    pitch_b: int,
    kept: bool,
    ampere: bool,
    clears: bool = True,
    meanwhile=None,
):
    """Room ``multiply_transposed(rC, rA, shared, a_at, b_at)``: ``C = A @ B.T``.

    Parameters
    ----------
    dtype : str
    row_blocks : int
        Blocks of 16 rows of A that the warp has.
    tile_n, depth : int
        Rows of B, and columns of both; multiples of 16.
    pitch_a, pitch_b : int
    kept : bool
        `rA` holds the fragments of A (`make_read_rows`); else they are read again, a step at a time
        (`rA` of shape (1, row_blocks, 4)).
    ampere : bool
        See `make_mma`.
    clears : bool
        C is 0 before; else the product is added to it.
    meanwhile : room, optional
        ``meanwhile(step, args)`` is called in each step, `args` being a further argument: other
        work, for the time in which the tensor cores are busy.

    Notes
    -----
    `rC` has shape (2 * row_blocks, tile_n // 4); `a_at` is `lane_of_rows` of the warp's first row,
    `b_at` is `lane_of_columns`.
    """
    accumulate, _ = make_mma(dtype, ampere)

    works, busy = meanwhile is not None, meanwhile or nothing

    @room
    def clear(rC):
        for i in range(2 * row_blocks):
            unroll_full()
            for j in range(tile_n // 4):
                unroll_full()
                rC[i, j] = 0

    @room
    def multiply_transposed(rC, rA, shared, a_at, b_at, args=None):
        if clears:
            clear(rC)
        for k in range(depth // 16):
            unroll_full()
            along, block = k * 16 % 64, k * 16 // 64 * 64
            slot = k if kept else 0
            if not kept:
                for m in range(row_blocks):
                    unroll_full()
                    at = (a_at ^ along) + (block + m * 16 * pitch_a)
                    a = ldmatrix_x4(shared, at)
                    rA[0, m, 0], rA[0, m, 1], rA[0, m, 2], rA[0, m, 3] = a
            for n in range(tile_n // 16):
                unroll_full()
                b = ldmatrix_x4(shared, (b_at ^ along) + (block + n * 16 * pitch_b))
                for m in range(row_blocks):
                    unroll_full()
                    a = (rA[slot, m, 0], rA[slot, m, 1], rA[slot, m, 2], rA[slot, m, 3])
                    accumulate(rC, 2 * m, 4 * n, a, (b[0], b[1]))
                    accumulate(rC, 2 * m, 4 * n + 2, a, (b[2], b[3]))
            if works:
                busy(k, args)

    return multiply_transposed


@cache
def make_multiply_add(
    dtype: str,
    row_blocks: int,
    tile_n: int,
    depth: int,
    pitch: int,
    ampere: bool = True,
    spread: int = 1,
    meanwhile=None,
):
    """Room ``multiply_add(rC, rP, shared, b_at)``: ``C += P @ B``.

    Parameters
    ----------
    dtype, row_blocks, ampere
        As above.
    tile_n, depth : int
        Rows of B, and columns of B that this warp takes; multiples of 16.
    pitch : int
    spread : int
        Warps that share the columns, 1, 2 or 4: each takes 16 of every ``16 * spread``.
    meanwhile
        As above, in each step of 16 rows and 16 columns.

    Notes
    -----
    `rP` are the A fragments that `make_pack_weights` makes; `rC` has shape (2 * row_blocks,
    depth // 4); `b_at` is `lane_of_rows` of B, exclusive or 16 times the warp's number among those
    that share the columns.
    """
    accumulate, _ = make_mma(dtype, ampere)
    step = 16 * spread

    works, busy = meanwhile is not None, meanwhile or nothing

    @room
    def multiply_add(rC, rP, shared, b_at, args=None):
        for k in range(tile_n // 16):
            unroll_full()
            for n in range(depth // 16):
                unroll_full()
                at = (b_at ^ (n * step % 64)) + (n * step // 64 * 64 + k * 16 * pitch)
                b = ldmatrix_x4_trans(shared, at)
                for m in range(row_blocks):
                    unroll_full()
                    a = (rP[k, m, 0], rP[k, m, 1], rP[k, m, 2], rP[k, m, 3])
                    accumulate(rC, 2 * m, 4 * n, a, (b[0], b[1]))
                    accumulate(rC, 2 * m, 4 * n + 2, a, (b[2], b[3]))
                if works:
                    busy(k * (depth // 16) + n, args)

    return multiply_add


@cache
def make_pack_weights(dtype: str, row_blocks: int, tile_n: int, ampere: bool = True):
    """Room ``pack_weights(rP, rS)``: a product's C fragments as A fragments of the next one.

    `rS` of shape (2 * row_blocks, tile_n // 4), `rP` uint32 of shape (tile_n // 16, row_blocks, 4).
    """
    _, pack = make_mma(dtype, ampere)

    @room
    def pack_weights(rP, rS):
        for k in range(tile_n // 16):
            unroll_full()
            for m in range(row_blocks):
                unroll_full()
                for h in range(4):
                    unroll_full()
                    i, j = 2 * m + h % 2, 4 * k + h // 2 * 2
                    rP[k, m, h] = pack(rS[i, j], rS[i, j + 1])

    return pack_weights


@cache
def make_share_rows(
    dtype: str,
    row_blocks: int,
    depth: int,
    pitch: int,
    ampere: bool = True,
    one_place: bool = False,
):
    """Room ``share_rows(shared, at, rC, lane)``: a warp's C, rounded, as rows of a swizzled tile.

    `at` is where the warp's first row begins; its lanes may read the rows after
    ``cuda.syncwarp()``. With `one_place` a lane computes the places of its first row only, column
    by column, and those below are constants from there; else that of each, row by row. Who takes
    which way, and why, `swizzled_copies.make_load_tile` says.
    """
    _, pack = make_mma(dtype, ampere)

    @room
    def share_each(shared, at, rC, lane):
        for i in range(2 * row_blocks):
            unroll_full()
            for j in range(0, depth // 4, 2):
                unroll_full()
                row, column = lane // 4 + 8 * i, 4 * j + lane % 4 * 2
                store_word(shared, at + swizzled(row, column, pitch), pack(rC[i, j], rC[i, j + 1]))

    @room
    def share_from_one_place(shared, at, rC, lane):
        for j in range(0, depth // 4, 2):
            unroll_full()
            place = at + swizzled(lane // 4, 4 * j + lane % 4 * 2, pitch)
            for i in range(2 * row_blocks):
                unroll_full()
                store_word(shared, place + 8 * i * pitch, pack(rC[i, j], rC[i, j + 1]))

    return share_from_one_place if one_place else share_each
