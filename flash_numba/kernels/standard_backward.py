"""standard backward: a kernel an operation, P, dP and dS whole in global memory.

dV = Pᵀ dO, dP = dO Vᵀ, dS = P∘(dP - rowsum(P∘dP)), dQ = dS K, dK = dSᵀ Q. Nothing is kept from
the forward pass, so its first two kernels run again before these five. The simulator's program
`tiled` counts these.

References
----------
Dao et al., "FlashAttention", NeurIPS 2022, Algorithm 3.
"""

from collections.abc import Sequence
from functools import cache

from ..arrays import DeviceArray, contiguous
from ..device.dropout import make_drop_weights
from ..device.numba_cuda import cuda, kernel, room, types
from ..device.plain_copies import make_store_matrix
from ..device.ptx import load4_global, store4_global
from ..device.schedule import block_of, make_keys_of
from ..device.warp_rows import WARP, sum_of_warp
from ..launch import allows_vectors, launch
from ..problem import Problem
from ..scores import check_differentiable
from ..tiling import ceil_div
from .arguments import extra_arguments
from .aux_gradient import launch_aux_gradients
from .aux_plan import workspace as aux_workspace
from .backward_call import asked_for, parts_of
from .spec import padded
from .standard import chosen_tiles, launch_weights
from .standard import counted_as as counted_as
from .standard_products import make_column_blocks, make_pair_product, make_row_blocks
from .standard_tiles import THREAD_ROWS, SquareTiles, matrix, matrix_bytes


