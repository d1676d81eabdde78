"""The story of the consumer that owns dV: scores, their weights, and half of dQ.

It hands the weights P to the other consumer, which makes dS of them while dV += P^T dO runs.
"""

from functools import cache

from ..device.fragments import make_pack_weights
from ..device.gradients import make_clear
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.wgmma import (
    make_add_product,
    make_multiply_rows,
    make_multiply_tiles,
    make_wait,
)
from ..device.numba_cuda import cuda, room, types
from ..device.unroll import unroll_none
from .hopper_backward_output import meet_consumers
from .hopper_backward_producer import BLOCK, END, FIRST, M_BLOCK, PARTIAL, make_slot_of
from .hopper_backward_prologue import make_free_rows
from .hopper_backward_queries import make_add_queries
from .hopper_backward_scores import ROWS, make_change_both, make_hide, make_weights
from .hopper_backward_tiles import WideBackwardTiles
from .hopper_wide_rooms import (
    COLUMNS,
    STEPS,
    VALUES,
    make_begin_keys,
    make_change_alone,
    make_end_keys,
    make_next,
    put_weights,
    say_weights,
)
from .spec import Spec


@cache
def make_hand_over(spec: Spec, tiles: WideBackwardTiles, scale_first: bool):
    """Room ``hand_over(sP, rS, rF, tid)``: what dP - delta is to be multiplied by, for dS.

    P, times the derivatives `rF` of changes of the scores.
    """
    _, _, times_weights = make_change_both(spec, tiles, scale_first)
    changes = bool(spec.changes)

    @room
    def hand_over(sP, rS, rF, tid):
        if changes:
            times_weights(rF, rS)
            put_weights(sP, rF, tid)
        else:
            put_weights(sP, rS, tid)
        say_weights()

    return hand_over


@cache
def make_consume_values(
    spec: Spec, tiles: WideBackwardTiles, scale_first: bool, wants: tuple, ordered: bool
):
    """Room ``consume_values(...)``; parameters as of `hopper_backward.make_backward`."""
    bars_of, wants_dq, wants_dv = tiles.barriers, wants[0], wants[2]
    q_here, do_here, do_done = bars_of["q"], bars_of["do"], bars_of["do done"]
    v_columns, dq_columns = tiles.depth_v // 4, tiles.q_columns // 4

    next_stage, slot_of = make_next(tiles.stages), make_slot_of(tiles.stages)
    free_rows = make_free_rows(tiles)
    clear = make_clear(ROWS, v_columns)
    begin_keys, end_keys = make_begin_keys(spec, tiles, VALUES), make_end_keys(spec, tiles, VALUES)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.k_tile, tiles.q_tile)
    add_dv = make_add_product(spec.dtype, 64, tiles.do_tile)
    multiply_dq = make_multiply_rows(spec.dtype, tiles.ds_tile, tiles.half_tile)
    wait_scores, wait_dq = make_wait(0, 2 * COLUMNS), make_wait(0, tiles.q_columns // 2)
    wait_dv = make_wait(1, tiles.depth_v // 2, COLUMNS)
    change_alone = make_change_alone(spec, tiles, scale_first)
    weights, _, _ = make_weights(COLUMNS)
    hand_over = make_hand_over(spec, tiles, scale_first)
    _, drop_weights, _ = make_change_both(spec, tiles, scale_first)
    hide = make_hide(spec, tiles)
    pack_weights = make_pack_weights(spec.dtype, STEPS)
    add_queries = make_add_queries(spec.dtype, tiles, wants_dq, ordered)

    @room
    def consume_values(
        sQ, sdO, sK, sdS, sP, sRows, sOut, sSteps, sBlocks, bars, dv_map, Sums, dQ, sizes, scale,
        factor, tid, mask_aux, range_aux, score_aux, dropout,
    ):  # fmt: skip
        # Prologue
        stage = phase = types.uint32(0)
        acc_dv = cuda.local.array((ROWS, v_columns), types.float32)
        rS = cuda.local.array((ROWS, COLUMNS), types.float32)
        rF = cuda.local.array((ROWS, COLUMNS), types.float32)
        rdQ = cuda.local.array((ROWS, dq_columns), types.float32)
        rP = cuda.local.array((STEPS, 4), types.uint32)
        barrier_wait(bars, q_here, 0)

        # Mainloop: key tile by key tile
        while sSteps[slot_of(stage, phase), M_BLOCK] != END:
            unroll_none()
            clear(acc_dv)
            numbers = sSteps, sBlocks, bars
            going, stage, phase = begin_keys(sK, *numbers, stage, phase, tid)
            while going:
                unroll_none()
                step = sSteps[slot_of(stage, phase)]
                block = sBlocks[step[BLOCK]]
                multiply_scores(rS, sK, sQ[stage])
                wait_scores(rS)
                change_alone(rS, rF, step, block, sizes, scale, tid, score_aux)
                if step[PARTIAL] != 0:
                    hide(rS, step, block, sizes, 0, tid, mask_aux, range_aux)
                weights(rS, sRows[stage], tid, factor)
                hand_over(sP, rS, rF, tid)
                drop_weights(rS, step, block, sizes, 0, tid, dropout)
                pack_weights(rP, rS)
                barrier_wait(bars, do_here + stage, phase)
                add_dv(acc_dv, rP, sdO[stage])
                meet_consumers()  # dS is there, and P has been taken
                multiply_dq(rdQ, sdS[stage], sK)
                wait_dv(acc_dv, rP)
                if tid == 0:
                    barrier_arrive(bars, do_done + stage)
                wait_dq(rdQ)
                add_queries(Sums, dQ, rdQ, step, block, VALUES, tid, scale)
                free_rows(bars, stage, tid)
                stage, phase = next_stage(stage, phase)
                barrier_wait(bars, q_here + stage, phase)
                going = sSteps[slot_of(stage, phase), FIRST] == 0

            # Epilogue
            following = sSteps[slot_of(stage, phase)]
            end_keys(sOut, acc_dv, dv_map, wants_dv, sBlocks, following, bars, tid)

    return consume_values
