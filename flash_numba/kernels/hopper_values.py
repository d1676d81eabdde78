"""What lies behind the end of a sequence in a V tile, and must not reach O."""

from functools import cache

from ..device.hopper.mbarrier import barrier_wait, fence_async
from ..device.hopper.warpgroups import named_sync
from ..device.numba_cuda import room, types
from .hopper_tiles import HopperTiles


@cache
def make_clear_values(tiles: HopperTiles, has_lengths: bool):
    """Rooms ``rows_of(step, n_block)`` and ``clear_values(sV, bars, bar, phase, rows, ...)``.

    The copy engine fills in zeros behind the end of a tensor. Where a sequence ends earlier
    (`has_lengths`), whatever the caller left there has come along, and 0 times NaN is NaN. All
    consumers together overwrite those rows - from `rows` on - with zeros, and meet at named barrier
    `barrier`, once the tile has come (barrier `bar` of `bars`).
    """
    tile_n, panels, panel = tiles.tile_n, tiles.v_tile.panels, tiles.panel
    threads = tiles.threads - 128

    @room
    def rows_of(step, n_block):
        if not has_lengths:
            return types.int32(tile_n)
        return types.int32(min(step.seqlen_k - n_block * tile_n, tile_n))

    @room
    def clear_values(sV, bars, bar, phase, rows, barrier, thread):
        if has_lengths and rows < tile_n:
            barrier_wait(bars, bar, phase)
            for at in range(rows * panel + thread, tile_n * panel, threads):
                for p in range(panels):
                    sV[p, at // panel, at % panel] = 0
            fence_async()
            named_sync(barrier, threads)

    return rows_of, clear_values
