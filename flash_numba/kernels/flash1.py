"""flash1 forward: FlashAttention-1 in fp32 arithmetic.

A block owns a head. Key tiles are the outer loop, so O, m and l lie in global memory (HBM) and are
rewritten for every pair of tiles; S and P never leave shared memory. Read it before `flash2`, which
swaps the loops. The simulator's program of the same name counts this schedule.

References
----------
Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS
2022, Algorithm 1.
"""

import math
from functools import cache

from ..arrays import DeviceArray, contiguous
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, types
from ..device.plain_copies import (
    make_fill_rows,
    make_load_rows,
    make_load_transposed,
    make_merge_rows,
)
from ..device.products import make_multiply_add, make_multiply_transposed, make_place, make_share
from ..device.ptx import shared_tile
from ..device.schedule import make_keys_of, make_query_walk
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ..device.tile_softmax import make_tile_softmax
from ..launch import compute_capability, launch, shared_limit
from ..problem import Problem
from ..tiling import ceil_div
from . import row_passes
from .arguments import extra_arguments
from .spec import ForwardTiles, Spec, forward_tiles, padded


@cache
def make_forward(spec: Spec, tiles: ForwardTiles):
    """The forward kernel of one specialisation.

    Returns
    -------
    kernel
        ``flash1_forward(Q, K, V, O, m, l, LSE, scale, mask_aux, range_aux, score_aux, lengths,
        listed, dropout)``: Q, K, V of shape (batch, seqlen, heads, columns) in global memory with
        any strides, O like Q but float32; m, l, LSE (batch, num_heads, seqlen_q) float32. All but
        Q, K, V are written.

    Notes
    -----
    Reads each visited K and V tile once a head; reads Q, and reads and writes O, m and l, once a
    visited pair of tiles.
    """
    threads, lanes = tiles.threads, tiles.lanes
    tile_m, tile_n, tm, tn = tiles.tile_m, tiles.tile_n, tiles.thread_m, tiles.thread_n
    depth, depth_v = tiles.depth, tiles.depth_v
    thread_v = depth_v // lanes

    place = make_place(lanes)
    keys_of = make_keys_of(spec.has_lengths)
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, next_query_tile, _, is_partial = make_query_walk(*walk)
    load_q = make_load_transposed(spec.dtype, depth, tile_m, threads)
    load_k = make_load_rows(spec.dtype, depth, tile_n, tn, threads)
    load_v = make_load_rows(spec.dtype, depth_v, tile_n, tn, threads)
    fill_rows = make_fill_rows(threads)
    scores = make_multiply_transposed(tm, tn, depth)
    scale_scores = make_scale_scores(False, tm, tn)
    change_scores = make_change_scores(spec.changes, tm, tn)
    mask_scores = make_mask_scores(spec.keep, tm, tn)
    share = make_share(tm, tn)
    tile_softmax, merge = make_tile_softmax(tile_m, tile_n, tn, spec.has_dropout)
    clear = make_clear(tm, thread_v)
    add_product = make_multiply_add(tm, thread_v, lanes, tn, depth_v)
    merge_rows = make_merge_rows(spec.head_dim_v, tm, thread_v, lanes)

    q_shape, k_shape = (depth, tile_m), (lanes, tn * depth + 4)
    v_shape, s_shape = (lanes, tn * depth_v + 4), (lanes, tn * tile_m + 4)
    k_at, v_at, s_at = tiles.offsets

    @kernel(threads)
    def flash1_forward(
        Q, K, V, O, m, l, LSE, scale, mask_aux, range_aux, score_aux, lengths, listed, dropout
    ):
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        seqlen_q, num_heads = Q.shape[1], Q.shape[2]
        batch_head = types.int64(cuda.blockIdx.x)
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, K.shape[1], lengths)
        kv_head = head // (num_heads // K.shape[2])
        gQ, gO = Q[batch, :, head], O[batch, :, head]
        gK, gV = K[batch, :, kv_head], V[batch, :, kv_head]
        gM, gL, gLse = m[batch, head], l[batch, head], LSE[batch, head]

        # Prologue: O = 0, l = 0, m = -inf
        memory = cuda.shared.array(0, types.float32)
        sQ, sK = shared_tile(memory, 0, q_shape), shared_tile(memory, k_at, k_shape)
        sV, sS = shared_tile(memory, v_at, v_shape), shared_tile(memory, s_at, s_shape)
        sOld = cuda.shared.array(tile_m, types.float32)
        sNew = cuda.shared.array(tile_m, types.float32)
        rS = cuda.local.array((tm, tn), types.float32)
        rPV = cuda.local.array((tm, thread_v), types.float32)
        fill_rows(gO, types.float32(0), tid)
        row = types.int64(tid)
        while row < seqlen_q:
            gL[row] = 0
            gM[row] = -math.inf
            row += threads

        # Mainloop
        n_block = 0
        while n_block * tile_n < seqlen_k:
            first_k = n_block * tile_n + lane * tn
            start, stop = span(n_block, batch, head, seqlen_q, seqlen_k, range_aux)
            m_block = next_query_tile(
                start, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
            )
            if m_block < stop:
                load_k(sK, gK, n_block * tile_n, seqlen_k, tid)
                load_v(sV, gV, n_block * tile_n, seqlen_k, tid)
            while m_block < stop:
                first_q = m_block * tile_m + row_group * tm
                load_q(sQ, gQ, m_block * tile_m, seqlen_q, tid)
                cuda.syncthreads()

                # S = scale Q_i K_jᵀ
                scores(rS, sQ, sK, row_group, lane)
                scale_scores(rS, scale)
                change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if is_partial(m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed):
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                share(sS, rS, tile_m, row_group, lane)
                cuda.syncthreads()

                # P̃ in place of S; m_i and l_i; how much of O_i is old and how much new
                row = m_block * tile_m + tid
                if tid < tile_m and row < seqlen_q:
                    tile_max, tile_sum = tile_softmax(
                        sS, tid, row, n_block * tile_n, batch_head, dropout
                    )
                    row_max, row_sum, old, new = merge(gM[row], gL[row], tile_max, tile_sum)
                    gM[row], gL[row] = row_max, row_sum
                    sOld[tid], sNew[tid] = old, new
                cuda.syncthreads()

                # O_i = old O_i + new P̃ V_j
                clear(rPV)
                add_product(rPV, sS, sV, tile_m, row_group, lane)
                merge_rows(gO, rPV, sOld, sNew, row_group * tm, first_q, seqlen_q, lane)
                cuda.syncthreads()
                m_block = next_query_tile(
                    m_block + 1, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                )
            n_block += 1

        # Epilogue: lse = m + log l
        cuda.syncthreads()
        row = types.int64(tid)
        while row < seqlen_q:
            row_sum = gL[row]
            divisor = row_sum if row_sum != 0 else types.float32(1)
            gLse[row] = gM[row] + math.log(divisor)
            row += threads

    return flash1_forward


