"""The producer's story: one thread that walks over the tiles and copies, ahead of the consumers.

With each Q tile it leaves a note of what that is (`hopper_notes`). Nobody else walks.
"""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_expect, barrier_wait
from ..device.hopper.tma import tensor_load
from ..device.numba_cuda import room, types
from ..device.unroll import unroll_none
from .hopper_notes import write_end, write_note
from .hopper_tiles import HopperTiles
from .hopper_walk import make_walk
from .spec import Spec


@cache
def make_next_stage(stages: int):
    """Room ``next_stage(stage, phase)``: where the next tile lies, and its barriers' parity."""

    @room
    def next_stage(stage, phase):
        if stage == stages - 1:
            return types.uint32(0), types.int32(phase ^ 1)
        return types.uint32(stage + 1), phase

    return next_stage


@cache
def make_load(tiles: HopperTiles, name: str):
    """Room ``load(shared, bars, source, stage, phase, first_row, head, batch)``: one tile of rows.

    Parameters
    ----------
    tiles : HopperTiles
    name : "q", "k" or "v"

    Notes
    -----
    `shared` has shape (stages, parts, panels, rows, panel): Q comes in parts, one a consumer.
    Waits until the consumers are done with what lies there.
    """
    tile = {"q": tiles.q_tile, "k": tiles.k_tile, "v": tiles.v_tile}[name]
    parts = tiles.warpgroups if name == "q" else 1
    here, done = tiles.barriers[name]
    size, panels, rows, panel = 2 * parts * tile.size, tile.panels, tile.rows, tiles.panel

    @room
    def load(shared, bars, source, stage, phase, first_row, head, batch):
        barrier_wait(bars, done + stage, phase ^ 1)
        barrier_expect(bars, here + stage, size)
        for part in range(parts):
            for p in range(panels):
                row = first_row + rows * part
                place = shared[stage, part, p]
                tensor_load(place, source, panel * p, row, head, batch, bars, here + stage)

    return load


@cache
def make_producer(spec: Spec, tiles: HopperTiles):
    """Room ``produce(...)`` of the one thread that starts all copies into shared memory.

    K runs one tile ahead of V, as the consumers need it: they multiply Q by the next K tile while
    they multiply P by this V tile. The next query tile's Q comes as soon as there is room.
    """
    tile_m, tile_n = tiles.tile_m, tiles.tile_n
    q_here, q_done = tiles.barriers["q"]
    turns_of, _, step_of, _, next_step, _ = make_walk(spec, tile_m, tile_n)
    next_q, next_kv = make_next_stage(tiles.q_stages), make_next_stage(tiles.stages)
    load_q, load_k, load_v = (make_load(tiles, name) for name in "qkv")

    @room
    def kv_head(head, group):
        return types.int32(types.uint32(head) // group)

    @room
    def produce(
        sQ, sK, sV, sNotes, bars, q_map, k_map, v_map, LSE, sizes, range_aux, lengths, listed
    ):
        keys, group = types.int32(sizes[0]), types.uint32(sizes[1])
        turns = turns_of(LSE)
        q_stage = k_stage = v_stage = types.uint32(0)
        q_phase = k_phase = v_phase = types.int32(0)
        start = number = types.int32(0)
        step = step_of(start, turns, start, LSE, keys, range_aux, lengths, listed)
        if step.turn < turns:
            first, head = step.n_block * tile_n, kv_head(step.head, group)
            load_k(sK, bars, k_map, k_stage, k_phase, first, head, step.batch)
            k_stage, k_phase = next_kv(k_stage, k_phase)
            write_note(sNotes, number, step)
            first = step.m_block * tile_m
            load_q(sQ, bars, q_map, q_stage, q_phase, first, step.head, step.batch)
            q_stage, q_phase = next_q(q_stage, q_phase)
            number = types.int32(1)
        while step.turn < turns:
            unroll_none()
            after = next_step(step, turns, LSE, keys, range_aux, lengths, listed)
            if after.turn < turns:
                first = after.n_block * tile_n
                head = kv_head(after.head, group)
                load_k(sK, bars, k_map, k_stage, k_phase, first, head, after.batch)
                k_stage, k_phase = next_kv(k_stage, k_phase)
            first, head = step.n_block * tile_n, kv_head(step.head, group)
            load_v(sV, bars, v_map, v_stage, v_phase, first, head, step.batch)
            v_stage, v_phase = next_kv(v_stage, v_phase)
            if after.turn < turns and after.turn != step.turn:
                barrier_wait(bars, q_done + q_stage, q_phase ^ 1)
                write_note(sNotes, number, after)
                first = after.m_block * tile_m
                load_q(sQ, bars, q_map, q_stage, q_phase, first, after.head, after.batch)
                q_stage, q_phase = next_q(q_stage, q_phase)
                number = types.int32(number + 1)
            step = after
        barrier_wait(bars, q_done + q_stage, q_phase ^ 1)
        write_end(sNotes, number, step.empty)
        barrier_arrive(bars, q_here + q_stage)

    return produce
