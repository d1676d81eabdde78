"""What a block of Hopper's backward kernels begins with: tiles in shared memory, and barriers."""

from functools import cache

from ..device.hopper.mbarrier import barrier_arrive, barrier_init, fence_barrier_init
from ..device.numba_cuda import cuda, room
from ..device.ptx import shared_tile
from .hopper_backward_tiles import BackwardTiles, WideBackwardTiles

CONSUMERS, KEEPERS = 2, 2
WARPS = 4 * CONSUMERS


@cache
def make_lay_out(tiles: BackwardTiles):
    """Room ``lay_out(memory, numbers)``: views of a block's shared memory as 16 and as 32 bits.

    Returns
    -------
    sK, sV : (tile_n // 64, panels, 64, panel) uint16
    sQ, sdO : (stages, panels, tile_m, panel) uint16
    sdS : (places, panels, rows, 64) uint16
    tS : (places, panels, rows // 16, 16, 64) uint16
        dS once more, by the 16 queries that a product takes at a time.
    sRows : (stages, 2 * tile_m) float32
        lse and delta of a tile's queries.
    sNumbers : (stages, 2, tile_m // 8, 4, 2) float32
        The same as a lane reads them.
    """
    v_at, q_at, do_at, ds_at, rows_at, _ = tiles.offsets
    stages, tile_m, parts, ds = tiles.stages, tiles.tile_m, tiles.tile_n // 64, tiles.ds_tile
    k_shape, v_shape = (parts, *tiles.k_tile.shape), (parts, *tiles.v_tile.shape)
    q_shape, do_shape = (stages, *tiles.q_tile.shape), (stages, *tiles.do_tile.shape)
    ds_shape = tiles.ds_places, *ds.shape
    t_shape = tiles.ds_places, ds.panels, ds.rows // 16, 16, 64
    rows_shape, numbers_shape = (stages, 2 * tile_m), (stages, 2, tile_m // 8, 4, 2)

    @room
    def lay_out(memory, numbers):
        sK, sV = shared_tile(memory, 0, k_shape), shared_tile(memory, v_at, v_shape)
        sQ, sdO = shared_tile(memory, q_at, q_shape), shared_tile(memory, do_at, do_shape)
        sdS, tS = shared_tile(memory, ds_at, ds_shape), shared_tile(memory, ds_at, t_shape)
        sRows = shared_tile(numbers, rows_at // 2, rows_shape)
        sNumbers = shared_tile(numbers, rows_at // 2, numbers_shape)
        return sK, sV, sQ, sdO, sdS, tS, sRows, sNumbers

    return lay_out


@cache
def make_start_barriers(tiles: BackwardTiles, ordered: bool):
    """Room ``start_barriers(bars, tid)``: initialised, and all threads know it.

    What is "here" the producer announces, and the copy engine. With Q go a step's numbers and those
    of its rows: all who read them say that they have, as `make_free_rows` has it; they are the
    consumers and, if parts of dQ are added in order, the keepers of turns.
    """
    stages, bars_of = tiles.stages, tiles.barriers
    q_done, do_done, keys_done = bars_of["q done"], bars_of["do done"], bars_of["keys done"]
    readers = (WARPS + KEEPERS if ordered else WARPS) * _speakers(tiles)

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


def _speakers(tiles: BackwardTiles) -> int:
    """Threads of a warp that say that they are done with Q."""
    return 32 if isinstance(tiles, WideBackwardTiles) else 1


@cache
def make_free_rows(tiles: BackwardTiles):
    """Room ``free_rows(bars, stage, tid)``: a warp is done with Q and with the step's numbers.

    In wide blocks each thread says so itself: compute-sanitizer's racecheck knows an order through
    an mbarrier from a thread's own arrival alone. In the others one speaks for its warp.
    """
    q_done, all_speak = tiles.barriers["q done"], _speakers(tiles) > 1

    @room
    def free_rows(bars, stage, tid):
        if all_speak:
            barrier_arrive(bars, q_done + stage)
        else:
            cuda.syncwarp()
            if tid & 31 == 0:
                barrier_arrive(bars, q_done + stage)

    return free_rows
