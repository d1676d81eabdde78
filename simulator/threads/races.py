"""Finds accesses of one element by several threads that nothing orders.

Two accesses race if different threads make them, at least one writes, not both are atomic, and
nothing orders them: no barrier of the block lies between, nor what `order` follows. Blocks that do
not run at once are never ordered. Threads that write equal values to one element are let be, of one
block and of several.

Flags and locks are not followed: what a thread wrote before ``cuda.threadfence_block`` and an
atomic operation, for which another thread of the block turns and waits, counts as a race, and so
does what a lock of ``cuda.atomic.cas`` guards. (`order` follows loads that acquire and stores that
release.) Between blocks nothing is looked for in a kernel that calls a fence.
"""

from __future__ import annotations

import numpy as np

from .arrays import Memory
from .block_races import BlockRaces, check_leaving
from .cells import READ, UPDATE, VERBS, WRITE, Accesses, Cells
from .errors import Finding, KernelError
from .order import Groups
from .proxies import ProxyFinder, check_proxies
from .runtime import Runtime


def _neighbours(kind, begins, first, other):
    """(access of kind `other`, the next one of each kind after it), and reads before the next.

    Entries are sorted by element and time. If these pairs are ordered, all are - as long as those
    of kind `other` follow one another.
    """
    at = np.arange(len(kind))
    last = np.maximum.accumulate(np.where(kind == other, at, -1))
    before = np.concatenate([[-1], last[:-1]])
    has = (before >= begins) & ((kind != UPDATE) | (other != UPDATE))
    after = len(kind) - 1 - np.maximum.accumulate(np.where(kind[::-1] == other, at, -1))[::-1]
    ends = np.concatenate([np.flatnonzero(first)[1:], [len(kind)]])
    end = ends[np.cumsum(first) - 1]
    read = (kind == READ) & (after < end)
    return [(before[has], at[has]), (at[read], after[read])]


def _mixed(cell, kind):
    """All pairs of elements that are both updated atomically and accessed otherwise."""
    mixed = np.intersect1d(cell[kind == UPDATE], cell[kind != UPDATE])
    pairs = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for one in mixed.tolist():
        there = np.arange(*np.searchsorted(cell, [one, one + 1]))
        a, b = np.triu_indices(len(there), 1)
        both = (kind[there[a]] == UPDATE) & (kind[there[b]] == UPDATE)
        useful = ~both & ((kind[there[a]] != READ) | (kind[there[b]] != READ))
        pairs.append((there[a[useful]], there[b[useful]]))
    return pairs


