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
    """What `hopper_output.make_store_output` needs to know of a tile that leaves whole."""

    o_tile: SwizzledTile

    @property
    def panel(self) -> int:
        return self.o_tile.panel

    @property
    def o_panels(self) -> int:
        return self.o_tile.panels


def make_store_keys(spec: Spec, tile: SwizzledTile):
    """`hopper_output.make_store_output` for a consumer's part of dK or dV."""
    return make_store_output(spec.dtype, _Output(tile))


@cache
def make_clear_keys(spec: Spec, tiles: HopperBackwardTiles):
    """Room ``clear_keys(sK, sV, rows, w, tid)``: zeros behind the end of a sequence.

    Whatever the caller left behind its end has come along, and 0 times NaN is NaN: consumer `w`
    overwrites its rows of both from `rows` on and waits for the other one, which reads them too.
    """
    has_lengths = spec.has_lengths
    k_panels, size, panel = tiles.k_tile.shape
    v_panels = tiles.v_tile.panels

    @room
    def clear_keys(sK, sV, rows, w, tid):
        if has_lengths:
            for at in range(max(rows, 0) * panel + tid, size * panel, 128):
                for p in range(k_panels):
                    sK[w, p, at // panel, at % panel] = 0
                for p in range(v_panels):
                    sV[w, p, at // panel, at % panel] = 0
            fence_async()
            meet_consumers()

    return clear_keys
