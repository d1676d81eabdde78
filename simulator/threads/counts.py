"""Adds up what warp instructions cost, by source position and array."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, fields

import numpy as np

from .arrays import Memory
from .engines import ENGINES, Call, accesses, counted
from .errors import Place
from .grouping import INACTIVE, LANES, Instructions
from .log import ATOMIC, NOWHERE, STORE, Log
from .passes import (
    BANK_BYTES,
    BANKS,
    SECTOR_BYTES,
    copy_sectors,
    distinct,
    goes_past_l1,
    passes,
    sectors,
    turns,
)


@dataclass
class Count:
    """What the warp instructions of one position on one array cost.

    Attributes
    ----------
    instructions : int
        Warp instructions (requests). A bulk copy is one, a wgmma one of each of its four warps.
    lanes : int
        Threads that take part, over all instructions. One of a bulk copy.
    bytes : int
        Bytes that those move.
    sectors, ideal_sectors : int
        32-byte sectors of global memory touched, and what the same bytes would need side by side.
    passes, conflicts : int
        Passes over shared memory ("wavefronts"), and those of them that bank conflicts cost. Of
        constant memory, the different addresses that an instruction asks for, one after another,
        and those of them beyond the first. Of atomic operations, the most lanes that ask for one
        address (in shared memory: one bank), which take turns, and those beyond the first.
    partial : int
        Instructions in which not all lanes of the warp take part.
    counted_sectors : int
        Sectors as a counter of the hardware has them (`passes.copy_sectors`, `passes.bulk_sectors`:
        bulk loads have theirs at the shared memory that they come to); else `sectors`.
    """

    instructions: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    passes: int = 0
    conflicts: int = 0
    partial: int = 0
    counted_sectors: int = 0

    def add(self, other: Count) -> None:
        """Add `other` to this."""
        for field in fields(self):
            mine, more = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, mine + more)

    @property
    def coalescing(self) -> float:
        """Share of the sectors that the same bytes need side by side; 1 where there are none."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


BYPASS = ("cp.async", *ENGINES)
"""Traffic that reaches shared memory on ways of its own: no counter of passes has it."""

COLUMNS = tuple(field.name for field in fields(Count))
COUNTED = COLUMNS.index("counted_sectors")


