"""flash1 backward: FlashAttention-1's Algorithm 4 in fp32 arithmetic.

A block owns a kv head and all that is added up for it, so nothing is added by two blocks. dK and dV
of the key tile stay on chip, dQ lies in global memory (HBM) and is rewritten for every pair of
tiles. D = rowsum(dO∘O) is computed anew for each pair: to do that once is FlashAttention-2's idea.

References
----------
Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS
2022, Algorithm 4; lse is kept instead of its m and l.
"""

import math
from collections.abc import Sequence
from functools import cache

from ..arrays import DeviceArray, contiguous
from ..device.copies import make_store_rows
from ..device.dropout import make_keep_bits
from ..device.gradients import make_clear, make_softmax_gradient
from ..device.numba_cuda import cuda, kernel, types
from ..device.plain_copies import (
    make_add_rows,
    make_fill_rows,
    make_load_rows,
    make_load_transposed,
    make_row_dot,
)
from ..device.products import (
    make_multiply_add,
    make_multiply_transposed,
    make_place,
    make_share,
    make_share_rows,
)
from ..device.ptx import shared_tile
from ..device.schedule import make_keys_of, make_query_walk
from ..device.scores import make_change_scores_backward, make_mask_scores, make_scale_scores
from ..device.unroll import unroll_full
from ..launch import compute_capability, launch, shared_limit
from ..problem import Problem
from ..scores import check_differentiable
from .arguments import extra_arguments
from .aux_gradient import launch_aux_gradients
from .aux_plan import workspace as aux_workspace
from .backward_call import asked_for, launch_delta, launch_round, or_row, parts_of
from .spec import BackwardTiles, Spec, backward_tiles, padded


