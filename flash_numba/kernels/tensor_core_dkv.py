"""tensor_core backward, second kernel: a block owns a key tile; dK and dV stay in registers.

Scores are computed the other way round, S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T,
rounded to 16 bits, are the left operands of dV += P^T dO and dK += dS^T Q where they stand: nothing
but Q, K, V and dO goes through shared memory.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragment_gradients import (
    make_column_gradient,
    make_load_vector,
)
from ..device.fragment_products import (
    make_multiply_add,
    make_multiply_transposed,
    make_pack_weights,
    make_share_rows,
)
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, types
from ..device.schedule import make_query_walk, make_sees_tile, make_work_of
from ..device.scores import make_change_scores_backward, make_mask_scores, make_scale_scores
from ..device.swizzle import lane_of_columns, lane_of_rows
from ..device.swizzled_copies import make_arrivals, make_load_tile, make_store_tile
from ..device.unroll import unroll_none
from .spec import Spec
from .tensor_core_backward_tiles import KeyGradientTiles


@cache
def make_key_gradients(spec: Spec, tiles: KeyGradientTiles, folded: bool, wants: tuple[bool, bool]):
    """The kernel that computes dK and dV, or one of them, of one specialisation.

    Parameters
    ----------
    wants : tuple of bool
        Whether dK and whether dV is computed; the other array is not touched.

    Returns
    -------
    kernel
        ``tensor_core_dkv(Q, K, V, dO, LSE, Delta, dK, dV, factor, scale, mask_aux, range_aux,
        score_aux, lengths, listed, dropout)``: as `tensor_core_dq.make_query_gradient`.

    Notes
    -----
    Reads K and V once, and each visiting Q and dO tile, with lse and delta, once a key tile; writes
    dK and dV once.
    """
    threads, tile_m, tile_n = tiles.threads, tiles.tile_m, tiles.tile_n
    depth, depth_v, pitch, pitch_v = tiles.depth, tiles.depth_v, tiles.pitch, tiles.pitch_v
    blocks, warp_n = tiles.row_blocks, 16 * tiles.row_blocks
    rows, columns, k_columns, v_columns = 2 * blocks, tile_m // 4, depth // 4, depth_v // 4
    v_at, q_at, do_at, stage_q, stage_do, lse_at, delta_at = tiles.layout
    p_shape, a_shape = (tile_m // 16, blocks, 4), (1, blocks, 4)
    wants_dk, wants_dv = wants
    longest_last = spec.key_range is not None

    ampere, packed, copies = tiles.ampere, spec.packed, (threads, spec.vectors)
    product = spec.dtype, blocks, tile_m

    work_of = make_work_of(spec.packed, spec.has_lengths, spec.key_range is None, True)
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, next_query_tile, _, is_partial = make_query_walk(*walk)
    sees_tile = make_sees_tile(spec.key_range, tile_m, warp_n)
    load_k = make_load_tile(spec.head_dim, depth, tile_n, *copies, pitch, ampere)
    load_v = make_load_tile(spec.head_dim_v, depth_v, tile_n, *copies, pitch_v, ampere)
    load_q = make_load_tile(spec.head_dim, depth, tile_m, *copies, pitch, ampere)
    load_do = make_load_tile(spec.head_dim_v, depth_v, tile_m, *copies, pitch_v, ampere)
    load_vector = make_load_vector(tile_m, threads, ampere)
    commit, arrive = make_arrivals(ampere)
    clear_dk, clear_dv = make_clear(rows, k_columns), make_clear(rows, v_columns)
    scores = make_multiply_transposed(*product, depth, pitch, pitch, False, ampere)
    weight_gradient = make_multiply_transposed(*product, depth_v, pitch_v, pitch_v, False, ampere)
    scale_scores = make_scale_scores(folded, rows, columns)
    drop_weights = make_drop_weights(spec.has_dropout, rows, columns, True, True)
    subtract_delta, weights = make_column_gradient(rows, columns)
    change_scores = make_change_scores_backward(
        spec.changes, spec.derivatives, rows, columns, True, True
    )
    mask_scores = make_mask_scores(spec.keep, rows, columns, True, True)
    pack_weights = make_pack_weights(*product, ampere)
    add_dv = make_multiply_add(*product, depth_v, pitch_v, ampere)
    add_dk = make_multiply_add(*product, depth, pitch, ampere)
    scale_dk = make_scale_scores(False, rows, k_columns)
    share_dk = make_share_rows(spec.dtype, blocks, depth, pitch, ampere)
    share_dv = make_share_rows(spec.dtype, blocks, depth_v, pitch_v, ampere)
    store_dk = make_store_tile(spec.head_dim, warp_n, pitch, spec.vectors)
    store_dv = make_store_tile(spec.head_dim_v, warp_n, pitch_v, spec.vectors)

    @kernel(threads, tiles.blocks_per_sm)
    def tensor_core_dkv(
        Q, K, V, dO, LSE, Delta, dK, dV, factor, scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = tid // 32, tid % 32
        num_heads, kv_heads = types.int32(Q.shape[2]), types.int32(K.shape[2])
        work = work_of(kv_heads, Q, K, tile_n, lengths)
        batch, kv_head, block, key_blocks, begin_q, seqlen_q, begin_k, seqlen_k, row_stop = work
        if packed and batch < 0:
            return
        n_block = types.int32(key_blocks - 1 - block if longest_last else block)
        group = num_heads // kv_heads
        warp_k = types.int32(n_block * tile_n + warp * warp_n)
        first_k = types.int32(warp_k + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        numbers = cuda.shared.array(0, types.float32, alignment=128)
        k_lane = warp * warp_n * pitch + lane_of_rows(lane, pitch)
        v_lane = v_at + warp * warp_n * pitch_v + lane_of_rows(lane, pitch_v)
        q_lane, q_row_lane = q_at + lane_of_columns(lane, pitch), q_at + lane_of_rows(lane, pitch)
        do_lane = do_at + lane_of_columns(lane, pitch_v)
        do_row_lane = do_at + lane_of_rows(lane, pitch_v)
        acc_dk = cuda.local.array((rows, k_columns), types.float32)
        acc_dv = cuda.local.array((rows, v_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rdP = cuda.local.array((rows, columns), types.float32)
        rP = cuda.local.array(p_shape, types.uint32)
        rA = cuda.local.array(a_shape, types.uint32)
        clear_dk(acc_dk)
        clear_dv(acc_dv)
        seen = False

        # Mainloop: the next Q and dO arrive while these are worked on.
        for head in range(kv_head * group, (kv_head + 1) * group):
            gQ, gdO = Q[batch, begin_q:, head], dO[batch, begin_q:, head]
            gLSE = LSE[batch, head, begin_q:]
            gDelta = Delta[batch, head, begin_q:]
            start, stop = span(n_block, batch, head, seqlen_q, seqlen_k, range_aux)
            stop = types.int32(stop)
            m_block = types.int32(
                next_query_tile(
                    start, stop, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                )
            )
            cuda.syncthreads()  # nobody reads the tiles of the head before
            if m_block < stop:
                if not seen:
                    gK = K[batch, begin_k:, kv_head]
                    gV = V[batch, begin_k:, kv_head]
                    load_k(memory, 0, gK, n_block * tile_n, seqlen_k, tid)
                    load_v(memory, v_at, gV, n_block * tile_n, seqlen_k, tid)
                    seen = True
                load_q(memory, q_at, gQ, m_block * tile_m, seqlen_q, tid)
                load_do(memory, do_at, gdO, m_block * tile_m, seqlen_q, tid)
                load_vector(numbers, lse_at, gLSE, m_block * tile_m, seqlen_q, tid)
                load_vector(numbers, delta_at, gDelta, m_block * tile_m, seqlen_q, tid)
                commit()
            stage = types.int32(0)
            while m_block < stop:
                unroll_none()
                arrive()
                cuda.syncthreads()  # these tiles are here for all, and nobody reads those before
                following = types.int32(
                    next_query_tile(
                        m_block + 1,
                        stop,
                        n_block,
                        batch,
                        head,
                        seqlen_q,
                        seqlen_k,
                        range_aux,
                        listed,
                    )
                )
                if following < stop:
                    other, first = 1 - stage, following * tile_m
                    load_q(memory, q_at + other * stage_q, gQ, first, seqlen_q, tid)
                    load_do(memory, do_at + other * stage_do, gdO, first, seqlen_q, tid)
                    load_vector(numbers, lse_at + other * tile_m, gLSE, first, seqlen_q, tid)
                    load_vector(numbers, delta_at + other * tile_m, gDelta, first, seqlen_q, tid)
                commit()
                partial = is_partial(
                    m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed
                )
                first_row = types.int32(m_block * tile_m)
                if not partial or sees_tile(
                    first_row, warp_k // warp_n, seqlen_q, batch, head, range_aux
                ):
                    first_q = first_row + lane % 4 * 2
                    scores(rS, rA, memory, k_lane, q_lane + stage * stage_q)
                    weight_gradient(rdP, rA, memory, v_lane, do_lane + stage * stage_do)
                    batch_head = batch * num_heads + head
                    scale_scores(rS, scale)
                    drop_weights(rdP, first_q, first_k, batch_head, dropout)
                    subtract_delta(rdP, numbers, delta_at + stage * tile_m, lane)
                    change_scores(
                        rS, rdP, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux
                    )
                    if partial:
                        mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                    weights(
                        rS, rdP, numbers, lse_at + stage * tile_m, seqlen_q - first_row, factor,
                        lane,
                    )  # fmt: skip
                    if wants_dv:
                        drop_weights(rS, first_q, first_k, batch_head, dropout)
                        pack_weights(rP, rS)
                        add_dv(acc_dv, rP, memory, do_row_lane + stage * stage_do)
                    if wants_dk:
                        pack_weights(rP, rdP)
                        add_dk(acc_dk, rP, memory, q_row_lane + stage * stage_q)
                m_block = following
                stage = types.int32(1 - stage)

        # Epilogue: through the warp's own rows of K's and V's place, to be stored in whole lines.
        cuda.syncwarp()
        k_rows, v_rows = warp * warp_n * pitch, v_at + warp * warp_n * pitch_v
        if wants_dk:
            scale_dk(acc_dk, scale)
            share_dk(memory, k_rows, acc_dk, lane)
        if wants_dv:
            share_dv(memory, v_rows, acc_dv, lane)
        cuda.syncwarp()
        if wants_dk:
            gdK = dK[batch, begin_k:, kv_head]
            store_dk(gdK, warp_k, row_stop, memory, k_rows, lane)
        if wants_dv:
            gdV = dV[batch, begin_k:, kv_head]
            store_dv(gdV, warp_k, row_stop, memory, v_rows, lane)

    return tensor_core_dkv
