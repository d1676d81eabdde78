"""The consumer's story: a warpgroup that owns 64 keys, and their dK and dV in registers.

Every step starts five products. While the scores' gradient dP is computed, their weights P are;
while dV += P^T dO runs, dS is computed and shared; while dK += dS^T Q runs, dQ is added. No product
runs on into the next step. dQ needs the other consumer's dS too, and so is that of the step before:
neither consumer waits for the other, and while one computes the other one multiplies.
"""

from functools import cache

from ..device.fragments import make_pack_weights
from ..device.gradients import make_clear
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait, fence_async
from ..device.hopper.tma import bulk_wait_read
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.hopper.wgmma import make_wait
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
    KV_HEAD,
    M_BLOCK,
    N_BLOCK,
    NOTHING,
    PARTIAL,
    SEQLEN_K,
)
from .hopper_backward_products import make_products
from .hopper_backward_prologue import make_free_rows
from .hopper_backward_queries import make_add_queries
from .hopper_backward_scores import (
    ROWS,
    make_change_both,
    make_hide,
    make_share_gradients,
    make_weights,
)
from .hopper_backward_tiles import HopperBackwardTiles
from .spec import Spec

WARPGROUP = 5
"""Named barrier of a consumer's own threads (plus its number)."""
SHARED = 7
"""Named barriers: a consumer has shared its dS (plus the stage, plus 2 for the second consumer)."""


