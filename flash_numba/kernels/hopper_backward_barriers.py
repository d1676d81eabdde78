"""The barriers of a block of Hopper's backward kernels: who arrives, and how often."""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_init, fence_barrier_init
from ..device.numba_cuda import cuda, room
from .hopper_backward_tiles import BackwardTiles

CONSUMERS, KEEPERS = 2, 2
WARPS = 4 * CONSUMERS


@cache
def make_start_barriers(tiles: BackwardTiles, ordered: bool):
    """Room ``start_barriers(bars, tid)``: initialised, and all threads know it.

    What is "here" the producer announces, and the copy engine. A step's numbers and those of its
    rows each warp of the consumers reads for itself, and says itself that it has, and so do the
    keepers of turns if parts of dQ are added in order; for its products a consumer speaks as one.
    """
    stages, bars_of = tiles.stages, tiles.barriers
    q_done, do_done, keys_done = bars_of["q done"], bars_of["do done"], bars_of["keys done"]
    readers = WARPS + KEEPERS if ordered else WARPS

    @room
    def start_barriers(bars, tid):
        if tid == 0:
            for bar in range(q_done):
                barrier_init(bars, bar, 1)
            for stage in range(stages):
                barrier_init(bars, q_done + stage, readers)
                barrier_init(bars, do_done + stage, CONSUMERS)
            barrier_init(bars, keys_done, CONSUMERS)
            fence_barrier_init()
        cuda.syncthreads()

    return start_barriers


@cache
def make_free_rows(tiles: BackwardTiles):
    """Room ``free_rows(bars, stage, tid)``: a warp is done with Q and with the step's numbers."""
    q_done = tiles.barriers["q done"]

    @room
    def free_rows(bars, stage, tid):
        cuda.syncwarp()
        if tid & 31 == 0:
            barrier_arrive(bars, q_done + stage)

    return free_rows
