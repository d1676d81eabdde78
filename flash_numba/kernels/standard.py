"""standard forward: a kernel an operation, S and P whole in global memory.

It is what FlashAttention is measured against, and the first rung to read: S = Q Kᵀ, P = softmax S,
O = P V. No tile is skipped, whatever the mask. The simulator's program `tiled` counts this
schedule.

References
----------
Dao et al., "FlashAttention", NeurIPS 2022, Algorithm 0.
"""

import math
from functools import cache

from ..arrays import DeviceArray
from ..device.numba_cuda import cuda, kernel, types
from ..device.plain_copies import make_store_matrix
from ..device.ptx import load4_global, store4_global
from ..device.schedule import block_of, make_keys_of
from ..device.scores import (
    make_change_scores,
    make_change_scores_backward,
    make_mask_scores,
    make_scale_scores,
)
from ..device.tile_softmax import finite
from ..device.unroll import unroll_full
from ..device.warp_rows import WARP, softmax_of_row
from ..launch import allows_vectors, compute_capability, launch, shared_limit
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .spec import Spec
from .standard_products import make_pair_product, make_row_blocks
from .standard_tiles import (
    THREAD_ROWS,
    SquareTiles,
    matrix,
    matrix_bytes,
    square_tiles,
)


@cache
def make_scores(spec: Spec, tiles: SquareTiles, with_slopes: bool = False):
    """The S kernel.

    Returns
    -------
    kernel
        ``standard_scores(Q, K, S, Slopes, scale, mask_aux, score_aux, lengths)``: Q, K of shape
        (batch, seqlen, heads, head_dim), any strides; S (batch, num_heads, seqlen_q, seqlen_k)
        float32 is written: scaled, changed and masked scores. `Slopes` is () or, `with_slopes`,
        ``(matrix like S,)``, which gets the derivative of the score changes.

    Notes
    -----
    Reads a tile of Q and one of K for each tile of S.
    """
    tile, tn = tiles.tile, tiles.thread_n
    keys_of = make_keys_of(spec.has_lengths)
    pair_of, scores = make_pair_product(spec.dtype, spec.head_dim, tiles, spec.vectors)
    scale_scores = make_scale_scores(False, THREAD_ROWS, tn)
    change_scores = make_change_scores(spec.changes, THREAD_ROWS, tn)
    derivatives = spec.derivatives if with_slopes else ()
    change_scores_backward = make_change_scores_backward(
        spec.changes if with_slopes else (), derivatives, THREAD_ROWS, tn, False
    )
    mask_scores = make_mask_scores(spec.keep, THREAD_ROWS, tn)
    store = make_store_matrix(THREAD_ROWS, tn)

    @kernel(tiles.threads)
    def standard_scores(Q, K, S, Slopes, scale, mask_aux, score_aux, lengths):
        tid = types.uint32(cuda.threadIdx.x)
        seqlen_q, num_heads = Q.shape[1], Q.shape[2]
        batch_head, m_block, n_block = pair_of(Q.shape[0] * num_heads, seqlen_q, K.shape[1])
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, K.shape[1], lengths)
        if n_block * tile >= seqlen_k:
            return

        rS = cuda.local.array((THREAD_ROWS, tn), types.float32)
        rSlopes = cuda.local.array((THREAD_ROWS, tn), types.float32)
        gQ, gK = Q[batch, :, head], K[batch, :, head // (num_heads // K.shape[2])]
        first_q, first_k = scores(rS, gQ, gK, m_block, seqlen_q, n_block, seqlen_k, tid)
        scale_scores(rS, scale)
        if with_slopes:
            for i in range(THREAD_ROWS):
                unroll_full()
                for j in range(tn):
                    unroll_full()
                    rSlopes[i, j] = 1
            change_scores_backward(
                rS, rSlopes, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux
            )
            store(Slopes[0][batch, head], rSlopes, first_q, seqlen_q, first_k, seqlen_k)
        else:
            change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
        mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
        store(S[batch, head], rS, first_q, seqlen_q, first_k, seqlen_k)

    return standard_scores


@cache
def make_softmax(tiles: SquareTiles, has_lengths: bool):
    """The softmax kernel.

    Returns
    -------
    kernel
        ``standard_softmax(S, P, LSE, lengths)``: S and P (batch, num_heads, seqlen_q, seqlen_k) and
        LSE (batch, num_heads, seqlen_q), all float32. A block owns a query tile, a warp a row.

    Notes
    -----
    Reads S twice, writes P and LSE once.
    """
    tile, warps = tiles.tile, tiles.threads // WARP
    keys_of = make_keys_of(has_lengths)

    @kernel(tiles.threads)
    def standard_softmax(S, P, LSE, lengths):
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = tid // WARP, tid % WARP
        seqlen_q, num_heads = S.shape[2], S.shape[1]
        batch_head, m_block = block_of(S.shape[0] * num_heads, (seqlen_q + tile - 1) // tile)
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, S.shape[3], lengths)
        gS, gP = S[batch, head], P[batch, head]
        row, stop = m_block * tile + warp, min((m_block + 1) * tile, seqlen_q)
        while row < stop:
            row_max, row_sum = softmax_of_row(gS, row, seqlen_k, lane)
            divisor = row_sum if row_sum != 0 else types.float32(1)
            shift, share = finite(row_max), types.float32(1) / divisor
            column = types.int64(4 * lane)
            while column + 4 <= seqlen_k:
                a, b, c, d = load4_global(gS, (row, column))
                a, b = math.exp(a - shift) * share, math.exp(b - shift) * share
                c, d = math.exp(c - shift) * share, math.exp(d - shift) * share
                store4_global(gP, (row, column), (a, b, c, d))
                column += 4 * WARP
            column = seqlen_k // 4 * 4 + lane
            if column < seqlen_k:
                gP[row, column] = math.exp(gS[row, column] - shift) * share
            if lane == 0:
                LSE[batch, head, row] = row_max + math.log(divisor)
            row += warps

    return standard_softmax


def forward_workspace(problem: Problem) -> tuple[int, int]:
    """Bytes that `forward` needs: S and P, float32 whatever the element type."""
    return matrix_bytes(problem), matrix_bytes(problem)


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0, memory=None):
    """Run the forward pass on arrays in GPU memory.

    Parameters
    ----------
    problem : Problem
    q, k, v, out : device arrays (batch, seqlen, heads, columns), any strides
        `out` is written.
    lse : device array (batch, num_heads, seqlen_q), float32
        Written: natural logarithm of each row's sum of exponentials, -inf without a visible key.
    stream : int
        CUDA stream handle.
    memory : device array
        At least ``sum(forward_workspace(problem))`` bytes on a 16-byte boundary.
    """
    q, k, v, out, lse, memory = map(DeviceArray.of, (q, k, v, out, lse, memory))
    S = matrix(memory.pointer, problem)
    P = matrix(memory.pointer + matrix_bytes(problem), problem)
    launch_weights(problem, q, k, S, P, lse, (), stream)
    tiles = chosen_tiles(problem)
    *_, lengths, _, dropout = extra_arguments(problem, tiles.tile, tiles.tile)
    has_lengths, has_dropout = problem.key_lengths is not None, problem.dropout_p > 0
    width = problem.head_dim_v
    vectors = allows_vectors(v) and allows_vectors(out)
    row_blocks = make_row_blocks(problem.dtype, width, tiles, has_lengths, has_dropout, vectors)
    blocks = problem.batch * problem.num_heads * ceil_div(problem.seqlen_q, tiles.tile)
    arguments = P, v, out, lengths, dropout
    launch(row_blocks, blocks, tiles.threads, tiles.shared_bytes(width), arguments, stream)