@cache
def make_weight_gradients(
    dtype: str,
    head_dim_v: int,
    tiles: SquareTiles,
    has_lengths: bool,
    has_dropout: bool,
    vectors: bool,
):
    """The dP kernel.

    Returns
    -------
    kernel
        ``standard_dP(dO, V, dP, lengths, dropout)``: dO and V of shape (batch, seqlen, heads,
        head_dim_v); dP (batch, num_heads, seqlen_q, seqlen_k) float32 is written.

    Notes
    -----
    Reads a tile of dO and one of V for each tile of dP.
    """
    tile, tn = tiles.tile, tiles.thread_n
    keys_of = make_keys_of(has_lengths)
    pair_of, product = make_pair_product(dtype, head_dim_v, tiles, vectors)
    drop_weights = make_drop_weights(has_dropout, THREAD_ROWS, tn)
    store = make_store_matrix(THREAD_ROWS, tn)

    @kernel(tiles.threads)
    def standard_dP(dO, V, dP, lengths, dropout):
        tid = types.uint32(cuda.threadIdx.x)
        seqlen_q, num_heads = dO.shape[1], dO.shape[2]
        batch_head, m_block, n_block = pair_of(dO.shape[0] * num_heads, seqlen_q, V.shape[1])
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, V.shape[1], lengths)
        if n_block * tile >= seqlen_k:
            return

        rdP = cuda.local.array((THREAD_ROWS, tn), types.float32)
        gdO, gV = dO[batch, :, head], V[batch, :, head // (num_heads // V.shape[2])]
        first_q, first_k = product(rdP, gdO, gV, m_block, seqlen_q, n_block, seqlen_k, tid)
        drop_weights(rdP, first_q, first_k, batch_head, dropout)
        store(dP[batch, head], rdP, first_q, seqlen_q, first_k, seqlen_k)

    return standard_dP


@cache
def make_score_gradients(
    tiles: SquareTiles, has_lengths: bool, has_dlse: bool, has_slopes: bool, with_delta: bool
):
    """The dS kernel.

    Returns
    -------
    kernel
        ``standard_dS(P, dP, dS, Delta, dLSE, scale, lengths)``: P, dP, dS (batch, num_heads,
        seqlen_q, seqlen_k) float32; Delta and dLSE ``(float32 array (batch, num_heads,
        seqlen_q),)`` if `with_delta` and `has_dlse`, else (). dS is written, and Delta, which is
        rowsum(P∘dP) less dLSE; with `has_slopes` dS holds the derivative of the score changes
        before. A block owns a query tile, a warp a row.

    Notes
    -----
    Reads P and dP twice, writes dS once. dS is 0 wherever P is 0. All lanes take as many turns, and
    some do nothing in the last one: so they stay side by side, and their accesses in whole lines,
    however the compiler unrolls.
    """
    tile, warps = tiles.tile, tiles.threads // WARP
    keys_of = make_keys_of(has_lengths)

    @room
    def start(dLSE, batch, head, row):
        if has_dlse:
            return -dLSE[0][batch, head, row]
        return types.float32(0)

    @room
    def gradient(p, dp, delta, slope):
        ds = p * (dp - delta) if p != 0 else types.float32(0)
        if has_slopes:
            return ds * slope if ds != 0 else types.float32(0)
        return ds

    @kernel(tiles.threads)
    def standard_dS(P, dP, dS, Delta, dLSE, scale, lengths):
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = tid // WARP, tid % WARP
        seqlen_q, num_heads = P.shape[2], P.shape[1]
        batch_head, m_block = block_of(P.shape[0] * num_heads, (seqlen_q + tile - 1) // tile)
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, P.shape[3], lengths)
        gP, gdP, gdS = P[batch, head], dP[batch, head], dS[batch, head]
        row, stop = m_block * tile + warp, min((m_block + 1) * tile, seqlen_q)
        while row < stop:
            total = start(dLSE, batch, head, row) if lane == 0 else types.float32(0)
            first = types.int64(0)
            while first < seqlen_k:
                column = first + 4 * lane
                if column + 4 <= seqlen_k:
                    w, x = load4_global(gP, (row, column)), load4_global(gdP, (row, column))
                    total += (w[0] * x[0] + w[1] * x[1]) + (w[2] * x[2] + w[3] * x[3])
                first += 4 * WARP
            column = seqlen_k // 4 * 4 + lane
            if column < seqlen_k:
                total += gP[row, column] * gdP[row, column]
            delta = sum_of_warp(total)
            if with_delta and lane == 0:
                Delta[0][batch, head, row] = delta
            first = types.int64(0)
            while first < seqlen_k:
                column = first + 4 * lane
                if column + 4 <= seqlen_k:
                    w, x = load4_global(gP, (row, column)), load4_global(gdP, (row, column))
                    slopes = load4_global(gdS, (row, column)) if has_slopes else w
                    four = (
                        scale * gradient(w[0], x[0], delta, slopes[0]),
                        scale * gradient(w[1], x[1], delta, slopes[1]),
                        scale * gradient(w[2], x[2], delta, slopes[2]),
                        scale * gradient(w[3], x[3], delta, slopes[3]),
                    )
                    store4_global(gdS, (row, column), four)
                first += 4 * WARP
            column = seqlen_k // 4 * 4 + lane
            if column < seqlen_k:
                p, dp = gP[row, column], gdP[row, column]
                slope = gdS[row, column] if has_slopes else p
                gdS[row, column] = scale * gradient(p, dp, delta, slope)
            row += warps

    return standard_dS


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    P, dP and dS in float32; an lse of its own and delta, (batch, num_heads, seqlen_q) float32; sums
    for the gradients of the score changes `numbers`.
    """
    rows = padded(4 * problem.batch * problem.num_heads * problem.seqlen_q, 16)
    return *(matrix_bytes(problem) for _ in range(3)), rows, rows, aux_workspace(problem, numbers)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=()
):
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    `out` and `lse` are not read: P and lse are found again from q and k.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    check_differentiable(problem)
    q, k, v, dout = map(DeviceArray.of, (q, k, v, dout))
    numbers = asked_for(d_aux)
    *at, at_lse, at_delta, at_aux = parts_of(memory, workspace(problem, numbers))
    P, dP, dS = (matrix(start, problem) for start in at)
    own_lse, delta = (contiguous(x, problem.shapes["lse"], "fp32") for x in (at_lse, at_delta))
    slopes = (dS,) if problem.score_mods else ()
    launch_weights(problem, q, k, dP, P, own_lse, slopes, stream)  # S lies where dP will

    tiles = chosen_tiles(problem)
    *_, lengths, _, dropout = extra_arguments(problem, tiles.tile, tiles.tile)
    has_lengths, has_dropout = problem.key_lengths is not None, problem.dropout_p > 0
    m_blocks = ceil_div(problem.seqlen_q, tiles.tile)
    n_blocks = ceil_div(problem.seqlen_k, tiles.tile)
    heads = problem.batch * problem.num_heads
    rows, columns = heads * m_blocks, problem.batch * problem.num_kv_heads * n_blocks

    def run(kernel, blocks, width, *arguments):
        shared_bytes = tiles.shared_bytes(width) if width else 0
        launch(kernel, blocks, tiles.threads, shared_bytes, arguments, stream)

    d, dv_columns, dtype = problem.head_dim, problem.head_dim_v, problem.dtype
    if dv is not None:
        dv = DeviceArray.of(dv)
        flags = has_lengths, has_dropout, allows_vectors(dout) and allows_vectors(dv)
        kernel = make_column_blocks(dtype, dv_columns, tiles, *flags)
        run(kernel, columns, dv_columns, P, dout, dv, lengths, dropout)
    if dq is None and dk is None and not numbers:
        return
    flags = has_lengths, has_dropout, allows_vectors(dout) and allows_vectors(v)
    kernel = make_weight_gradients(dtype, dv_columns, tiles, *flags)
    run(kernel, heads * m_blocks * n_blocks, dv_columns, dout, v, dP, lengths, dropout)
    flags = dlse is not None, bool(slopes), bool(numbers)
    kernel = make_score_gradients(tiles, has_lengths, *flags)
    given = () if dlse is None else (DeviceArray.of(dlse),)
    run(
        kernel,
        rows,
        0,
        P,
        dP,
        dS,
        (delta,) if numbers else (),
        given,
        problem.softmax_scale,
        lengths,
    )
    if dq is not None:
        dq = DeviceArray.of(dq)
        flags = has_lengths, False, allows_vectors(k) and allows_vectors(dq)
        run(make_row_blocks(dtype, d, tiles, *flags), rows, d, dS, k, dq, lengths, ())
    if dk is not None:
        dk = DeviceArray.of(dk)
        flags = has_lengths, False, allows_vectors(q) and allows_vectors(dk)
        run(make_column_blocks(dtype, d, tiles, *flags), columns, d, dS, q, dk, lengths, ())
    launch_aux_gradients(problem, q, k, v, dout, own_lse, delta, d_aux, at_aux, stream)
