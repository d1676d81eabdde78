"""What both consumers of the wide Hopper backward kernel are made of, and how they meet."""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.warpgroups import made_here, make_meeting, named_sync
from ..device.numba_cuda import room, types
from ..device.ptx import load4, store4
from ..device.scores import make_change_scores_backward, make_scale_scores
from ..device.unroll import unroll_full
from .hopper_backward_consumer import WARPGROUP
from .hopper_backward_output import make_clear_rows, make_store_keys, meet_consumers
from .hopper_backward_producer import (
    BATCH,
    BLOCK,
    BLOCKS,
    HEAD,
    KV_HEAD,
    M_BLOCK,
    N_BLOCK,
    NOTHING,
    SEQLEN_K,
    SEQLEN_Q,
    make_slot_of,
)
from .hopper_backward_prologue import make_free_rows
from .hopper_backward_scores import ROWS, make_first_position
from .hopper_backward_tiles import WideBackwardTiles
from .spec import Spec

VALUES, KEYS = 0, 1
"""The consumers: one owns dV and computes S and P, the other owns dK and computes dP and dS."""
COLUMNS, STEPS = 16, 4
"""Of the 64 queries of a tile: those of a lane's part, and steps of 16."""

WEIGHTS = 7
"""Named barrier: P is there for the consumer of the keys."""
wait_for_weights, say_weights = make_meeting(WEIGHTS, 256)


@cache
def make_next(stages: int):
    """`hopper_producer.make_next_stage` for numbers without a sign, which index without a test."""

    @room
    def next_stage(stage, phase):
        if stage == types.uint32(stages - 1):
            return types.uint32(0), types.uint32(phase ^ types.uint32(1))
        return types.uint32(stage + types.uint32(1)), phase

    return next_stage


@room
def put_weights(sP, rP, tid):
    """Leave P in shared memory in the order of registers, for the same thread of the other one."""
    thread = types.uint32(made_here(tid))
    for c in range(COLUMNS // 2):
        unroll_full()
        four = rP[0, 2 * c], rP[0, 2 * c + 1], rP[1, 2 * c], rP[1, 2 * c + 1]
        store4(sP, (c, thread, 0), four)


@room
def times_weights(rdP, sP, tid):
    """Turn dP - delta into dS with what `put_weights` left."""
    thread = types.uint32(made_here(tid))
    for c in range(COLUMNS // 2):
        unroll_full()
        a, b, d, e = load4(sP, (c, thread, 0))
        rdP[0, 2 * c] *= a
        rdP[0, 2 * c + 1] *= b
        rdP[1, 2 * c] *= d
        rdP[1, 2 * c + 1] *= e


@cache
def make_change_alone(spec: Spec, tiles: WideBackwardTiles, scale_first: bool):
    """Room ``change_alone(rS, rF, step, block, sizes, scale, tid, score_aux)``.

    Scales and changes scores; `rF`, a local array like `rS`, gets the changes' derivatives.
    """
    scale_scores = make_scale_scores(not scale_first, ROWS, COLUMNS)
    changes, first_position = bool(spec.changes), make_first_position(tiles)
    change_scores = make_change_scores_backward(
        spec.changes, spec.derivatives, ROWS, COLUMNS, True, True
    )

    @room
    def change_alone(rS, rF, step, block, sizes, scale, tid, score_aux):
        scale_scores(rS, scale)
        if changes:
            for i in range(ROWS):
                unroll_full()
                for j in range(COLUMNS):
                    unroll_full()
                    rF[i, j] = types.float32(1)
            first_q, first_k = first_position(step, block, 0, tid)
            seqlen_q, seqlen_k = types.int32(sizes[SEQLEN_Q]), block[SEQLEN_K]
            where = first_q, first_k, seqlen_q, seqlen_k, block[BATCH], step[HEAD]
            change_scores(rS, rF, *where, score_aux)

    return change_alone


@cache
def make_begin_keys(spec: Spec, tiles: WideBackwardTiles, w: int):
    """Room ``begin_keys(own, sSteps, sBlocks, bars, stage, phase, tid)``.

    Waits for the block's next K and V and passes a step without a query tile; gives whether there
    is one, and the stage and phase to go on with. `own` is the one of K and V whose rows behind the
    end of a sequence this consumer clears, and waits for the other one to.
    """
    bars_of, tile_n = tiles.barriers, tiles.tile_n
    k_here, v_here, q_here, do_here = (bars_of[name] for name in ("k", "v", "q", "do"))
    do_done, free_rows = bars_of["do done"], make_free_rows(tiles)
    next_stage, slot_of = make_next(tiles.stages), make_slot_of(tiles.stages)
    clear_rows, has_lengths = make_clear_rows((tiles.k_tile, tiles.v_tile)[w]), spec.has_lengths

    @room
    def begin_keys(own, sSteps, sBlocks, bars, stage, phase, tid):
        step = sSteps[slot_of(stage, phase)]
        block, parity = sBlocks[step[BLOCK]], types.uint32(step[BLOCK] & 1)
        barrier_wait(bars, k_here, parity)
        barrier_wait(bars, v_here, parity)
        if has_lengths:
            clear_rows(own, block[SEQLEN_K] - block[N_BLOCK] * tile_n, tid)
            meet_consumers()
        going = step[M_BLOCK] != NOTHING
        if not going:
            barrier_wait(bars, do_here + stage, phase)
            if tid == 0:
                barrier_arrive(bars, do_done + stage)
            free_rows(bars, stage, tid)
            stage, phase = next_stage(stage, phase)
            barrier_wait(bars, q_here + stage, phase)
        return going, stage, phase

    return begin_keys


@cache
def make_end_keys(spec: Spec, tiles: WideBackwardTiles, w: int):
    """Room ``end_keys(sOut, acc, out_map, wanted, sBlocks, following, bars, tid)``.

    dV or dK leaves through its consumer's part of shared memory, and K and V may be overwritten;
    `following` are the numbers of the step after the key tile's last one.
    """
    keys_done, tile_n = tiles.barriers["keys done"], tiles.tile_n
    tile, own = (tiles.v_tile, tiles.k_tile)[w], WARPGROUP + w
    store = make_store_keys(spec, tile, tiles.out_panels(tile))

    @room
    def end_keys(sOut, acc, out_map, wanted, sBlocks, following, bars, tid):
        meet_consumers()  # nobody reads K, V, P or dS any more
        if tid == 0:
            barrier_arrive(bars, keys_done)
        block = sBlocks[(following[BLOCK] + BLOCKS - 1) % BLOCKS]
        if wanted:
            first_row = types.int32(block[N_BLOCK] * tile_n)
            store(sOut, acc, out_map, first_row, block[KV_HEAD], block[BATCH], own, tid)
        if tid == 0:
            bulk_wait_read()
        named_sync(own, 128)

    return end_keys
