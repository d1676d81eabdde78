"""The consumer's story: a warpgroup that owns 64 keys, and their dK and dV in registers.

Every step starts five products. While the scores' gradient dP is computed, their weights P are;
while dV += P^T dO runs, dS is computed and shared; while dK += dS^T Q runs, dQ is added. No product
runs on into the next step.
"""

from functools import cache

from ..device.fragments import make_pack_weights
from ..device.gradients import make_clear
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait, fence_async
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.warpgroups import named_sync
from ..device.hopper.wgmma import (
    make_add_product,
    make_multiply_columns,
    make_multiply_tiles,
    make_wait,
)
from ..device.numba_cuda import cuda, room, types
from ..device.scores import make_scale_scores
from ..device.unroll import unroll_none
from .hopper_backward_output import make_clear_keys, make_store_keys, meet_consumers
from .hopper_backward_producer import (
    BATCH,
    BLOCK,
    BLOCKS,
    END,
    FIRST,
    HEAD,
    KV_HEAD,
    LAST,
    M_BLOCK,
    N_BLOCK,
    NOTHING,
    PARTIAL,
    PLACE,
    SEQLEN_K,
    TURN,
    make_slot_of,
)
from .hopper_backward_queries import make_move_sums, make_write_queries
from .hopper_backward_scores import (
    ROWS,
    make_change_both,
    make_hide,
    make_share_gradients,
    make_weights,
)
from .hopper_backward_tiles import HopperBackwardTiles
from .hopper_backward_turns import make_take_turns
from .spec import Spec

WARPGROUP = 5
"""Named barrier of a consumer's own threads (plus its number)."""


@cache
def make_next(stages: int):
    """`hopper_producer.make_next_stage` for numbers without a sign, which index without a test."""

    @room
    def next_stage(stage, phase):
        if stage == types.uint32(stages - 1):
            return types.uint32(0), types.uint32(phase ^ types.uint32(1))
        return types.uint32(stage + types.uint32(1)), phase

    return next_stage


