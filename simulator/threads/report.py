"""What a trace gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .counts import Count
from .errors import Finding
from .log import Site
from .memory import Memory


@dataclass
class Entry:
    """Accesses of one source position to one array.

    Attributes
    ----------
    site : Site
    memory : Memory
    count : Count
    worst : int array (32) or None
        Addresses of the lanes in the dearest instruction, -1 for lanes that take no part.
    """

    site: Site
    memory: Memory
    count: Count
    worst: np.ndarray | None = None


@dataclass
class Report:
    """Counts and findings of one launch.

    Attributes
    ----------
    kernel : str
    grid, block : tuple of 3 ints
    blocks : int
        Blocks that ran.
    entries : list of Entry
    barriers : int
        Barriers of all blocks that ran.
    findings : list of Finding
        Errors, if they were collected.
    local_arrays : dict of Place to (shape, dtype)
    shared_bytes : int
        Shared memory of a block.
    """

    kernel: str
    grid: tuple
    block: tuple
    entries: list[Entry] = field(default_factory=list)
    barriers: int = 0
    findings: list[Finding] = field(default_factory=list)
    local_arrays: dict = field(default_factory=dict)
    shared_bytes: int = 0

    @classmethod
    def of(cls, launch, counter) -> Report:
        """The report of a launch that has run."""
        entries = []
        for (code, number), total in sorted(counter.totals.items()):
            site, memory = launch.runtime.log.sites[code], counter.memories[number]
            worst = counter.worst.get((code, number))
            numbers = [int(one) for one in total]
            entries.append(Entry(site, memory, Count(*numbers), worst[1] if worst else None))
        return cls(
            launch.function.__name__,
            tuple(launch.configured.grid),
            tuple(launch.configured.block),
            entries,
            counter.barriers,
            launch.runtime.findings,
            launch.functions.locals,
            launch.shared.static_bytes + launch.shared.dynamic_bytes,
        )

    def count(self, space=None, operation=None, array=None, line=None, traffic=None) -> Count:
        """Sum over the entries that match.

        Parameters
        ----------
        space : "global" or "shared", optional
        operation : "load", "store" or "atomic", optional
        array : str, optional
            Name of the array.
        line : int, optional
            Source line.
        traffic : str, optional
            "" for accesses through registers, "cp.async" for asynchronous copies.
        """
        total = Count()
        for entry in self.entries:
            site, memory = entry.site, entry.memory
            wanted = (
                (space, memory.space),
                (operation, site.operation),
                (array, memory.name),
                (line, site.place.line),
                (traffic, site.traffic),
            )
            if all(want is None or want == have for want, have in wanted):
                total.add(entry.count)
        return total

    @property
    def local_bytes(self) -> int:
        """Bytes of the local arrays of one thread."""
        sizes = [math.prod(shape) * _bytes(dtype) for shape, dtype in self.local_arrays.values()]
        return sum(sizes)


def _bytes(dtype: str) -> int:
    return {"bfloat16": 2, "bool": 1}.get(dtype) or np.dtype(dtype).itemsize
