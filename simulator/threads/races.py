"""Finds accesses of one element by several threads that nothing orders.

Two accesses race if different threads make them, at least one writes, not both are atomic, and
nothing orders them: no barrier of the block lies between, nor what `order` follows. Blocks are
never ordered. Threads that write equal values to one element are let be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Memory
from .errors import Finding, KernelError, Place
from .log import ATOMIC, CODE_BITS, LOAD, NOWHERE, STORE
from .order import Groups
from .proxies import ProxyFinder
from .runtime import Runtime

WRITE, READ, UPDATE = 0, 1, 2
_OPERATIONS = {STORE: WRITE, LOAD: READ, ATOMIC: UPDATE}
_VERBS = {WRITE: "writes", READ: "reads", UPDATE: "updates"}


def _kind(site) -> int:
    """What an access is to others; one that orders them is like an atomic one."""
    if site is None:
        return -1
    return UPDATE if site.traffic in ("acquire", "release") else _OPERATIONS[site.operation]


class Accesses(NamedTuple):
    """Accesses of single elements, one entry each.

    Attributes
    ----------
    cell : int array
        Number of the element.
    kind, code : int array
        WRITE, READ or UPDATE; the log's code.
    segment : int array
        Number of the segment in which it was logged.
    value, offset : int array
        Where a value written is in the list of stored ones, and which of a vector.
    at : int array
        Place in the log.
    """

    cell: np.ndarray
    kind: np.ndarray
    code: np.ndarray
    segment: np.ndarray
    value: np.ndarray
    offset: np.ndarray
    at: np.ndarray


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
    """Shadow memory of a launch."""

    def __init__(self, runtime: Runtime, memories: list[Memory], threads: int):
        self.runtime, self.memories, self._threads = runtime, memories, threads
        self.fenced = False
        self._first_cell = np.cumsum([0] + [len(m.data) // m.granule + 1 for m in memories])
        self._order = np.argsort([m.base for m in memories])
        self._bases = np.array([m.base for m in memories])
        self._granules = np.array([m.granule for m in memories])
        self.proxies: ProxyFinder | None = None
        self._slots = np.array(
            [m.twins.index(m) if m.twins else -1 for m in memories] or [-1], np.int64
        )
        self._is_global = np.array([m.space == "global" for m in memories])
        cells = int(self._first_cell[-1])
        self._stamps = np.full((2, cells), -1)
        self._unit = 0
        self._block_of = np.full((4, cells), -1, np.int32)
        self._code_of = np.zeros((4, cells), np.int32)
        self.block_number = 0

    def follow_proxies(self) -> None:
        """Look for missing proxy fences, too."""
        owner = np.searchsorted(self._first_cell, np.arange(self._first_cell[-1]), "right") - 1
        self.proxies = ProxyFinder(int(self._first_cell[-1]), ~self._is_global[owner])

    def check(self, words: np.ndarray, segments, ended: bool = False) -> None:
        """Look at the log since the last barrier.

        Parameters
        ----------
        words : int64 array
        segments : list of Segment
        ended : bool
            Whether the blocks have ended.

        Raises
        ------
        KernelError
            For the first race, unless findings are collected.
        """
        if not segments:
            return
        sites = self.runtime.log.sites
        stores = np.array([bool(site and site.operation == STORE) for site in sites])
        kinds = np.array([_kind(site) for site in sites])
        counts = [one.stop - one.start for one in segments]
        codes = words & ((1 << CODE_BITS) - 1)
        value = np.cumsum(stores[codes]) - 1
        which = np.repeat(np.arange(len(segments)), counts)
        at = np.arange(len(words))
        real = (kinds[codes] >= 0) & (words >> CODE_BITS != NOWHERE)
        parts = (one[real] for one in (words >> CODE_BITS, codes, which, value, at))
        found = self._by_cell(*parts)
        found = found._replace(kind=kinds[found.code])
        if self.runtime.order.partial or any(one.carried for one in segments):
            self._ordered(found, segments)
        else:
            self._unordered(found, segments)
        self._between_blocks(found.cell, found.code, found.kind)
        if self.proxies is not None:
            self._through_proxies(self.proxies, found, segments)
        if ended and self._slots.max() > 0:
            self._leaving(found, segments)

    def _through_proxies(self, proxies: ProxyFinder, found: Accesses, segments) -> None:
        """Report a read through the async proxy of what no fence made visible to it."""
        late = proxies.check(found, segments, self.runtime.log.sites, self.runtime.order.fenced())
        if late is None:
            return
        code, writer, read = late
        reader = segments[found.segment[read]].thread
        site: Any = self.runtime.log.sites[found.code[read]]
        who = {"bulk": "a bulk copy", "wgmma": "a wgmma product"}[site.traffic]
        text = (
            f"thread {writer.number} writes {self._element(int(found.cell[read]))} and {who} of "
            f"thread {reader.number} reads it on a way of its own, which may still see what was "
            "there before: call fence_async() (fence.proxy.async) after the write, then a barrier "
            f"(block {reader.block})"
        )
        places = (self._place(code), self._place(found.code[read]))
        self.runtime.report(KernelError(Finding("missing fence", text, places)))

    def _leaving(self, found: Accesses, segments) -> None:
        """Shared memory of another block must be left before that block ends."""
        memory = np.searchsorted(self._first_cell, found.cell, side="right") - 1
        slots = self._slots[memory]
        own: Any = np.array([one.thread.slot for one in segments])
        table = self.runtime.order.table()
        foreign = np.flatnonzero((slots >= 0) & (slots != own[found.segment]))
        pairs = np.stack([found.segment[foreign], slots[foreign]])
        for number, slot in np.unique(pairs, axis=1).T.tolist():
            one = segments[number]
            owners = [t for t in self.runtime.order.threads if t.slot == slot]
            if all(table[t.last_view, one.actor] >= one.moment for t in owners):
                continue
            at = foreign[(pairs == [[number], [slot]]).all(axis=0)][0]
            verb = _VERBS[int(found.kind[at])]
            text = (
                f"thread {one.thread.index} of block {one.thread.block} {verb} "
                f"{self._element(int(found.cell[at]))} of block {owners[0].block}, which may have "
                "ended: let the cluster meet before a block returns"
            )
            self.runtime.report(KernelError(Finding("race", text, (self._place(found.code[at]),))))
            return

    def _by_cell(self, address, code, segment, value, at) -> Accesses:
        """One entry an element: vector accesses are taken apart."""
        memory = self._order[np.searchsorted(self._bases[self._order], address, side="right") - 1]
        sizes = np.array([site.size if site else 0 for site in self.runtime.log.sites])
        granule = self._granules[memory]
        cell = self._first_cell[memory] + (address - self._bases[memory]) // granule
        many = np.maximum(sizes[code] // granule, 1)
        offset = np.zeros(len(cell), np.int64)
        if not (many == 1).all():
            repeat = np.repeat(np.arange(len(cell)), many)
            offset = np.arange(len(repeat)) - np.repeat(np.cumsum(many) - many, many)
            cell = cell[repeat] + offset
            code, segment, value, at = (one[repeat] for one in (code, segment, value, at))
        return Accesses(cell, code, code, segment, value, offset, at)

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
            texts.append(f"{copy}thread {segment.thread.number} {_VERBS[kind]}")
        copying = self._under_way(found, segments, a, found.at[b])
        why = "with no barrier in between"
        places = [self._place(found.code[one]) for one in (a, b)]
        if copying:
            why = "while that copy may be under way: commit it, wait for it, then a barrier"
            places.reverse()
            if (groups := self._uncommitted(segments[found.segment[a]])) is not None:
                why = "but that copy was never committed: no wait covers it"
                if groups.waits is not None:
                    places.append(self.runtime.positions[groups.waits][0])
        blocks = dict.fromkeys(segments[found.segment[one]].thread.block for one in (a, b))
        text = (
            f"{texts[0]} {self._element(int(found.cell[a]))} and {texts[1]} it, {why} "
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

    def _place(self, code) -> Place:
        site: Any = self.runtime.log.sites[code]
        return site.place

    def _element(self, cell: int) -> str:
        number = int(np.searchsorted(self._first_cell, cell, side="right")) - 1
        memory, at = self.memories[number], cell - int(self._first_cell[number])
        index = [at]
        if memory.shape and at < np.prod(memory.shape):
            index = [int(i) for i in np.unravel_index(at, memory.shape)]
        return f"{memory.space} {memory.name}{index}"

    def _between_blocks(self, cells, codes, kind):
        """Elements of global memory that several blocks use, at least one of them writing."""
        memory = np.searchsorted(self._first_cell, cells, side="right") - 1
        pick = self._is_global[memory]
        cells, codes, kind = cells[pick], codes[pick], kind[pick]
        block = self.block_number
        written, first_read, last_read, updated = range(4)
        against = {
            WRITE: (written, first_read, last_read, updated),
            READ: (written, updated),
            UPDATE: (written, first_read, last_read),
        }
        for one, others in against.items():
            mine = kind == one
            at = cells[mine]
            for other in others if not self.fenced else ():
                known = self._block_of[other, at]
                clash = np.flatnonzero((known >= 0) & (known != block))
                if len(clash):
                    self._report_blocks(at[clash[0]], codes[mine][clash[0]], one, other)
        self._remember(cells, codes, kind, block)

    def _remember(self, cells, codes, kind, block):
        for row, one in ((0, WRITE), (2, READ), (3, UPDATE)):
            at = cells[kind == one]
            if row == 2:
                fresh = self._block_of[1, at] < 0
                self._block_of[1, at[fresh]] = block
                self._code_of[1, at[fresh]] = codes[kind == one][fresh]
            self._block_of[row, at] = block
            self._code_of[row, at] = codes[kind == one]

    def _report_blocks(self, cell, code, mine, other):
        theirs = (WRITE, READ, READ, UPDATE)[other]
        places = (self._place(self._code_of[other, cell]), self._place(code))
        text = (
            f"block {self.runtime.block} {_VERBS[mine]} {self._element(int(cell))}, which another "
            f"block {_VERBS[theirs]}: blocks run in no order"
        )
        self.runtime.report(KernelError(Finding("race", text, places)))
