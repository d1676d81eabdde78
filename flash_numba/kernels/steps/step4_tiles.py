"""Step 4, register tiles: a thread owns 8 rows of 8 (or 4) scores, and moves 16 bytes at a time.

A word read from shared memory now takes part in eight multiply-adds instead of one, and an
instruction reads four words. Eight threads share a row: its maximum goes over lanes, and P through
shared memory, since a thread needs all of a row of P for its columns of O. Shared by all rungs, the
rooms bring what the API offers: tails, masks, score changes, dropout.
"""

from functools import cache

from ...device.copies import make_load_rows, make_store_rows
from ...device.dropout import make_drop_weights
from ...device.numba_cuda import cuda, kernel, types
from ...device.online_softmax import make_online_softmax
from ...device.products import make_place
from ...device.ptx import shared_tile
from ...device.schedule import block_of, make_key_tiles_room, make_keys_of, make_tile_list
from ...device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ...device.unroll import unroll_full
from ...problem import Problem
from ..spec import ForwardTiles, Spec
from .call import run_tiles
from .layout import grouped_rows
from .row_products import make_multiply_add_rows, make_multiply_rows, make_share_rows


@cache
def make_forward(spec: Spec, tiles: ForwardTiles):
    """Kernel ``tiles_forward(Q, K, V, O, LSE, scale, ...)``; the rest as `flash2.make_forward`.

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once.
    """
    threads, lanes = tiles.threads, tiles.lanes
    tile_m, tile_n, tm, tn = tiles.tile_m, tiles.tile_n, tiles.thread_m, tiles.thread_n
    depth, depth_v = tiles.depth, tiles.depth_v
    thread_v = depth_v // lanes

    place = make_place(lanes)
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    keys_of = make_keys_of(spec.has_lengths)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    how = threads, spec.vectors, False
    load_q = make_load_rows(spec.dtype, spec.head_dim, depth, tile_m, tm, *how)
    load_k = make_load_rows(spec.dtype, spec.head_dim, depth, tile_n, tn, *how)
    load_v = make_load_rows(spec.dtype, spec.head_dim_v, depth_v, tile_n, tn, *how)
    scores = make_multiply_rows(tm, tn, depth)
    scale_scores = make_scale_scores(False, tm, tn)
    change_scores = make_change_scores(spec.changes, tm, tn)
    mask_scores = make_mask_scores(spec.keep, tm, tn)
    start, update, finish = make_online_softmax(tm, tn, thread_v, lanes)
    drop_weights = make_drop_weights(spec.has_dropout, tm, tn)
    share = make_share_rows(tm, tn, lanes)
    add_product = make_multiply_add_rows(tm, thread_v, lanes, tn, depth_v)
    store_o = make_store_rows(spec.dtype, spec.head_dim_v, tm, thread_v, lanes, spec.vectors)
    (q_shape, k_shape, v_shape, p_shape), (_, k_at, v_at, p_at), _ = grouped_rows(tiles)

    @kernel(threads, tiles.blocks_per_sm)
    def tiles_forward(
        Q, K, V, O, LSE, scale, mask_aux, range_aux, score_aux, lengths, listed, dropout
    ):
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        row_group, lane = place(tid)
        seqlen_q, num_heads = Q.shape[1], Q.shape[2]
        batch_head, m_block = block_of(Q.shape[0] * num_heads, (seqlen_q + tile_m - 1) // tile_m)
        batch, head = batch_head // num_heads, batch_head % num_heads
        seqlen_k = keys_of(batch, K.shape[1], lengths)
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        kv_head = head // (num_heads // K.shape[2])
        gQ, gO = Q[batch, :, head], O[batch, :, head]
        gK, gV = K[batch, :, kv_head], V[batch, :, kv_head]
        first_q = m_block * tile_m + row_group * tm

        # Prologue
        memory = cuda.shared.array(0, types.float32)
        sQ, sK = shared_tile(memory, 0, q_shape), shared_tile(memory, k_at, k_shape)
        sV, sP = shared_tile(memory, v_at, v_shape), shared_tile(memory, p_at, p_shape)
        acc_o = cuda.local.array((tm, thread_v), types.float32)
        rS = cuda.local.array((tm, tn), types.float32)
        row_max = cuda.local.array(tm, types.float32)
        row_sum = cuda.local.array(tm, types.float32)
        start(row_max, row_sum, acc_o)
        n_block = next_key_tile(visit.start, visit.stop, m_block, batch, head, listed)
        if n_block < visit.stop:
            load_q(sQ, gQ, m_block * tile_m, seqlen_q, tid)

        # Mainloop
        while n_block < visit.stop:
            first_k = n_block * tile_n + lane * tn
            cuda.syncthreads()  # nobody reads the tiles before any more
            load_k(sK, gK, n_block * tile_n, seqlen_k, tid)
            load_v(sV, gV, n_block * tile_n, seqlen_k, tid)
            cuda.syncthreads()  # K_j and V_j are here for all
            scores(rS, sQ, sK, row_group, lane)
            scale_scores(rS, scale)
            change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
            partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
            partial |= listed_partial(n_block, m_block, batch, head, listed)
            if partial | ((n_block + 1) * tile_n > seqlen_k):
                mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
            update(rS, row_max, row_sum, acc_o)
            drop_weights(rS, first_q, first_k, batch_head, dropout)
            share(sP, rS, row_group, lane)
            cuda.syncwarp()  # a row group's P comes from lanes of one warp
            add_product(acc_o, sP, sV, row_group, lane)
            n_block = next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)

        # Epilogue
        rLse = cuda.local.array(tm, types.float32)
        finish(row_max, row_sum, acc_o, rLse)
        store_o(gO, acc_o, first_q, seqlen_q, lane, types.float32(1))
        for i in range(tm):
            unroll_full()
            if lane == 0 and first_q + i < seqlen_q:
                LSE[batch, head, first_q + i] = rLse[i]

    return tiles_forward


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
    """Run the step; parameters as `flash2.forward`."""
    return run_tiles(make_forward, problem, (q, k, v, out, lse), stream)
