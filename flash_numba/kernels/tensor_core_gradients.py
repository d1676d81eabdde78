"""tensor_core backward in one kernel: a block owns a key tile, and adds to dQ in its turn.

Five products where two kernels need seven: S and dP are computed once, and serve all gradients. dK
and dV stay in registers; dQ is summed in global memory, by the key tiles of a query tile in order,
so that the same bits come out each time. Warps in pairs work on the same keys, to read less from
shared memory: each computes S^T and dP^T for half of the queries, and dK and dV for half of the
columns; the other half of P^T and dS^T comes from its partner.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

import math
from functools import cache

from ..arrays import broadcast, contiguous
from ..device.fragment_exchange import lane_of_words, make_multiply_add_shared
from ..device.fragment_products import lane_of_columns, lane_of_rows, make_multiply_add
from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, types
from ..device.query_sums import make_query_sums, make_write_rounded
from ..device.schedule import make_agreed, make_own_aux, make_query_walk
from ..device.swizzled_copies import make_arrivals, make_load_tile
from ..device.turns import (
    await_turn,
    leave_turn,
    make_clear_unvisited,
    make_key_work,
    make_next_visit,
    recall,
)
from ..device.unroll import unroll_none
from ..launch import fill_zero, launch
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .spec import Spec
from .tensor_core_gradients_rooms import (
    make_load_queries,
    make_store_gradients,
    make_weights_and_gradients,
)
from .tensor_core_gradients_tiles import GradientTiles


@cache
def make_gradients(spec: Spec, tiles: GradientTiles):
    """The kernel that computes dQ, dK and dV of one specialisation.

    Parameters
    ----------
    spec : Spec
        Without score changes and dropout; the scale is folded (`is_scale_folded`).
    tiles : GradientTiles

    Returns
    -------
    kernel
        ``tensor_core_gradients(Q, K, V, dO, LSE, Delta, Sums, Turns, Ticket, dQ, dK, dV, factor,
        scale, mask_aux, range_aux, score_aux, lengths, listed, dropout)``: as
        `tensor_core_dq.make_query_gradient`; Sums float32 (batch, num_heads, query tiles,
        tile_m * depth), Turns int32 (batch, num_heads, query tiles) and Ticket int32 (1,), these
        two zero.

    Notes
    -----
    Reads K and V once, and each visiting Q and dO tile, with lse and delta, once a key tile. Of a
    query tile that k key tiles visit, the sums of dQ are written and read k - 1 times; dQ, dK and
    dV are written once.
    """
    threads, tile_m, tile_n, stages = tiles.threads, tiles.tile_m, tiles.tile_n, tiles.stages
    depth, depth_v, pitch, pitch_v = tiles.depth, tiles.depth_v, tiles.pitch, tiles.pitch_v
    blocks, sharing, pitch_p = tiles.row_blocks, tiles.sharing, tiles.pitch_p
    warp_n, warp_m = 16 * blocks, tile_m // sharing
    own_d, own_v, spread, dq_blocks = (
        depth // sharing,
        depth_v // sharing,
        tiles.dq_spread,
        tiles.dq_blocks,
    )
    rows, columns, k_columns, v_columns = 2 * blocks, warp_m // 4, own_d // 4, own_v // 4
    q_rows, q_columns = 2 * dq_blocks, depth // spread // 4
    v_at, q_at, do_at, ds_at, p_at, _, _ = tiles.layout
    p_shape, a_shape = (warp_m // 16, blocks, 4), (1, blocks, 4)
    # Warps that wait, each on a scheduler of its own.
    releases, acquires = 32 % threads, 64 % threads

    agreed, packed = make_agreed(tiles.uniform), spec.packed
    ticketed = tiles.heads_at_once, tile_m, tile_n, tiles.uniform
    key_work = make_key_work(packed, spec.has_lengths, *ticketed)
    own_aux = make_own_aux(packed, spec.keep, spec.key_range)
    spec = spec.of_one_sequence()
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, *_ = make_query_walk(*walk)
    next_visit = make_next_visit(*walk, packed)
    # With three stages and no mask the numbers of a packed batch do not stay in registers.
    recalls = packed and stages == 3 and spec.key_range is None
    some = spec.key_range is not None or spec.has_lengths or spec.has_list or packed
    clear_unvisited = make_clear_unvisited(*walk, some, threads)
    own = tile_n, threads, spec.vectors
    load_k = make_load_tile(spec.head_dim, depth, *own, pitch)
    load_v = make_load_tile(spec.head_dim_v, depth_v, *own, pitch_v)
    load_queries = make_load_queries(spec, tiles)
    commit, arrive = make_arrivals(True)
    _, arrive_first = make_arrivals(True, 1)
    clear_dk, clear_dv = make_clear(rows, k_columns), make_clear(rows, v_columns)
    weights_and_gradients = make_weights_and_gradients(spec, tiles)
    add_dk = make_multiply_add(spec.dtype, blocks, warp_m, own_d, pitch, True, sharing)
    from_partner = spec.dtype, blocks, warp_m
    add_dv_shared = make_multiply_add_shared(*from_partner, own_v, pitch_p, pitch_v, False, sharing)
    add_dk_shared = make_multiply_add_shared(*from_partner, own_d, pitch_p, pitch, False, sharing)
    add_dq = make_multiply_add_shared(
        spec.dtype, dq_blocks, tile_n, depth // spread, pitch_p, pitch, True, spread
    )
    read_sums, write_sums = make_query_sums(q_rows, q_columns, threads)
    write_dq = make_write_rounded(
        spec.dtype, spec.head_dim, q_rows, q_columns, spread, spec.vectors
    )
    store_gradients = make_store_gradients(spec, tiles)

    @kernel(threads, tiles.blocks_per_sm)
    def tensor_core_gradients(
        Q, K, V, dO, LSE, Delta, Sums, Turns, Ticket, dQ, dK, dV, factor, scale,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        tid = types.uint32(cuda.threadIdx.x)
        warp, lane = agreed(tid // 32), tid % 32
        num_heads, kv_heads = types.int32(Q.shape[2]), types.int32(K.shape[2])
        sWork = cuda.shared.array(12, types.int32)
        work = key_work(sWork, Ticket, Q, K, lengths, tid)
        batch, kv_head, n_block, begin_q, seqlen_q, rows_q, begin_k, seqlen_k, stop_k, tile_0 = work
        if packed and batch < 0:
            return
        mask_aux, range_aux = own_aux(mask_aux, range_aux, seqlen_q, seqlen_k)
        group = num_heads // kv_heads
        part, warp_rows = warp % sharing, warp // sharing * warp_n
        first_k = types.int32(n_block * tile_n + warp_rows + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        numbers = cuda.shared.array(0, types.float32, alignment=128)
        k_lane = warp_rows * pitch + lane_of_rows(lane, pitch)
        v_lane = v_at + warp_rows * pitch_v + lane_of_rows(lane, pitch_v)
        q_lane, do_lane = (
            q_at + lane_of_columns(lane, pitch),
            do_at + lane_of_columns(lane, pitch_v),
        )
        q_row_lane = q_at + (lane_of_rows(lane, pitch) ^ (16 * part))
        do_row_lane = do_at + (lane_of_rows(lane, pitch_v) ^ (16 * part))
        p_lane = warp_rows * pitch_p + (lane_of_words(lane, pitch_p) ^ (part * warp_m))
        p_row_lane = warp_rows * pitch_p + (lane_of_rows(lane, pitch_p) ^ ((1 - part) * warp_m))
        dq_row, dq_part = warp // spread * (16 * dq_blocks), warp % spread
        ds_lane = ds_at + dq_row // 64 * 64 + (lane_of_columns(lane, pitch_p) ^ (dq_row % 64))
        k_row_lane = lane_of_rows(lane, pitch) ^ (16 * dq_part)
        acc_dk = cuda.local.array((rows, k_columns), types.float32)
        acc_dv = cuda.local.array((rows, v_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rdP = cuda.local.array((rows, columns), types.float32)
        rdQ = cuda.local.array((q_rows, q_columns), types.float32)
        rP = cuda.local.array(p_shape, types.uint32)
        rdS = cuda.local.array(p_shape, types.uint32)
        rA = cuda.local.array(a_shape, types.uint32)
        clear_dk(acc_dk)
        clear_dv(acc_dv)
        seen = False

        # Mainloop: the next Q and dO arrive while these are worked on.
        for head in range(kv_head * group, (kv_head + 1) * group):
            gQ, gdO = Q[batch, begin_q:, head], dO[batch, begin_q:, head]
            tensors = gQ, gdO, LSE[batch, head, begin_q:], Delta[batch, head, begin_q:]
            gdQ = dQ[batch, begin_q:, head]
            where = n_block, batch, head, seqlen_q, seqlen_k, range_aux
            clear_unvisited(gdQ, rows_q, tid, listed, *where)
            start, stop = span(*where)
            stop = types.int32(stop)
            visit = next_visit(start, stop, *where, listed)
            following = visit
            if visit.m_block < stop:
                if not seen:
                    gK, gV = K[batch, begin_k:, kv_head], V[batch, begin_k:, kv_head]
                    load_k(memory, 0, gK, n_block * tile_n, seqlen_k, tid)
                    load_v(memory, v_at, gV, n_block * tile_n, seqlen_k, tid)
                    seen = True
                load_queries(memory, numbers, 0, tensors, visit.m_block, seqlen_q, tid)
                commit()
                if stages == 3:
                    following = next_visit(visit.m_block + 1, stop, *where, listed)
                    if following.m_block < stop:
                        load_queries(memory, numbers, 1, tensors, following.m_block, seqlen_q, tid)
                    commit()
                    arrive_first()
            if stages == 3:
                cuda.syncthreads()
            stage, side = types.int32(0), types.int32(0)
            before, turn_before = types.int32(-1), types.int32(0)
            while visit.m_block < stop:
                unroll_none()
                if recalls:
                    batch, _, n_block, _, seqlen_q, _, _, seqlen_k, _, tile_0 = recall(sWork)
                    where = n_block, batch, head, seqlen_q, seqlen_k, range_aux
                m_block, turn = visit.m_block, visit.turn
                if stages == 2:
                    arrive()
                    # This tile is here for all; nobody reads the one before, its sum is written.
                    cuda.syncthreads()
                    if tid == releases and before >= 0:
                        leave_turn(Turns, batch, head, tile_0 + before, turn_before)
                    following = next_visit(m_block + 1, stop, *where, listed)
                    if following.m_block < stop:
                        other = 1 - stage
                        load_queries(
                            memory, numbers, other, tensors, following.m_block, seqlen_q, tid
                        )
                    commit()
                if tid == acquires:
                    await_turn(Turns, batch, head, tile_0 + m_block, turn)
                first_row = types.int32(m_block * tile_m)
                first_q = types.int32(first_row + part * warp_m + lane % 4 * 2)
                row = stage * tile_m + part * warp_m
                registers = rS, rdP, rA, rP, rdS, acc_dv
                products = k_lane, v_lane, q_lane + row * pitch, do_lane + row * pitch_v
                stores = p_at + p_lane + side, ds_at + p_lane + side
                places = *products, do_row_lane + row * pitch_v, *stores
                positions = first_q, first_k, seqlen_q, seqlen_k, batch, head
                weights_and_gradients(
                    registers, memory, numbers, places, row, positions, visit.is_partial, mask_aux,
                    factor, lane,
                )  # fmt: skip
                add_dk(acc_dk, rdS, memory, q_row_lane + row * pitch)
                if stages == 3:
                    arrive()
                cuda.syncthreads()  # P and dS are here for all, and it is this block's turn
                third = following
                if stages == 3:
                    if tid == releases and before >= 0:
                        leave_turn(Turns, batch, head, tile_0 + before, turn_before)
                    third = next_visit(following.m_block + 1, stop, *where, listed)
                    if third.m_block < stop:
                        away = (stage + 2) % 3
                        load_queries(memory, numbers, away, tensors, third.m_block, seqlen_q, tid)
                    commit()
                gSums = Sums[batch, head, tile_0 + m_block]
                read_sums(rdQ, gSums, turn == 0, tid)
                if sharing > 1:
                    row = stage * tile_m + (1 - part) * warp_m
                    p_row, ds_row = p_at + p_row_lane + side, ds_at + p_row_lane + side
                    add_dv_shared(acc_dv, memory, p_row, do_row_lane + row * pitch_v)
                    add_dk_shared(acc_dk, memory, ds_row, q_row_lane + row * pitch)
                add_dq(rdQ, memory, ds_lane + side, k_row_lane)
                if visit.is_last:
                    row = types.int32(first_row + dq_row)
                    write_dq(gdQ, rdQ, row, seqlen_q, 16 * dq_part, scale, lane)
                else:
                    write_sums(gSums, rdQ, tid)
                before, turn_before = m_block, turn
                visit, following = following, third
                stage = types.int32((stage + 1) % stages)
                if stages == 3:
                    side = types.int32(tile_n * pitch_p - side)
            cuda.syncthreads()  # nobody reads the tiles of this head any more, its sums are written
            if tid == releases and before >= 0:
                leave_turn(Turns, batch, head, tile_0 + before, turn_before)

        # Epilogue
        if packed:
            batch, kv_head, n_block, _, _, _, begin_k, _, stop_k, _ = recall(sWork)
        gdK, gdV = dK[batch, begin_k:, kv_head], dV[batch, begin_k:, kv_head]
        first_row = n_block * tile_n
        store_gradients(gdK, gdV, first_row, stop_k, memory, acc_dk, acc_dv, scale, tid)

    return tensor_core_gradients


def query_tiles(problem: Problem, tile_m: int) -> tuple[int, int, int]:
    """Axes of the sums: batches, heads and query tiles; sequences side by side if packed."""
    if problem.sequences is None:
        return problem.batch, problem.num_heads, ceil_div(problem.seqlen_q, tile_m)
    return 1, problem.num_heads, problem.sequences.total_q // tile_m + problem.batch + 1


def workspace(problem: Problem, tiles: GradientTiles | None) -> tuple[int, ...]:
    """Bytes that the kernel needs: sums of dQ in float32, then turns with the ticket counter."""
    if tiles is None:
        return ()
    number = math.prod(query_tiles(problem, tiles.tile_m))
    return 4 * number * tiles.tile_m * tiles.depth, 4 * (number + 1)


def launch_gradients(
    problem: Problem, spec: Spec, tiles: GradientTiles, inputs, gradients, factors, at, listed,
    stream,
) -> None:  # fmt: skip
    """Launch the kernel.

    `at` are the addresses of the parts of `workspace`, `listed` what `packed_tiles.list_tiles`
    gives of the key tiles.
    """
    axes = query_tiles(problem, tiles.tile_m)
    sums = contiguous(at[0], (*axes, tiles.tile_m * tiles.depth), "fp32")
    turns = contiguous(at[1], axes, "int32")
    size = workspace(problem, tiles)[1]
    ticket = contiguous(at[1] + size - 4, (1,), "int32")
    fill_zero(at[1], size, stream)
    if problem.sequences is not None:
        sums, turns = (broadcast(x, (max(problem.batch, 1), *x.shape[1:])) for x in (sums, turns))
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n, listed[1])
    arguments = *inputs, sums, turns, ticket, *gradients, *factors, *extra
    kernel = make_gradients(spec, tiles)
    blocks = listed[0] * problem.num_kv_heads
    launch(kernel, blocks, tiles.threads, tiles.shared_bytes, arguments, stream)