@cache
def make_consume(
    spec: Spec, tiles: HopperBackwardTiles, scale_first: bool, wants: tuple, ordered: bool
):
    """Room ``consume(...)`` of warpgroup `w`; parameters as of `hopper_backward.make_backward`."""
    tile_m, tile_n, q_columns = tiles.tile_m, tiles.tile_n, tiles.q_columns
    columns, steps, dq_columns = tile_m // 4, tile_m // 16, q_columns // 4
    k_columns, v_columns = tiles.depth // 4, tiles.depth_v // 4
    wide = tiles.depth == 128
    bars_of = tiles.barriers
    k_here, v_here, q_here, do_here = (bars_of[name] for name in ("k", "v", "q", "do"))
    q_done, do_done, keys_done = bars_of["q done"], bars_of["do done"], bars_of["keys done"]
    wants_dq, wants_dk, wants_dv = wants
    busy = bool(spec.changes) or spec.has_dropout or scale_first

    next_stage, slot_of = make_next(tiles.stages), make_slot_of(tiles.stages)
    clear_dk, clear_dv = make_clear(ROWS, k_columns), make_clear(ROWS, v_columns)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.k_tile, tiles.q_tile)
    multiply_values = make_multiply_tiles(spec.dtype, tiles.v_tile, tiles.do_tile)
    add_dv = make_add_product(spec.dtype, tile_m, tiles.do_tile)
    add_dk = make_add_product(spec.dtype, tile_m, tiles.q_tile)
    multiply_dq = make_multiply_columns(spec.dtype, tiles.k_tile, 2, tiles.ds_tile, q_columns)
    wait_first, wait_both = make_wait(1, tile_m // 2), make_wait(0, tile_m // 2, tile_m // 2)
    wait_dv = make_wait(1, tiles.depth_v // 2, tile_m // 4)
    wait_dq = make_wait(1, q_columns // 2)
    wait_dk = make_wait(0, tiles.depth // 2, tile_m // 4)
    weights, score_gradients, _ = make_weights(columns)
    change_both, drop_weights, times_weights = make_change_both(spec, tiles, scale_first)
    hide = make_hide(spec, tiles)
    pack_weights = make_pack_weights(spec.dtype, steps)
    share_gradients = make_share_gradients(steps)
    begin_turn, end_turn = make_take_turns(ordered)
    put_sums, add_sums, take_sums = make_move_sums(tiles)
    write_queries = make_write_queries(spec.dtype, tiles)
    scale_dk = make_scale_scores(False, ROWS, k_columns)
    clear_keys = make_clear_keys(spec, tiles)
    store_dk, store_dv = (make_store_keys(spec, tile) for tile in (tiles.k_tile, tiles.v_tile))

    @room
    def pass_step(bars, stage, phase, tid):
        """Behind a step without a query tile."""
        barrier_wait(bars, do_here + stage, phase)
        if tid == 0:
            barrier_arrive(bars, do_done + stage)
            barrier_arrive(bars, q_done + stage)
        stage, phase = next_stage(stage, phase)
        barrier_wait(bars, q_here + stage, phase)
        return stage, phase

    @room
    def consume(
        sQ, sdO, sK, sV, sdS, tS, sRows, sOut, sSteps, sBlocks, bars, dk_map, dv_map, Sums, dQ,
        sizes, scale, factor, w, tid, mask_aux, range_aux, score_aux, dropout,
    ):  # fmt: skip
        # Prologue
        stage = phase = types.uint32(0)
        acc_dk = cuda.local.array((ROWS, k_columns), types.float32)
        acc_dv = cuda.local.array((ROWS, v_columns), types.float32)
        rS = cuda.local.array((ROWS, columns), types.float32)
        rdP = cuda.local.array((ROWS, columns), types.float32)
        rdQ = cuda.local.array((ROWS, dq_columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        rdS = cuda.local.array((steps, 4), types.uint32)
        barrier_wait(bars, q_here, 0)

        # Mainloop: key tile by key tile
        while sSteps[slot_of(stage, phase), M_BLOCK] != END:
            unroll_none()
            step = sSteps[slot_of(stage, phase)]
            block, parity = sBlocks[step[BLOCK]], types.uint32(step[BLOCK] & 1)
            barrier_wait(bars, k_here, parity)
            barrier_wait(bars, v_here, parity)
            rows = block[SEQLEN_K] - block[N_BLOCK] * tile_n - 64 * w
            clear_keys(sK, sV, rows, w, tid)
            clear_dk(acc_dk)
            clear_dv(acc_dv)
            going = step[M_BLOCK] != NOTHING
            if not going:
                stage, phase = pass_step(bars, stage, phase, tid)
            while going:
                unroll_none()
                step = sSteps[slot_of(stage, phase)]
                multiply_scores(rS, sK[w], sQ[stage])
                barrier_wait(bars, do_here + stage, phase)
                multiply_values(rdP, sV[w], sdO[stage])
                numbers, partial = sRows[stage], step[PARTIAL] != 0
                if busy:
                    wait_both(rS, rdP)
                    change_both(rS, rdP, numbers, step, sBlocks[step[BLOCK]], sizes, scale, w, tid,
                                score_aux, dropout)  # fmt: skip
                else:
                    wait_first(rS)
                if partial:
                    hide(rS, step, sBlocks[step[BLOCK]], sizes, w, tid, mask_aux, range_aux)
                weights(rS, numbers, tid, factor)
                if busy:
                    times_weights(rdP, rS)
                    drop_weights(rS, step, sBlocks[step[BLOCK]], sizes, w, tid, dropout)
                pack_weights(rP, rS)
                add_dv(acc_dv, rP, sdO[stage])
                if not busy:
                    wait_first(rdP)
                    score_gradients(rdP, rS, numbers, tid)
                pack_weights(rdS, rdP)
                share_gradients(tS[stage], rdS, w, tid)
                place = step[PLACE]  # read late, it would keep the additions from running under dK
                fence_async()
                meet_consumers()  # both consumers' dS is there
                if wide:
                    multiply_dq(rdQ, sK[:, w], sdS[stage])
                else:
                    multiply_dq(rdQ, sK[:, 0], sdS[stage][:, q_columns * w :])
                wait_dv(acc_dv, rP)
                if tid == 0:
                    barrier_arrive(bars, do_done + stage)
                add_dk(acc_dk, rdS, sQ[stage])
                wait_dq(rdQ)
                begin_turn(w)
                first = step[TURN] == 0
                if ordered and step[LAST] != 0:
                    if not first:
                        take_sums(Sums, place, w, tid, rdQ)
                    where = sBlocks[step[BLOCK], BATCH], step[HEAD], step[M_BLOCK]
                    write_queries(dQ, rdQ, *where, w, tid, scale)
                elif ordered and first:
                    put_sums(Sums, place, w, tid, rdQ)
                elif wants_dq:
                    add_sums(Sums, place, w, tid, rdQ)
                end_turn()
                before = stage
                stage, phase = next_stage(stage, phase)
                barrier_wait(bars, q_here + stage, phase)  # it has come; behind dK it would cost
                going = sSteps[slot_of(stage, phase), FIRST] == 0
                wait_dk(acc_dk, rdS)
                if tid == 0:
                    barrier_arrive(bars, q_done + before)

            # Epilogue: dK and dV leave through the place of dS; the next K and V come meanwhile.
            meet_consumers()  # nobody reads K, V or dS any more
            if tid == 0:
                barrier_arrive(bars, keys_done)
            block = sBlocks[(sSteps[slot_of(stage, phase), BLOCK] + BLOCKS - 1) % BLOCKS]
            first_row = block[N_BLOCK] * tile_n + types.int32(64 * w)
            batch, kv_head, own = block[BATCH], block[KV_HEAD], WARPGROUP + w
            if wants_dv:
                store_dv(sOut[:, w, :64], acc_dv, dv_map, first_row, kv_head, batch, own, tid)
            if wants_dk:
                scale_dk(acc_dk, scale)
                store_dk(sOut[:, w, :64], acc_dk, dk_map, first_row, kv_head, batch, own, tid)
            if tid == 0:
                bulk_wait_read()
            named_sync(own, 128)

    return consume
