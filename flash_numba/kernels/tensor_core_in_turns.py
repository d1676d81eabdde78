"""tensor_core forward in turns: while half of a block's warps multiply, the others exponentiate.

The schedule of `tensor_core` with another timing, for head dimensions so small that the softmax
takes as long as the products. Two groups of warps take turns on the tensor cores: in its turn a
group adds P V of the tile before and computes the scores of the next one, then it hands the turn
over and does its softmax. A warp alone does not fill the tensor cores, so the turn is handed over a
little before the scores are complete.

References
----------
Dao, "FlashAttention-2", 2023, Algorithm 1; Shah et al., "FlashAttention-3", 2024, section 3.1, for
two groups that take turns, there with Hopper's products.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragment_products import (
    lane_of_columns,
    lane_of_rows,
    make_multiply_add,
    make_multiply_transposed,
    make_pack_weights,
    make_share_rows,
)
from ..device.fragment_softmax import make_fragment_softmax
from ..device.fragments import make_empty_rows, make_mask_range
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.numba_cuda import cuda, kernel, types
from ..device.schedule import (
    make_key_tiles_room,
    make_sees_tile,
    make_tile_list,
    make_work_of,
    narrowed,
)
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ..device.swizzled_copies import make_arrivals, make_load_tile, make_store_tile
from ..device.unroll import unroll_full, unroll_none
from .spec import Spec
from .tensor_core_tiles import TensorTiles

EARLY = 2
"""Steps of Q K^T that a group still has to do when it hands its turn over."""


@cache
def make_forward_in_turns(spec: Spec, tiles: TensorTiles, folded: bool):
    """The forward kernel of one specialisation: parameters and traffic of `make_forward`.

    Notes
    -----
    Group g waits at barrier 1 + g and its turn comes when the other has arrived there. Its phase i
    is P V of tile i - 1, then the scores of tile i; stage ``i % 4`` of shared memory holds K of
    tile i and V of tile i - 1, so that the stages of phases i + 1 and i + 2 may be filled while one
    group is in phase i and the other in phase i - 1.
    """
    threads, tile_m, tile_n = tiles.threads, tiles.tile_m, tiles.tile_n
    depth, depth_v, pitch, pitch_v = tiles.depth, tiles.depth_v, tiles.pitch, tiles.pitch_v
    blocks, warp_m, half = tiles.row_blocks, 16 * tiles.row_blocks, tiles.warps // 2
    rows, columns, out_columns = 2 * blocks, tile_n // 4, depth_v // 4
    pitch_q, k_at, v_from, stage_k, stage_v = tiles.layout
    p_shape, a_shape = (tile_n // 16, blocks, 4), (1, blocks, 4)
    steps, stages, packed = depth // 16, tiles.stages, spec.packed
    before = steps - min(EARLY, steps // 2)

    work_of = make_work_of(spec.packed, spec.has_lengths, spec.key_range is None)
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    sees_tile = make_sees_tile(spec.key_range, warp_m, tile_n)
    copies, product = (threads, spec.vectors), (spec.dtype, blocks, tile_n)
    load_q = make_load_tile(spec.head_dim, depth, tile_m, *copies, pitch_q)
    load_k = make_load_tile(spec.head_dim, depth, tile_n, *copies, pitch)
    load_v = make_load_tile(spec.head_dim_v, depth_v, tile_n, *copies, pitch_v)
    commit, arrive = make_arrivals(spec.vectors, 1)
    operands = *product, depth, pitch_q, pitch, False, True
    begin_scores = make_multiply_transposed(*operands, 0, before)
    end_scores = make_multiply_transposed(*operands, before, steps, False)
    scale_scores = make_scale_scores(folded, rows, columns)
    change_scores = make_change_scores(spec.changes, rows, columns, False, True)
    if spec.exact and not spec.has_list:
        mask_scores = make_mask_range(spec.key_range, columns, rows)
    else:
        mask_scores = make_mask_scores(spec.keep, rows, columns, False, True)
    start, update, finish = make_fragment_softmax(rows, columns, out_columns)
    empty_rows = make_empty_rows(spec.packed, rows, out_columns)
    drop_weights = make_drop_weights(spec.has_dropout, rows, columns, False, True)
    pack_weights = make_pack_weights(*product)
    add_product = make_multiply_add(*product, depth_v, pitch_v)
    share_o = make_share_rows(spec.dtype, blocks, depth_v, pitch_q)
    store_o = make_store_tile(spec.head_dim_v, warp_m, pitch_q, spec.vectors)

    @kernel(threads, tiles.blocks_per_sm)
    def tensor_core_forward(
        Q, K, V, O, LSE, factor, scale, mask_aux, range_aux, score_aux, lengths, listed, dropout
    ):
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = tid // 32, tid % 32
        num_heads = types.int32(Q.shape[2])
        work = work_of(num_heads, Q, K, tile_m, lengths)
        batch, head, m_block, _, begin_q, seqlen_q, begin_k, seqlen_k, _ = work
        if packed and batch < 0:
            return
        batch_head = batch * num_heads + head
        visit = narrowed(
            key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        )
        q_heads = types.uint32(types.uint32(num_heads) // types.uint32(K.shape[2]))
        kv_head = types.int32(types.uint32(head) // q_heads)
        gK, gV = K[batch, begin_k:, kv_head], V[batch, begin_k:, kv_head]
        # Neighbouring rows are in different groups: under a causal mask both have as much to do.
        group, place = types.int32(warp // half), warp % half * 2 + warp // half
        warp_q = types.int32(m_block * tile_m + place * warp_m)
        first_q = types.int32(warp_q + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        q_lane = place * warp_m * pitch_q + lane_of_rows(lane, pitch_q)
        k_lane, v_lane = k_at + lane_of_columns(lane, pitch), v_from + lane_of_rows(lane, pitch_v)
        acc_o = cuda.local.array((rows, out_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rP = cuda.local.array(p_shape, types.uint32)
        rQ = cuda.local.array(a_shape, types.uint32)
        row_max = cuda.local.array(rows, types.float32)
        row_sum = cuda.local.array(rows, types.float32)
        start(row_max, row_sum, acc_o)
        n_block = types.int32(next_key_tile(visit.start, visit.stop, m_block, batch, head, listed))
        following = types.int32(
            next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
        )
        if n_block < visit.stop:
            gQ = Q[batch, begin_q:, head]
            load_q(memory, 0, gQ, m_block * tile_m, seqlen_q, tid)
            load_k(memory, k_at, gK, n_block * tile_n, seqlen_k, tid)
            commit()
            if following < visit.stop:
                load_k(memory, k_at + stage_k, gK, following * tile_n, seqlen_k, tid)
            load_v(memory, v_from + stage_v, gV, n_block * tile_n, seqlen_k, tid)
            commit()
            arrive()
            cuda.syncthreads()  # Q and the first K are here for all

        # Mainloop, a phase a turn: one more than tiles, of which the last has no scores.
        phase, goes_on, has_weights = types.int32(0), n_block < visit.stop, False
        while goes_on:
            unroll_none()
            if phase > 0 or group == 1:
                named_sync(1 + group, threads)
            stage, ahead = phase % stages, (phase + 2) % stages
            third = following
            if following < visit.stop:
                third = types.int32(
                    next_key_tile(following + 1, visit.stop, m_block, batch, head, listed)
                )
                if third < visit.stop:
                    load_k(memory, k_at + ahead * stage_k, gK, third * tile_n, seqlen_k, tid)
                load_v(memory, v_from + ahead * stage_v, gV, following * tile_n, seqlen_k, tid)
            commit()
            if has_weights:
                add_product(acc_o, rP, memory, v_lane + stage * stage_v)
            goes_on = n_block < visit.stop
            partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
            partial |= listed_partial(n_block, m_block, batch, head, listed)
            partial |= (n_block + 1) * tile_n > seqlen_k
            has_weights = goes_on
            if partial and goes_on:
                has_weights = sees_tile(warp_q, n_block, seqlen_q, batch, head, range_aux)
            if has_weights:
                begin_scores(rS, rQ, memory, q_lane, k_lane + stage * stage_k)
            if goes_on or group == 0:
                arrive()  # the next stage, for all who meet at the barrier
                named_arrive(2 - group, threads)
            if has_weights:
                end_scores(rS, rQ, memory, q_lane, k_lane + stage * stage_k)
                first_k = n_block * tile_n + lane % 4 * 2
                scale_scores(rS, scale)
                change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if partial:
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                update(rS, row_max, row_sum, acc_o, factor)
                drop_weights(rS, first_q, first_k, batch_head, dropout)
                pack_weights(rP, rS)
            n_block, following = following, third
            phase += types.int32(1)

        # Epilogue: O goes through the warp's own rows of Q's place, to be stored in whole lines.
        rLse = cuda.local.array(rows, types.float32)
        if packed:  # read again, rather than kept in registers all the time
            work = work_of(num_heads, Q, K, tile_m, lengths)
        batch, head, _, _, begin_q, seqlen_q, _, _, row_stop = work
        empty_rows(row_max, row_sum, acc_o, first_q, seqlen_q)
        finish(row_max, row_sum, acc_o, rLse, types.float32(1) if not folded else scale)
        o_at = place * warp_m * pitch_q
        cuda.syncwarp()
        share_o(memory, o_at, acc_o, lane)
        cuda.syncwarp()
        store_o(O[batch, begin_q:, head], warp_q, row_stop, memory, o_at, lane)
        gLSE = LSE[batch, head, begin_q:]
        for i in range(rows):
            unroll_full()
            if lane % 4 == 0 and first_q + 8 * i < row_stop:
                gLSE[first_q + 8 * i] = rLse[i]

    return tensor_core_forward