@cache
def make_backward(spec: Spec, tiles: BackwardTiles, has_dlse: bool):
    """The kernel that computes dQ, dK and dV of one specialisation.

    Returns
    -------
    kernel
        ``flash1_backward(Q, K, V, O, dO, LSE, dLSE, dQ, dK, dV, scale, mask_aux, range_aux,
        score_aux, lengths, listed, dropout)``. Arrays are in global memory: Q to dO, dQ, dK, dV of
        shape (batch, seqlen, heads, columns) with any strides, dQ float32; LSE (batch, num_heads,
        seqlen_q) float32; dLSE ``(array like LSE,)`` if `has_dlse`, else ().

    Notes
    -----
    Reads each visited K and V tile once; reads Q, O, dO and lse, and reads and writes dQ, once a
    visited pair of tiles; writes dK and dV once.
    """
    threads, lanes, q_lanes = tiles.threads, tiles.lanes, tiles.q_lanes
    tile_m, tile_n, tm, tn = tiles.tile_m, tiles.tile_n, tiles.thread_m, tiles.thread_n
    depth, depth_v, q_rows = tiles.depth, tiles.depth_v, tiles.q_rows
    thread_d, thread_v, thread_q = depth // lanes, depth_v // lanes, depth // q_lanes

    place, place_q = make_place(lanes), make_place(q_lanes)
    keys_of = make_keys_of(spec.has_lengths)
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, next_query_tile, _, is_partial = make_query_walk(*walk)
    load_k = make_load_transposed(spec.dtype, depth, tile_n, threads)
    load_v = make_load_transposed(spec.dtype, depth_v, tile_n, threads)
    load_q = make_load_rows(spec.dtype, depth, tile_m, tm, threads)
    load_do = make_load_rows(spec.dtype, depth_v, tile_m, tm, threads)
    fill_rows = make_fill_rows(threads)
    row_dot = make_row_dot(spec.dtype, depth_v, tm)
    clear_dk, clear_dv = make_clear(tn, thread_d), make_clear(tn, thread_v)
    scores = make_multiply_transposed(tn, tm, depth)
    scale_scores = make_scale_scores(False, tn, tm)
    weight_gradient = make_multiply_transposed(tn, tm, depth_v)
    keep_bits, drop_kept = make_keep_bits(spec.has_dropout, tn, tm, True)
    subtract_delta, weights = make_softmax_gradient(tn, tm)
    change_scores = make_change_scores_backward(spec.changes, spec.derivatives, tn, tm)
    mask_scores = make_mask_scores(spec.keep, tn, tm, True)
    share, share_rows = make_share(tn, tm), make_share_rows(tn, tm)
    add_dv = make_multiply_add(tn, thread_v, lanes, tm, depth_v)
    add_dk = make_multiply_add(tn, thread_d, lanes, tm, depth)
    query_gradient = make_multiply_transposed(q_rows, thread_q, tile_n, q_lanes, False)
    add_dq = make_add_rows(spec.head_dim, q_rows, thread_q, q_lanes)
    store_dk = make_store_rows(spec.dtype, spec.head_dim, tn, thread_d, lanes, False)
    store_dv = make_store_rows(spec.dtype, spec.head_dim_v, tn, thread_v, lanes, False)

    k_shape, v_shape = (depth, tile_n + 4), (depth_v, tile_n)
    q_shape, do_shape = (lanes, tm * depth + 4), (lanes, tm * depth_v + 4)
    p_shape, ds_shape = (lanes, tm * tile_n + 4), (tile_n, tile_m)
    v_at, q_at, do_at, p_at = tiles.offsets

    @kernel(threads)
    def flash1_backward(
        Q, K, V, O, dO, LSE, dLSE, dQ, dK, dV, scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        q_group, q_lane = place_q(tid)
        seqlen_q, num_heads, kv_heads = Q.shape[1], Q.shape[2], K.shape[2]
        batch_head = types.int64(cuda.blockIdx.x)
        batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
        seqlen_k = keys_of(batch, K.shape[1], lengths)
        group = num_heads // kv_heads
        heads = range(kv_head * group, (kv_head + 1) * group)

        # Prologue: dQ = 0
        memory = cuda.shared.array(0, types.float32)
        sK, sV = shared_tile(memory, 0, k_shape), shared_tile(memory, v_at, v_shape)
        sQ, sdO = shared_tile(memory, q_at, q_shape), shared_tile(memory, do_at, do_shape)
        sP, sdS = shared_tile(memory, p_at, p_shape), shared_tile(memory, p_at, ds_shape)
        sLse = cuda.shared.array(tile_m, types.float32)
        sDelta = cuda.shared.array(tile_m, types.float32)
        acc_dk = cuda.local.array((tn, thread_d), types.float32)
        acc_dv = cuda.local.array((tn, thread_v), types.float32)
        rS = cuda.local.array((tn, tm), types.float32)
        rdS = cuda.local.array((tn, tm), types.float32)
        rdQ = cuda.local.array((q_rows, thread_q), types.float32)
        rLse = cuda.local.array(tm, types.float32)
        rDelta = cuda.local.array(tm, types.float32)
        for head in heads:
            fill_rows(dQ[batch, :, head], types.float32(0), tid)
        cuda.syncthreads()

        # Mainloop
        n_block = 0
        while n_block * tile_n < K.shape[1]:
            first_k = n_block * tile_n + row_group * tn
            clear_dk(acc_dk)
            clear_dv(acc_dv)
            seen = False
            for head in heads:
                gQ, gO, gdO = Q[batch, :, head], O[batch, :, head], dO[batch, :, head]
                start, stop = span(n_block, batch, head, seqlen_q, seqlen_k, range_aux)
                m_block = next_query_tile(
                    start, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                )
                if m_block < stop and not seen:
                    load_k(sK, K[batch, :, kv_head], n_block * tile_n, seqlen_k, tid)
                    load_v(sV, V[batch, :, kv_head], n_block * tile_n, seqlen_k, tid)
                    seen = True
                while m_block < stop:
                    first_q = m_block * tile_m + lane * tm
                    load_q(sQ, gQ, m_block * tile_m, seqlen_q, tid)
                    load_do(sdO, gdO, m_block * tile_m, seqlen_q, tid)
                    cuda.syncthreads()

                    # D = rowsum(dO_i ∘ O_i)
                    row = m_block * tile_m + tid
                    if tid < tile_m:
                        sLse[tid], sDelta[tid] = -math.inf, 0
                        if row < seqlen_q:
                            sLse[tid] = LSE[batch, head, row]
                            delta = row_dot(sdO, tid, gO, row)
                            if has_dlse:
                                delta -= dLSE[0][batch, head, row]
                            sDelta[tid] = delta
                    cuda.syncthreads()
                    for j in range(tm):
                        unroll_full()
                        rLse[j], rDelta[j] = sLse[lane * tm + j], sDelta[lane * tm + j]

                    # P = exp(S - lse), dS = P ∘ (dP - D): rows are keys
                    weight_gradient(rdS, sV, sdO, row_group, lane)
                    scores(rS, sK, sQ, row_group, lane)
                    scale_scores(rS, scale)
                    kept = keep_bits(first_q, first_k, batch * num_heads + head, dropout)
                    drop_kept(rdS, kept, dropout)
                    subtract_delta(rdS, rDelta)
                    change_scores(
                        rS, rdS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux
                    )
                    if is_partial(
                        m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                    ):
                        mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                    weights(rS, rdS, rLse)
                    drop_kept(rS, kept, dropout)

                    # dV = dV + Pᵀ dO_i
                    share(sP, rS, tile_n, row_group, lane)
                    cuda.syncthreads()
                    add_dv(acc_dv, sP, sdO, tile_n, row_group, lane)
                    cuda.syncthreads()

                    # dK = dK + dSᵀ Q_i, less the scale
                    share(sP, rdS, tile_n, row_group, lane)
                    cuda.syncthreads()
                    add_dk(acc_dk, sP, sQ, tile_n, row_group, lane)
                    cuda.syncthreads()

                    # dQ_i = dQ_i + dS K_j
                    share_rows(sdS, rdS, row_group, lane)
                    cuda.syncthreads()
                    query_gradient(rdQ, sdS, sK, q_group, q_lane)
                    row = m_block * tile_m + q_group * q_rows
                    add_dq(dQ[batch, :, head], rdQ, row, seqlen_q, q_lane, scale)
                    m_block = next_query_tile(
                        m_block + 1, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux,
                        listed,
                    )  # fmt: skip
                    cuda.syncthreads()
            store_dk(dK[batch, :, kv_head], acc_dk, first_k, K.shape[1], lane, scale)
            one = types.float32(1)
            store_dv(dV[batch, :, kv_head], acc_dv, first_k, K.shape[1], lane, one)
            n_block += 1

    return flash1_backward


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    dQ in float32 where dQ itself is not (or is not asked for, as it is added up all the same); one
    row, where gradients that nobody asked for end up; delta (batch, num_heads, seqlen_q) float32
    and sums for the gradients of the score changes `numbers`.
    """
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    row, delta = 4 * max(problem.head_dim, problem.head_dim_v), 4 * rows if numbers else 0
    sizes = 4 * rows * problem.head_dim, row, delta, aux_workspace(problem, numbers)
    return tuple(padded(size, 16) for size in sizes)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=()
):
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    check_differentiable(problem)
    q, k, v, out, lse, dout = map(DeviceArray.of, (q, k, v, out, lse, dout))
    numbers = asked_for(d_aux)
    at_sums, at_row, at_delta, at_aux = parts_of(memory, workspace(problem, numbers))
    in_place = dq is not None and problem.dtype == "fp32"
    sums = DeviceArray.of(dq) if in_place else contiguous(at_sums, q.shape, "fp32")
    dk, dv = (or_row(x, like, problem.itemsize, at_row) for x, like in ((dk, k), (dv, v)))
    spec = Spec.of(problem, False)
    tiles = chosen_tiles(spec, compute_capability())
    given = () if dlse is None else (DeviceArray.of(dlse),)
    arguments = (
        *(q, k, v, out, dout, lse, given, sums, dk, dv),
        problem.softmax_scale,
        *extra_arguments(problem, tiles.tile_m, tiles.tile_n),
    )
    heads = problem.batch * problem.num_kv_heads
    kernel = make_backward(spec, tiles, dlse is not None)
    launch(kernel, heads, tiles.threads, tiles.shared_bytes, arguments, stream)
    if dq is not None and not in_place:
        launch_round(problem, sums, DeviceArray.of(dq), stream)
    if numbers:
        delta = contiguous(at_delta, problem.shapes["lse"], "fp32")
        launch_delta(problem, out, dout, given, delta, sums, 0, False, stream)
        launch_aux_gradients(problem, q, k, v, dout, lse, delta, d_aux, at_aux, stream)


def chosen_tiles(spec: Spec, cc: tuple[int, int]) -> BackwardTiles:
    """flash2's tiles, of 4 keys a thread, 8 bytes of shared memory a query left for lse and D."""
    return backward_tiles(spec, cc, shared_limit(cc) - 1024, most_keys=4)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    tiles = chosen_tiles(Spec.of(problem, False), compute_capability())
    return "flash1", tiles.tile_m, tiles.tile_n
