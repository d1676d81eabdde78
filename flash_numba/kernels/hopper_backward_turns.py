"""The story of dQ: blocks add their parts in turn, so that the sum has the same bits each time.

Key tiles add to a query tile's part of dQ in descending or ascending order. A consumer's part has
turns of its own, as consumers add at different times, and a *keeper*, a warp of the producer's
warpgroup: it waits for the consumer's turn and passes it on, so that the consumer neither polls
global memory nor waits until what it added has arrived there. Blocks take key tiles in that order
too: they wait only for such as have been taken before. Under a causal mask a later key tile begins
at a later query tile, and so is ahead of those that wait for it; in ascending order all begin at
the last query tile, and each follows the one before it.
"""

from functools import cache

from ..device.hopper.mbarrier import barrier_wait
from ..device.hopper.warpgroups import named_arrive, named_sync
from ..device.numba_cuda import cuda, room, types
from ..device.online_softmax import ALL_LANES
from ..device.ptx import load_acquire, store_release
from ..device.unroll import unroll_none
from .hopper_backward_producer import (
    BATCH,
    BLOCK,
    END,
    HEAD,
    M_BLOCK,
    NOTHING,
    TURN,
    make_slot_of,
)
from .hopper_backward_prologue import make_free_rows
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

    A round trip to L2 and a fence take as long as a step. So if it ``asks_ahead``, the keeper asks
    for the next turn while the consumer still adds, and if that has come lets it begin before this
    one is passed on. Where turns come just when they are wanted the question would delay that.
    """
    ahead = tiles.asks_ahead
    q_here, free_rows = tiles.barriers["q"], make_free_rows(tiles)
    next_stage, slot_of = make_next_stage(tiles.stages), make_slot_of(tiles.stages)

    @room
    def has_come(Turns, at, turn, lane):
        """Whether it is this turn; lane 0 asks, all know."""
        found = types.int32(0)
        if lane == 0:
            found = types.int32(load_acquire(Turns, at) == turn)
        return cuda.shfl_sync(ALL_LANES, found, 0) != 0

    @room
    def pass_on(Turns, at, turn, lane):
        if lane == 0:
            store_release(Turns, at, turn + 1)
        cuda.syncwarp()

    @room
    def keep_turns(sSteps, sBlocks, bars, Turns, w, lane):
        stage = phase = batch = head = place = types.int32(0)
        turn, nobodys = types.int32(-1), types.int32(-1)
        barrier_wait(bars, q_here, 0)
        step = sSteps[0]
        while step[M_BLOCK] != END:
            unroll_none()
            following = sBlocks[step[BLOCK], BATCH], step[HEAD], types.int32(2 * step[M_BLOCK] + w)
            following_turn, some = step[TURN], step[M_BLOCK] != NOTHING
            free_rows(bars, stage, lane)
            if some:
                come = False
                if ahead:
                    come = has_come(Turns, following, following_turn, lane)
                    if turn != nobodys:
                        named_sync(types.int32(ADDED + w), BOTH)
                    if come:
                        named_arrive(types.int32(MAY_ADD + w), BOTH)
                    if turn != nobodys:
                        pass_on(Turns, (batch, head, place), turn, lane)
                    batch, head, place = following
                    turn = following_turn
                if not come:
                    while not has_come(Turns, following, following_turn, lane):
                        pass
                    named_arrive(types.int32(MAY_ADD + w), BOTH)
                if not ahead:
                    named_sync(types.int32(ADDED + w), BOTH)
                    pass_on(Turns, following, following_turn, lane)
            stage, phase = next_stage(stage, phase)
            barrier_wait(bars, q_here + stage, phase)
            step = sSteps[slot_of(stage, phase)]
        if turn != nobodys:
            named_sync(types.int32(ADDED + w), BOTH)
            pass_on(Turns, (batch, head, place), turn, lane)

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
