"""The gradient of a tensor that a score change reads: a bias, the weights of relative positions.

A block owns a tile of the *gradient* and walks over the scores that it sums up: the batches, heads,
queries and keys that share its elements, tile by tile, in order. S, P and dS are computed anew and
stay on chip. Where the gradient has few tiles, several blocks share one, each with a part of the
walk, and a second kernel adds their sums in order. So the same bits come out each time.

References
----------
Dao, "FlashAttention-2", 2023, Algorithm 2, lines 11 to 14, for dS.
"""

import math
from collections.abc import Sequence
from functools import cache

from ..arrays import contiguous
from ..device.aux_sums import make_aux_sums
from ..device.dropout import make_drop_weights
from ..device.gradients import make_keep, make_softmax_gradient
from ..device.numba_cuda import cuda, kernel, types
from ..device.plain_copies import make_load_rows, make_load_transposed
from ..device.products import make_multiply_transposed, make_place
from ..device.ptx import shared_tile
from ..device.schedule import make_keys_of, make_query_walk
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ..device.unroll import unroll_full
from ..launch import compute_capability, fill_zero, launch
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .aux_plan import AuxPlan, AuxRule, chosen_tiles, with_all_axes
from .spec import Spec
from .standard_tiles import LANES, THREAD_ROWS, SquareTiles

SUM_THREADS = 128


