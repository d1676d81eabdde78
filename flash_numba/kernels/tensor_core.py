"""tensor_core forward: flash2's schedule with both products on the tensor cores, for fp16 and bf16.

What changes from `flash2` is where a warp holds things. Its rows of S and O are fragments in
registers; P, rounded to 16 bits, is the next product's operand where it stands, and never goes
through shared memory. K and V arrive by asynchronous copies while the tile before is worked on.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 1.
"""

import math
from functools import cache

from ..arrays import DeviceArray
from ..device.dropout import make_drop_weights
from ..device.fragment_products import (
    make_multiply_add,
    make_multiply_transposed,
    make_pack_weights,
    make_read_rows,
    make_share_rows,
)
from ..device.fragment_softmax import make_fragment_softmax
from ..device.fragments import make_empty_rows, make_mask_range
from ..device.numba_cuda import cuda, kernel, types
from ..device.schedule import (
    make_agreed,
    make_key_tiles_room,
    make_own_aux,
    make_sees_tile,
    make_tile_list,
    make_work_of,
    narrowed,
    whole_tiles,
)
from ..device.scores import make_change_scores, make_mask_scores, make_scale_scores
from ..device.swizzle import lane_of_columns, lane_of_rows
from ..device.swizzled_copies import make_arrivals, make_load_tile, make_store_tile
from ..device.unroll import unroll_full, unroll_none
from ..launch import compute_capability, launch, shared_limit
from ..problem import Problem
from ..sequences import Packed
from . import packed_tiles
from .arguments import extra_arguments
from .backward_call import parts_of
from .packed_tiles import as_batches, list_tiles
from .spec import Spec
from .tensor_core_tiles import TensorTiles, allows_chunks, forward_tiles, is_scale_folded

LOG2_E = math.log2(math.e)


