"""Products of which the left factor, too, comes through shared memory: a result that warps share.

Warps that work on the same rows of a result hand each other what they have: fragments of P and dS,
packed, become a swizzled tile that others read as their left factor, as it lies or transposed.
"""

from functools import cache

from .fragment_products import make_mma
from .numba_cuda import cuda, room, types
from .ptx_matrix import ldmatrix_x4, ldmatrix_x4_trans
from .ptx_words import store_word
from .swizzle import CHUNK
from .unroll import unroll_full


@room
def lane_of_words(lane, pitch):
    """Where a lane's first word lies in a tile of C fragments: row ``lane // 4``, two columns."""
    return lane // 4 * pitch + (lane % 4 * 2 ^ (lane // 4 * CHUNK))


@room
def store_fragment(shared, at, k, m, h, word, pitch, spread=1):
    """Store register h of A fragment (k, m), as `make_share_fragments` does with all."""
    column = 16 * k * spread + h // 2 * 8
    down = (16 * m + h % 2 * 8) * pitch + column // 64 * 64
    store_word(shared, (at ^ (column % 64)) + down, word)


@cache
def make_share_fragments(row_blocks: int, columns: int, pitch: int, spread: int = 1):
    """Room ``share_fragments(shared, at, rP)``: packed A fragments as part of a swizzled tile.

    Parameters
    ----------
    row_blocks : int
        Blocks of 16 rows that the warp has.
    columns : int
        Columns that the warp has, a multiple of 16.
    pitch : int
        Of the tile.
    spread : int
        As in `fragment_products.make_multiply_add`.

    Notes
    -----
    `rP` as `fragment_products.make_pack_weights` makes it; `at` is `lane_of_words` of the first
    row, exclusive or the warp's first column (of 64; whole 64s are added).
    """

    @room
    def share_fragments(shared, at, rP):
        for k in range(columns // 16):
            unroll_full()
            for m in range(row_blocks):
                unroll_full()
                for h in range(4):
                    unroll_full()
                    store_fragment(shared, at, k, m, h, rP[k, m, h], pitch, spread)

    return share_fragments


@cache
def make_multiply_add_shared(
    dtype: str,
    row_blocks: int,
    inner: int,
    depth: int,
    pitch_a: int,
    pitch_b: int,
    transposed: bool,
    spread: int = 1,
):
    """Room ``multiply_add_shared(rC, shared, a_at, b_at)``: ``C += A @ B``, both in shared memory.

    Parameters
    ----------
    dtype, row_blocks
        As in `fragment_products.make_multiply_transposed`.
    inner : int
        Columns of A, rows of B.
    depth, spread : int
        As in `fragment_products.make_multiply_add`.
    pitch_a, pitch_b : int
    transposed : bool
        The tile in shared memory is the transpose of A.

    Notes
    -----
    `a_at` is `lane_of_rows` of the warp's first row, or `lane_of_columns` of its first column of
    the transpose; `b_at` as in `fragment_products.make_multiply_add`.
    """
    accumulate, _ = make_mma(dtype)
    step = 16 * spread
    read_a = ldmatrix_x4_trans if transposed else ldmatrix_x4
    a_shape = row_blocks, 4

    @room
    def multiply_add_shared(rC, shared, a_at, b_at):
        rA = cuda.local.array(a_shape, types.uint32)
        for k in range(inner // 16):
            unroll_full()
            for m in range(row_blocks):
                unroll_full()
                along, down = (16 * m, 16 * k) if transposed else (16 * k, 16 * m)
                at = (a_at ^ (along % 64)) + (along // 64 * 64 + down * pitch_a)
                rA[m, 0], rA[m, 1], rA[m, 2], rA[m, 3] = read_a(shared, at)
            for n in range(depth // 16):
                unroll_full()
                at = (b_at ^ (n * step % 64)) + (n * step // 64 * 64 + k * 16 * pitch_b)
                b = ldmatrix_x4_trans(shared, at)
                for m in range(row_blocks):
                    unroll_full()
                    a = (rA[m, 0], rA[m, 1], rA[m, 2], rA[m, 3])
                    accumulate(rC, 2 * m, 4 * n, a, (b[0], b[1]))
                    accumulate(rC, 2 * m, 4 * n + 2, a, (b[2], b[3]))

    return multiply_add_shared
