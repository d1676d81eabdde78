"""flash2 backward: FlashAttention-2's Algorithm 2 in fp32 arithmetic, bit for bit repeatable.

A block owns one tile of keys and walks over the query tiles that visit it; dK and dV stay in
registers. It adds its part of dQ to global memory when its turn comes: the key tiles of a query
tile add in ascending order, so the sum is always the same. A block never waits for one that has
not started, because blocks take their work in the order in which they start.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

import math
from collections.abc import Sequence
from functools import cache

from ..arrays import DeviceArray, contiguous
from ..device.copies import (
    make_load_rows,
    make_load_transposed,
    make_read_vector,
    make_store_rows,
    make_wait_for_copies,
)
from ..device.dropout import make_keep_bits
from ..device.gradients import (
    end_turn,
    make_add_rows,
    make_clear,
    make_softmax_gradient,
    take_ticket,
    wait_for_turn,
)
from ..device.numba_cuda import cuda, kernel, types
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
from ..launch import (
    allows_vectors,
    compute_capability,
    fill_zero,
    launch,
    shared_limit,
)
from ..problem import Problem
from ..scores import check_differentiable
from ..tiling import ceil_div
from .arguments import extra_arguments
from .aux_gradient import launch_aux_gradients
from .aux_plan import workspace as aux_workspace
from .backward_call import asked_for, launch_delta, launch_round, or_row, parts_of
from .spec import BackwardTiles, Spec, backward_tiles, padded


@cache
def make_backward(spec: Spec, tiles: BackwardTiles):
    """The kernel that computes dQ, dK and dV of one specialisation.

    Returns
    -------
    kernel
        ``flash2_backward(Q, K, V, dO, LSE, Delta, dQ, dK, dV, Turns, Ticket, k_factor, scale,
        dq_scale, mask_aux, range_aux, score_aux, lengths, listed, dropout)``. Arrays are in global
        memory: Q to dV of shape (batch, seqlen, heads, columns) with any strides, LSE and Delta
        (batch, num_heads, seqlen_q) float32, dQ float32 and zero, Turns int32 (batch, num_heads,
        query tiles) and Ticket int32 (1,), both zero. `k_factor` is `scale`, the factor on Q @ K.T,
        and `dq_scale` 1 if ``spec.folded``; else they are 1 and `scale`.

    Notes
    -----
    Reads each K and V tile once, each visiting Q and dO tile once a key tile; reads and writes
    dQ once a key tile; writes dK and dV once.
    """
    threads, lanes, q_lanes = tiles.threads, tiles.lanes, tiles.q_lanes
    tile_m, tile_n, tm, tn = tiles.tile_m, tiles.tile_n, tiles.thread_m, tiles.thread_n
    depth, depth_v = tiles.depth, tiles.depth_v
    thread_d, thread_v, q_columns = depth // lanes, depth_v // lanes, depth // tiles.q_parts
    thread_q = q_columns // q_lanes

    place, place_q = make_place(lanes), make_place(q_lanes)
    keys_of = make_keys_of(spec.has_lengths)
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, next_query_tile, turn_of, is_partial = make_query_walk(*walk)
    own = tile_n, threads, spec.vectors
    load_k = make_load_transposed(spec.dtype, spec.head_dim, depth, *own)
    load_v = make_load_transposed(spec.dtype, spec.head_dim_v, depth_v, *own)
    rows = tile_m, tm, threads, spec.vectors, tiles.asynchronous
    load_q = make_load_rows(spec.dtype, spec.head_dim, depth, *rows)
    load_do = make_load_rows(spec.dtype, spec.head_dim_v, depth_v, *rows)
    wait_for_copies = make_wait_for_copies(tiles.asynchronous)
    read_vector = make_read_vector(tm)
    clear_dk, clear_dv = make_clear(tn, thread_d), make_clear(tn, thread_v)
    scores = make_multiply_transposed(tn, tm, depth)
    scale_scores = make_scale_scores(spec.folded, tn, tm)
    weight_gradient = make_multiply_transposed(tn, tm, depth_v)
    keep_bits, drop_kept = make_keep_bits(spec.has_dropout, tn, tm, True)
    subtract_delta, weights = make_softmax_gradient(tn, tm)
    change_scores = make_change_scores_backward(spec.changes, spec.derivatives, tn, tm)
    mask_scores = make_mask_scores(spec.keep, tn, tm, True)
    share, share_rows = make_share(tn, tm), make_share_rows(tn, tm)
    add_dv = make_multiply_add(tn, thread_v, lanes, tm, depth_v)
    add_dk = make_multiply_add(tn, thread_d, lanes, tm, depth)
    query_gradient = make_multiply_transposed(tiles.q_rows, thread_q, tile_n, q_lanes, False)
    add_dq = make_add_rows(spec.head_dim, tiles.q_rows, thread_q, q_lanes)
    store_dk = make_store_rows(spec.dtype, spec.head_dim, tn, thread_d, lanes, spec.vectors)
    store_dv = make_store_rows(spec.dtype, spec.head_dim_v, tn, thread_v, lanes, spec.vectors)

    q_rows = tiles.q_rows
    k_shape, v_shape = (depth, tile_n + 4), (depth_v, tile_n)
    q_shape, do_shape = (lanes, tm * depth + 4), (lanes, tm * depth_v + 4)
    p_shape, ds_shape = (lanes, tm * tile_n + 4), (tile_n, tile_m)
    v_at, q_at, do_at, p_at = tiles.offsets

    @kernel(threads, tiles.blocks_per_sm)
    def flash2_backward(
        Q, K, V, dO, LSE, Delta, dQ, dK, dV, Turns, Ticket, k_factor, scale, dq_scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        q_group, q_lane = place_q(tid)
        seqlen_q, num_heads, kv_heads = Q.shape[1], Q.shape[2], K.shape[2]
        ticket = take_ticket(Ticket, tid)
        n_block, batch_head = ticket // (Q.shape[0] * kv_heads), ticket % (Q.shape[0] * kv_heads)
        batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
        seqlen_k = keys_of(batch, K.shape[1], lengths)
        first_k = n_block * tile_n + row_group * tn
        group = num_heads // kv_heads

        # Prologue
        memory = cuda.shared.array(0, types.float32)
        sK, sV = shared_tile(memory, 0, k_shape), shared_tile(memory, v_at, v_shape)
        sQ, sdO = shared_tile(memory, q_at, q_shape), shared_tile(memory, do_at, do_shape)
        sP, sdS = shared_tile(memory, p_at, p_shape), shared_tile(memory, p_at, ds_shape)
        acc_dk = cuda.local.array((tn, thread_d), types.float32)
        acc_dv = cuda.local.array((tn, thread_v), types.float32)
        rS = cuda.local.array((tn, tm), types.float32)
        rdS = cuda.local.array((tn, tm), types.float32)
        rdQ = cuda.local.array((q_rows, thread_q), types.float32)
        rLse = cuda.local.array(tm, types.float32)
        rDelta = cuda.local.array(tm, types.float32)
        clear_dk(acc_dk)
        clear_dv(acc_dv)
        if n_block * tile_n < seqlen_k:
            load_k(sK, K[batch, :, kv_head], n_block * tile_n, seqlen_k, k_factor, tid)
            load_v(sV, V[batch, :, kv_head], n_block * tile_n, seqlen_k, types.float32(1), tid)

        # Mainloop: the next Q and dO arrive during dS K.
        for head in range(kv_head * group, (kv_head + 1) * group):
            gQ, gdO, gdQ = Q[batch, :, head], dO[batch, :, head], dQ[batch, :, head]
            start, stop = span(n_block, batch, head, seqlen_q, seqlen_k, range_aux)
            m_block = next_query_tile(
                start, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
            )
            if m_block < stop:
                load_q(sQ, gQ, m_block * tile_m, seqlen_q, tid)
                load_do(sdO, gdO, m_block * tile_m, seqlen_q, tid)
            while m_block < stop:
                first_q = m_block * tile_m + lane * tm
                wait_for_copies()
                cuda.syncthreads()  # Q_i and dO_i are here for all, and nobody reads dS any more
                weight_gradient(rdS, sV, sdO, row_group, lane)
                scores(rS, sK, sQ, row_group, lane)
                scale_scores(rS, scale)
                read_vector(rLse, LSE[batch, head], first_q, seqlen_q, types.float32(-math.inf))
                read_vector(rDelta, Delta[batch, head], first_q, seqlen_q, types.float32(0))
                kept = keep_bits(first_q, first_k, batch * num_heads + head, dropout)
                drop_kept(rdS, kept, dropout)
                subtract_delta(rdS, rDelta)
                change_scores(rS, rdS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if is_partial(m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed):
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                weights(rS, rdS, rLse)
                drop_kept(rS, kept, dropout)
                share(sP, rS, tile_n, row_group, lane)
                cuda.syncwarp()
                add_dv(acc_dv, sP, sdO, tile_n, row_group, lane)
                cuda.syncwarp()
                share(sP, rdS, tile_n, row_group, lane)
                cuda.syncwarp()
                add_dk(acc_dk, sP, sQ, tile_n, row_group, lane)
                cuda.syncthreads()  # nobody reads Q_i, dO_i or dS transposed any more
                following = next_query_tile(
                    m_block + 1, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                )
                if following < stop:
                    load_q(sQ, gQ, following * tile_m, seqlen_q, tid)
                    load_do(sdO, gdO, following * tile_m, seqlen_q, tid)
                share_rows(sdS, rdS, row_group, lane)
                cuda.syncthreads()
                query_gradient(rdQ, sdS, sK, q_group, q_lane)
                turn = turn_of(m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed)
                wait_for_turn(Turns, batch, head, m_block, turn, tid)
                add_dq(gdQ, rdQ, m_block * tile_m + q_group * q_rows, seqlen_q, q_lane, dq_scale)
                for column in range(q_columns, depth, q_columns):
                    query_gradient(rdQ, sdS, sK, q_group, q_lane + column)
                    row = m_block * tile_m + q_group * q_rows
                    add_dq(gdQ, rdQ, row, seqlen_q, q_lane + column, dq_scale)
                end_turn(Turns, batch, head, m_block, turn, tid)
                m_block = following

        # Epilogue
        store_dk(dK[batch, :, kv_head], acc_dk, first_k, K.shape[1], lane, scale)
        store_dv(dV[batch, :, kv_head], acc_dv, first_k, K.shape[1], lane, types.float32(1))

    return flash2_backward


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    delta (batch, num_heads, seqlen_q) float32; dQ in float32 where dQ itself is not; one row, where
    gradients that nobody asked for end up; sums for the gradients of the score changes `numbers`;
    turns (batch, num_heads, query tiles) int32 with the ticket counter. All but the last are
    multiples of 16.
    """
    tiles = _tiles(Spec.of(problem, True))
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    sums = 0 if problem.dtype == "fp32" else 4 * rows * problem.head_dim
    blocks = problem.batch * problem.num_heads * ceil_div(problem.seqlen_q, tiles.tile_m)
    row, aux = 4 * max(problem.head_dim, problem.head_dim_v), aux_workspace(problem, numbers)
    return *(padded(size, 16) for size in (4 * rows, sums, row, aux)), 4 * (blocks + 1)