@cache
def make_forward(spec: Spec, tiles: TensorTiles, folded: bool):
    """The forward kernel of one specialisation.

    Parameters
    ----------
    spec : Spec
        ``spec.vectors``: all rows are whole 16-byte chunks.
    tiles : TensorTiles
    folded : bool
        The softmax takes in the scale (`is_scale_folded`).

    Returns
    -------
    kernel
        ``tensor_core_forward(Q, K, V, O, LSE, factor, scale, mask_aux, range_aux, score_aux,
        lengths, listed, dropout)``: Q, K, V, O of shape (batch, seqlen, heads, columns) in global
        memory with any strides, 16-bit words, LSE (batch, num_heads, seqlen_q) float32. `scale` is
        that of Q @ K.T and `factor` what turns scores into log2 units: ``scale * log2(e)``, or
        ``log2(e)`` if not `folded`. Of a packed batch the axis of rows holds all sequences, that of
        the batch has stride 0, and `lengths` is ``(Tiles,)`` (see `packed_tiles`).

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once.
    """
    threads, tile_m, tile_n = tiles.threads, tiles.tile_m, tiles.tile_n
    depth, depth_v, pitch, pitch_v = tiles.depth, tiles.depth_v, tiles.pitch, tiles.pitch_v
    blocks, warp_m = tiles.row_blocks, 16 * tiles.row_blocks
    rows, columns, out_columns = 2 * blocks, tile_n // 4, depth_v // 4
    pitch_q, k_at, v_from, stage_k, stage_v = tiles.layout
    ampere, packed = tiles.ampere, spec.packed
    kept, steps = tiles.q_in_registers, depth // 16 if tiles.q_in_registers else 1
    p_shape, a_shape = (tile_n // 16, blocks, 4), (steps, blocks, 4)

    agreed = make_agreed(True)
    work_of = make_work_of(packed, spec.has_lengths, spec.key_range is None)
    own_aux = make_own_aux(packed, spec.keep, spec.key_range)
    spec = spec.of_one_sequence()
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    sees_tile = make_sees_tile(spec.key_range, warp_m, tile_n)
    copies, product = (threads, spec.vectors), (spec.dtype, blocks, tile_n)
    load_q = make_load_tile(spec.head_dim, depth, tile_m, *copies, pitch_q, ampere, one_place=True)
    load_k = make_load_tile(spec.head_dim, depth, tile_n, *copies, pitch, ampere, one_place=True)
    load_v = make_load_tile(
        spec.head_dim_v, depth_v, tile_n, *copies, pitch_v, ampere, one_place=True
    )
    commit, arrive = make_arrivals(spec.vectors and ampere)
    read_q = make_read_rows(blocks, depth, pitch_q)
    scores = make_multiply_transposed(*product, depth, pitch_q, pitch, kept, ampere)
    scale_scores = make_scale_scores(folded, rows, columns)
    change_scores = make_change_scores(spec.changes, rows, columns, False, True)
    if spec.exact and not spec.has_list:
        mask_scores = make_mask_range(spec.key_range, columns, rows)
    else:
        mask_scores = make_mask_scores(spec.keep, rows, columns, False, True)
    start, update, finish = make_fragment_softmax(rows, columns, out_columns)
    empty_rows = make_empty_rows(spec.packed, rows, out_columns)
    drop_weights = make_drop_weights(spec.has_dropout, rows, columns, False, True)
    pack_weights = make_pack_weights(*product, ampere)
    add_product = make_multiply_add(*product, depth_v, pitch_v, ampere)
    share_o = make_share_rows(spec.dtype, blocks, depth_v, pitch_q, ampere, one_place=True)
    store_o = make_store_tile(spec.head_dim_v, warp_m, pitch_q, spec.vectors, at_once=True)

    @kernel(threads, tiles.blocks_per_sm)
    def tensor_core_forward(
        Q, K, V, O, LSE, factor, scale, mask_aux, range_aux, score_aux, lengths, listed, dropout
    ):
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = agreed(tid // 32), tid % 32
        num_heads = types.int32(Q.shape[2])
        work = work_of(num_heads, Q, K, tile_m, lengths)
        batch, head, m_block, _, begin_q, seqlen_q, begin_k, seqlen_k, row_stop = work
        if packed and batch < 0:
            return
        batch_head = batch * num_heads + head
        mask_aux, range_aux = own_aux(mask_aux, range_aux, seqlen_q, seqlen_k)
        visit = narrowed(
            key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        )
        visit = whole_tiles(visit, seqlen_k, tile_n)
        # Numbers that have no sign need no look whether they count from the end.
        at_batch, at_head, kv_head = types.uint32(batch), types.uint32(head), types.uint32(head)
        kv_heads = types.uint32(K.shape[2])
        if kv_heads != types.uint32(num_heads):  # divisions take long
            kv_head = types.uint32(at_head // types.uint32(types.uint32(num_heads) // kv_heads))
        gQ, gO = Q[at_batch, :, at_head], O[at_batch, :, at_head]
        gK, gV = K[at_batch, :, kv_head], V[at_batch, :, kv_head]
        end_q, end_k = types.int32(begin_q + seqlen_q), types.int32(begin_k + seqlen_k)
        warp_q = types.int32(m_block * tile_m + warp * warp_m)
        first_q = types.int32(warp_q + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        q_lane = warp * warp_m * pitch_q + lane_of_rows(lane, pitch_q)
        k_lane, v_lane = k_at + lane_of_columns(lane, pitch), v_from + lane_of_rows(lane, pitch_v)
        acc_o = cuda.local.array((rows, out_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rP = cuda.local.array(p_shape, types.uint32)
        rQ = cuda.local.array(a_shape, types.uint32)
        row_max = cuda.local.array(rows, types.float32)
        row_sum = cuda.local.array(rows, types.float32)
        start(row_max, row_sum, acc_o)
        n_block = types.int32(next_key_tile(visit.start, visit.stop, m_block, batch, head, listed))
        if n_block < visit.stop:
            load_q(memory, 0, gQ, begin_q + m_block * tile_m, end_q, tid)
            load_k(memory, k_at, gK, begin_k + n_block * tile_n, end_k, tid)
            load_v(memory, v_from, gV, begin_k + n_block * tile_n, end_k, tid)
            commit()
            if kept:
                arrive()
                cuda.syncthreads()
                read_q(rQ, memory, q_lane)

        # Mainloop: K and V of the next tile arrive while this one is worked on.
        stage = types.int32(0)
        goes_on = n_block < visit.stop
        while goes_on:
            unroll_none()
            arrive()
            cuda.syncthreads()  # this tile is here for all, and nobody reads the one before
            following = types.int32(
                next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
            )
            goes_on = following < visit.stop
            partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
            partial |= listed_partial(n_block, m_block, batch, head, listed)
            sees = not partial or sees_tile(warp_q, n_block, seqlen_q, batch, head, range_aux)
            if sees:
                scores(rS, rQ, memory, q_lane, k_lane + stage * stage_k)
            if goes_on:  # not before: the operands of scores would queue behind these copies
                other, first = 1 - stage, begin_k + following * tile_n
                load_k(memory, k_at + other * stage_k, gK, first, end_k, tid)
                load_v(memory, v_from + other * stage_v, gV, first, end_k, tid)
            commit()
            if sees:
                first_k = n_block * tile_n + lane % 4 * 2
                scale_scores(rS, scale)
                change_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, score_aux)
                if partial:
                    mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
                update(rS, row_max, row_sum, acc_o, factor)
                drop_weights(rS, first_q, first_k, batch_head, dropout)
                pack_weights(rP, rS)
                add_product(acc_o, rP, memory, v_lane + stage * stage_v)
            n_block = following
            stage = types.int32(1 - stage)

        # Epilogue: O goes through the warp's own rows of Q's place, to be stored in whole lines.
        rLse = cuda.local.array(rows, types.float32)
        empty_rows(row_max, row_sum, acc_o, first_q, seqlen_q)
        finish(row_max, row_sum, acc_o, rLse, types.float32(1) if not folded else scale)
        o_at = warp * warp_m * pitch_q
        cuda.syncwarp()
        share_o(memory, o_at, acc_o, lane)
        cuda.syncwarp()
        store_o(gO, begin_q + warp_q, begin_q + row_stop, memory, o_at, lane)
        gLSE = LSE[at_batch, at_head]
        for i in range(rows):
            unroll_full()
            if lane % 4 == 0 and first_q + 8 * i < row_stop:
                gLSE[types.uint32(begin_q + first_q + 8 * i)] = rLse[i]

    return tensor_core_forward


def _chosen_tiles(problem: Problem, chunks: bool) -> TensorTiles:
    cc = compute_capability()
    return forward_tiles(Spec.of(problem, chunks), cc, shared_limit(cc))


def forward_workspace(problem: Problem) -> tuple[int, ...]:
    """Bytes that `forward` needs besides its results: a packed batch has a list of tiles."""
    if problem.sequences is None:
        return ()
    return packed_tiles.workspace(problem, _chosen_tiles(problem, True).tile_m)


def forward(
    problem: Problem, q, k, v, out, lse, stream: int = 0, memory=None, packed: Packed | None = None
):
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
        Of ``sum(forward_workspace(problem))`` bytes, if that is not 0.
    packed : Packed
        Of a packed batch, whose tensors lack the axis of the batch.
    """
    arrays = [DeviceArray.of(x) for x in (q, k, v, out, lse)]
    chunks = all(map(allows_chunks, arrays[:4]))
    spec, tiles = Spec.of(problem, chunks), _chosen_tiles(problem, chunks)
    at_shift = at_list = 0
    if packed is not None:
        at_shift, at_list, _ = parts_of(memory, forward_workspace(problem))
        arrays = as_batches(arrays, max(problem.batch, 1))
    listed = list_tiles(problem, packed, at_shift, at_list, tiles.tile_m, False, stream)
    scale, folded = problem.softmax_scale, is_scale_folded(problem)
    factor = scale * LOG2_E if folded else LOG2_E
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n, listed[1])
    arguments = (*arrays, factor, scale, *extra)
    kernel = make_forward(spec, tiles, folded)
    blocks = listed[0] * problem.num_heads
    return launch(kernel, blocks, tiles.threads, tiles.shared_bytes, arguments, stream)


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n on the current GPU."""
    tiles = _chosen_tiles(problem, True)
    return "flash2", tiles.tile_m, tiles.tile_n
