"""The two roles in a block of the Hopper forward kernel: the producer's story and the consumer's.

Barriers, in this order: Q is here, K is here (one a stage), V is here (one a stage); then, one for
each of these, that the consumers are done with it. A role knows the phase it waits for because
both walk over the same tiles in the same order.
"""

from functools import cache

from ..device.dropout import make_drop_weights
from ..device.fragments import make_fragment_softmax, make_pack_weights
from ..device.hopper.mbarrier import barrier_arrive, barrier_expect, barrier_wait
from ..device.hopper.tma import bulk_wait_read, tensor_load
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from ..device.numba_cuda import cuda, room, types
from ..device.persistent import item_of, query_tile_of
from ..device.schedule import make_key_tiles_room, make_keys_of, make_tile_list
from ..device.unroll import unroll_none
from .hopper_output import make_store_output
from .hopper_scores import make_finish_scores
from .hopper_tiles import HopperTiles
from .spec import Spec

TURN, WARPGROUP = 1, 4
"""Numbers of named barriers: a consumer's turn, and its own threads; plus the consumer's number."""


@cache
def make_walk(spec: Spec, tile_m: int, tile_n: int):
    """Room ``visit_of(item, LSE, sizes, range_aux, lengths)``: what a piece of work is.

    ``(batch, head, m_block, seqlen_k, visit)`` with `visit` a `tiling.KeyTiles`.
    """
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    keys_of = make_keys_of(spec.has_lengths)

    @room
    def visit_of(item, LSE, sizes, range_aux, lengths):
        heads, seqlen_q = LSE.shape[1], LSE.shape[2]
        blocks = (seqlen_q + tile_m - 1) // tile_m
        batch_head, m_block = query_tile_of(item, LSE.shape[0] * heads, blocks, sizes[2])
        batch = types.int64(types.uint32(batch_head) // types.uint32(heads))
        head = batch_head - batch * heads
        seqlen_k = keys_of(batch, sizes[0], lengths)
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        return batch, head, m_block, seqlen_k, visit

    return visit_of


@room
def items_of(LSE, tile_m):
    """Pieces of work: the query tiles of all heads."""
    return LSE.shape[0] * LSE.shape[1] * ((LSE.shape[2] + tile_m - 1) // tile_m)


@cache
def make_next_stage(stages: int):
    """Room ``next_stage(stage, phase)``: where the next tile lies, and its barriers' parity."""

    @room
    def next_stage(stage, phase):
        if stage == stages - 1:
            return 0, phase ^ 1
        return stage + 1, phase

    return next_stage


@cache
def make_producer(spec: Spec, tiles: HopperTiles):
    """Room ``produce(...)`` of the one thread that starts all copies into shared memory."""
    tile_m, tile_n, warpgroups, stages = tiles.tile_m, tiles.tile_n, tiles.warpgroups, tiles.stages
    panel, q_panels, v_panels = tiles.panel, tiles.q_tile.panels, tiles.v_tile.panels
    q_bytes = 2 * tiles.q_tile.size * warpgroups
    k_bytes, v_bytes = 2 * tiles.k_tile.size, 2 * tiles.v_tile.size
    q_here, k_here, v_here = 0, 1, 1 + stages
    done = 1 + 2 * stages
    visit_of = make_walk(spec, tile_m, tile_n)
    next_key_tile, _ = make_tile_list(spec.has_list)
    next_stage = make_next_stage(stages)

    @room
    def load_q(sQ, bars, q_map, first_row, head, batch):
        barrier_expect(bars, q_here, q_bytes)
        for w in range(warpgroups):
            for p in range(q_panels):
                row = first_row + 64 * w
                tensor_load(sQ[w, p], q_map, panel * p, row, head, batch, bars, q_here)

    @room
    def load_k(sK, bars, k_map, stage, phase, first_row, head, batch):
        barrier_wait(bars, done + k_here + stage, phase ^ 1)
        barrier_expect(bars, k_here + stage, k_bytes)
        for p in range(q_panels):
            tensor_load(
                sK[stage, p], k_map, panel * p, first_row, head, batch, bars, k_here + stage
            )

    @room
    def load_v(sV, bars, v_map, stage, phase, first_row, head, batch):
        barrier_wait(bars, done + v_here + stage, phase ^ 1)
        barrier_expect(bars, v_here + stage, v_bytes)
        for p in range(v_panels):
            tensor_load(
                sV[stage, p], v_map, panel * p, first_row, head, batch, bars, v_here + stage
            )

    @room
    def produce(sQ, sK, sV, bars, q_map, k_map, v_map, LSE, sizes, range_aux, lengths, listed):
        items, turn = items_of(LSE, tile_m), 0
        k_stage, k_phase, v_stage, v_phase = 0, 0, 0, 0
        item = item_of(turn)
        while item < items:
            batch, head, m_block, _, visit = visit_of(item, LSE, sizes, range_aux, lengths)
            kv_head = head // sizes[1]
            n_block = next_key_tile(visit.start, visit.stop, m_block, batch, head, listed)
            if n_block < visit.stop:
                load_k(sK, bars, k_map, k_stage, k_phase, n_block * tile_n, kv_head, batch)
                k_stage, k_phase = next_stage(k_stage, k_phase)
            barrier_wait(bars, done + q_here, (turn + 1) % 2)
            if n_block < visit.stop:
                load_q(sQ, bars, q_map, m_block * tile_m, head, batch)
            while n_block < visit.stop:
                unroll_none()
                following = next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
                if following < visit.stop:
                    load_k(sK, bars, k_map, k_stage, k_phase, following * tile_n, kv_head, batch)
                    k_stage, k_phase = next_stage(k_stage, k_phase)
                load_v(sV, bars, v_map, v_stage, v_phase, n_block * tile_n, kv_head, batch)
                v_stage, v_phase = next_stage(v_stage, v_phase)
                n_block = following
            turn += 1
            item = item_of(turn)

    return produce


@cache
def make_consumer(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """Room ``consume(...)`` of a warpgroup that owns 64 query rows of the block's tile."""
    tile_m, tile_n, warpgroups, stages = tiles.tile_m, tiles.tile_n, tiles.warpgroups, tiles.stages
    columns, out_columns, steps = tile_n // 4, tiles.depth_v // 4, tile_n // 16
    own_output, takers = tiles.own_output, 256
    q_here, k_here, v_here = 0, 1, 1 + stages
    done = 1 + 2 * stages
    visit_of = make_walk(spec, tile_m, tile_n)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    next_stage = make_next_stage(stages)
    multiply_scores = make_multiply_tiles(spec.dtype, tiles.q_tile, tiles.k_tile)
    add_values = make_add_product(spec.dtype, tile_n, tiles.v_tile)
    wait_scores_alone = make_wait(0, tile_n // 2)
    wait_scores = make_wait(1, tile_n // 2)
    wait_values = make_wait(0, tiles.depth_v // 2, tile_n // 4)
    finish_scores = make_finish_scores(spec, columns, scale_first)
    start, update, rescale, finish = make_fragment_softmax(columns, out_columns)
    drop_weights = make_drop_weights(spec.has_dropout, 2, columns, fragment=True)
    pack_weights = make_pack_weights(spec.dtype, steps)
    store_output = make_store_output(spec.dtype, tiles)

    @room
    def consume(
        sQ, sK, sV, sO, bars, o_map, LSE, sizes, scale, factor, w, tid,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        acc_o = cuda.local.array((2, out_columns), types.float32)
        rS = cuda.local.array((2, columns), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        row_max = cuda.local.array(2, types.float32)
        row_sum = cuda.local.array(2, types.float32)
        rScale = cuda.local.array(2, types.float32)
        rLse = cuda.local.array(2, types.float32)
        my_turn, next_turn = TURN + w, TURN + (w + 1) % warpgroups
        row, column = tid // 32 * 16 + tid % 32 // 4, tid % 4 * 2
        items, turn, q_phase = items_of(LSE, tile_m), 0, 0
        k_stage, k_phase, v_stage, v_phase = 0, 0, 0, 0
        if w == warpgroups - 1:
            named_arrive(TURN, takers)  # consumer 0 begins
        item = item_of(turn)
        while item < items:
            batch, head, m_block, seqlen_k, visit = visit_of(item, LSE, sizes, range_aux, lengths)
            first_row = m_block * tile_m + 64 * w
            first_q = first_row + row
            start(row_max, row_sum, acc_o)
            n_block = next_key_tile(visit.start, visit.stop, m_block, batch, head, listed)
            if n_block < visit.stop:
                barrier_wait(bars, q_here, q_phase)
                q_phase ^= 1
                barrier_wait(bars, k_here + k_stage, k_phase)
                named_sync(my_turn, takers)
                multiply_scores(rS, sQ[w], sK[k_stage])
                wait_scores_alone(rS)
                named_arrive(next_turn, takers)
                if tid == 0:
                    barrier_arrive(bars, done + k_here + k_stage)
                k_stage, k_phase = next_stage(k_stage, k_phase)
                partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
                partial |= listed_partial(n_block, m_block, batch, head, listed)
                finish_scores(
                    rS, partial | ((n_block + 1) * tile_n > seqlen_k), first_q,
                    n_block * tile_n + column, LSE.shape[2], seqlen_k, batch, head, scale,
                    mask_aux, range_aux, score_aux,
                )  # fmt: skip
                update(rS, row_max, row_sum, rScale, factor)
                first_k = n_block * tile_n + column
                drop_weights(rS, first_q, first_k, batch * LSE.shape[1] + head, dropout)
                pack_weights(rP, rS)
                n_block = next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
                while n_block < visit.stop:
                    barrier_wait(bars, k_here + k_stage, k_phase)
                    named_sync(my_turn, takers)
                    multiply_scores(rS, sQ[w], sK[k_stage])
                    barrier_wait(bars, v_here + v_stage, v_phase)
                    add_values(acc_o, rP, sV[v_stage])
                    named_arrive(next_turn, takers)
                    wait_scores(rS)
                    if tid == 0:
                        barrier_arrive(bars, done + k_here + k_stage)
                    k_stage, k_phase = next_stage(k_stage, k_phase)
                    partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
                    partial |= listed_partial(n_block, m_block, batch, head, listed)
                    finish_scores(
                        rS, partial | ((n_block + 1) * tile_n > seqlen_k), first_q,
                        n_block * tile_n + column, LSE.shape[2], seqlen_k, batch, head, scale,
                        mask_aux, range_aux, score_aux,
                    )  # fmt: skip
                    grown = update(rS, row_max, row_sum, rScale, factor)
                    first_k = n_block * tile_n + column
                    drop_weights(rS, first_q, first_k, batch * LSE.shape[1] + head, dropout)
                    wait_values(acc_o, rP)
                    if tid == 0:
                        barrier_arrive(bars, done + v_here + v_stage)
                    v_stage, v_phase = next_stage(v_stage, v_phase)
                    if grown:
                        rescale(acc_o, rScale)
                    pack_weights(rP, rS)
                    n_block = next_key_tile(n_block + 1, visit.stop, m_block, batch, head, listed)
                if own_output and tid == 0:
                    barrier_arrive(bars, done + q_here)
                barrier_wait(bars, v_here + v_stage, v_phase)
                add_values(acc_o, rP, sV[v_stage])
                wait_values(acc_o, rP)
                if tid == 0:
                    barrier_arrive(bars, done + v_here + v_stage)
                v_stage, v_phase = next_stage(v_stage, v_phase)
            elif own_output and tid == 0:
                barrier_arrive(bars, done + q_here)
            finish(row_max, row_sum, acc_o, rLse, factor)
            for i in range(2):
                if column == 0 and first_q + 8 * i < LSE.shape[2]:
                    LSE[batch, head, first_q + 8 * i] = rLse[i]
            store_output(sO[w], acc_o, o_map, first_row, head, batch, WARPGROUP + w, tid)
            if not own_output and tid == 0:
                bulk_wait_read()
                barrier_arrive(bars, done + q_here)
            turn += 1
            item = item_of(turn)
        if tid == 0:
            bulk_wait_read()

    return consume
