"""The consumer's story: a warpgroup that multiplies and does the softmax of 64 query rows.

Every step starts two products - the scores of this key tile, and O += P V of the step before - and
does the softmax of the scores while the second one runs. Nothing stops between query tiles: the
first scores of the next are computed under the last O += P V of this one.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragments import make_fragment_softmax, make_pack_weights
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from ..device.numba_cuda import cuda, room, types
from ..device.unroll import unroll_full
from .hopper_output import make_store_output
from .hopper_producer import make_next_stage
from .hopper_scores import make_finish_scores
from .hopper_tiles import HopperTiles
from .hopper_values import make_clear_values
from .hopper_walk import make_walk
from .spec import Spec

TURN, WARPGROUP, CONSUMERS = 1, 4, 7
"""Named barriers: a consumer's turn, its own threads (both plus its number), all consumers."""


@cache
def make_consumer(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """Room ``consume(...)`` of warpgroup `w`: 64 rows of the query tile."""
    tile_m, tile_n, warpgroups = tiles.tile_m, tiles.tile_n, tiles.warpgroups
    columns, out_columns, steps = tile_n // 4, tiles.depth_v // 4, tile_n // 16
    takers = 256  # one consumer that waits for its turn, one that gives it
    (q_here, q_done), (k_here, k_done), (v_here, v_done) = tiles.barriers.values()
    turns_of, tile_of, step_of, next_step, is_partial = make_walk(spec, tile_m, tile_n)
    next_q, next_kv = make_next_stage(tiles.q_stages), make_next_stage(tiles.stages)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tile_n, tiles.v_tile)
    wait_first_scores = make_wait(0, tile_n // 2)
    wait_scores = make_wait(1, tile_n // 2)
    wait_values = make_wait(0, tiles.depth_v // 2, tile_n // 4)
    finish_scores = make_finish_scores(spec, columns, scale_first)
    begin, clear, update, rescale, finish = make_fragment_softmax(columns, out_columns)
    drop_weights = make_drop_weights(spec.has_dropout, 2, columns, fragment=True)
    pack_weights = make_pack_weights(spec.dtype, steps)
    rows_of, clear_values = make_clear_values(tiles, spec.has_lengths)
    store_output = make_store_output(spec.dtype, tiles)

    @room
    def weigh(rS, row_max, row_sum, rScale, step, first_row, column, LSE, scale, factor,
              mask_aux, range_aux, score_aux, listed, dropout):  # fmt: skip
        first_q, first_k = step.m_block * tile_m + first_row, step.n_block * tile_n + column
        finish_scores(
            rS, is_partial(step, listed), first_q, first_k, LSE.shape[2], step.seqlen_k,
            step.batch, step.head, scale, mask_aux, range_aux, score_aux,
        )  # fmt: skip
        grown = update(rS, row_max, row_sum, rScale, factor)
        batch_head = step.batch * LSE.shape[1] + step.head
        drop_weights(rS, first_q, first_k, batch_head, dropout)
        return grown

    @room
    def leave(sO, acc_o, row_max, row_sum, rLse, o_map, LSE, factor, batch, head, m_block, w, tid):
        first = m_block * tile_m + 64 * w
        finish(row_max, row_sum, acc_o, rLse, factor)
        for i in range(2):
            q_idx = first + tid // 32 * 16 + tid % 32 // 4 + 8 * i
            if tid % 4 == 0 and q_idx < LSE.shape[2]:
                LSE[batch, head, q_idx] = rLse[i]
        store_output(sO, acc_o, o_map, first, head, batch, WARPGROUP + w, tid)

    @room
    def consume(
        sQ, sK, sV, sO, bars, o_map, LSE, sizes, scale, factor, w, tid,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        keys, turns = sizes[0], turns_of(LSE)
        my_turn, next_turn = TURN + w, TURN + (w + 1) % warpgroups
        first_row, column = 64 * w + tid // 32 * 16 + tid % 32 // 4, tid % 4 * 2
        q_stage = k_stage = v_stage = types.int32(0)
        q_phase = k_phase = v_phase = types.int32(0)
        start = types.int32(0)
        step = step_of(start, turns, start, LSE, keys, range_aux, lengths, listed)
        any_step, rows = step.turn < turns, rows_of(step)

        # Prologue: the scores of the first step
        acc_o = cuda.local.array((2, out_columns), types.float32)
        rS = cuda.local.array((2, columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        row_max = cuda.local.array(2, types.float32)
        row_sum = cuda.local.array(2, types.float32)
        old_max = cuda.local.array(2, types.float32)
        old_sum = cuda.local.array(2, types.float32)
        rScale = cuda.local.array(2, types.float32)
        rLse = cuda.local.array(2, types.float32)
        begin(row_max, row_sum)
        clear(acc_o)
        if w == warpgroups - 1:
            named_arrive(TURN, takers)  # consumer 0 begins
        turn, batch, head, m_block = step.turn, step.batch, step.head, step.m_block
        if any_step:
            barrier_wait(bars, q_here, 0)
            barrier_wait(bars, k_here, 0)
            named_sync(my_turn, takers)
            multiply_scores(rS, sQ[q_stage, w], sK[k_stage, 0])
            named_arrive(next_turn, takers)
            after = next_step(step, turns, LSE, keys, range_aux, lengths, listed)
            wait_first_scores(rS)
            if tid == 0:
                barrier_arrive(bars, k_done)
                if after.turn != step.turn:
                    barrier_arrive(bars, q_done)
            k_stage, k_phase = next_kv(k_stage, k_phase)
            weigh(rS, row_max, row_sum, rScale, step, first_row, column, LSE, scale, factor,
                  mask_aux, range_aux, score_aux, listed, dropout)  # fmt: skip
            pack_weights(rP, rS)
            rows, step = rows_of(step), after

        # Mainloop
        while step.turn < turns:
            fresh = step.turn != turn
            if fresh:
                q_stage, q_phase = next_q(q_stage, q_phase)
                barrier_wait(bars, q_here + q_stage, q_phase)
            barrier_wait(bars, k_here + k_stage, k_phase)
            clear_values(
                sV[v_stage, 0], bars, v_here + v_stage, v_phase, rows, CONSUMERS, 128 * w + tid
            )
            named_sync(my_turn, takers)
            multiply_scores(rS, sQ[q_stage, w], sK[k_stage, 0])
            barrier_wait(bars, v_here + v_stage, v_phase)
            add_values(acc_o, rP, sV[v_stage, 0])
            named_arrive(next_turn, takers)
            after = next_step(step, turns, LSE, keys, range_aux, lengths, listed)
            if fresh:
                for i in range(2):
                    unroll_full()
                    old_max[i], old_sum[i] = row_max[i], row_sum[i]
                begin(row_max, row_sum)
            wait_scores(rS)
            if tid == 0:
                barrier_arrive(bars, k_done + k_stage)
                if after.turn != step.turn:
                    barrier_arrive(bars, q_done + q_stage)
            k_stage, k_phase = next_kv(k_stage, k_phase)
            grown = weigh(
                rS, row_max, row_sum, rScale, step, first_row, column, LSE, scale, factor,
                mask_aux, range_aux, score_aux, listed, dropout,
            )  # fmt: skip
            wait_values(acc_o, rP)
            if tid == 0:
                barrier_arrive(bars, v_done + v_stage)
            v_stage, v_phase = next_kv(v_stage, v_phase)
            if fresh:
                leave(sO[w], acc_o, old_max, old_sum, rLse, o_map, LSE, factor,
                      batch, head, m_block, w, tid)  # fmt: skip
                clear(acc_o)
                turn, batch, head, m_block = step.turn, step.batch, step.head, step.m_block
            elif grown:
                rescale(acc_o, rScale)
            pack_weights(rP, rS)
            rows, step = rows_of(step), after

        # Epilogue: the last O += P V, and query tiles that see no key
        if any_step:
            clear_values(
                sV[v_stage, 0], bars, v_here + v_stage, v_phase, rows, CONSUMERS, 128 * w + tid
            )
            barrier_wait(bars, v_here + v_stage, v_phase)
            add_values(acc_o, rP, sV[v_stage, 0])
            wait_values(acc_o, rP)
            leave(sO[w], acc_o, row_max, row_sum, rLse, o_map, LSE, factor,
                  batch, head, m_block, w, tid)  # fmt: skip
        if step.empty > 0:
            clear(acc_o)
            begin(row_max, row_sum)
            turn = start
            while turn < turns:
                seeing = step_of(turn, turns, start, LSE, keys, range_aux, lengths, listed)
                while turn < seeing.turn:
                    batch, head, m_block = tile_of(turn, LSE)
                    if batch < LSE.shape[0]:
                        leave(sO[w], acc_o, row_max, row_sum, rLse, o_map, LSE, factor,
                              batch, head, m_block, w, tid)  # fmt: skip
                    turn = types.int32(turn + 1)
                turn = types.int32(seeing.turn + 1)
        if tid == 0:
            bulk_wait_read()

    return consume
