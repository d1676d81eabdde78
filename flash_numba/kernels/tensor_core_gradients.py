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

from functools import cache

from ..device.gradients import make_clear
from ..device.numba_cuda import cuda, kernel, types
from ..device.schedule import make_agreed, make_own_aux, make_query_walk
from ..device.swizzled_copies import make_arrivals, make_load_tile
from ..device.turns import await_turn, leave_turn, make_clear_unvisited, make_key_work, recall
from ..device.unroll import unroll_none
from ..device.visits import SLOTS, make_note_visit, make_visit_of, walked
from .spec import Spec
from .tensor_core_gradients_places import make_places_of
from .tensor_core_gradients_rooms import (
    make_add_of_partner,
    make_add_own,
    make_add_queries,
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
        `tensor_core_dq.make_query_gradient`; Sums float32 (query tiles, tile_m * depth), Turns
        int32 (query tiles,) and Ticket int32 (1,), these two zero. Query tiles are those of all
        heads, of a head those of all sequences (`tensor_core_gradients_launch.query_tiles`).

    Notes
    -----
    Reads K and V once, and each visiting Q and dO tile, with lse and delta, once a key tile. Of a
    query tile that k key tiles visit, the sums of dQ are written and read k - 1 times; dQ, dK and
    dV are written once.
    """
    threads, tile_m, tile_n, stages = tiles.threads, tiles.tile_m, tiles.tile_n, tiles.stages
    blocks, sharing = tiles.row_blocks, tiles.sharing
    warp_n, warp_m, rows = 16 * blocks, tiles.warp_m, 2 * blocks
    columns, k_columns, v_columns = warp_m // 4, tiles.own_d // 4, tiles.own_v // 4
    spread, dq_blocks = tiles.dq_spread, tiles.dq_blocks
    q_rows, q_columns = 2 * dq_blocks, tiles.depth // spread // 4
    p_shape, a_shape = (warp_m // 16, blocks, 4), (1, blocks, 4)
    # Threads that wait or look ahead, each on a scheduler of its own.
    releases, acquires, looks_ahead = 32 % threads, 64 % threads, 96 % threads
    side_elements = tile_n * tiles.pitch_p

    packed, notes, agreed = spec.packed, tiles.notes, make_agreed(tiles.uniform)
    ticketed = tiles.heads_at_once, tile_m, tile_n, tiles.uniform
    key_work = make_key_work(packed, spec.has_lengths, spec.has_list, *ticketed)
    own_aux = make_own_aux(packed, spec.keep, spec.key_range)
    spec = spec.of_one_sequence()
    walk = spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    span, *_ = make_query_walk(*walk)
    some = spec.key_range is not None or spec.has_lengths or spec.has_list or packed
    clear_unvisited = make_clear_unvisited(*walk, some, threads)
    places_of, dq_places_of = make_places_of(tiles)
    note_visit, visit_of = make_note_visit(*walk), make_visit_of(notes, tile_n)
    copies, v_at = (tile_n, threads, spec.vectors), tiles.layout.v
    load_k = make_load_tile(spec.head_dim, tiles.depth, *copies, tiles.pitch)
    load_v = make_load_tile(spec.head_dim_v, tiles.depth_v, *copies, tiles.pitch_v)
    load_queries = make_load_queries(spec, tiles)
    commit, arrive = make_arrivals(True)
    _, arrive_first = make_arrivals(True, 1)
    clear_dk, clear_dv = make_clear(rows, k_columns), make_clear(rows, v_columns)
    weights_and_gradients = make_weights_and_gradients(spec, tiles)
    add_dk = make_add_own(spec, tiles)
    add_dv_of_partner, add_dk_of_partner = make_add_of_partner(spec, tiles)
    read_sums, add_dq, write_sums, write_dq = make_add_queries(spec, tiles)
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
        sVisits = cuda.shared.array((SLOTS, 4), types.int32)
        work = key_work(sWork, Ticket, Q, K, lengths, tid)
        batch, kv_head, n_block, begin_q, seqlen_q, rows_q, begin_k, seqlen_k = work[:8]
        if packed and batch < 0:
            return
        mask_aux, range_aux = own_aux(mask_aux, range_aux, seqlen_q, seqlen_k)
        group, tiles_of_head = num_heads // kv_heads, types.int32(Turns.shape[0]) // num_heads
        # Sequences of a packed batch share their axis of rows: every one is entry 0.
        entry, kv = types.uint32(0 if packed else batch), types.uint32(kv_head)
        part, key_row = warp % sharing, warp // sharing * warp_n
        first_k = types.int32(n_block * tile_n + key_row + lane // 4)

        # Prologue
        memory = cuda.shared.array(0, types.uint16, alignment=128)
        numbers = cuda.shared.array(0, types.float32, alignment=128)
        places = places_of(part, key_row, lane)
        dq_row, dq_part = warp // spread * (16 * dq_blocks), warp % spread
        dq_places = dq_places_of(dq_row, dq_part, lane)
        acc_dk = cuda.local.array((rows, k_columns), types.float32)
        acc_dv = cuda.local.array((rows, v_columns), types.float32)
        rS = cuda.local.array((rows, columns), types.float32)
        rdP = cuda.local.array((rows, columns), types.float32)
        rdQ = cuda.local.array((q_rows, q_columns), types.float32)
        rP = cuda.local.array(p_shape, types.uint32)
        rdS = cuda.local.array(p_shape, types.uint32)
        rA = cuda.local.array(a_shape, types.uint32)
        registers = rS, rdP, rA, rP, rdS, acc_dv
        clear_dk(acc_dk)
        clear_dv(acc_dv)
        seen = False

        # Mainloop: the next Q and dO arrive while these are worked on.
        number = types.int32(0)
        for head in range(kv_head * group, (kv_head + 1) * group):
            one = entry, types.uint32(head)
            rows_of, numbers_of = (one[0], slice(None), one[1]), (one[0], one[1])
            tensors = Q[rows_of], dO[rows_of], LSE[numbers_of], Delta[numbers_of]
            gdQ = dQ[rows_of]
            where = n_block, batch, head, seqlen_q, seqlen_k, range_aux
            clear_unvisited(gdQ[begin_q:], rows_q, tid, listed, *where)
            start, stop = span(*where)
            start, stop, first = types.int32(start), types.int32(stop), number
            walk = start, stop, work.last_first
            known = first, walk, n_block, seqlen_k
            if notes:
                if tid == looks_ahead:
                    note_visit(sVisits, number, 0, *walk, *where, listed)
                    index = walked(sVisits, number)
                    note_visit(sVisits, number + 1, index, *walk, *where, listed)
                cuda.syncthreads()
            visit = visit_of(sVisits, number, *known)
            if visit.exists:
                if not seen:
                    keys = types.int32(begin_k + n_block * tile_n), types.int32(begin_k + seqlen_k)
                    load_k(memory, 0, K[entry, :, kv], *keys, tid)
                    load_v(memory, v_at, V[entry, :, kv], *keys, tid)
                    seen = True
                load_queries(memory, numbers, 0, tensors, visit, begin_q, seqlen_q, tid)
                commit()
                if stages == 3:
                    visit = visit_of(sVisits, number + 1, *known)
                    load_queries(memory, numbers, 1, tensors, visit, begin_q, seqlen_q, tid)
                    commit()
                    arrive_first()
            if stages == 3:
                cuda.syncthreads()
            stage, side = types.int32(0), types.int32(0)
            while visit_of(sVisits, number, *known).exists:
                unroll_none()
                if packed:  # not to keep in registers what was read from memory
                    work = recall(sWork)
                    batch, _, n_block, begin_q, seqlen_q, _, _, seqlen_k = work[:8]
                    where = n_block, batch, head, seqlen_q, seqlen_k, range_aux
                    walk = start, stop, work.last_first
                    known = first, walk, n_block, seqlen_k
                first_tile = types.int32(work.first_tile + head * tiles_of_head)
                if stages == 2:
                    arrive()
                    # This tile is here for all; nobody reads the one before, its sum is written.
                    cuda.syncthreads()
                    if tid == releases and number > first:
                        visit = visit_of(sVisits, number - 1, *known)
                        leave_turn(Turns, first_tile + visit.m_block, visit.turn)
                visit = visit_of(sVisits, number, *known)
                if tid == acquires:
                    await_turn(Turns, first_tile + visit.m_block, visit.turn)
                if notes and tid == looks_ahead:
                    index = walked(sVisits, number + 1)
                    note_visit(sVisits, number + 2, index, *walk, *where, listed)

                # S, P, dP and dS of the warp's queries and keys, and what they add to dV and dK
                first_q = types.int32(visit.m_block * tile_m + part * warp_m + lane % 4 * 2)
                row = stage * tile_m + part * warp_m  # the first of the warp's own queries
                positions = first_q, first_k, seqlen_q, seqlen_k, batch, head
                weights_and_gradients(
                    registers, memory, numbers, places, row, side, positions, visit.is_partial,
                    mask_aux, factor, lane,
                )  # fmt: skip
                if stages == 2:
                    visit = visit_of(sVisits, number + 1, *known)
                    load_queries(memory, numbers, 1 - stage, tensors, visit, begin_q, seqlen_q, tid)
                    commit()
                add_dk(acc_dk, rdS, memory, places, row)
                if stages == 3:
                    arrive()
                cuda.syncthreads()  # P and dS are here for all, and it is this block's turn
                if stages == 3 and tid == releases and number > first:
                    visit = visit_of(sVisits, number - 1, *known)
                    leave_turn(Turns, first_tile + visit.m_block, visit.turn)

                # What the partner's queries add to dV and dK, and all keys to a part of dQ
                visit = visit_of(sVisits, number, *known)
                gSums = Sums[types.uint32(first_tile + visit.m_block)]
                read_sums(rdQ, gSums, visit.turn == 0, tid)
                row = stage * tile_m + (1 - part) * warp_m
                add_dv_of_partner(acc_dv, memory, places, row, side)
                if stages == 3:
                    away = types.int32(stage - 1 if stage > 0 else 2)
                    visit = visit_of(sVisits, number + 2, *known)
                    load_queries(memory, numbers, away, tensors, visit, begin_q, seqlen_q, tid)
                    commit()
                add_dk_of_partner(acc_dk, memory, places, row, side)
                add_dq(rdQ, memory, dq_places, side)
                visit = visit_of(sVisits, number, *known)
                if visit.is_last:
                    row = types.int32(begin_q + visit.m_block * tile_m + dq_row)
                    end = types.int32(begin_q + seqlen_q)
                    write_dq(gdQ, rdQ, row, end, 16 * dq_part, scale, lane)
                else:
                    write_sums(gSums, rdQ, tid)
                number = types.int32(number + 1)
                stage = types.int32(stage + 1 if stage < stages - 1 else 0)
                if stages == 3:
                    side = types.int32(side_elements - side)
            arrive()  # what was copied of no query tile
            cuda.syncthreads()  # nobody reads the tiles of this head any more, its sums are written
            if tid == releases and number > first:
                visit, first_tile = visit_of(sVisits, number - 1, *known), work.first_tile
                leave_turn(Turns, first_tile + head * tiles_of_head + visit.m_block, visit.turn)

        # Epilogue
        if packed:
            work = recall(sWork)
        first_row = types.int32(work.first_k + work.block * tile_n)
        end = types.int32(work.first_k + work.rows_k)
        gdK, gdV = dK[entry, :, kv], dV[entry, :, kv]
        store_gradients(gdK, gdV, first_row, end, memory, acc_dk, acc_dv, scale, tid)

    return tensor_core_gradients
