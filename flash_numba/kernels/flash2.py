"""flash2 forward: FlashAttention-2 in fp32 arithmetic.

A block owns one tile of queries and walks over the key tiles it visits; O stays in registers. The
simulator's program of the same name counts this schedule.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 1.
"""

from functools import cache

from ..arrays import DeviceArray
from ..device.column_copies import make_load_columns
from ..device.copies import (
    make_copy_groups,
    make_load_rows,
    make_load_transposed,
    make_store_rows,
)
from ..device.dropout import make_drop_weights
from ..device.numba_cuda import cuda, kernel, room, types
from ..device.online_softmax import make_online_softmax
from ..device.products import (
    make_apart,
    make_multiply_add,
    make_multiply_transposed,
    make_place,
    make_share,
)
from ..device.products_ahead import make_multiply_add_ahead, make_multiply_columns
from ..device.ptx import shared_tile
from ..device.schedule import (
    block_of,
    make_key_tiles_room,
    make_keys_of,
    make_tile_list,
    make_warp_tiles,
)
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ..device.unroll import unroll_full, unroll_none
from ..launch import allows_vectors, compute_capability, launch, shared_limit
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .spec import ForwardTiles, Spec, forward_tiles

PARTS = 2
"""Parts of P V, and of the next K: a part of one is multiplied behind a part of the other.

A thread copies K by 4 bytes. All at once, that holds up whoever shares the multiprocessor.
"""


@cache
def make_key_rooms(spec: Spec, tiles: ForwardTiles):
    """Rooms ``load_k``, ``scores``, ``read_first`` and ``add_product``, and the number of parts.

    Their form depends on how K lies in shared memory.
    """
    tm, tn, lanes, depth_v = tiles.thread_m, tiles.thread_n, tiles.lanes, tiles.depth_v
    thread_v = depth_v // lanes
    rows = tiles.tile_n, tn, tiles.threads, spec.vectors, tiles.asynchronous
    if tiles.columns_of_k:
        load_k = make_load_columns(spec.dtype, spec.head_dim, tiles.depth, *rows, PARTS)
        scores = make_multiply_columns(tm, tn, tiles.depth, lanes)
        products = make_multiply_add_ahead(tm, thread_v, lanes, tn, depth_v, PARTS)
        return load_k, scores, *products, PARTS

    load_rows = make_load_rows(spec.dtype, spec.head_dim, tiles.depth, *rows)
    scores = make_multiply_transposed(tm, tn, tiles.depth)
    multiply_add = make_multiply_add(tm, thread_v, lanes, tn, depth_v)

    @room
    def load_whole(sX, gX, first_row, row_stop, tid, part):
        load_rows(sX, gX, first_row, row_stop, tid)

    @room
    def read_nothing(rA, rB, sA, sB, row_group, lane):
        pass

    @room
    def add_whole(rC, rA, rB, sA, sB, rows, row_group, lane, part):
        multiply_add(rC, sA, sB, rows, row_group, lane)

    return load_whole, scores, read_nothing, add_whole, 1


