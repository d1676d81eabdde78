"""The producer's story: one thread that walks over the query tiles and says what comes next.

Nobody else walks: with each Q tile the producer leaves a few numbers in shared memory - which tile
it is and what is special about it - that the barrier of the tile publishes.
"""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_expect, barrier_wait
from ..device.hopper.sums import bulk_load
from ..device.hopper.tma import tensor_load
from ..device.numba_cuda import room, types
from ..device.schedule import make_key_tiles_room, make_query_walk, make_tile_list
from ..device.unroll import unroll_full, unroll_none
from .hopper_backward_tiles import HopperBackwardTiles
from .hopper_producer import make_next_stage
from .spec import Spec

M_BLOCK, HEAD, PARTIAL, PLACE, TURN, LAST = range(6)
"""Numbers of a step: the query tile (-1 after the last), its head, must it be masked, and which it
is among the query tiles of all heads; how many key tiles add to its dQ before this one, and is this
the last one (both if they add in turn)."""
STEP_NUMBERS = 8
BATCH, KV_HEAD, N_BLOCK, SEQLEN_K = range(4)
"""Numbers of a block: its key tile, and how many keys its sequence has. (In registers they would
be in the consumers' way.)"""


@cache
def make_produce(spec: Spec, tiles: HopperBackwardTiles, ordered: bool):
    """Room ``produce(...)`` of the one thread that starts all copies into shared memory."""
    tile_m, tile_n, panel = tiles.tile_m, tiles.tile_n, tiles.panel
    bars_of = tiles.barriers
    k_here, v_here, q_here, do_here = (bars_of[name] for name in ("k", "v", "q", "do"))
    q_done, do_done = bars_of["q done"], bars_of["do done"]
    k_bytes, v_bytes = 4 * tiles.k_tile.size, 4 * tiles.v_tile.size
    row_numbers = 2 * tile_m
    q_bytes, do_bytes = 2 * tiles.q_tile.size + 4 * row_numbers, 2 * tiles.do_tile.size
    panels, v_panels = tiles.k_tile.panels, tiles.v_tile.panels
    span, next_query_tile, turn_of, is_partial = make_query_walk(
        spec.key_range, spec.exact, spec.has_list, tile_m, tile_n
    )
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    next_key_tile, _ = make_tile_list(spec.has_list)
    next_stage = make_next_stage(tiles.stages)

    @room
    def is_last(m_block, n_block, batch, head, seqlen_q, seqlen_k, range_aux, listed):
        visit = key_tiles(m_block, batch, head, seqlen_q, seqlen_k, tile_m, tile_n, range_aux)
        stop = types.int32(visit.stop)
        return next_key_tile(n_block + 1, stop, m_block, batch, head, listed) >= stop

    @room
    def load_keys(shared, bars, bar, source, size, count, block):
        barrier_expect(bars, bar, size)
        for part in range(2):
            for p in range(count):
                row = block[N_BLOCK] * tile_n + 64 * part
                place, column, head, batch = (
                    shared[part, p],
                    panel * p,
                    block[KV_HEAD],
                    block[BATCH],
                )
                tensor_load(place, source, column, row, head, batch, bars, bar)

    @room
    def describe(step, block, head, m_block, heads, seqlen_q, range_aux, listed):
        here = block[N_BLOCK], block[BATCH], head, seqlen_q, block[SEQLEN_K], range_aux, listed
        blocks = types.int32((seqlen_q + tile_m - 1) // tile_m)
        step[M_BLOCK], step[HEAD] = m_block, head
        step[PLACE] = types.int32(block[BATCH] * heads + head) * blocks + m_block
        step[PARTIAL] = is_partial(m_block, *here)
        if ordered:
            step[TURN] = turn_of(m_block, *here)
            step[LAST] = is_last(m_block, *here)

    @room
    def produce(
        sQ, sdO, sK, sV, sRows, sSteps, sBlock, bars, q_map, do_map, k_map, v_map, Rows,
        group, heads, seqlen_q, range_aux, listed,
    ):  # fmt: skip
        stage = phase = types.int32(0)
        first = True
        for number in range(group):
            head = types.int32(sBlock[KV_HEAD] * group + number)
            here = sBlock[N_BLOCK], sBlock[BATCH], head, seqlen_q, sBlock[SEQLEN_K], range_aux
            start, end = span(*here)
            stop = types.int32(end)
            m_block = types.int32(next_query_tile(start, stop, *here, listed))
            while m_block < stop:
                unroll_none()
                barrier_wait(bars, q_done + stage, phase ^ 1)
                describe(sSteps[stage], sBlock, head, m_block, heads, seqlen_q, range_aux, listed)
                if first:
                    load_keys(sK, bars, k_here, k_map, k_bytes, panels, sBlock)
                row, bar, batch = m_block * tile_m, q_here + stage, sBlock[BATCH]
                barrier_expect(bars, bar, q_bytes)
                for p in range(panels):
                    unroll_full()
                    tensor_load(sQ[stage, p], q_map, panel * p, row, head, batch, bars, bar)
                place = sSteps[stage, PLACE], types.int32(0)
                bulk_load(sRows[stage], Rows, place, row_numbers, bars, bar)
                if first:
                    load_keys(sV, bars, v_here, v_map, v_bytes, v_panels, sBlock)
                    first = False
                bar = do_here + stage
                barrier_wait(bars, do_done + stage, phase ^ 1)
                barrier_expect(bars, bar, do_bytes)
                for p in range(v_panels):
                    unroll_full()
                    tensor_load(sdO[stage, p], do_map, panel * p, row, head, batch, bars, bar)
                stage, phase = next_stage(stage, phase)
                here = sBlock[N_BLOCK], sBlock[BATCH], head, seqlen_q, sBlock[SEQLEN_K], range_aux
                m_block = types.int32(next_query_tile(m_block + 1, stop, *here, listed))
        barrier_wait(bars, q_done + stage, phase ^ 1)
        sSteps[stage, M_BLOCK] = -1
        barrier_arrive(bars, q_here + stage)

    return produce
