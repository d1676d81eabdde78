"""The consumer's story: a warpgroup that multiplies and does the softmax of 64 query rows.

Every step starts two products - the scores of this key tile, and O += P V of the step before - and
does the softmax of the scores while the second one runs. Nothing stops between query tiles: the
first scores of the next are computed under the last O += P V of this one, and O leaves while the
second ones are.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragments import make_fragment_softmax, make_pack_weights
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.operands import make_operand
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.warpgroups import made_here, named_arrive, named_sync
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from ..device.late_softmax import make_late_softmax
from ..device.numba_cuda import cuda, room, types
from ..device.unroll import unroll_full
from .hopper_notes import BATCH, STOP, read_note, read_place, told
from .hopper_output import ROWS, make_leave, make_leave_empty, row_of
from .hopper_producer import make_next_stage
from .hopper_scores import make_finish_scores
from .hopper_tiles import HopperTiles
from .hopper_values import make_clear_values
from .hopper_walk import make_walk
from .spec import Spec

TURN, WARPGROUP, CONSUMERS = 1, 4, 7
"""Named barriers: a consumer's turn, its own threads (both plus its number), all consumers."""


@cache
def make_weigh(spec: Spec, tiles: HopperTiles, scale_first: bool, update):
    """Rooms ``finish(rS, tile, n_block, lane, LSE, scales, extra)`` and ``weigh(rS, state, ...)``.

    Scores go through what comes before the softmax; or that and the softmax: they become weights.
    `state` is (row_max, row_sum, rScale), and True is given if O must be multiplied by rScale.
    """
    tile_m, tile_n, columns = tiles.tile_m, tiles.tile_n, tiles.tile_n // 4
    is_partial = make_walk(spec, tile_m, tile_n)[-1]
    finish_scores = make_finish_scores(spec, columns, scale_first)
    drop_weights = make_drop_weights(spec.has_dropout, ROWS, columns, fragment=True)

    @room
    def finish(rS, tile, n_block, lane, LSE, scales, extra):
        mask_aux, range_aux, score_aux, listed, _ = extra
        first_q = types.int32(tile.m_block * tile_m + lane[0])
        first_k = types.int32(n_block * tile_n + lane[1])
        finish_scores(
            rS, is_partial(tile, n_block, listed), first_q, first_k, LSE.shape[2], tile.seqlen_k,
            tile.batch, tile.head, scales[0], mask_aux, range_aux, score_aux,
        )  # fmt: skip
        return first_q, first_k

    @room
    def weigh(rS, state, tile, n_block, lane, LSE, scales, extra):
        row_max, row_sum, rScale = state
        first_q, first_k = finish(rS, tile, n_block, lane, LSE, scales, extra)
        grown = update(rS, row_max, row_sum, rScale, scales[1])
        batch_head = tile.batch * LSE.shape[1] + tile.head
        drop_weights(rS, first_q, first_k, batch_head, extra[4])
        return grown

    return finish, weigh


