"""Rooms of the backward pass on fragments: weights from lse, and gradients of scores.

A lane's part of the scores is two rows to each 16 of its warp, and two of each 8 columns (see
`fragments`). Rows are queries in the kernel that owns a query tile, keys in the one that owns a key
tile.
"""

import math
from functools import cache

from .fragment_exchange import store_fragment
from .fragment_products import make_mma
from .numba_cuda import cuda, room, types
from .online_softmax import ALL_LANES, LOG2_E
from .ptx import exp2, load2
from .ptx_copies import copy4_async
from .unroll import unroll_full


@cache
def make_row_gradient(rows: int, columns: int):
    """Rooms ``subtract_delta(rdP, rDelta)`` and ``weights(rS, rdP, rLse2, factor)``; rows: queries.

    The first turns dP into dP - delta. The second turns scores into P = 2 ** (factor S - lse2) and
    `rdP` into dS = P∘(dP - delta). `rLse2`, lse in log2 units, and `rDelta` have shape (rows,).

    References
    ----------
    Dao, "FlashAttention-2", 2023, Algorithm 2, lines 11 to 14.
    """

    @room
    def subtract_delta(rdP, rDelta):
        for i in range(rows):
            unroll_full()
            for j in range(columns):
                unroll_full()
                rdP[i, j] -= rDelta[i]

    @room
    def weights(rS, rdP, rLse2, factor):
        for i in range(rows):
            unroll_full()
            for j in range(columns):
                unroll_full()
                p = exp2(rS[i, j] * factor - rLse2[i])
                rS[i, j] = p
                rdP[i, j] *= p

    return subtract_delta, weights


