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
from ..device.hopper.wgmma import (
    make_add_product,
    make_multiply_columns,
    make_multiply_tiles,
    make_wait,
)
from ..device.numba_cuda import cuda, room, types
from ..device.scores import make_scale_scores
from ..device.unroll import unroll_none
from .hopper_backward_output import make_store_keys, meet_consumers
from .hopper_backward_producer import (
    BATCH,
    HEAD,
    KV_HEAD,
    LAST,
    M_BLOCK,
    N_BLOCK,
    PARTIAL,
    PLACE,
    SEQLEN_K,
    TURN,
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
    q_done, do_done = bars_of["q done"], bars_of["do done"]
    wants_dq, wants_dk, wants_dv = wants
    busy = bool(spec.changes) or spec.has_dropout or scale_first

    next_stage = make_next(tiles.stages)
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
    clear_keys, store_dk = make_store_keys(spec, tiles.k_tile)
    clear_values, store_dv = make_store_keys(spec, tiles.v_tile)

    @room
    def consume(
        sQ, sdO, sK, sV, sdS, tS, sRows, wK, wV, sSteps, sBlock, bars, dk_map, dv_map, Sums, dQ,
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
        clear_dk(acc_dk)
        clear_dv(acc_dv)
        barrier_wait(bars, q_here, 0)
        if sSteps[0, M_BLOCK] >= 0:
            rows = sBlock[SEQLEN_K] - sBlock[N_BLOCK] * tile_n - 64 * w
            barrier_wait(bars, k_here, 0)
            clear_keys(sK, bars, k_here, rows, w, tid)
            clear_values(sV, bars, v_here, rows, w, tid)

        # Mainloop
        while sSteps[stage, M_BLOCK] >= 0:
            unroll_none()
            multiply_scores(rS, sK[w], sQ[stage])
            barrier_wait(bars, v_here, 0)
            barrier_wait(bars, do_here + stage, phase)
            multiply_values(rdP, sV[w], sdO[stage])
            numbers = sRows[stage]
            if busy:
                wait_both(rS, rdP)
                change_both(rS, rdP, numbers, sSteps[stage], sBlock, sizes, scale, w, tid,
                            score_aux, dropout)  # fmt: skip
            else:
                wait_first(rS)
            if sSteps[stage, PARTIAL] != 0:
                hide(rS, sSteps[stage], sBlock, sizes, w, tid, mask_aux, range_aux)
            weights(rS, numbers, tid, factor)
            if busy:
                times_weights(rdP, rS)
                drop_weights(rS, sSteps[stage], sBlock, sizes, w, tid, dropout)
            pack_weights(rP, rS)
            add_dv(acc_dv, rP, sdO[stage])
            if not busy:
                wait_first(rdP)
                score_gradients(rdP, rS, numbers, tid)
            pack_weights(rdS, rdP)
            share_gradients(tS[stage], rdS, w, tid)
            # Read now: the producer may overwrite them once thread 0 is done with the step.
            head, place, m_block = sSteps[stage, HEAD], sSteps[stage, PLACE], sSteps[stage, M_BLOCK]
            first, last = sSteps[stage, TURN] == 0, sSteps[stage, LAST] != 0
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
            if last and ordered:
                if not first:
                    take_sums(Sums, place, w, tid, rdQ)
                write_queries(dQ, rdQ, sBlock[BATCH], head, m_block, w, tid, scale)
            elif first and ordered:
                put_sums(Sums, place, w, tid, rdQ)
            elif wants_dq:
                add_sums(Sums, place, w, tid, rdQ)
            end_turn()
            wait_dk(acc_dk, rdS)
            if tid == 0:
                barrier_arrive(bars, q_done + stage)
            stage, phase = next_stage(stage, phase)
            barrier_wait(bars, q_here + stage, phase)

        # Epilogue: dK and dV leave through the place of the consumer's own part of K and V.
        meet_consumers()  # nobody reads K any more
        batch, kv_head = sBlock[BATCH], sBlock[KV_HEAD]
        first_row = sBlock[N_BLOCK] * tile_n + types.int32(64 * w)
        if wants_dv:
            store_dv(wV[w], acc_dv, dv_map, first_row, kv_head, batch, WARPGROUP + w, tid)
        if wants_dk:
            scale_dk(acc_dk, scale)
            store_dk(wK[w], acc_dk, dk_map, first_row, kv_head, batch, WARPGROUP + w, tid)
        if tid == 0:
            bulk_wait_read()

    return consume