def launch_weights(problem: Problem, q, k, S, P, lse, slopes: tuple, stream: int) -> None:
    """S, P and lse: the first two kernels; with ``slopes = (matrix,)`` derivatives too."""
    tiles = chosen_tiles(problem)
    mask_aux, _, score_aux, lengths, *_ = extra_arguments(problem, tiles.tile, tiles.tile)
    heads = problem.batch * problem.num_heads
    m_blocks = ceil_div(problem.seqlen_q, tiles.tile)
    n_blocks = ceil_div(problem.seqlen_k, tiles.tile)
    vectors = allows_vectors(q) and allows_vectors(k)
    scores = make_scores(plain_spec(problem, vectors), tiles, bool(slopes))
    arguments = q, k, S, slopes, problem.softmax_scale, mask_aux, score_aux, lengths
    shared_bytes = tiles.shared_bytes(problem.head_dim)
    launch(scores, heads * m_blocks * n_blocks, tiles.threads, shared_bytes, arguments, stream)
    softmax = make_softmax(tiles, problem.key_lengths is not None)
    launch(softmax, heads * m_blocks, tiles.threads, 0, (S, P, lse, lengths), stream)


def plain_spec(problem: Problem, vectors: bool) -> Spec:
    """The specification of a problem for kernels that skip no tile."""
    spec = Spec.of(problem, vectors)
    return spec._replace(key_range=None, exact=True, has_list=False)


def chosen_tiles(problem: Problem) -> SquareTiles:
    """The tiles for the current GPU."""
    limit = shared_limit(compute_capability())
    return square_tiles(problem.head_dim, problem.head_dim_v, limit)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    tile = chosen_tiles(problem).tile
    return "tiled", tile, tile
