"""Finds writes of shared memory that the asynchronous proxy may not see.

The copy engine and wgmma read shared memory on a way of their own, the *async proxy*. What threads
wrote is on it only once a ``fence.proxy.async`` lies between: after the write, and before the read
in the order that barriers give (PTX ISA 9.0, section 8.5: proxy-preserved causality order). What
the copy engine itself wrote needs none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cells import Accesses, Cells
from .errors import Finding, KernelError
from .log import LOAD, STORE
from .thread import Thread

ASYNC_PROXY = ("bulk", "wgmma")
"""Traffic that goes through it."""


class ProxyFinder:
    """For each element of shared memory, by whom and when it was last written by a thread.

    Parameters
    ----------
    cells : Cells
    """

    def __init__(self, cells: Cells):
        count = cells.count
        self.is_shared = ~cells.is_global[cells.memory_of(np.arange(count))]
        self._actor = np.full(count, -1)
        self._moment, self._code = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._thread: list[Thread | None] = [None] * count

    def begin(self) -> None:
        """Other blocks begin."""
        self._actor[:] = -1

    def check(self, found, segments, sites, fenced: np.ndarray):
        """The first read that no fence precedes, as (write's code, its thread, read's index).

        Parameters
        ----------
        found : Accesses
            Since the last barrier.
        segments : list of Segment
        sites : list of Site
        fenced : int array (views, actors)
            `Order.fenced`.

        Returns
        -------
        tuple or None
        """
        bypass = np.array([bool(site and site.traffic in ASYNC_PROXY) for site in sites])
        stores = np.array([bool(site and site.operation == STORE) for site in sites])
        loads = np.array([bool(site and site.operation == LOAD) for site in sites])
        fresh = ~np.array([one.carried for one in segments])
        wanted = stores[found.code] | (bypass & loads)[found.code]
        chosen = np.flatnonzero(wanted & self.is_shared[found.cell] & fresh[found.segment])
        if not len(chosen):
            return None
        order = chosen[np.lexsort((found.at[chosen], found.cell[chosen]))]
        cell, code = found.cell[order], found.code[order]
        writes, at = stores[code], np.arange(len(order))
        first = np.concatenate([[True], cell[1:] != cell[:-1]])
        begins = np.maximum.accumulate(np.where(first, at, 0))
        before = np.maximum.accumulate(np.where(writes, at, -1))
        actor, moment, view = (
            np.array([getattr(one, name) for one in segments])[found.segment[order]]
            for name in ("actor", "moment", "view")
        )
        here = before >= begins
        last = np.maximum(before, 0)
        writer = np.where(here, np.where(bypass[code[last]], -1, actor[last]), self._actor[cell])
        when = np.where(here, moment[last], self._moment[cell])
        late = ~writes & (writer >= 0) & (fenced[view, writer] < when)
        result = None
        if late.any():
            one = int(np.flatnonzero(late)[np.argmin(found.at[order[late]])])
            if here[one]:
                thread = segments[found.segment[order[last[one]]]].thread
                result = int(code[last[one]]), thread, int(order[one])
            else:
                result = int(self._code[cell[one]]), self._thread[cell[one]], int(order[one])
        self._remember(found, segments, order[writes], bypass)
        return result

    def _remember(self, found, segments, writes, bypass) -> None:
        """Keep the last write of each element; `writes` are sorted by element and time."""
        cell = found.cell[writes]
        writes = writes[np.flatnonzero(np.diff(cell, append=-1))]
        cell, code = found.cell[writes], found.code[writes]
        actors = np.array([one.actor for one in segments])[found.segment[writes]]
        self._actor[cell] = np.where(bypass[code], -1, actors)
        self._moment[cell] = np.array([one.moment for one in segments])[found.segment[writes]]
        self._code[cell] = code
        for one, segment in zip(cell.tolist(), found.segment[writes].tolist(), strict=True):
            self._thread[one] = segments[segment].thread


def check_proxies(cells: Cells, proxies: ProxyFinder, found: Accesses, segments) -> None:
    """Report a read through the async proxy of what no fence made visible to it."""
    runtime = cells.runtime
    late = proxies.check(found, segments, runtime.log.sites, runtime.order.fenced())
    if late is None:
        return
    code, writer, read = late
    reader = segments[found.segment[read]].thread
    site: Any = runtime.log.sites[found.code[read]]
    who = {"bulk": "a bulk copy", "wgmma": "a wgmma product"}[site.traffic]
    text = (
        f"thread {writer.number} writes {cells.element(int(found.cell[read]))} and {who} of "
        f"thread {reader.number} reads it on a way of its own, which may still see what was "
        "there before: call fence_async() (fence.proxy.async) after the write, then a barrier "
        f"(block {reader.block})"
    )
    places = (cells.place(code), cells.place(found.code[read]))
    runtime.report(KernelError(Finding("missing fence", text, places)))
