"""The story of dQ: blocks add their parts in turn, so that the sum has the same bits each time.

Key tiles add to a query tile's part of dQ in descending order. One warp of the producer's
warpgroup, the *keeper*, waits for a block's turn and passes it on, so that consumers neither poll
global memory nor wait until what they added has arrived there. Blocks take key tiles in descending
order too: they wait only for such as have been taken before. Under a causal mask a later key tile
begins at a later query tile, and so is ahead of those that wait for it.
"""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_wait
from ..device.hopper.warpgroups import make_meeting
from ..device.numba_cuda import cuda, room, types
from ..device.ptx import load_acquire, store_release
from ..device.unroll import unroll_none
from .hopper_backward_producer import BATCH, BLOCK, END, HEAD, M_BLOCK, TURN, make_slot_of
from .hopper_backward_tiles import BackwardTiles
from .hopper_producer import make_next_stage

ADDED, MAY_ADD = 2, 3
"""Named barriers: both consumers have added to dQ; a consumer may (plus its number)."""
KEEPERS = 32
wait_until_added, say_added = make_meeting(ADDED, 256 + KEEPERS)
wait_for_first, let_first = make_meeting(MAY_ADD, 128 + KEEPERS)
wait_for_second, let_second = make_meeting(MAY_ADD + 1, 128 + KEEPERS)


@cache
def make_keep_turns(tiles: BackwardTiles):
    """Room ``keep_turns(sSteps, sBlocks, bars, Turns, lane)`` of the keeper's 32 threads.

    `Turns` (batch, num_heads, query tiles) int32, zero at the launch, says how many key tiles have
    added to each part of dQ.
    """
    q_here, q_done = tiles.barriers["q"], tiles.barriers["q done"]
    next_stage, slot_of = make_next_stage(tiles.stages), make_slot_of(tiles.stages)

    @room
    def keep_turns(sSteps, sBlocks, bars, Turns, lane):
        stage = phase = types.int32(0)
        barrier_wait(bars, q_here, 0)
        step = sSteps[0]
        while step[M_BLOCK] != END:
            unroll_none()
            batch, head, m_block = sBlocks[step[BLOCK], BATCH], step[HEAD], step[M_BLOCK]
            turn = step[TURN]
            cuda.syncwarp()
            if lane == 0:
                barrier_arrive(bars, q_done + stage)
            if m_block >= 0:
                if lane == 0:
                    while load_acquire(Turns, (batch, head, m_block)) != turn:
                        pass
                cuda.syncwarp()
                let_first()
                let_second()
                wait_until_added()
                if lane == 0:
                    store_release(Turns, (batch, head, m_block), turn + 1)
                cuda.syncwarp()
            stage, phase = next_stage(stage, phase)
            barrier_wait(bars, q_here + stage, phase)
            step = sSteps[slot_of(stage, phase)]

    return keep_turns


@cache
def make_take_turns(ordered: bool):
    """Rooms ``begin_turn(w)`` and ``end_turn()`` around consumer `w`'s additions."""

    @room
    def begin_turn(w):
        if ordered:
            if w == 0:
                wait_for_first()
            else:
                wait_for_second()

    @room
    def end_turn():
        if ordered:
            say_added()

    return begin_turn, end_turn
