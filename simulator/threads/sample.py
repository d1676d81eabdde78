"""Runs one block of each class of blocks that are alike, and counts it for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .alike import Alike, Sampled, Unprovable
from .counts import Counter
from .log import STORE


class Sample:
    """A launch, traced by representatives.

    Parameters
    ----------
    launch : Launch
    kernel : function
        The rewritten kernel.
    values : list
        Its arguments.
    """

    def __init__(self, launch, kernel, values):
        self.launch, self.kernel, self.values = launch, kernel, values
        self.times = launch.functions.flops.times

    def run(self, counter: Counter, alike: Alike) -> tuple[int, list]:
        """Trace into `counter`: the number of blocks that ran, and the classes.

        If blocks cannot be told to be alike, all of them run, and the classes are the reason.
        """
        before = [memory.data.copy() for memory in self.launch.globals.memories]
        try:
            self._prove(alike)
            return self._by_class(counter, alike)
        except Unprovable as error:
            reason = str(error)
        alike.active = False
        for memory, data in zip(self.launch.globals.memories, before, strict=True):
            memory.data[:] = data
        self.times[:] = [0] * len(self.times)
        counter.clear()
        for number in range(len(alike.left)):
            self._block(counter, number, alike.index(number))
        return len(alike.left), [f"every block ran: {reason}"]

    def _prove(self, alike: Alike) -> None:
        """Whether all that decides what a block does can be followed."""
        functions = self.launch.functions
        if functions.ordered:
            raise Unprovable("the kernel orders blocks by fences")
        if leaks := list(functions.book.leaks):
            more = f" (and {len(leaks) - 1} more)" if len(leaks) > 1 else ""
            raise Unprovable(f"{leaks[0]}{more}")
        alike.by_numbers = functions.book.branches
        stores = functions.book.stores
        alike.known_stores = {
            code
            for code, site in enumerate(self.launch.runtime.log.sites)
            if site and site.operation == STORE and stores.get((site.place, site.column), False)
        }

    def _block(self, counter, number, index) -> None:
        counter.barriers += self.launch.run_blocks(
            self.kernel, self.values, counter, number, [index]
        )

    def _by_class(self, counter: Counter, alike: Alike) -> tuple[int, list]:
        left, found, ran = np.ones(len(alike.left), bool), [], 0
        differ = False
        while left.any():
            first = int(np.argmax(left))
            mine, flops = self._traced(first, alike.begin(first, left))
            members = np.flatnonzero(alike.left)
            checked = None
            if len(members) > 1:
                last = int(members[-1])
                checked = alike.index(last)
                again, flops_again = self._traced(last, checked)
                differ |= flops != flops_again
                if not mine.same(again) or (differ and not alike.by_numbers):
                    raise Unprovable(
                        f"blocks {alike.index(first)} and {checked} were taken to be alike and "
                        "were not"
                    )
            ran += 1 + (checked is not None)
            left[members] = False
            counter.add_times(mine, len(members))
            for number, times in enumerate(flops):
                self.times[number] += times * len(members)
            found.append(Sampled(alike.index(first), checked, len(members)))
        if alike.by_numbers:
            found.append(
                "operations in branches that depend on data are not proven: counted as in the "
                "first block of each class" + differ * ", and the other one that ran did others"
            )
        return ran, found

    def _traced(self, number: int, index) -> tuple[Counter, list[int]]:
        """Counts and operations of one block alone."""
        known = list(self.times)
        mine: Any = Counter(self.launch.runtime.log, self.launch.memories)
        self._block(mine, number, index)
        flops = [now - then for now, then in zip(self.times, known, strict=True)]
        self.times[:] = known
        return mine, flops
