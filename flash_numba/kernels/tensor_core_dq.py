"""tensor_core backward, first kernel: a block owns a query tile, and dQ stays in registers.

The loop of the forward pass with another middle: S and dP = dO V^T give dS, which, rounded to 16
bits, is the left operand of dQ += dS K where it stands. Nothing is added from outside, so the same
bits come out each time; the price is that S and dP are computed here and in the second kernel.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

import math
from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragment_gradients import log2_units, make_read_rows_of, make_row_gradient
from ..device.fragment_products import (
    make_multiply_add,
    make_multiply_transposed,
    make_pack_weights,
    make_share_rows,
)
from ..device.fragments import make_mask_range
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, types
from ..device.schedule import (
    make_key_tiles_room,
    make_sees_tile,
    make_tile_list,
    make_work_of,
    narrowed,
)
from ..device.scores import make_change_scores_backward, make_mask_scores, make_scale_scores
from ..device.swizzle import lane_of_columns, lane_of_rows
from ..device.swizzled_copies import make_arrivals, make_load_tile, make_store_tile
from ..device.unroll import unroll_full, unroll_none
from .spec import Spec
from .tensor_core_backward_tiles import QueryGradientTiles


@cache
def make_query_gradient(spec: Spec, tiles: QueryGradientTiles, folded: bool):
    """The kernel that computes dQ of one specialisation.

    Returns
    -------
    kernel
        ``tensor_core_dq(Q, K, V, dO, LSE, Delta, dQ, factor, scale, mask_aux, range_aux, score_aux,
        lengths, listed, dropout)``: Q, K, V, dO and dQ of shape (batch, seqlen, heads, columns) in
        global memory with any strides, 16-bit words; LSE and Delta (batch, num_heads, seqlen_q)
        float32. `factor` and `scale` as in `tensor_core.make_forward`.

    Notes
    -----
    Reads Q, dO, lse and delta once, and each visited K and V tile once a query tile. Writes dQ
    once.
    """
    threads, tile_m, tile_n = tiles.threads, tiles.tile_m, tiles.tile_n
    depth, depth_v, pitch, pitch_v = tiles.depth, tiles.depth_v, tiles.pitch, tiles.pitch_v
    blocks, warp_m = tiles.row_blocks, 16 * tiles.row_blocks
    rows, columns, q_columns = 2 * blocks, tile_n // 4, depth // 4
    do_at, k_at, v_at, stage_k, stage_v = tiles.layout
    p_shape, a_shape = (tile_n // 16, blocks, 4), (1, blocks, 4)

    ampere, packed, copies = tiles.ampere, spec.packed, (threads, spec.vectors)
    product = spec.dtype, blocks, tile_n

    work_of = make_work_of(spec.packed, spec.has_lengths, spec.key_range is None)
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    sees_tile = make_sees_tile(spec.key_range, warp_m, tile_n)
    load_q = make_load_tile(spec.head_dim, depth, tile_m, *copies, pitch, ampere)
    load_do = make_load_tile(spec.head_dim_v, depth_v, tile_m, *copies, pitch_v, ampere)
    load_k = make_load_tile(spec.head_dim, depth, tile_n, *copies, pitch, ampere)
    load_v = make_load_tile(spec.head_dim_v, depth_v, tile_n, *copies, pitch_v, ampere)
    commit, arrive = make_arrivals(spec.vectors and ampere)
    read_rows_of = make_read_rows_of(rows)
    clear_dq = make_clear(rows, q_columns)
    scores = make_multiply_transposed(*product, depth, pitch, pitch, False, ampere)
    weight_gradient = make_multiply_transposed(*product, depth_v, pitch_v, pitch_v, False, ampere)
    scale_scores = make_scale_scores(folded, rows, columns)
    drop_weights = make_drop_weights(spec.has_dropout, rows, columns, False, True)
    subtract_delta, weights = make_row_gradient(rows, columns)
    change_scores = make_change_scores_backward(
        spec.changes, spec.derivatives, rows, columns, False, True
    )
    if spec.exact and not spec.has_list:
        mask_scores = make_mask_range(spec.key_range, columns, rows)
    else:
        mask_scores = make_mask_scores(spec.keep, rows, columns, False, True)
    pack_gradient = make_pack_weights(*product, ampere)
    add_product = make_multiply_add(*product, depth, pitch, ampere)
    scale_dq = make_scale_scores(False, rows, q_columns)
    share_dq = make_share_rows(spec.dtype, blocks, depth, pitch, ampere)
    store_dq = make_store_tile(spec.head_dim, warp_m, pitch, spec.vectors)

    @kernel(threads, tiles.blocks_per_sm)
    def tensor_core_dq(
        Q, K, V, dO, LSE, Delta, dQ, factor, scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = tid // 32, tid % 32
        num_heads = types.int32(Q.shape[2])
        work = work_of(num_heads, Q, K, tile_m, lengths)
        batch, head, m_block, _, begin_q, seqlen_q, begin_k, seqlen_k, row_stop = work
        if packed and batch < 0:
            return
        batch_head = batch * num_heads + head
        visit = narrowed(
            key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        )
        group = types.uint32(types.uint32(num_heads) // types.uint32(K.shape[2]))
        kv_head = types.int32(types.uint32(head) // group)
        gK, gV = K[batch, begin_k:, kv_head], V[batch, begin_k:, kv_head]
        warp_q = types.int32(m_block * tile_m + warp * warp_m)
        first_q = types.int32(warp_q + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        q_lane = warp * warp_m * pitch + lane_of_rows(lane, pitch)
        do_lane = do_at + warp * warp_m * pitch_v + lane_of_rows(lane, pitch_v)
        k_lane, v_lane = k_at + lane_of_columns(lane, pitch), v_at + lane_of_columns(lane, pitch_v)
        k_row_lane = k_at + lane_of_rows(lane, pitch)
        acc_dq = cuda.local.array((rows, q_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rdP = cuda.local.array((rows, columns), types.float32)
        rdS = cuda.local.array(p_shape, types.uint32)
        rA = cuda.local.array(a_shape, types.uint32)
        rLse2 = cuda.local.array(rows, types.float32)
        rDelta = cuda.local.array(rows, types.float32)
        clear_dq(acc_dq)
        n_block = types.int32(next_key_tile(visit.start, visit.stop, m_block, batch, head, listed))
        if n_block < visit.stop:
            gQ, gdO = Q[batch, begin_q:, head], dO[batch, begin_q:, head]
            load_q(memory, 0, gQ, m_block * tile_m, seqlen_q, tid)
            load_do(memory, do_at, gdO, m_block * tile_m, seqlen_q, tid)
            load_k(memory, k_at, gK, n_block * tile_n, seqlen_k, tid)
            load_v(memory, v_at, gV, n_block * tile_n, seqlen_k, tid)
            commit()
            gLSE = LSE[batch, head, begin_q:]
            gDelta = Delta[batch, head, begin_q:]
            read_rows_of(rLse2, gLSE, first_q, seqlen_q, -math.inf, lane)
            read_rows_of(rDelta, gDelta, first_q, seqlen_q, 0, lane)
            for i in range(rows):
                unroll_full()
                rLse2[i] = log2_units(rLse2[i])

        # Mainloop: K and V of the next tile arrive while this one is worked on.
        stage = types.int32(0)
        while n_block < visit.stop:
            unroll_none()
            arrive()
            cuda.syncthreads()  # this tile is here for all, and nobody reads the one before
            following = types.int32(
                next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
            )
            if following < visit.stop:
                other = 1 - stage
                load_k(memory, k_at + other * stage_k, gK, following * tile_n, seqlen_k, tid)
                load_v(memory, v_at + other * stage_v, gV, following * tile_n, seqlen_k, tid)
            commit()
            partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
            partial |= listed_partial(n_block, m_block, batch, head, listed)
            partial |= (n_block + 1) * tile_n > seqlen_k
            if not partial or sees_tile(warp_q, n_block, seqlen_q, batch, head, range_aux):
                first_k = n_block * tile_n + lane % 4 * 2
                scores(rS, rA, memory, q_lane, k_lane + stage * stage_k)
                weight_gradient(rdP, rA, memory, do_lane, v_lane + stage * stage_v)
                scale_scores(rS, scale)
                drop_weights(rdP, first_q, first_k, batch_head, dropout)
                subtract_delta(rdP, rDelta)
                change_scores(rS, rdP, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if partial:
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                weights(rS, rdP, rLse2, factor)
                pack_gradient(rdS, rdP)
                add_product(acc_dq, rdS, memory, k_row_lane + stage * stage_k)
            n_block = following
            stage = types.int32(1 - stage)

        # Epilogue: dQ goes through the warp's own rows of Q's place, to be stored in whole lines.
        scale_dq(acc_dq, scale)
        q_rows = warp * warp_m * pitch
        cuda.syncwarp()
        share_dq(memory, q_rows, acc_dq, lane)
        cuda.syncwarp()
        store_dq(dQ[batch, begin_q:, head], warp_q, row_stop, memory, q_rows, lane)

    return tensor_core_dq