@cache
def make_slots(stages: int):
    """Rooms ``stage_of(slot)``, ``phase_of(slot)``, ``next_slot(slot)`` and ``slot_before(slot)``.

    A consumer counts steps by the place of their numbers, `hopper_backward_producer.make_slot_of`:
    one number says which stage they are in and which of its phases that is. `stages` is a power of
    two.
    """
    last_stage, last = types.uint32(stages - 1), types.uint32(2 * stages - 1)
    one = types.uint32(1)

    @room
    def stage_of(slot):
        return types.uint32(slot & last_stage)

    @room
    def phase_of(slot):
        return types.uint32(slot // types.uint32(stages))

    @room
    def next_slot(slot):
        return types.uint32(types.uint32(slot + one) & last)

    @room
    def slot_before(slot):
        return types.uint32(types.uint32(slot + last) & last)

    return stage_of, phase_of, next_slot, slot_before


@cache
def make_exchange(tiles: HopperBackwardTiles):
    """Rooms ``say_shared(w, stage)``, ``wait_for_other(w, stage)``, ``after(place)``, ``before``.

    Consumer `w` has shared the dS of the step in `stage`; the other one has. Each dS goes to the
    place ``after`` the last one's. Who has waited for the other's dS of the step before may
    overwrite the oldest one: the other consumer is past the product that read it.
    """
    both, last = 128 * tiles.warpgroups, types.uint32(tiles.ds_places - 1)

    @room
    def say_shared(w, stage):
        named_arrive(types.int32(SHARED + 2 * w + types.int32(stage)), both)

    @room
    def wait_for_other(w, stage):
        named_sync(types.int32(SHARED + 2 - 2 * w + types.int32(stage)), both)

    @room
    def after(place):
        return types.uint32(0) if place == last else types.uint32(place + types.uint32(1))

    @room
    def before(place):
        return last if place == types.uint32(0) else types.uint32(place - types.uint32(1))

    return say_shared, wait_for_other, after, before


@cache
def make_consume(
    spec: Spec, tiles: HopperBackwardTiles, scale_first: bool, wants: tuple, ordered: bool
):
    """Room ``consume(...)`` of warpgroup `w`; parameters as of `hopper_backward.make_backward`."""
    tile_m, tile_n, q_columns = tiles.tile_m, tiles.tile_n, tiles.q_columns
    columns, steps, dq_columns = tile_m // 4, tile_m // 16, q_columns // 4
    k_columns, v_columns = tiles.depth // 4, tiles.depth_v // 4
    bars_of = tiles.barriers
    k_here, v_here, q_here, do_here = (bars_of[name] for name in ("k", "v", "q", "do"))
    do_done, keys_done = bars_of["do done"], bars_of["keys done"]
    wants_dq, wants_dk, wants_dv = wants
    busy = bool(spec.changes) or spec.has_dropout or scale_first

    stage_of, phase_of, next_slot, slot_before = make_slots(tiles.stages)
    clear_dk, clear_dv = make_clear(ROWS, k_columns), make_clear(ROWS, v_columns)
    products = make_products(spec.dtype, tiles)
    find_operands, start_scores, start_weight_gradients, add_dv, start_dq, add_dk = products
    wait_first, wait_both = make_wait(1, tile_m // 2), make_wait(0, tile_m // 2, tile_m // 2)
    wait_dv = make_wait(1, tiles.depth_v // 2, tile_m // 4)
    wait_dq, wait_last_dq = make_wait(1, q_columns // 2), make_wait(0, q_columns // 2)
    wait_dk = make_wait(0, tiles.depth // 2, tile_m // 4)
    weights, score_gradients, _ = make_weights(columns)
    change_both, drop_weights, times_weights = make_change_both(spec, tiles, scale_first)
    hide = make_hide(spec, tiles)
    pack_weights = make_pack_weights(spec.dtype, steps)
    share_gradients = make_share_gradients(steps)
    say_shared, wait_for_other, after, before = make_exchange(tiles)
    add_queries = make_add_queries(spec.dtype, tiles, wants_dq, ordered)
    scale_dk = make_scale_scores(False, ROWS, k_columns)
    clear_keys, free_rows = make_clear_keys(spec, tiles), make_free_rows(tiles)
    store_dk, store_dv = (make_store_keys(spec, tile) for tile in (tiles.k_tile, tiles.v_tile))

    @room
    def wait_for_rows(bars, slot):
        """`slot`, once Q and the numbers of that step are there."""
        barrier_wait(bars, q_here + stage_of(slot), phase_of(slot))
        return slot

    @room
    def pass_step(bars, slot, tid):
        """Behind a step without a query tile."""
        barrier_wait(bars, do_here + stage_of(slot), phase_of(slot))
        if tid == 0:
            barrier_arrive(bars, do_done + stage_of(slot))
        free_rows(bars, stage_of(slot), tid)
        return wait_for_rows(bars, next_slot(slot))

    @room
    def consume(
        sQ, sdO, sK, sV, sdS, tS, sRows, sOut, sSteps, sBlocks, bars, dk_map, dv_map, Sums, dQ,
        sizes, scale, factor, w, tid, mask_aux, range_aux, score_aux, dropout,
    ):  # fmt: skip
        # Prologue
        slot = place = types.uint32(0)
        acc_dk = cuda.local.array((ROWS, k_columns), types.float32)
        acc_dv = cuda.local.array((ROWS, v_columns), types.float32)
        rS = cuda.local.array((ROWS, columns), types.float32)
        rdP = cuda.local.array((ROWS, columns), types.float32)
        rdQ = cuda.local.array((ROWS, dq_columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        rdS = cuda.local.array((steps, 4), types.uint32)
        at = find_operands(sQ, sdO, sK, sV, sdS, w)
        barrier_wait(bars, q_here, 0)

        # Mainloop: key tile by key tile
        while sSteps[slot, M_BLOCK] != END:
            unroll_none()
            step = sSteps[slot]
            block, parity = sBlocks[step[BLOCK]], types.uint32(step[BLOCK] & 1)
            barrier_wait(bars, k_here, parity)
            barrier_wait(bars, v_here, parity)
            rows = block[SEQLEN_K] - block[N_BLOCK] * tile_n - 64 * w
            clear_keys(sK, sV, rows, w, tid)
            clear_dk(acc_dk)
            clear_dv(acc_dv)
            some = going = step[M_BLOCK] != NOTHING
            if not going:
                slot = pass_step(bars, slot, tid)
            while going:
                unroll_none()
                step, stage = sSteps[slot], stage_of(slot)
                start_scores(rS, at, stage)
                barrier_wait(bars, do_here + stage, phase_of(slot))
                start_weight_gradients(rdP, at, stage)
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
                add_dv(acc_dv, rP, at, stage)
                if not busy:
                    wait_first(rdP)
                    score_gradients(rdP, rS, numbers, tid)
                pack_weights(rdS, rdP)
                begins = step[FIRST] != 0
                if not begins:
                    wait_for_other(w, stage_of(slot_before(slot)))
                share_gradients(tS[place], rdS, w, tid)
                fence_async()
                say_shared(w, stage)
                if begins:
                    add_dk(acc_dk, rdS, at, stage)
                    wait_dv(acc_dv, rP)
                    if tid == 0:
                        barrier_arrive(bars, do_done + stage)
                else:
                    start_dq(rdQ, at, before(place))
                    wait_dv(acc_dv, rP)
                    if tid == 0:
                        barrier_arrive(bars, do_done + stage)
                    add_dk(acc_dk, rdS, at, stage)
                    wait_dq(rdQ)
                    step = sSteps[slot_before(slot)]
                    add_queries(Sums, dQ, rdQ, step, sBlocks[step[BLOCK]], w, tid, scale)
                place = after(place)
                slot = wait_for_rows(bars, next_slot(slot))  # it has come; behind dK it would cost
                going = sSteps[slot, FIRST] == 0
                wait_dk(acc_dk, rdS)
                free_rows(bars, stage, tid)
            if some:
                wait_for_other(w, stage_of(slot_before(slot)))
                start_dq(rdQ, at, before(place))
                wait_last_dq(rdQ)
                step = sSteps[slot_before(slot)]
                add_queries(Sums, dQ, rdQ, step, sBlocks[step[BLOCK]], w, tid, scale)

            # Epilogue: dK and dV leave through the place of dS; the next K and V come meanwhile.
            meet_consumers()  # nobody reads K, V or dS any more
            if tid == 0:
                barrier_arrive(bars, keys_done)
            block = sBlocks[(sSteps[slot, BLOCK] + BLOCKS - 1) % BLOCKS]
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
