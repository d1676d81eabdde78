"""Elements of all memories, numbered through: what races are looked for by."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Memory
from .errors import Place
from .log import ATOMIC, CODE_BITS, LOAD, NOWHERE, STORE
from .runtime import Runtime

WRITE, READ, UPDATE = 0, 1, 2
OPERATIONS = {STORE: WRITE, LOAD: READ, ATOMIC: UPDATE}
VERBS = {WRITE: "writes", READ: "reads", UPDATE: "updates"}


def kind_of(site) -> int:
    """What an access is to others; one that orders them is like an atomic one."""
    if site is None:
        return -1
    return UPDATE if site.traffic in ("acquire", "release") else OPERATIONS[site.operation]


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


class Cells:
    """The elements of a launch's memories.

    Attributes
    ----------
    count : int
    is_global : bool array (memories)
    slots : int array (memories)
        Which of the blocks that run at once a shared memory belongs to; -1 for global memory.
    """

    def __init__(self, runtime: Runtime, memories: list[Memory]):
        self.runtime, self.memories = runtime, memories
        self._first = np.cumsum([0] + [len(m.data) // m.granule + 1 for m in memories])
        self._order = np.argsort([m.base for m in memories])
        self._bases = np.array([m.base for m in memories])
        self._granules = np.array([m.granule for m in memories])
        self.count = int(self._first[-1])
        self.is_global = np.array([m.space == "global" for m in memories])
        slots = [m.twins.index(m) if m.twins else -1 for m in memories]
        self.slots = np.array(slots or [-1], np.int64)

    def memory_of(self, cell) -> np.ndarray:
        """Numbers of the memories that elements belong to."""
        return np.searchsorted(self._first, cell, side="right") - 1

    def content(self, cell) -> np.ndarray:
        """What elements hold now, their bytes taken as unsigned integers."""
        found, memory = np.zeros(len(cell), np.uint64), self.memory_of(cell)
        for number in np.unique(memory).tolist():
            one, there = self.memories[number], memory == number
            whole = one.data[: len(one.data) // one.granule * one.granule]
            found[there] = whole.view(f"u{one.granule}")[cell[there] - self._first[number]]
        return found

    def accesses(self, words: np.ndarray, segments) -> Accesses:
        """What the log since the last barrier holds, one entry an element."""
        sites = self.runtime.log.sites
        stores = np.array([bool(site and site.operation == STORE) for site in sites])
        kinds = np.array([kind_of(site) for site in sites])
        counts = [one.stop - one.start for one in segments]
        codes = words & ((1 << CODE_BITS) - 1)
        value = np.cumsum(stores[codes]) - 1
        which = np.repeat(np.arange(len(segments)), counts)
        at = np.arange(len(words))
        real = (kinds[codes] >= 0) & (words >> CODE_BITS != NOWHERE)
        parts = (one[real] for one in (words >> CODE_BITS, codes, which, value, at))
        found = self._by_cell(*parts)
        return found._replace(kind=kinds[found.code])

    def _by_cell(self, address, code, segment, value, at) -> Accesses:
        """One entry an element: vector accesses are taken apart."""
        memory = self._order[np.searchsorted(self._bases[self._order], address, side="right") - 1]
        sizes = np.array([site.size if site else 0 for site in self.runtime.log.sites])
        granule = self._granules[memory]
        cell = self._first[memory] + (address - self._bases[memory]) // granule
        many = np.maximum(sizes[code] // granule, 1)
        offset = np.zeros(len(cell), np.int64)
        if not (many == 1).all():
            repeat = np.repeat(np.arange(len(cell)), many)
            offset = np.arange(len(repeat)) - np.repeat(np.cumsum(many) - many, many)
            cell = cell[repeat] + offset
            code, segment, value, at = (one[repeat] for one in (code, segment, value, at))
        return Accesses(cell, code, code, segment, value, offset, at)

    def place(self, code) -> Place:
        """Where in the source the access with a code of the log stands."""
        site: Any = self.runtime.log.sites[code]
        return site.place

    def element(self, cell: int) -> str:
        """An element in words."""
        number = int(self.memory_of(cell))
        memory, at = self.memories[number], cell - int(self._first[number])
        index = [at]
        if memory.shape and at < np.prod(memory.shape):
            index = [int(i) for i in np.unravel_index(at, memory.shape)]
        return f"{memory.space} {memory.name}{index}"
