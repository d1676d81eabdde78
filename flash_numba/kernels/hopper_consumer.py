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
from ..device.hopper.warpgroups import made_after, named_arrive, named_sync
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_operand, make_wait
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
    turns_of, tile_of, step_of, next_key, _, is_partial = make_walk(spec, tile_m, tile_n)
    next_q, next_kv = make_next_stage(tiles.q_stages), make_next_stage(tiles.stages)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tile_n, tiles.v_tile)
    by_rows = make_operand(tiles.k_tile.by_rows())
    by_columns = make_operand(tiles.v_tile.by_columns())
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
    def row_of(tid):
        return (tid >> 5) * 16 + ((tid & 31) >> 2)

    @room
    def take_turn(w):
        named_sync(TURN + w, takers)

    @room
    def give_turn(w):
        named_arrive(TURN + (w + 1) % warpgroups, takers)

    @room
    def weigh(rS, state, step, n_block, lane, LSE, scales, extra):
        mask_aux, range_aux, score_aux, listed, dropout = extra
        row_max, row_sum, rScale = state
        first_q = types.int32(step.m_block * tile_m + lane[0])
        first_k = types.int32(n_block * tile_n + lane[1])
        finish_scores(
            rS, is_partial(step, n_block, listed), first_q, first_k, LSE.shape[2], step.seqlen_k,
            step.batch, step.head, scales[0], mask_aux, range_aux, score_aux,
        )  # fmt: skip
        grown = update(rS, row_max, row_sum, rScale, scales[1])
        batch_head = step.batch * LSE.shape[1] + step.head
        drop_weights(rS, first_q, first_k, batch_head, dropout)
        return grown

    @room
    def advance(
        rS, rP, acc_o, state, sQ, sK, sV, bars, places, rows, step, n_block, last, w, tid,
        lane, LSE, scales, extra,
    ):  # fmt: skip
        q_stage, k_stage, k_phase, v_stage, v_phase = places
        clear_values(sV, bars, v_here + v_stage, v_phase, rows, CONSUMERS, 128 * w + tid)
        q, k, v = by_rows(sQ), by_rows(sK), by_columns(sV)
        barrier_wait(bars, k_here + k_stage, k_phase)
        barrier_wait(bars, v_here + v_stage, v_phase)
        take_turn(w)
        multiply_scores(rS, q, k)
        add_values(acc_o, rP, v)
        give_turn(w)
        wait_scores(rS)
        if tid == 0:
            barrier_arrive(bars, k_done + k_stage)
            if last:
                barrier_arrive(bars, q_done + q_stage)
        grown = weigh(rS, state, step, n_block, lane, LSE, scales, extra)
        # The tile is there since long: this holds the softmax ahead of the wait for O. Every warp
        # says that it is past it: a tile loaded meanwhile would turn the parity, and it never ends.
        _, row_sum, _ = state
        barrier_wait(bars, v_here + v_stage, made_after(v_phase, row_sum[0] + row_sum[1]))
        wait_values(acc_o, rP)
        if tid & 31 == 0:
            barrier_arrive(bars, v_done + v_stage)
        return grown

    @room
    def leave(sO, acc_o, row_max, row_sum, rLse, o_map, LSE, factor, batch, head, m_block, w, tid):
        first = types.int32(m_block * tile_m + 64 * w)
        finish(row_max, row_sum, acc_o, rLse, factor)
        store_output(sO, acc_o, o_map, first, head, batch, WARPGROUP + w, tid)
        for i in range(2):  # last: the fence in `store_output` waits for all that was stored before
            q_idx = types.int32(first + row_of(tid) + 8 * i)
            if tid & 3 == 0 and q_idx < LSE.shape[2]:
                LSE[types.uint32(batch), types.uint32(head), types.uint32(q_idx)] = rLse[i]

    @room
    def consume(
        sQ, sK, sV, sO, bars, o_map, LSE, sizes, scale, factor, w, tid,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule
        keys, turns = sizes[0], turns_of(LSE)
        lane = types.int32(64 * w + row_of(tid)), types.int32((tid & 3) * 2)
        scales, extra = (scale, factor), (mask_aux, range_aux, score_aux, listed, dropout)
        q_stage = k_stage = v_stage = types.uint32(0)
        q_phase = k_phase = v_phase = types.int32(0)
        start = types.int32(0)
        step = step_of(start, turns, start, LSE, keys, range_aux, lengths, listed)
        any_step, empty, n_block = step.turn < turns, step.empty, step.n_block
        rows = rows_of(step, n_block)

        # Prologue: the scores of the first key tile
        acc_o = cuda.local.array((2, out_columns), types.float32)
        rS = cuda.local.array((2, columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        row_max = cuda.local.array(2, types.float32)
        row_sum = cuda.local.array(2, types.float32)
        old_max = cuda.local.array(2, types.float32)
        old_sum = cuda.local.array(2, types.float32)
        rScale = cuda.local.array(2, types.float32)
        rLse = cuda.local.array(2, types.float32)
        state = row_max, row_sum, rScale
        begin(row_max, row_sum)
        clear(acc_o)
        if w == warpgroups - 1:
            give_turn(w)  # consumer 0 begins
        if any_step:
            barrier_wait(bars, q_here, 0)
            barrier_wait(bars, k_here, 0)
            take_turn(w)
            multiply_scores(rS, sQ[q_stage, w], sK[k_stage, 0])
            give_turn(w)
            n_block = next_key(step, step.n_block, listed)
            wait_first_scores(rS)
            if tid == 0:
                barrier_arrive(bars, k_done)
                if n_block >= step.stop:
                    barrier_arrive(bars, q_done)
            k_stage, k_phase = next_kv(k_stage, k_phase)
            weigh(rS, state, step, step.n_block, lane, LSE, scales, extra)
            pack_weights(rP, rS)

        going = any_step
        while going:
            # Mainloop: the other key tiles of this query tile
            while n_block < step.stop:
                after = next_key(step, n_block, listed)
                grown = advance(
                    rS, rP, acc_o, state, sQ[q_stage, w], sK[k_stage, 0], sV[v_stage, 0], bars,
                    (q_stage, k_stage, k_phase, v_stage, v_phase), rows, step, n_block,
                    after >= step.stop, w, tid, lane, LSE, scales, extra,
                )  # fmt: skip
                k_stage, k_phase = next_kv(k_stage, k_phase)
                v_stage, v_phase = next_kv(v_stage, v_phase)
                if grown:
                    rescale(acc_o, rScale)
                pack_weights(rP, rS)
                rows, n_block = rows_of(step, n_block), after

            # The first key tile of the next query tile, beside the last O += P V of this one
            turn = types.int32(step.turn + 1)
            then = step_of(turn, turns, empty, LSE, keys, range_aux, lengths, listed)
            going, empty = then.turn < turns, then.empty
            if going:
                q_stage, q_phase = next_q(q_stage, q_phase)
                barrier_wait(bars, q_here + q_stage, q_phase)
                for i in range(2):
                    unroll_full()
                    old_max[i], old_sum[i] = row_max[i], row_sum[i]
                begin(row_max, row_sum)
                n_block = next_key(then, then.n_block, listed)
                advance(
                    rS, rP, acc_o, state, sQ[q_stage, w], sK[k_stage, 0], sV[v_stage, 0], bars,
                    (q_stage, k_stage, k_phase, v_stage, v_phase), rows, then, then.n_block,
                    n_block >= then.stop, w, tid, lane, LSE, scales, extra,
                )  # fmt: skip
                k_stage, k_phase = next_kv(k_stage, k_phase)
                v_stage, v_phase = next_kv(v_stage, v_phase)
                leave(sO[w], acc_o, old_max, old_sum, rLse, o_map, LSE, factor,
                      step.batch, step.head, step.m_block, w, tid)  # fmt: skip
                clear(acc_o)
                pack_weights(rP, rS)
                rows, step = rows_of(then, then.n_block), then

        # Epilogue: the last O += P V, and query tiles that see no key
        if any_step:
            clear_values(
                sV[v_stage, 0], bars, v_here + v_stage, v_phase, rows, CONSUMERS, 128 * w + tid
            )
            barrier_wait(bars, v_here + v_stage, v_phase)
            add_values(acc_o, rP, sV[v_stage, 0])
            wait_values(acc_o, rP)
            leave(sO[w], acc_o, row_max, row_sum, rLse, o_map, LSE, factor,
                  step.batch, step.head, step.m_block, w, tid)  # fmt: skip
        if empty > 0:
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