@cache
def make_consumer(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """Room ``consume(...)`` of warpgroup `w`: 64 rows of the query tile."""
    tile_n = tiles.tile_n
    columns, out_columns, steps = tile_n // 4, tiles.depth_v // 4, tile_n // 16
    (q_here, q_done), (k_here, k_done), (v_here, v_done) = tiles.barriers.values()
    next_key = make_walk(spec, tiles.tile_m, tile_n)[3]
    next_q, next_kv = make_next_stage(tiles.q_stages), make_next_stage(tiles.stages)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tile_n, tiles.v_tile)
    by_rows = make_operand(tiles.k_tile.by_rows())
    by_columns = make_operand(tiles.v_tile.by_columns())
    wait_first_scores = make_wait(0, tile_n // 2)
    wait_scores = make_wait(1, tile_n // 2)
    wait_values = make_wait(0, tiles.depth_v // 2, tile_n // 4)
    begin, clear, update, rescale, finish, _ = make_fragment_softmax(columns, out_columns)
    finish_scores, weigh = make_weigh(spec, tiles, scale_first, update)
    update_late = make_late_softmax(spec.dtype, columns, out_columns)
    lagging = tiles.late_maxima
    pack_weights = make_pack_weights(spec.dtype, steps)
    rows_of, clear_values = make_clear_values(tiles, spec.has_lengths)
    leave = make_leave(spec.dtype, tiles, finish, WARPGROUP)
    leave_empty = make_leave_empty(spec, tiles, leave)
    late = tiles.depth_v <= 128  # else there are no registers for two tiles at a time
    in_turns, warpgroups = tiles.in_turns, tiles.warpgroups
    takers = 256  # one consumer that waits for its turn, one that gives it
    storing = 2 * tiles.store_rows  # threads of which the first one starts the stores of O

    @room
    def take_turn(w):
        if in_turns:
            named_sync(TURN + w, takers)

    @room
    def give_turn(w):
        if in_turns:
            named_arrive(TURN + (w + 1) % warpgroups, takers)

    @room
    def start(
        rS, rP, acc_o, old, sQ, sK, sV, sO, sNotes, bars, places, rows, number, leaving, w, tid,
        o_map, LSE, factor,
    ):  # fmt: skip
        q_stage, (k_stage, k_phase), (v_stage, v_phase) = places
        sV_now, v_bar = sV[v_stage, 0], v_here + v_stage
        clear_values(sV_now, bars, v_bar, v_phase, rows, CONSUMERS, 128 * w + tid)
        q, k, v = by_rows(sQ[q_stage, w]), by_rows(sK[k_stage, 0]), by_columns(sV_now)
        barrier_wait(bars, k_here + k_stage, k_phase)
        barrier_wait(bars, v_bar, v_phase)
        take_turn(w)
        multiply_scores(rS, q, k)
        if late and leaving:  # O is that of query tile `number`
            give_turn(w)  # storing it takes a while
            place = read_place(sNotes, number)
            leave(sO, acc_o, old[0], old[1], o_map, LSE, factor, place, w, tid)
            clear(acc_o)
        add_values(acc_o, rP, v)
        if not (late and leaving):
            give_turn(w)

    @room
    def release_k(bars, k_stage, q_stage, last, tid):
        if tid & 31 == 0:
            barrier_arrive(bars, k_done + k_stage)
            if last:
                barrier_arrive(bars, q_done + q_stage)

    @room
    def conclude(
        rS, rP, acc_o, state, bars, places, tile, n_block, last, tid, lane, LSE, scales, extra
    ):
        q_stage, (k_stage, _), (v_stage, _) = places
        wait_scores(rS)
        release_k(bars, k_stage, q_stage, last, tid)
        grown = weigh(rS, state, tile, n_block, lane, LSE, scales, extra)
        wait_values(acc_o, rP)
        if tid & 31 == 0:
            barrier_arrive(bars, v_done + v_stage)
        return grown

    @room
    def conclude_late(
        rS, rP, rNext, acc_o, state, rLate, late, bars, places, tile, n_block, last, tid, lane,
        LSE, scales, extra,
    ):  # fmt: skip
        q_stage, (k_stage, _), (v_stage, _) = places
        row_max, row_sum, rScale = state
        before, after = rLate  # what O is multiplied by once the product before is in it, and this
        if late:
            for i in range(ROWS):
                unroll_full()
                before[i] = after[i]
        wait_scores(rS)
        release_k(bars, k_stage, q_stage, last, tid)
        finish_scores(rS, tile, n_block, lane, LSE, scales, extra)
        now, later = update_late(rS, rNext, row_max, row_sum, rScale, after, scales[1], last)
        wait_values(acc_o, rP)
        if tid & 31 == 0:
            barrier_arrive(bars, v_done + v_stage)
        if late:
            rescale(acc_o, before)
        if now:
            rescale(acc_o, rScale)
        for k in range(steps):
            unroll_full()
            for i in range(4):
                unroll_full()
                rP[k, i] = types.uint32(made_here(types.int32(rNext[k, i])))
        return later

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
