"""The story of the consumer that owns dK: the gradients of weights and scores, and half of dQ.

P comes from the other consumer while dP is computed; dS goes back to it. Both products with dS
start at once, and dQ is added while dK += dS^T Q runs.
"""

from functools import cache

from ..device.fragments import make_pack_weights
from ..device.gradients import make_clear
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait, fence_async
from ..device.hopper.wgmma import (
    make_add_product,
    make_multiply_rows,
    make_multiply_tiles,
    make_wait,
)
from ..device.numba_cuda import cuda, room, types
from ..device.scores import make_scale_scores
from ..device.unroll import unroll_none
from .hopper_backward_output import meet_consumers
from .hopper_backward_producer import BLOCK, END, FIRST, M_BLOCK, make_slot_of
from .hopper_backward_prologue import make_free_rows
from .hopper_backward_queries import make_add_queries
from .hopper_backward_scores import ROWS, make_change_both, make_share_gradients, make_weights
from .hopper_backward_tiles import WideBackwardTiles
from .hopper_wide_rooms import (
    COLUMNS,
    KEYS,
    STEPS,
    make_begin_keys,
    make_end_keys,
    make_next,
    times_weights,
    wait_for_weights,
)
from .spec import Spec


@cache
def make_consume_keys(
    spec: Spec, tiles: WideBackwardTiles, scale_first: bool, wants: tuple, ordered: bool
):
    """Room ``consume_keys(...)``; parameters as of `hopper_backward.make_backward`."""
    bars_of, wants_dq, wants_dk = tiles.barriers, wants[0], wants[1]
    q_here, do_here, do_done = bars_of["q"], bars_of["do"], bars_of["do done"]
    k_columns, dq_columns, half = tiles.depth // 4, tiles.q_columns // 4, tiles.half_tile.panels

    next_stage, slot_of = make_next(tiles.stages), make_slot_of(tiles.stages)
    free_rows = make_free_rows(tiles)
    clear = make_clear(ROWS, k_columns)
    begin_keys, end_keys = make_begin_keys(spec, tiles, KEYS), make_end_keys(spec, tiles, KEYS)
    multiply_values = make_multiply_tiles(spec.dtype, tiles.v_tile, tiles.do_tile)
    add_dk = make_add_product(spec.dtype, 64, tiles.q_tile)
    multiply_dq = make_multiply_rows(spec.dtype, tiles.ds_tile, tiles.half_tile)
    wait_values, wait_dq = make_wait(0, 2 * COLUMNS), make_wait(1, tiles.q_columns // 2)
    wait_dk = make_wait(0, tiles.depth // 2, COLUMNS)
    _, _, subtract_delta = make_weights(COLUMNS)
    _, drop_weights, _ = make_change_both(spec, tiles, scale_first)
    pack_gradients = make_pack_weights(spec.dtype, STEPS)
    share_gradients = make_share_gradients(STEPS)
    scale_dk = make_scale_scores(False, ROWS, k_columns)
    add_queries = make_add_queries(spec.dtype, tiles, wants_dq, ordered)

    @room
    def consume_keys(
        sQ, sdO, sK, sV, sdS, tS, sP, sRows, sOut, sSteps, sBlocks, bars, dk_map, Sums, dQ, sizes,
        scale, tid, dropout,
    ):  # fmt: skip
        # Prologue
        stage = phase = types.uint32(0)
        acc_dk = cuda.local.array((ROWS, k_columns), types.float32)
        rdP = cuda.local.array((ROWS, COLUMNS), types.float32)
        rdQ = cuda.local.array((ROWS, dq_columns), types.float32)
        rdS = cuda.local.array((STEPS, 4), types.uint32)
        barrier_wait(bars, q_here, 0)

        # Mainloop: key tile by key tile
        while sSteps[slot_of(stage, phase), M_BLOCK] != END:
            unroll_none()
            clear(acc_dk)
            numbers = sSteps, sBlocks, bars
            going, stage, phase = begin_keys(sV, *numbers, stage, phase, tid)
            while going:
                unroll_none()
                step = sSteps[slot_of(stage, phase)]
                block = sBlocks[step[BLOCK]]
                barrier_wait(bars, do_here + stage, phase)
                multiply_values(rdP, sV, sdO[stage])
                wait_values(rdP)
                if tid == 0:
                    barrier_arrive(bars, do_done + stage)
                drop_weights(rdP, step, block, sizes, 0, tid, dropout)
                subtract_delta(rdP, sRows[stage], tid)
                wait_for_weights()
                times_weights(rdP, sP, tid)
                pack_gradients(rdS, rdP)
                share_gradients(tS[stage], rdS, 0, tid)
                fence_async()
                meet_consumers()  # dS is there for both
                multiply_dq(rdQ, sdS[stage], sK[half:])
                add_dk(acc_dk, rdS, sQ[stage])
                wait_dq(rdQ)
                add_queries(Sums, dQ, rdQ, step, block, KEYS, tid, scale)
                before = stage
                stage, phase = next_stage(stage, phase)
                barrier_wait(bars, q_here + stage, phase)  # it has come; behind dK it would cost
                going = sSteps[slot_of(stage, phase), FIRST] == 0
                wait_dk(acc_dk, rdS)
                free_rows(bars, before, tid)

            # Epilogue
            if wants_dk:
                scale_dk(acc_dk, scale)
            following = sSteps[slot_of(stage, phase)]
            end_keys(sOut, acc_dk, dk_map, wants_dk, sBlocks, following, bars, tid)

    return consume_keys
