"""The consumer's story: a warpgroup that multiplies and does the softmax of 64 query rows.

Every step starts two products - the scores of this key tile, and O += P V of the step before - and
does the softmax of the scores while the second one runs. Nothing stops between query tiles: the
first scores of the next are computed under the last O += P V of this one, and O leaves while the
second ones are.
"""

from functools import cache

from ..device.fragments import make_fragment_softmax, make_pack_weights
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from ..device.numba_cuda import cuda, room, types
from ..device.unroll import unroll_full
from .hopper_notes import BATCH, STOP, read_note, read_place, told
from .hopper_output import ROWS, make_leave_empty, row_of
from .hopper_producer import make_next_stage
from .hopper_steps import (
    CONSUMERS,
    leaves_late,
    make_conclude,
    make_output,
    make_start,
    make_turns,
    make_weigh,
)
from .hopper_tiles import HopperTiles
from .hopper_values import make_clear_values
from .hopper_walk import make_walk
from .spec import Spec


@cache
def make_consumer(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """Room ``consume(...)`` of warpgroup `w`: 64 rows of the query tile."""
    tile_n, warpgroups = tiles.tile_n, tiles.warpgroups
    columns, out_columns, steps = tile_n // 4, tiles.depth_v // 4, tile_n // 16
    (q_here, q_done), (k_here, k_done), (v_here, _) = tiles.barriers.values()
    next_key = make_walk(spec, tiles.tile_m, tile_n)[3]
    next_q, next_kv = make_next_stage(tiles.q_stages), make_next_stage(tiles.stages)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tile_n, tiles.v_tile)
    wait_first_scores = make_wait(0, tile_n // 2)
    wait_values = make_wait(0, tiles.depth_v // 2, tile_n // 4)
    begin, clear, update, rescale, *_ = make_fragment_softmax(columns, out_columns)
    _, weigh = make_weigh(spec, tiles, scale_first, update)
    pack_weights = make_pack_weights(spec.dtype, steps)
    rows_of, clear_values = make_clear_values(tiles, spec.has_lengths)
    leave, _ = make_output(spec.dtype, tiles)
    leave_empty = make_leave_empty(spec, tiles, leave)
    take_turn, give_turn = make_turns(tiles)
    start = make_start(spec, tiles)
    conclude, conclude_late = make_conclude(spec, tiles, scale_first)
    late, lagging = leaves_late(tiles), tiles.late_maxima
    storing = 2 * tiles.store_rows  # threads of which the first one starts the stores of O

    @room
    def consume(
        sQ, sK, sV, sO, sNotes, bars, o_map, LSE, sizes, scale, factor, w, tid,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        lane = types.int32(64 * w + row_of(tid)), types.int32((tid & 3) * 2)
        scales, extra = (scale, factor), (mask_aux, range_aux, score_aux, listed, dropout)
        q_at = k_at = v_at = types.uint32(0), types.int32(0)  # stage, and parity of its barriers
        number, leaving = types.uint32(0), False
        acc_o = cuda.local.array((ROWS, out_columns), types.float32)
        rS = cuda.local.array((ROWS, columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        row_max = cuda.local.array(ROWS, types.float32)
        row_sum = cuda.local.array(ROWS, types.float32)
        old_max = cuda.local.array(ROWS, types.float32)
        old_sum = cuda.local.array(ROWS, types.float32)
        rScale = cuda.local.array(ROWS, types.float32)
        rNext = cuda.local.array((steps, 4), types.uint32)
        rBefore = cuda.local.array(ROWS, types.float32)
        rAfter = cuda.local.array(ROWS, types.float32)
        rLate, later = (rBefore, rAfter), False
        state, old = (row_max, row_sum, rScale), (old_max, old_sum)
        begin(old_max, old_sum)
        if w == warpgroups - 1:
            give_turn(w)  # consumer 0 begins
        barrier_wait(bars, q_here, 0)
        tile = read_note(sNotes, number)

        if tile.batch >= 0:
            # Prologue: the scores of the first key tile
            begin(row_max, row_sum)
            clear(acc_o)
            barrier_wait(bars, k_here, 0)
            take_turn(w)
            multiply_scores(rS, sQ[0, w], sK[0, 0])
            give_turn(w)
            rows, n_block = rows_of(tile, tile.n_block), next_key(tile, tile.n_block, listed)
            wait_first_scores(rS)
            if tid & 31 == 0:
                barrier_arrive(bars, k_done)
                if n_block >= tile.stop:
                    barrier_arrive(bars, q_done)
            k_at = next_kv(k_at[0], k_at[1])
            weigh(rS, state, tile, tile.n_block, lane, LSE, scales, extra)
            pack_weights(rP, rS)

            going = True
            while going:
                # Mainloop: the other key tiles of this query tile
                while n_block < tile.stop:
                    after = next_key(tile, n_block, listed)
                    places = q_at[0], k_at, v_at
                    start(
                        rS, rP, acc_o, old, sQ, sK, sV, sO[w], sNotes, bars, places, rows,
                        number - 1, leaving, w, tid, o_map, LSE, factor,
                    )  # fmt: skip
                    last = after >= tile.stop
                    if lagging:
                        later = conclude_late(
                            rS, rP, rNext, acc_o, state, rLate, later, bars, places, tile,
                            n_block, last, tid, lane, LSE, scales, extra,
                        )  # fmt: skip
                    else:
                        grown = conclude(
                            rS, rP, acc_o, state, bars, places, tile, n_block, last, tid, lane,
                            LSE, scales, extra,
                        )  # fmt: skip
                        if grown:
                            rescale(acc_o, rScale)
                        pack_weights(rP, rS)
                    k_at, v_at = next_kv(k_at[0], k_at[1]), next_kv(v_at[0], v_at[1])
                    leaving = False
                    rows, n_block = rows_of(tile, n_block), after

                # The first key tile of the next query tile, beside the last O += P V of this one
                q_at = next_q(q_at[0], q_at[1])
                number = types.uint32(number + 1)
                barrier_wait(bars, q_here + q_at[0], q_at[1])
                going = told(sNotes, number, BATCH) >= 0
                if going:
                    places = q_at[0], k_at, v_at
                    start(
                        rS, rP, acc_o, old, sQ, sK, sV, sO[w], sNotes, bars, places, rows,
                        number - 2, leaving, w, tid, o_map, LSE, factor,
                    )  # fmt: skip
                    tile = read_note(sNotes, number)  # the products run: nothing waits for it
                    n_block = next_key(tile, tile.n_block, listed)
                    for i in range(ROWS):
                        unroll_full()
                        old_max[i], old_sum[i] = row_max[i], row_sum[i]
                    begin(row_max, row_sum)
                    conclude(
                        rS, rP, acc_o, state, bars, places, tile, tile.n_block,
                        n_block >= tile.stop, tid, lane, LSE, scales, extra,
                    )  # fmt: skip
                    k_at, v_at = next_kv(k_at[0], k_at[1]), next_kv(v_at[0], v_at[1])
                    leaving = True
                    if not late:
                        place = read_place(sNotes, number - 1)
                        leave(sO[w], acc_o, old_max, old_sum, o_map, LSE, factor, place, w, tid)
                        clear(acc_o)
                    pack_weights(rP, rS)
                    rows = rows_of(tile, tile.n_block)

            # Epilogue: the last O += P V
            sV_now, v_bar = sV[v_at[0], 0], v_here + v_at[0]
            clear_values(sV_now, bars, v_bar, v_at[1], rows, CONSUMERS, 128 * w + tid)
            barrier_wait(bars, v_bar, v_at[1])
            if late and leaving:
                place = read_place(sNotes, number - 2)
                leave(sO[w], acc_o, old_max, old_sum, o_map, LSE, factor, place, w, tid)
                clear(acc_o)
            add_values(acc_o, rP, sV_now)
            wait_values(acc_o, rP)
            place = read_place(sNotes, number - 1)
            leave(sO[w], acc_o, row_max, row_sum, o_map, LSE, factor, place, w, tid)

        if told(sNotes, number, STOP) > 0:  # query tiles that see no key
            clear(acc_o)
            begin(row_max, row_sum)
            leave_empty(
                sO[w], acc_o, row_max, row_sum, o_map, LSE, sizes[0], factor, w, tid, range_aux,
                lengths, listed,
            )  # fmt: skip
        if tid % storing == 0:
            bulk_wait_read()

    return consume
