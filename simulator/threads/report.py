"""What a trace gives."""

from __future__ import annotations

import math
from collections import Counter as Tally
from dataclasses import dataclass, field

import numpy as np

from .arrays import Memory
from .counts import Count
from .errors import Finding, Place
from .log import Site


@dataclass
class Entry:
    """Accesses of one source position to one array.

    Attributes
    ----------
    site : Site
    memory : Memory
    count : Count
    worst : int array (32)
        Addresses of the lanes in the dearest instruction, -1 for lanes that take no part.
    """

    site: Site
    memory: Memory
    count: Count
    worst: np.ndarray

    @property
    def size(self) -> int:
        """Bytes that a lane moves."""
        return self.site.size or self.memory.granule


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
        Barriers of the block, over all blocks that ran.
    flops : dict of Place to Counter
        Floating-point operations by line and kind, over all threads.
    findings : list of Finding
        Errors, if they were collected.
    local_arrays : dict of (Place, column) to (shape, dtype)
        Arrays of each thread: registers if every index is known after unrolling, else memory.
    run_time_indices : list of Place
        Lines that index a local array by what is not constant after unrolling.
    shared_bytes : int
        Shared memory of a block.
    sampled : tuple of Sampled
        With ``blocks="representative"``, which blocks were counted for how many; if that could not
        be told, one string that says why every block ran.
    """

    kernel: str
    grid: tuple
    block: tuple
    blocks: int
    entries: list[Entry] = field(default_factory=list)
    barriers: int = 0
    flops: dict[Place, Tally] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    local_arrays: dict = field(default_factory=dict)
    run_time_indices: list[Place] = field(default_factory=list)
    shared_bytes: int = 0
    sampled: tuple = ()

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

    def lines(self) -> dict[Place, Count]:
        """Counts by source line, dearest first."""
        found: dict[Place, Count] = {}
        for entry in self.entries:
            found.setdefault(entry.site.place, Count()).add(entry.count)
        return dict(sorted(found.items(), key=lambda one: -one[1].sectors - one[1].passes))

    @property
    def total_flops(self) -> Tally:
        """Floating-point operations by kind."""
        return sum(self.flops.values(), Tally())

    @property
    def local_bytes(self) -> int:
        """Bytes of the local arrays of one thread."""
        sizes = [math.prod(shape) * _bytes(dtype) for shape, dtype in self.local_arrays.values()]
        return sum(sizes)

    def hardware(self) -> dict[str, int]:
        """What Nsight Compute would count, by its names of metrics.

        Notes
        -----
        A warp instruction of ``cp.async`` counts a sector more than it moves (measured on an H200).
        Loads that the compiler merges or drops still count here: instructions and passes of shared
        loads are those of the source.
        """
        load, store = self.count("global", "load"), self.count("global", "store")
        copies = self.count("global", "load", traffic="cp.async")
        shared_load = self.count("shared", "load")
        shared_store = self.count("shared", "store")
        bypass = self.count("shared", "store", traffic="cp.async")
        return {
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": load.sectors + copies.instructions,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": store.sectors,
            "smsp__inst_executed_op_shared_ld.sum": shared_load.instructions,
            "smsp__inst_executed_op_shared_st.sum": shared_store.instructions - bypass.instructions,
            "smsp__inst_executed_op_ldgsts.sum": copies.instructions,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": shared_load.passes,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": shared_store.passes,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": shared_load.conflicts,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": shared_store.conflicts,
        }

    def as_dict(self) -> dict:
        """All of it as plain values, ready for JSON."""
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "blocks": self.blocks,
            "sampled": [
                one if isinstance(one, str) else {**one._asdict(), "block": list(one.block)}
                for one in self.sampled
            ],
            "barriers": self.barriers,
            "shared_bytes": self.shared_bytes,
            "local_bytes": self.local_bytes,
            "run_time_indices": [_place(place) for place in self.run_time_indices],
            "flops": dict(self.total_flops),
            "hardware": self.hardware(),
            "entries": [_entry(entry) for entry in self.entries],
            "findings": [
                {
                    "kind": one.kind,
                    "message": one.message,
                    "places": [_place(place) for place in one.places],
                }
                for one in self.findings
            ],
        }

    def __rich__(self):
        from .views import summary

        return summary(self)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def _place(place: Place) -> dict:
    return {"file": place.file, "line": place.line, "function": place.function, "text": place.text}


def _entry(entry: Entry) -> dict:
    return {
        **_place(entry.site.place),
        "operation": entry.site.operation,
        "traffic": entry.site.traffic,
        "space": entry.memory.space,
        "array": entry.memory.name,
        "bytes_a_lane": entry.size,
        **entry.count.as_dict(),
    }


def _bytes(dtype: str) -> int:
    return {"bfloat16": 2, "bool": 1}.get(dtype) or np.dtype(dtype).itemsize