def forward_workspace(problem: Problem) -> tuple[int, int, int]:
    """Bytes that `forward` needs: m, l, and O in float32 where O itself is not."""
    rows = 4 * problem.batch * problem.num_heads * problem.seqlen_q
    sums = 0 if problem.dtype == "fp32" else rows * problem.head_dim_v
    return padded(rows, 16), padded(rows, 16), sums


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
    for_m, for_l, _ = forward_workspace(problem)
    at = memory.pointer
    m, l = (contiguous(pointer, lse.shape, "fp32") for pointer in (at, at + for_m))
    sums = out
    if problem.dtype != "fp32":
        sums = contiguous(at + for_m + for_l, out.shape, "fp32")
    spec = Spec.of(problem, False)
    tiles = chosen_tiles(spec, compute_capability())
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    arguments = (q, k, v, sums, m, l, lse, problem.softmax_scale, *extra)
    heads = problem.batch * problem.num_heads
    kernel = make_forward(spec, tiles)
    launch(kernel, heads, tiles.threads, tiles.shared_bytes, arguments, stream)
    if sums is not out:
        blocks = heads * ceil_div(problem.seqlen_q, row_passes.ROWS)
        round_pass = row_passes.make_round(problem.dtype)
        launch(round_pass, blocks, row_passes.THREADS, 0, (sums, out), stream)


def chosen_tiles(spec: Spec, cc: tuple[int, int]) -> ForwardTiles:
    """flash2's tiles, with 8 bytes of shared memory a row left for the factors of O."""
    return forward_tiles(spec, cc, shared_limit(cc) - 1024)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    tiles = chosen_tiles(Spec.of(problem, False), compute_capability())
    return "flash1", tiles.tile_m, tiles.tile_n
