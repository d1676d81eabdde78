"""The producer's story: one thread that walks over the query tiles and says what comes next.

Nobody else walks: with each Q tile the producer leaves a few numbers in shared memory - which tile
it is and what is special about it - that the barrier of the tile publishes.
"""

from functools import cache

from ..device.functions import device_function
from ..device.hopper.mbarrier import barrier_arrive, barrier_expect, barrier_wait
from ..device.hopper.sums import bulk_load
from ..device.hopper.tma import tensor_load
from ..device.numba_cuda import cuda, room, types
from ..device.schedule import make_key_tiles_room, make_keys_of, make_tile_list, narrowed
from ..device.unroll import unroll_full, unroll_none
from ..tiling import make_query_span
from .hopper_backward_tiles import BackwardTiles
from .hopper_producer import make_next_stage
from .spec import Spec

M_BLOCK, HEAD, PARTIAL, PLACE, TURN, LAST, BLOCK, FIRST = range(8)
"""Numbers of a step: the query tile, its head, must it be masked, and which it is among the query
tiles of all heads; how many key tiles add to its dQ before this one, and is this the last one (both
if they add in turn); where its key tile's numbers are, and is this the key tile's first step."""
STEP_NUMBERS = 8
NOTHING, END = -2, -1
"""In place of a query tile: none visits this key tile; there are no more key tiles."""
BATCH, KV_HEAD, N_BLOCK, SEQLEN_K, IS_NEW, SLOT = range(6)
"""Numbers of a key tile: how many keys its sequence has, has none of its steps been said yet, and
where these numbers are. (In registers they would be in the way.)"""
BLOCK_NUMBERS = 8
KEY_TILES_OF_ALL, HEADS, KV_HEADS, GROUP, SEQLEN_Q, SEQLEN_OF_ALL = range(6)
KV_HEADS_OF_ALL, AT_ONCE, QUERY_TILES, KEY_TILES = range(6, 10)
"""Of the sizes that a launch hands over: key tiles of the whole batch, query heads, kv heads, query
heads a kv head, queries, keys; kv heads of the whole batch, and how many of them at a time; query
tiles and key tiles of a head."""
BLOCKS = 4
"""Key tiles whose numbers are kept: the producer may be three ahead of the one that leaves."""


@room
def take_ticket(Ticket):
    """How many key tiles have been taken before this one, asked by one thread."""
    return cuda.atomic.add(Ticket, 0, 1)


