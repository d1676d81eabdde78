"""How dK and dV leave, and what must not come in: rows behind the end of a sequence."""

from functools import cache
from typing import NamedTuple

from ..device.hopper.layouts import SwizzledTile
from ..device.hopper.mbarrier import barrier_wait, fence_async
from ..device.hopper.warpgroups import make_meeting
from ..device.numba_cuda import room
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


@cache
def make_store_keys(spec: Spec, tile: SwizzledTile):
    """Rooms ``clear_keys(shared, bars, bar, rows, w, tid)`` and ``store_output`` for K or V.

    Where a sequence may end before its tensor does, whatever the caller left behind its end has
    come along, and 0 times NaN is NaN: consumer `w` overwrites its rows from `rows` on with zeros
    and waits for the other one, which reads them too. `store_output` is that of `hopper_output`.
    """
    panels, panel, has_lengths, size = tile.panels, tile.panel, spec.has_lengths, tile.rows

    @room
    def clear_keys(shared, bars, bar, rows, w, tid):
        if has_lengths:
            barrier_wait(bars, bar, 0)
            for at in range(max(rows, 0) * panel + tid, size * panel, 128):
                for p in range(panels):
                    shared[w, p, at // panel, at % panel] = 0
            fence_async()
            meet_consumers()

    return clear_keys, make_store_output(spec.dtype, _Output(tile))