@cache
def make_aux_gradient(spec: Spec, tiles: SquareTiles, rule: AuxRule):
    """The kernel of one specialisation.

    Returns
    -------
    kernel
        ``aux_gradient(Q, K, V, dO, LSE, Delta, Sums, scale, mask_aux, range_aux, score_aux,
        lengths, listed, dropout)``: Q to dO of shape (batch, seqlen, heads, columns) in global
        memory with any strides, LSE and Delta (batch, num_heads, seqlen_q) float32. Sums (shares,
        batch or 1, num_heads or 1, seqlen_q or 1, seqlen_k or 1, terms) float32 is written.

    Notes
    -----
    Reads Q, K, V, dO, lse and delta of a visited pair of tiles once for each group of terms;
    writes Sums once.
    """
    tile, threads, tn, tm = tiles.tile, tiles.threads, THREAD_ROWS, tiles.thread_n
    depth, depth_v = tiles.depth(spec.head_dim), tiles.depth(spec.head_dim_v)
    own_keys, own_queries, row_groups = rule.own_keys, rule.own_queries, tile // THREAD_ROWS

    place = make_place(LANES)
    keys_of = make_keys_of(spec.has_lengths)
    walk = spec.key_range, spec.exact, spec.has_list, tile, tile
    _, next_query_tile, _, is_partial = make_query_walk(*walk)
    load_k = make_load_transposed(spec.dtype, depth, tile, threads)
    load_v = make_load_transposed(spec.dtype, depth_v, tile, threads)
    load_q = make_load_rows(spec.dtype, depth, tile, tm, threads)
    load_do = make_load_rows(spec.dtype, depth_v, tile, tm, threads)
    scores = make_multiply_transposed(tn, tm, depth)
    scale_scores = make_scale_scores(False, tn, tm)
    keep = make_keep(tn, tm)
    weight_gradient = make_multiply_transposed(tn, tm, depth_v)
    drop_weights = make_drop_weights(spec.has_dropout, tn, tm, True)
    subtract_delta, weights = make_softmax_gradient(tn, tm)
    change_scores = make_change_scores(spec.changes, tn, tm, True)
    mask_scores = make_mask_scores(spec.keep, tn, tm, True)
    functions = spec.changes, spec.derivatives, rule.number, rule.derivative
    sums_shape, clear, add, total = make_aux_sums(
        *functions, tn, tm, row_groups, LANES, own_keys, own_queries
    )
    terms = sums_shape[0]
    keys_owned, queries_owned = tile if own_keys else 1, tile if own_queries else 1
    elements = terms * keys_owned * queries_owned

    k_shape, q_shape = (depth, tile), (LANES, tm * depth + 4)
    v_shape, do_shape = (depth_v, tile), (LANES, tm * depth_v + 4)
    q_at = max(depth, depth_v) * tile
    sums_at = tiles.shared_bytes(max(spec.head_dim, spec.head_dim_v)) // 4

    @kernel(threads)
    def aux_gradient(
        Q, K, V, dO, LSE, Delta, Sums, scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule: the tile of the gradient, and the steps of the walk that are this block's
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        thread = row_group * LANES + lane
        seqlen_q, num_heads = Q.shape[1], Q.shape[2]
        m_blocks, n_blocks = (seqlen_q + tile - 1) // tile, (K.shape[1] + tile - 1) // tile
        shares, heads_owned, last_term = Sums.shape[0], Sums.shape[2], Sums.shape[5]
        at = types.int64(cuda.blockIdx.x)
        share, at = at % shares, at // shares
        groups = (last_term + terms - 1) // terms
        first_term, at = at % groups * terms, at // groups
        owned = n_blocks if own_keys else 1
        own_n, at = at % owned, at // owned
        owned = m_blocks if own_queries else 1
        own_m, at = at % owned, at // owned
        own_head, own_batch = at % heads_owned, at // heads_owned
        n_steps, m_steps = 1 if own_keys else n_blocks, 1 if own_queries else m_blocks
        head_steps, batch_steps = num_heads // heads_owned, Q.shape[0] // Sums.shape[1]
        steps = batch_steps * head_steps * m_steps * n_steps
        step, stop = share * steps // shares, (share + 1) * steps // shares

        # Prologue
        memory = cuda.shared.array(0, types.float32)
        sK, sQ = shared_tile(memory, 0, k_shape), shared_tile(memory, q_at, q_shape)
        sV, sdO = shared_tile(memory, 0, v_shape), shared_tile(memory, q_at, do_shape)
        sSums = shared_tile(memory, sums_at, sums_shape)
        sLse = cuda.shared.array(tile, types.float32)
        sDelta = cuda.shared.array(tile, types.float32)
        rS = cuda.local.array((tn, tm), types.float32)
        rdS = cuda.local.array((tn, tm), types.float32)
        rRaw = cuda.local.array((tn, tm), types.float32)
        rLse = cuda.local.array(tm, types.float32)
        rDelta = cuda.local.array(tm, types.float32)
        clear(sSums, thread)

        # Mainloop
        while step < stop:
            n_block, rest = own_n + step % n_steps, step // n_steps
            m_block, rest = own_m + rest % m_steps, rest // m_steps
            head, batch = own_head + rest % head_steps, own_batch + rest // head_steps
            step += 1
            seqlen_k = keys_of(batch, K.shape[1], lengths)
            visiting = next_query_tile(
                m_block, m_block + 1, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
            )
            if visiting == m_block:
                kv_head = head // (num_heads // K.shape[2])
                first_q, first_k = m_block * tile + lane * tm, n_block * tile + row_group * tn

                # S = scale Q_i K_jᵀ: rows are keys
                load_k(sK, K[batch, :, kv_head], n_block * tile, seqlen_k, tid)
                load_q(sQ, Q[batch, :, head], m_block * tile, seqlen_q, tid)
                if tid < tile:
                    sLse[tid], sDelta[tid] = -math.inf, 0
                    if m_block * tile + tid < seqlen_q:
                        sLse[tid] = LSE[batch, head, m_block * tile + tid]
                        sDelta[tid] = Delta[batch, head, m_block * tile + tid]
                cuda.syncthreads()
                scores(rS, sK, sQ, row_group, lane)
                scale_scores(rS, scale)
                keep(rRaw, rS)
                for j in range(tm):
                    unroll_full()
                    rLse[j], rDelta[j] = sLse[lane * tm + j], sDelta[lane * tm + j]
                cuda.syncthreads()  # nobody reads K_j and Q_i any more

                # dP = dO_i V_jᵀ
                load_v(sV, V[batch, :, kv_head], n_block * tile, seqlen_k, tid)
                load_do(sdO, dO[batch, :, head], m_block * tile, seqlen_q, tid)
                cuda.syncthreads()
                weight_gradient(rdS, sV, sdO, row_group, lane)
                drop_weights(rdS, first_q, first_k, batch * num_heads + head, dropout)

                # P = exp(S - lse), dS = P ∘ (dP - delta)
                subtract_delta(rdS, rDelta)
                change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if is_partial(m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed):
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                weights(rS, rdS, rLse)
                add(
                    sSums, rRaw, rdS, first_q, first_k, seqlen_q, seqlen_k, batch, head,
                    first_term, last_term, score_aux, thread,
                )  # fmt: skip
                cuda.syncthreads()  # nobody reads V_j, dO_i, lse and delta any more

        # Epilogue
        cuda.syncthreads()
        element = types.int64(tid)
        while element < elements:
            key, rest = element % keys_owned, element // keys_owned
            query, term = rest % queries_owned, rest // queries_owned
            found = total(sSums, term, key, query)
            k_idx, q_idx, term = own_n * tile + key, own_m * tile + query, first_term + term
            if k_idx < Sums.shape[4] and q_idx < Sums.shape[3] and term < last_term:
                Sums[share, own_batch, own_head, q_idx, k_idx, term] = found
            element += threads

    return aux_gradient


@kernel(SUM_THREADS)
def sum_shares(Sums, Gradient):
    """``Gradient = Sums.sum(axis=0)`` in order; Gradient lacks the first axis. A thread an element.

    Notes
    -----
    Reads Sums once, writes Gradient once.
    """
    at = types.int64(cuda.blockIdx.x) * SUM_THREADS + types.int64(cuda.threadIdx.x)
    term, at = at % Gradient.shape[4], at // Gradient.shape[4]
    key, at = at % Gradient.shape[3], at // Gradient.shape[3]
    query, at = at % Gradient.shape[2], at // Gradient.shape[2]
    head, batch = at % Gradient.shape[1], at // Gradient.shape[1]
    if batch < Gradient.shape[0]:
        total = types.float32(0)
        for share in range(Sums.shape[0]):
            total += Sums[share, batch, head, query, key, term]
        Gradient[batch, head, query, key, term] = total


def launch_aux_gradients(
    problem: Problem, q, k, v, dout, lse, delta, d_aux: Sequence, start: int, stream: int
) -> None:
    """Compute the gradients of score changes' tensors, each by itself.

    Parameters
    ----------
    problem : Problem
    q, k, v, dout : DeviceArray (batch, seqlen, heads, columns)
    lse, delta : DeviceArray (batch, num_heads, seqlen_q), float32
        delta = rowsum(dO∘O), less the gradient of lse.
    d_aux : sequence of DeviceArray or None
        One for each score change, float32 of shape `scores.aux_shape`; None = not wanted. Written.
    start : int
        Address of ``aux_plan.workspace(problem, ...)`` bytes.
    stream : int
        CUDA stream handle.
    """
    tiles = chosen_tiles(problem, compute_capability())
    spec = Spec.of(problem, False)
    for number, gradient in enumerate(d_aux):
        if gradient is None:
            continue
        plan = AuxPlan.of(problem, number, tiles.tile)
        if plan.steps == 0:
            fill_zero(gradient.pointer, 4 * math.prod(plan.shape), stream)
            continue
        gradient = with_all_axes(gradient, problem.score_mods[number].aux_axes)
        sums = gradient._replace(shape=(1, *gradient.shape), strides=(0, *gradient.strides))
        if plan.shares > 1:
            sums = contiguous(start, (plan.shares, *plan.shape), "fp32")
        width = max(problem.head_dim, problem.head_dim_v)
        arguments = (
            *(q, k, v, dout, lse, delta, sums, problem.softmax_scale),
            *extra_arguments(problem, tiles.tile, tiles.tile),
        )
        aux_gradient = make_aux_gradient(spec, tiles, plan.rule)
        shared_bytes = tiles.shared_bytes(width) + tiles.sums_bytes
        blocks = plan.tiles * plan.shares
        launch(aux_gradient, blocks, tiles.threads, shared_bytes, arguments, stream)
        if plan.shares > 1:
            blocks = ceil_div(math.prod(plan.shape), SUM_THREADS)
            launch(sum_shares, blocks, SUM_THREADS, 0, (sums, gradient), stream)