class Counter:
    """Counts of a launch.

    Attributes
    ----------
    totals : dict of (code, memory number) to int array
        One number a field of `Count`.
    worst : dict of (code, memory number) to (cost, addresses, warp)
        The dearest instruction of each.
    warps : dict of (code, memory number) to set of int
        Which warps had such instructions, numbered over the blocks that run at once.
    barriers : Counter of Place
        Barriers that blocks met in.
    """

    def __init__(self, log: Log, memories: list[Memory]):
        self.log, self.memories = log, memories
        firsts = [memory.twins[0] if memory.twins else memory for memory in memories]
        self._first = np.array([memories.index(memory) for memory in firsts], np.int64)
        """For each memory that blocks which run at once have one of, that of the first block."""
        self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self.totals: dict[tuple[int, int], np.ndarray] = {}
        self.worst: dict[tuple[int, int], tuple[int, np.ndarray, int]] = {}
        self.warps: dict[tuple[int, int], set[int]] = {}
        self.barriers: Tally[Place] = Tally()

    def same(self, other: Counter) -> bool:
        """Whether both counted the same."""
        return (
            self.barriers == other.barriers
            and self.totals.keys() == other.totals.keys()
            and all((self.totals[key] == other.totals[key]).all() for key in self.totals)
        )

    def add_times(self, other: Counter, times: int) -> None:
        """Add the counts of a block as often as there are blocks like it."""
        for place, count in other.barriers.items():
            self.barriers[place] += times * count
        for key, total in other.totals.items():
            self.totals[key] = self.totals.get(key, 0) + times * total
            self.warps.setdefault(key, set()).update(other.warps[key])
            known = self.worst.get(key)
            if known is None or other.worst[key][0] > known[0]:
                self.worst[key] = other.worst[key]

    def add(self, instructions: Instructions, lanes_of_warp: np.ndarray) -> None:
        """Count instructions; `lanes_of_warp` says how many threads each warp has.

        Those that start an engine are counted apart (`add_calls`).
        """
        copied = self._copied(instructions)
        codes, addresses, warps = instructions
        addresses = np.where(addresses == NOWHERE, INACTIVE, addresses)
        some = (addresses.max(axis=1) >= 0) & ~self._with_traffic(ENGINES)[codes]
        codes, addresses, warps = codes[some], addresses[some], warps[some]
        if not len(codes):
            return
        memory_of = self._memory_of(addresses.max(axis=1))
        sizes, shared, constant, store = self._properties(codes, memory_of)
        active = (addresses >= 0).sum(axis=1)
        table = np.zeros((len(COLUMNS), len(codes)), np.int64)
        table[0], table[1], table[2] = 1, active, active * sizes
        rows = np.flatnonzero(constant)
        table[5, rows] = distinct(addresses[rows])
        table[6, rows] = table[5, rows] - 1
        rows = np.flatnonzero(~(shared | constant))
        table[3, rows] = sectors(addresses[rows])
        table[4, rows] = -(-distinct(addresses[rows]) * sizes[rows] // SECTOR_BYTES)
        for size in np.unique(sizes[shared]):
            for stores in (False, True):
                rows = np.flatnonzero(shared & (store == stores) & (sizes == size))
                table[5, rows], table[6, rows] = passes(addresses[rows], int(size), stores)
        self._take_turns(table, codes, addresses, shared)
        table[5:7, shared & self._with_traffic(BYPASS)[codes]] = 0
        table[7] = active < lanes_of_warp[warps]
        table[8] = np.where(copied[some] >= 0, copied[some], table[3])
        first = self._first[memory_of]
        bases = np.array([memory.base for memory in self.memories])
        moved = (bases[memory_of] - bases[first])[:, None]
        addresses = np.where(addresses >= 0, addresses - moved, addresses)
        keys = codes * len(self.memories) + first
        self._sum(keys, table, addresses, warps)

    def add_calls(self, words: np.ndarray, calls: list[Call]) -> None:
        """Count bulk copies and wgmma, whose accesses stand in the log."""
        call_of, codes, addresses = accesses(words, calls)
        memory_of = self._memory_of(addresses)
        sizes, shared, _, _ = self._properties(codes, memory_of)
        keys = codes * len(self.memories) + self._first[memory_of]
        parts = counted(calls, call_of, keys, addresses, sizes, ~shared)
        table = np.zeros((len(COLUMNS), len(parts.keys)), np.int64)
        table[:5] = parts[1:6]
        table[7] = parts.instructions * (parts.lanes < LANES * parts.instructions)
        lanes = np.full((len(parts.keys), LANES), INACTIVE)
        lanes[:, 0] = parts.first
        self._sum(parts.keys, table, lanes, parts.warp)
        for key, first, warps in zip(parts.keys.tolist(), parts.warp, parts.warps, strict=True):
            self.warps[divmod(key, len(self.memories))].update(range(first, first + warps))

    def _sum(self, keys, table, addresses, warps) -> None:
        """Add a table of rows, each of an instruction; `keys` are numbers of (code, memory)."""
        unique, row_of = np.unique(keys, return_inverse=True)
        sums = np.zeros((len(unique), len(COLUMNS)), np.int64)
        for column in range(len(COLUMNS)):
            sums[:, column] = np.bincount(row_of, weights=table[column], minlength=len(unique))
        self._keep_worst(unique, row_of, table[3] + table[5], addresses, warps)
        for key, total in zip(unique.tolist(), sums, strict=True):
            pair = divmod(key, len(self.memories))
            self.totals[pair] = self.totals.get(pair, 0) + total
        for key, warp in np.unique(np.stack([keys, warps]), axis=1).T.tolist():
            self.warps.setdefault(divmod(key, len(self.memories)), set()).add(warp)

    def _take_turns(self, table, codes, addresses, shared) -> None:
        """Atomic operations of lanes at one address are done one after another."""
        atomic = np.array([bool(site and site.operation == ATOMIC) for site in self.log.sites])
        rows = np.flatnonzero(atomic[codes])
        if len(rows):
            banks = np.where(addresses < 0, -1, addresses // BANK_BYTES % BANKS)
            places = np.where(shared[rows, None], banks[rows], addresses[rows])
            table[5, rows] = turns(places)
            table[6, rows] = table[5, rows] - 1

    def add_moved(self, moved: dict) -> None:
        """Sectors of bulk copies, by (code, memory) of accesses that were added."""
        for (code, memory), count in moved.items():
            number = int(self._first[self.memories.index(memory)])
            self.totals[code, number][COUNTED] += count
        moved.clear()

    def _copied(self, instructions: Instructions) -> np.ndarray:
        """For asynchronous copies past L1, the sectors that are counted for loads; else -1.

        A copy is a load and a store at one position: the n-th of a warp belong together.
        """
        codes, addresses, warps = instructions
        sites, stores = self.log.sites, {}
        found = np.full(len(codes), -1)
        for code in np.unique(codes).tolist():
            site = sites[code]
            if site and site.traffic == "cp.async" and site.operation == STORE:
                stores[site.place, site.column] = code
        for code in np.unique(codes).tolist():
            site = sites[code]
            if not (site and goes_past_l1(site)):
                continue
            loads = np.flatnonzero(codes == code)
            targets = np.flatnonzero(codes == stores.get((site.place, site.column), -1))
            loads = loads[np.argsort(warps[loads], kind="stable")]
            targets = targets[np.argsort(warps[targets], kind="stable")]
            if len(loads) == len(targets):
                found[loads] = copy_sectors(addresses[loads], addresses[targets])
        return found

    def _memory_of(self, addresses):
        bases = np.array([memory.base for memory in self.memories])
        order = np.argsort(bases)
        return order[np.searchsorted(bases[order], addresses, side="right") - 1]

    def _properties(self, codes, memory_of):
        sites = self.log.sites
        size_of_code = np.array([site.size if site else 0 for site in sites])
        stores = np.array([bool(site and site.operation == STORE) for site in sites])
        granules = np.array([memory.granule for memory in self.memories])
        spaces = np.array([memory.space for memory in self.memories])[memory_of]
        sizes = np.where(size_of_code[codes] > 0, size_of_code[codes], granules[memory_of])
        return sizes, spaces == "shared", spaces == "constant", stores[codes]

    def _with_traffic(self, kinds: tuple[str, ...]) -> np.ndarray:
        """For each code, whether it is one of such traffic."""
        return np.array([bool(site and site.traffic in kinds) for site in self.log.sites])

    def _keep_worst(self, unique, row_of, cost, addresses, warps):
        order = np.lexsort((-np.arange(len(cost)), cost, row_of))
        last = np.flatnonzero(np.diff(row_of[order], append=-1))
        for key, row in zip(unique.tolist(), order[last].tolist(), strict=True):
            pair = divmod(key, len(self.memories))
            known = self.worst.get(pair)
            if known is None or cost[row] > known[0]:
                self.worst[pair] = (int(cost[row]), addresses[row].copy(), int(warps[row]))
