"""The story of dQ: blocks add their parts in turn, so that the sum has the same bits each time.

Key tiles add to a query tile's part of dQ in descending order. A consumer's part has turns of its
own, as consumers add at different times, and a *keeper*, a warp of the producer's warpgroup: it
waits for the consumer's turn and passes it on, so that the consumer neither polls global memory
nor waits until what it added has arrived there. Blocks take key tiles in descending
order too: they wait only for such as have been taken before. Under a causal mask a later key tile
begins at a later query tile, and so is ahead of those that wait for it.
"""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.numba_cuda import cuda, room, types
from ..device.ptx import load_acquire, store_release
from ..device.unroll import unroll_none
from .hopper_backward_producer import BATCH, BLOCK, END, HEAD, M_BLOCK, TURN, make_slot_of
from .hopper_backward_tiles import BackwardTiles
from .hopper_producer import make_next_stage

MAY_ADD, ADDED = 3, 11
"""Named barriers: a consumer may add to dQ, and it has (plus its number)."""
BOTH = 128 + 32
"""Threads of a consumer and of its keeper."""


@cache
def make_keep_turns(tiles: BackwardTiles):
    """Room ``keep_turns(sSteps, sBlocks, bars, Turns, w, lane)`` of consumer `w`'s keeper.

    `Turns` (batch, num_heads, 2 * query tiles) int32, zero at the launch, says how many key tiles
    have added to either consumer's part of a query tile's dQ.
    """
    q_here, q_done = tiles.barriers["q"], tiles.barriers["q done"]
    next_stage, slot_of = make_next_stage(tiles.stages), make_slot_of(tiles.stages)

    @room
    def keep_turns(sSteps, sBlocks, bars, Turns, w, lane):
        stage = phase = types.int32(0)
        barrier_wait(bars, q_here, 0)
        step = sSteps[0]
        while step[M_BLOCK] != END:
            unroll_none()
            batch, head, m_block = sBlocks[step[BLOCK], BATCH], step[HEAD], step[M_BLOCK]
            place, turn = types.int32(2 * m_block + w), step[TURN]
            cuda.syncwarp()
            if lane == 0:
                barrier_arrive(bars, q_done + stage)
            if m_block >= 0:
                if lane == 0:
                    while load_acquire(Turns, (batch, head, place)) != turn:
                        pass
                cuda.syncwarp()
                named_arrive(types.int32(MAY_ADD + w), BOTH)
                named_sync(types.int32(ADDED + w), BOTH)
                if lane == 0:
                    store_release(Turns, (batch, head, place), turn + 1)
                cuda.syncwarp()
            stage, phase = next_stage(stage, phase)
            barrier_wait(bars, q_here + stage, phase)
            step = sSteps[slot_of(stage, phase)]

    return keep_turns


@cache
def make_take_turns(ordered: bool):
    """Rooms ``begin_turn(w)`` and ``end_turn(w)`` around consumer `w`'s additions."""

    @room
    def begin_turn(w):
        if ordered:
            named_sync(types.int32(MAY_ADD + w), BOTH)

    @room
    def end_turn(w):
        if ordered:
            named_arrive(types.int32(ADDED + w), BOTH)

    return begin_turn, end_turn