class RaceFinder:
    """Shadow memory of a launch.

    Attributes
    ----------
    fenced : bool
        Whether the kernel calls ``cuda.threadfence``.
    """

    def __init__(self, runtime: Runtime, memories: list[Memory], threads: int):
        self.runtime, self._threads, self.fenced = runtime, threads, False
        self.cells = Cells(runtime, memories)
        self.blocks = BlockRaces(self.cells)
        self.proxies: ProxyFinder | None = None
        self._stamps = np.full((2, self.cells.count), -1)
        self._unit = 0

    def follow_proxies(self) -> None:
        """Look for missing proxy fences, too."""
        self.proxies = ProxyFinder(self.cells)

    def begin(self) -> None:
        """Other blocks begin."""
        if self.proxies is not None:
            self.proxies.begin()

    def check(self, words: np.ndarray, segments, number: int, ended: bool) -> None:
        """Look at the log since the last barrier.

        Parameters
        ----------
        words : int64 array
        segments : list of Segment
        number : int
            Of the blocks that run at once.
        ended : bool
            Whether the blocks have ended.

        Raises
        ------
        KernelError
            For the first race, unless findings are collected.
        """
        if not segments:
            return
        found = self.cells.accesses(words, segments)
        if self.runtime.order.partial or any(one.carried for one in segments):
            self._ordered(found, segments)
        else:
            self._unordered(found, segments)
        self.blocks.check(found, number)
        if self.proxies is not None:
            check_proxies(self.cells, self.proxies, found, segments)
        if ended and self.cells.slots.max() > 0:
            check_leaving(self.cells, found, segments)

    def _unordered(self, found: Accesses, segments) -> None:
        """Every element must have one owner, for nothing orders threads."""
        thread = np.array([one.thread.tid for one in segments])[found.segment]
        bad = self._clashes(found.cell, found.kind, thread)
        for cell in np.unique(found.cell[bad]).tolist():
            there = np.flatnonzero(found.cell == cell)
            kinds, threads = found.kind[there], thread[there]
            for a in there[kinds != READ].tolist():
                others = there[(threads != thread[a])]
                if any(self._race(found, segments, a, b) for b in others.tolist()):
                    return

    def _ordered(self, found: Accesses, segments) -> None:
        """Every two accesses of an element must come one after the other."""
        order = np.lexsort((found.at, found.cell))
        cell, kind = found.cell[order], found.kind[order]
        first = np.ones(len(cell), bool)
        first[1:] = cell[1:] != cell[:-1]
        begins = np.maximum.accumulate(np.where(first, np.arange(len(cell)), 0))
        pairs = []
        for other in (WRITE, UPDATE):
            pairs += _neighbours(kind, begins, first, other)
        pairs += _mixed(cell, kind)
        a, b = (order[np.concatenate(one)] for one in zip(*pairs, strict=True))
        bad = self._free(found, segments, a, b)
        by_place = np.lexsort((a[bad], b[bad]))
        for one, two in zip(a[bad][by_place].tolist(), b[bad][by_place].tolist(), strict=True):
            if self._race(found, segments, one, two):
                return

    def _free(self, found, segments, a, b):
        """Whether nothing orders accesses `a` and the later `b`."""
        fields = ("actor", "moment", "view", "own")
        actor, moment, view, own = (
            np.array([getattr(one, field) for one in segments]) for field in fields
        )
        tid = np.array([one.thread.tid for one in segments])
        a, b = found.segment[a], found.segment[b]
        table = self.runtime.order.table()
        known = table[view[b], actor[a]] >= moment[a]
        same = (actor[a] == actor[b]) | ((tid[b] == actor[a]) & (moment[a] <= own[b]))
        return ~(known | same)

    def _clashes(self, cells, kind, who):
        """Accesses of an element that somebody else wrote or updated."""
        self._unit += 1
        stamp = self._unit * self._threads + who
        written, updated = self._stamps
        written[cells[kind == WRITE]] = stamp[kind == WRITE]
        updated[cells[kind == UPDATE]] = stamp[kind == UPDATE]
        start = self._unit * self._threads
        by_write = (written[cells] >= start) & (written[cells] != stamp)
        by_update = (updated[cells] >= start) & (updated[cells] != stamp) & (kind != UPDATE)
        return by_write | by_update

    def _race(self, found, segments, a: int, b: int) -> bool:
        """Report accesses `a` and `b` of an element; False for equal values written by both."""
        a, b = (a, b) if found.at[a] <= found.at[b] else (b, a)
        kinds = int(found.kind[a]), int(found.kind[b])
        if kinds == (UPDATE, UPDATE) or self._by_fence(found, segments, a, b):
            return False
        if kinds == (WRITE, WRITE):
            x, y = (self._value(found, one) for one in (a, b))
            if x == y or (x != x and y != y):
                return False
        texts = []
        for one, kind in zip((a, b), kinds, strict=True):
            segment = segments[found.segment[one]]
            copies = segment.actor != segment.thread.tid
            copy = "an asynchronous copy of " if copies else ""
            texts.append(f"{copy}thread {segment.thread.number} {VERBS[kind]}")
        copying = self._under_way(found, segments, a, found.at[b])
        why = "with no barrier in between"
        if self.fenced:
            why += "; that a flag orders them after a fence is not followed"
        places = [self.cells.place(found.code[one]) for one in (a, b)]
        if copying:
            why = "while that copy may be under way: commit it, wait for it, then a barrier"
            places.reverse()
            if (groups := self._uncommitted(segments[found.segment[a]])) is not None:
                why = "but that copy was never committed: no wait covers it"
                if groups.waits is not None:
                    places.append(self.runtime.positions[groups.waits][0])
        blocks = dict.fromkeys(segments[found.segment[one]].thread.block for one in (a, b))
        text = (
            f"{texts[0]} {self.cells.element(int(found.cell[a]))} and {texts[1]} it, {why} "
            f"(block {' and block '.join(map(str, blocks))})"
        )
        kind = "asynchronous copy" if copying else "race"
        self.runtime.report(KernelError(Finding(kind, text, tuple(places))))
        return True

    def _uncommitted(self, segment) -> Groups | None:
        """The groups of a copy that is part of none, if it should be."""
        groups = self.runtime.order.groups.get(segment.actor)
        return groups if groups is not None and segment.moment > groups.committed else None

    def _by_fence(self, found, segments, a: int, b: int) -> bool:
        """Whether blocks that run at once may be ordered by fences, which are not followed."""
        slots = {segments[found.segment[one]].thread.slot for one in (a, b)}
        return self.fenced and len(slots) > 1

    def _under_way(self, found, segments, one: int, when: int) -> bool:
        """Whether an access is part of a copy that nobody had waited for by then."""
        segment = segments[found.segment[one]]
        return segment.actor != segment.thread.tid and not any(
            actor == segment.actor and moment >= segment.moment and at <= when
            for actor, moment, at in self.runtime.order.finished
        )

    def _value(self, found, one: int):
        value = self.runtime.log.stored[found.value[one]]
        return value[found.offset[one]] if isinstance(value, tuple) else value