@cache
def make_forward(spec: Spec, tiles: ForwardTiles):
    """The forward kernel of one specialisation.

    Returns
    -------
    kernel
        ``flash2_forward(Q, K, V, O, LSE, q_factor, scale, mask_aux, range_aux, score_aux, lengths,
        listed, dropout)``: Q, K, V, O of shape (batch, seqlen, heads, columns) in global memory
        with any strides, LSE (batch, num_heads, seqlen_q) float32. `q_factor` is `scale`, the
        factor on Q @ K.T, if ``spec.folded``, else 1.

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once.
    """
    threads, lanes = tiles.threads, tiles.lanes
    tile_m, tile_n, tm, tn = tiles.tile_m, tiles.tile_n, tiles.thread_m, tiles.thread_n
    depth, depth_v = tiles.depth, tiles.depth_v
    thread_v = depth_v // lanes

    place, apart = make_place(lanes), make_apart(tm, threads // lanes)
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    own_range = spec.key_range if max(depth, depth_v) <= 64 else None  # wider, registers run short
    warp_tiles, sees = make_warp_tiles(own_range, spec.exact, 32 // lanes * tm)
    keys_of = make_keys_of(spec.has_lengths)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    load_q = make_load_transposed(
        spec.dtype, spec.head_dim, depth, tile_m, threads, spec.vectors, 8
    )
    rows = tile_n, tn, threads, spec.vectors, tiles.asynchronous
    load_v = make_load_rows(spec.dtype, spec.head_dim_v, depth_v, *rows)
    close_copies, wait_for_copies = make_copy_groups(tiles.asynchronous)
    load_k, scores, read_first, add_product, parts = make_key_rooms(spec, tiles)
    scale_scores = make_scale_scores(spec.folded, tm, tn)
    change_scores = make_change_scores(spec.changes, tm, tn)
    mask_scores = make_mask_scores(spec.keep, tm, tn)
    start, update, finish = make_online_softmax(tm, tn, thread_v, lanes)
    drop_weights = make_drop_weights(spec.has_dropout, tm, tn)
    share = make_share(tm, tn)
    store_o = make_store_rows(spec.dtype, spec.head_dim_v, tm, thread_v, lanes, spec.vectors)

    q_shape, k_shape = (depth, tile_m), tiles.k_shape
    v_shape, p_shape = (lanes, tn * depth_v + 4), (lanes, tn * tile_m + 4)
    k_at, v_at, p_at = tiles.offsets

    @kernel(threads, tiles.blocks_per_sm)
    def flash2_forward(
        Q, K, V, O, LSE, q_factor, scale, mask_aux, range_aux, score_aux, lengths, listed, dropout
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
        own = warp_tiles(visit, first_q, batch, head, seqlen_q, seqlen_k, tile_n, range_aux)
        p_group = apart(row_group)

        # Prologue
        memory = cuda.shared.array(0, types.float32)
        sQ, sK = shared_tile(memory, 0, q_shape), shared_tile(memory, k_at, k_shape)
        sV, sP = shared_tile(memory, v_at, v_shape), shared_tile(memory, p_at, p_shape)
        acc_o = cuda.local.array((tm, thread_v), types.float32)
        rS = cuda.local.array((tm, tn), types.float32)
        rP = cuda.local.array((2, tm), types.float32)
        rV = cuda.local.array((2, thread_v), types.float32)
        row_max = cuda.local.array(tm, types.float32)
        row_sum = cuda.local.array(tm, types.float32)
        start(row_max, row_sum, acc_o)
        n_block = next_key_tile(visit.start, visit.stop, m_block, batch, head, listed)
        if n_block < visit.stop:
            for part in range(parts):
                unroll_full()
                load_k(sK, gK, n_block * tile_n, seqlen_k, tid, part)
            close_copies()
            load_q(sQ, gQ, m_block * tile_m, seqlen_q, q_factor, tid)

        # Mainloop: K_j arrives during P V of the tile before, V_j during Q K^T.
        while n_block < visit.stop:
            first_k = n_block * tile_n + lane * tn
            wait_for_copies()
            cuda.syncthreads()  # K_j is here for all, and nobody reads V_j-1 any more
            load_v(sV, gV, n_block * tile_n, seqlen_k, tid)
            close_copies()
            seen = sees(own, n_block)  # by a row of this warp
            if seen:
                scores(rS, sQ, sK, row_group, lane)
                scale_scores(rS, scale)
                change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                partial = (n_block < own.full_start) | (n_block >= own.full_stop)
                partial |= listed_partial(n_block, m_block, batch, head, listed)
                if partial | ((n_block + 1) * tile_n > seqlen_k):
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                update(rS, row_max, row_sum, acc_o)
                drop_weights(rS, first_q, first_k, batch_head, dropout)
                share(sP, rS, tile_m, p_group, lane)
            n_block = next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
            wait_for_copies()
            cuda.syncthreads()  # V_j is here for all, and nobody reads K_j any more
            if seen:
                read_first(rP, rV, sP, sV, p_group, lane)  # before copies: it would wait for them
            part = types.int32(0)
            while part < parts:
                unroll_none()
                if n_block < visit.stop:
                    load_k(sK, gK, n_block * tile_n, seqlen_k, tid, part)
                    close_copies()
                if seen:
                    add_product(acc_o, rP, rV, sP, sV, tile_m, p_group, lane, part)
                part = types.int32(part + 1)

        # Epilogue
        rLse = cuda.local.array(tm, types.float32)
        finish(row_max, row_sum, acc_o, rLse)
        store_o(gO, acc_o, first_q, seqlen_q, lane, types.float32(1))
        for i in range(tm):
            unroll_full()
            if lane == 0 and first_q + i < seqlen_q:
                LSE[batch, head, first_q + i] = rLse[i]

    return flash2_forward


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
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
    """
    arrays = [DeviceArray.of(x) for x in (q, k, v, out)]
    spec = Spec.of(problem, all(map(allows_vectors, arrays)))
    cc = compute_capability()
    tiles = forward_tiles(spec, cc, shared_limit(cc))
    blocks = ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    scale = problem.softmax_scale
    factor = scale if spec.folded else 1.0
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    arguments = (*arrays, DeviceArray.of(lse), factor, scale, *extra)
    kernel = make_forward(spec, tiles)
    return launch(kernel, blocks, tiles.threads, tiles.shared_bytes, arguments, stream)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    cc = compute_capability()
    tiles = forward_tiles(Spec.of(problem, True), cc, shared_limit(cc))
    return "flash2", tiles.tile_m, tiles.tile_n