@room
def divided(a, b):
    """Quotient and remainder of 32-bit numbers without a sign, by one division."""
    quotient = types.uint32(a // b)
    return quotient, types.uint32(a - types.uint32(quotient * b))


@cache
def make_slot_of(stages: int):
    """Room ``slot_of(stage, phase)``: where a step's numbers are, of ``2 * stages`` places.

    Twice as many as stages: who writes a step's numbers need not wait until a stage is free, and
    who reads them need not hurry.
    """

    @room
    def slot_of(stage, phase):
        return types.uint32(stage + stages * phase)

    return slot_of


@cache
def make_produce(spec: Spec, tiles: BackwardTiles, ordered: bool):
    """Room ``produce(...)`` of the one thread that starts all copies into shared memory."""
    tile_m, tile_n, panel = tiles.tile_m, tiles.tile_n, tiles.panel
    bars_of = tiles.barriers
    k_here, v_here, q_here, do_here = (bars_of[name] for name in ("k", "v", "q", "do"))
    q_done, do_done, keys_done = bars_of["q done"], bars_of["do done"], bars_of["keys done"]
    parts = tiles.tile_n // 64
    k_bytes, v_bytes = 2 * parts * tiles.k_tile.size, 2 * parts * tiles.v_tile.size
    row_numbers = 2 * tile_m
    q_bytes, do_bytes = 2 * tiles.q_tile.size + 4 * row_numbers, 2 * tiles.do_tile.size
    panels, v_panels = tiles.k_tile.panels, tiles.v_tile.panels
    span = room(make_query_span(device_function(spec.key_range)))
    key_tiles = make_key_tiles_room(spec.key_range, spec.exact)
    next_key_tile, listed_partial = make_tile_list(spec.has_list)
    next_stage, slot_of = make_next_stage(tiles.stages), make_slot_of(tiles.stages)
    has_range, backwards = spec.key_range is not None, tiles.backwards and ordered
    has_list, keys_of = spec.has_list, make_keys_of(spec.has_lengths)

    @room
    def find_key_tile(block, work, sizes, lengths):
        at_once, key_tiles = types.uint32(sizes[AT_ONCE]), types.uint32(sizes[KEY_TILES])
        side_by_side, rest = divided(work, types.uint32(at_once * key_tiles))
        first_head = types.uint32(side_by_side * at_once)
        after = types.uint32(types.uint32(sizes[KV_HEADS_OF_ALL]) - first_head)
        n_block, which = divided(rest, after if after < at_once else at_once)
        batch, kv_head = divided(types.uint32(first_head + which), types.uint32(sizes[KV_HEADS]))
        block[BATCH], block[KV_HEAD] = batch, kv_head
        block[N_BLOCK] = (
            types.uint32(key_tiles - 1 - n_block) if ordered and not backwards else n_block
        )
        block[IS_NEW], block[SEQLEN_K] = (
            1,
            keys_of(types.int32(batch), sizes[SEQLEN_OF_ALL], lengths),
        )

    @room
    def query_span(block, head, sizes, range_aux):
        start, stop = 0, sizes[QUERY_TILES]
        if has_range:
            here = block[N_BLOCK], block[BATCH], head, types.int32(sizes[SEQLEN_Q])
            start, stop = span(*here, block[SEQLEN_K], tile_m, tile_n, range_aux)
        return types.int32(start), types.int32(stop - start)

    @room
    def load_keys(shared, bars, bar, source, size, count, block):
        barrier_expect(bars, bar, size)
        for part in range(parts):
            unroll_full()
            for p in range(count):
                unroll_full()
                row = types.int32(block[N_BLOCK] * tile_n + 64 * part)
                head, batch = block[KV_HEAD], block[BATCH]
                tensor_load(shared[part, p], source, panel * p, row, head, batch, bars, bar)

    @room
    def how_many(start, stop, where, listed):
        """Of a query tile's key tiles ``start, ..., stop - 1`` those that are listed."""
        if not has_list:
            return types.int32(stop - start)
        count, n_block = types.int32(0), next_key_tile(start, stop, *where, listed)
        while n_block < stop:
            count += types.int32(1)
            n_block = next_key_tile(types.int32(n_block + 1), stop, *where, listed)
        return count

    @room
    def describe(step, block, head, m_block, sizes, range_aux, listed):
        n_block, batch, keys = block[N_BLOCK], block[BATCH], block[SEQLEN_K]
        where = m_block, batch, head
        seqlen_q = types.int32(sizes[SEQLEN_Q])
        visit = narrowed(key_tiles(*where, seqlen_q, keys, tile_m, tile_n, range_aux))
        visits = (visit.start <= n_block) & (n_block < visit.stop)
        partial = (n_block < visit.full_start) | (n_block >= visit.full_stop)
        partial |= types.int32((n_block + 1) * tile_n) > keys
        if has_list:
            visits &= next_key_tile(n_block, n_block + 1, *where, listed) == n_block
            partial |= listed_partial(n_block, *where, listed)
        step[M_BLOCK], step[HEAD], step[PARTIAL] = m_block, head, partial
        of_all = types.int32(batch * types.int32(sizes[HEADS]) + head)
        step[PLACE] = of_all * types.int32(sizes[QUERY_TILES]) + m_block
        if ordered:
            earlier, later = (visit.start, n_block), (n_block + 1, visit.stop)
            before, after = (earlier, later) if backwards else (later, earlier)
            step[TURN] = how_many(*before, where, listed)
            step[LAST] = next_key_tile(*after, *where, listed) >= after[1]
        return visits

    @room
    def say(sSteps, bars, stage, phase, what, slot):
        """A step without a query tile."""
        step = sSteps[slot_of(stage, phase)]
        step[M_BLOCK], step[BLOCK], step[FIRST] = what, slot, 1
        barrier_wait(bars, q_done + stage, phase ^ 1)
        barrier_arrive(bars, q_here + stage)
        barrier_wait(bars, do_done + stage, phase ^ 1)
        barrier_arrive(bars, do_here + stage)

    @room
    def produce(
        sQ, sdO, sK, sV, sRows, sSteps, sBlocks, bars, q_map, do_map, k_map, v_map, Rows, Ticket,
        sizes, range_aux, lengths, listed,
    ):  # fmt: skip
        stage = phase = slot = types.int32(0)
        work = types.int32(take_ticket(Ticket))
        while work < types.int32(sizes[KEY_TILES_OF_ALL]):
            unroll_none()
            block = sBlocks[slot]
            find_key_tile(block, types.uint32(work), sizes, lengths)
            block[SLOT] = slot
            head = types.int32(block[KV_HEAD] * types.int32(sizes[GROUP]))
            while head < types.int32((block[KV_HEAD] + 1) * types.int32(sizes[GROUP])):
                unroll_none()
                first, count = query_span(block, head, sizes, range_aux)
                m_block = types.int32(first + count - 1) if backwards else first
                while count > 0:
                    unroll_none()
                    # While the consumers are still busy with what lies in the stage.
                    step = sSteps[slot_of(stage, phase)]
                    if describe(step, block, head, m_block, sizes, range_aux, listed):
                        step[BLOCK], step[FIRST] = block[SLOT], block[IS_NEW]
                        barrier_wait(bars, q_done + stage, phase ^ 1)
                        row, bar, batch = (
                            types.int32(m_block * tile_m),
                            q_here + stage,
                            block[BATCH],
                        )
                        barrier_expect(bars, bar, q_bytes)
                        place = step[PLACE], types.int32(0)
                        bulk_load(sRows[stage], Rows, place, row_numbers, bars, bar)
                        for p in range(panels):
                            unroll_full()
                            tensor_load(sQ[stage, p], q_map, panel * p, row, head, batch, bars, bar)
                        if block[IS_NEW] != 0:
                            barrier_wait(bars, keys_done, block[SLOT] & 1 ^ 1)
                            load_keys(sK, bars, k_here, k_map, k_bytes, panels, block)
                            load_keys(sV, bars, v_here, v_map, v_bytes, v_panels, block)
                            block[IS_NEW] = 0
                        bar = do_here + stage
                        barrier_wait(bars, do_done + stage, phase ^ 1)
                        barrier_expect(bars, bar, do_bytes)
                        for p in range(v_panels):
                            unroll_full()
                            to = sdO[stage, p]
                            tensor_load(to, do_map, panel * p, row, head, batch, bars, bar)
                        stage, phase = next_stage(stage, phase)
                    m_block = types.int32(m_block - 1 if backwards else m_block + 1)
                    count = types.int32(count - 1)
                head = types.int32(head + 1)
            if block[IS_NEW] != 0:
                say(sSteps, bars, stage, phase, NOTHING, block[SLOT])
                barrier_wait(bars, keys_done, block[SLOT] & 1 ^ 1)
                barrier_arrive(bars, k_here)
                barrier_arrive(bars, v_here)
                stage, phase = next_stage(stage, phase)
            slot = types.int32((block[SLOT] + 1) % BLOCKS)
            work = types.int32(take_ticket(Ticket))
        say(sSteps, bars, stage, phase, END, slot)

    return produce