@cache
def make_column_gradient(rows: int, columns: int):
    """As `make_row_gradient` where columns are queries, whose numbers are read when needed.

    ``subtract_delta(rdP, shared, delta_at, lane)`` and ``weights(rS, rdP, shared, lse_at, left,
    factor, lane)``: delta and lse of the tile's queries begin at these places of `shared`, float32;
    `left` queries exist, the others get weights of 0.
    """

    @room
    def query_of(j, lane):
        return 8 * (j // 2) + j % 2 + lane % 4 * 2

    @room
    def subtract_delta(rdP, shared, delta_at, lane):
        for j in range(columns):
            unroll_full()
            delta = shared[types.uint32(delta_at + query_of(j, lane))]
            for i in range(rows):
                unroll_full()
                rdP[i, j] -= delta

    @room
    def weights(rS, rdP, shared, lse_at, left, factor, lane):
        for j in range(columns):
            unroll_full()
            query = query_of(j, lane)
            lse2 = log2_units(shared[types.uint32(lse_at + query)])
            lse2 = lse2 if types.int32(query) < left else types.float32(math.inf)
            for i in range(rows):
                unroll_full()
                p = exp2(rS[i, j] * factor - lse2)
                rS[i, j] = p
                rdP[i, j] *= p

    return subtract_delta, weights


@cache
def make_gradient_parts(
    dtype: str, row_blocks: int, columns: int, pitch: int, steps: tuple[int, int], shares_p: bool
):
    """The same in parts, to be done while the tensor cores are busy: three rooms.

    Parameters
    ----------
    dtype, row_blocks
        As in `fragment_products.make_multiply_transposed`.
    columns : int
        Queries of a lane, a multiple of 4.
    pitch : int
        Of the tiles of P and of dS in shared memory.
    steps : tuple of int
        In how many parts weights and dS are made.
    shares_p : bool
        P is stored too.

    Notes
    -----
    ``begin(rdP, shared, delta_at, lane)`` sets dP to -delta, for a product to be added to;
    ``weights(step, (rS, shared, lse_at, factor, lane))`` turns scores into P, and ``gradient(step,
    (rS, rdP, rdS, rP, shared, p_at, ds_at))`` makes dS = P∘(dP - delta) of it, packed as A
    fragments in `rdS` and stored, after P that is packed in `rP`, as
    `fragment_exchange.make_share_fragments` does. Queries that do not exist, whose
    rows of Q and dO are 0, get dS = 0.
    """
    _, pack = make_mma(dtype)
    rows, words, pairs = 2 * row_blocks, row_blocks * columns, columns // 2
    pairs_each, words_each = -(-pairs // steps[0]), -(-words // steps[1])

    @room
    def begin(rdP, shared, delta_at, lane):
        for pair in range(pairs):
            unroll_full()
            delta, next_delta = load2(shared, delta_at + lane % 4 * 2 + 8 * pair)
            for i in range(rows):
                unroll_full()
                rdP[i, 2 * pair], rdP[i, 2 * pair + 1] = -delta, -next_delta

    @room
    def weights(step, args):
        rS, shared, lse_at, factor, lane = args
        for u in range(pairs_each):
            unroll_full()
            pair = step * pairs_each + u
            if pair < pairs:
                lse, next_lse = load2(shared, lse_at + lane % 4 * 2 + 8 * pair)
                lse2, next_lse2 = log2_units(lse), log2_units(next_lse)
                for i in range(rows):
                    unroll_full()
                    rS[i, 2 * pair] = exp2(rS[i, 2 * pair] * factor - lse2)
                    rS[i, 2 * pair + 1] = exp2(rS[i, 2 * pair + 1] * factor - next_lse2)

    @room
    def gradient(step, args):
        rS, rdP, rdS, rP, shared, p_at, ds_at = args
        for u in range(words_each):
            unroll_full()
            word = step * words_each + u
            if word < words:
                k, rest = word // (4 * row_blocks), word % (4 * row_blocks)
                m, h = rest % (2 * row_blocks) // 2, rest // (2 * row_blocks) * 2 + rest % 2
                i, j = 2 * m + h % 2, 4 * k + h // 2 * 2
                rdS[k, m, h] = pack(rS[i, j] * rdP[i, j], rS[i, j + 1] * rdP[i, j + 1])
                if shares_p:
                    store_fragment(shared, p_at, k, m, h, rP[k, m, h], pitch)
                store_fragment(shared, ds_at, k, m, h, rdS[k, m, h], pitch)

    return begin, weights, gradient


@room
def log2_units(lse):
    """lse for `make_softmax_gradient`; a row that saw no key gets weights of 0."""
    if lse == types.float32(-math.inf):
        return types.float32(math.inf)
    return lse * types.float32(LOG2_E)


@cache
def make_read_rows_of(rows: int):
    """Room ``read_rows_of(rX, gX, first_q, row_stop, beyond, lane)``: a number for each lane's row.

    One lane of a quad reads, for all four; rows from `row_stop` on are `beyond`.
    """

    @room
    def read_rows_of(rX, gX, first_q, row_stop, beyond, lane):
        for i in range(rows):
            unroll_full()
            x = types.float32(beyond)
            if lane % 4 == 0 and first_q + 8 * i < row_stop:
                x = gX[first_q + 8 * i]
            rX[i] = cuda.shfl_sync(ALL_LANES, x, types.int32(lane & ~3))

    return read_rows_of


@cache
def make_load_vector(size: int, threads: int, ampere: bool):
    """Room ``load_vector(shared, at, gX, first, stop, tid)``: copy `size` float32, a few a thread.

    From `stop` on they are zeros. With `ampere` copies are only started (`copy4_async`).
    """

    @room
    def load_vector(shared, at, gX, first, stop, tid):
        for p in range((size + threads - 1) // threads):
            unroll_full()
            place = tid + p * threads
            if place < size:
                index = types.int32(first + place)
                if ampere:
                    copy4_async(
                        shared, at + place, gX, (min(index, types.int32(stop - 1)),), index < stop
                    )
                else:
                    shared[at + place] = gX[index] if index < stop else 0

    return load_vector
