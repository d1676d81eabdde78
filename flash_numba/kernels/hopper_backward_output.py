"""How dK and dV leave, and what must not come in: rows behind the end of a sequence."""

from functools import cache
from typing import NamedTuple

from ..device.hopper.layouts import SwizzledTile
from ..device.hopper.mbarrier import fence_async
from ..device.hopper.warpgroups import make_meeting
from ..device.numba_cuda import room
from .hopper_backward_tiles import HopperBackwardTiles
from .hopper_output import make_store_output
from .spec import Spec

meet_consumers, _ = make_meeting(1, 256)


class _Output(NamedTuple):
    """What `hopper_output.make_store_output` needs to know of a tile."""

    o_tile: SwizzledTile
    o_panels: int
    store_rows: int = 64

    @property
    def panel(self) -> int:
        return self.o_tile.panel


def make_store_keys(spec: Spec, tile: SwizzledTile, panels: int | None = None):
    """`hopper_output.make_store_output` for a consumer's part of dK or dV, `panels` at a time."""
    return make_store_output(spec.dtype, _Output(tile, panels or tile.panels))


@cache
def make_clear_rows(tile: SwizzledTile):
    """Room ``clear_rows(shared, rows, tid)``: zeros in a tile from `rows` on, by 128 threads.

    Whatever the caller left behind the end of a sequence has come along, and 0 times NaN is NaN.
    """
    panels, size, panel = tile.shape

    @room
    def clear_rows(shared, rows, tid):
        for at in range(max(rows, 0) * panel + tid, size * panel, 128):
            for p in range(panels):
                shared[p, at // panel, at % panel] = 0
        fence_async()

    return clear_rows


@cache
def make_clear_keys(spec: Spec, tiles: HopperBackwardTiles):
    """Room ``clear_keys(sK, sV, rows, w, tid)``: zeros behind the end of a sequence.

    Consumer `w` overwrites its rows of both from `rows` on and waits for the other one, which reads
    them too.
    """
    has_lengths = spec.has_lengths
    clear_k, clear_v = make_clear_rows(tiles.k_tile), make_clear_rows(tiles.v_tile)

    @room
    def clear_keys(sK, sV, rows, w, tid):
        if has_lengths:
            clear_k(sK[w], rows, tid)
            clear_v(sV[w], rows, tid)
            meet_consumers()

    return clear_keys