def _tiles(spec: Spec) -> BackwardTiles:
    cc = compute_capability()
    return backward_tiles(spec, cc, shared_limit(cc))


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
    sizes = workspace(problem, asked_for(d_aux))
    at_delta, at_sums, at_row, at_aux, at_turns = parts_of(memory, sizes)
    likes = (dq, q), (dk, k), (dv, v)
    dq, dk, dv = (or_row(x, like, problem.itemsize, at_row) for x, like in likes)
    spec = Spec.of(problem, all(map(allows_vectors, (q, k, v, out, dout, dk, dv))))
    tiles = _tiles(spec)
    batch, n, num_heads, d = q.shape
    delta = contiguous(at_delta, (batch, num_heads, n), "fp32")
    sums = dq if problem.dtype == "fp32" else contiguous(at_sums, q.shape, "fp32")
    turns = contiguous(at_turns, (batch, num_heads, ceil_div(n, tiles.tile_m)), "int32")
    ticket = contiguous(at_turns + sizes[-1] - 4, (1,), "int32")
    fill_zero(at_turns, sizes[-1], stream)
    given = () if dlse is None else (DeviceArray.of(dlse),)
    launch_delta(problem, out, dout, given, delta, sums, d, spec.vectors, stream)

    scale = problem.softmax_scale
    factors = (scale, scale, 1.0) if spec.folded else (1.0, scale, scale)
    arguments = (
        *(q, k, v, dout, lse, delta, sums, dk, dv, turns, ticket),
        *factors,
        *extra_arguments(problem, tiles.tile_m, tiles.tile_n),
    )
    key_blocks = batch * problem.num_kv_heads * ceil_div(problem.seqlen_k, tiles.tile_n)
    kernel = make_backward(spec, tiles)
    launch(kernel, key_blocks, tiles.threads, tiles.shared_bytes, arguments, stream)
    if sums is not dq:
        launch_round(problem, sums, dq, stream)
    launch_aux_gradients(problem, q, k, v, dout, lse, delta, d_aux, at_aux, stream)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    tiles = _tiles(Spec.of(problem, True))
    return "flash2", tiles.tile_m, tiles.tile_n
