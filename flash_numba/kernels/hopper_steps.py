"""A consumer's step: two products are started, and a softmax is done while the second one runs.

The scores of a key tile, and O += P V of the one before.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragments import make_fragment_softmax
from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.operands import make_operand
from ..device.hopper.warpgroups import made_here, named_arrive, named_sync
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from ..device.late_softmax import make_late_softmax
from ..device.numba_cuda import room, types
from ..device.unroll import unroll_full
from .hopper_notes import read_place
from .hopper_output import ROWS, make_leave
from .hopper_scores import make_finish_scores
from .hopper_tiles import HopperTiles
from .hopper_values import make_clear_values
from .hopper_walk import make_walk
from .spec import Spec

TURN, WARPGROUP, CONSUMERS = 1, 4, 7
"""Named barriers: a consumer's turn, its own threads (both plus its number), all consumers."""
TAKERS = 256
"""Threads at the barrier of a turn: a consumer that waits for it, and one that gives it."""


@cache
def make_turns(tiles: HopperTiles):
    """Rooms ``take_turn(w)`` and ``give_turn(w)``: consumers start products one after the other."""
    in_turns, warpgroups = tiles.in_turns, tiles.warpgroups

    @room
    def take_turn(w):
        if in_turns:
            named_sync(TURN + w, TAKERS)

    @room
    def give_turn(w):
        if in_turns:
            named_arrive(TURN + (w + 1) % warpgroups, TAKERS)

    return take_turn, give_turn


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


def leaves_late(tiles: HopperTiles) -> bool:
    """Whether O leaves while the next step's products run.

    Else there are no registers for two query tiles at a time.
    """
    return tiles.depth_v <= 128


@cache
def make_output(dtype: str, tiles: HopperTiles):
    """Rooms ``leave`` of `make_leave` and ``clear(acc_o)``, for the next query tile."""
    _, clear, _, _, finish, _ = make_fragment_softmax(tiles.tile_n // 4, tiles.depth_v // 4)
    return make_leave(dtype, tiles, finish, WARPGROUP), clear


@cache
def make_start(spec: Spec, tiles: HopperTiles):
    """Room ``start(...)``: start the scores of a key tile, and O += P V of the one before.

    `places` are stage and parity of the barriers of Q, K and V, `rows` the rows of V that count. If
    query tile `number` is `leaving`, its O, whose last product was the one before, leaves after the
    first product has started; `old` are its maxima and sums.
    """
    (_, _), (k_here, _), (v_here, _) = tiles.barriers.values()
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tiles.tile_n, tiles.v_tile)
    by_rows = make_operand(tiles.k_tile.by_rows())
    by_columns = make_operand(tiles.v_tile.by_columns())
    _, clear_values = make_clear_values(tiles, spec.has_lengths)
    leave, clear = make_output(spec.dtype, tiles)
    take_turn, give_turn = make_turns(tiles)
    late = leaves_late(tiles)

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

    return start


@cache
def make_conclude(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """Rooms ``conclude(...)`` and ``conclude_late(...)``: what follows `make_start`'s products.

    The first makes weights of the scores, and says whether O is to be multiplied by rScale. The
    second takes exponents by the maxima of the tiles before (`late_softmax`), multiplies O itself
    by what is due (`late`), packs the weights, and says whether something is due the next time.
    Both let K, V and, after the `last` key tile, Q go once they have been read.
    """
    tile_n, columns, out_columns = tiles.tile_n, tiles.tile_n // 4, tiles.depth_v // 4
    steps = tile_n // 16
    (_, q_done), (_, k_done), (_, v_done) = tiles.barriers.values()
    wait_scores = make_wait(1, tile_n // 2)
    wait_values = make_wait(0, tiles.depth_v // 2, tile_n // 4)
    _, _, update, rescale, _, _ = make_fragment_softmax(columns, out_columns)
    finish_scores, weigh = make_weigh(spec, tiles, scale_first, update)
    update_late = make_late_softmax(spec.dtype, columns, out_columns)

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

    return conclude, conclude_late
