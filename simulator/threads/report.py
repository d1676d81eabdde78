"""What a trace gives."""

from __future__ import annotations

import math
from collections import Counter as Tally
from dataclasses import dataclass, field

import numpy as np

from .arrays import Memory
from .counts import BYPASS, Count
from .errors import Finding, Place
from .log import Site
from .passes import BANK_BYTES, BANKS, SECTOR_BYTES
from .tiles import steps

SHARED_INSTRUCTIONS = "smsp__inst_executed_op_shared_"
SHARED_PASSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
SHARED_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"
ARBITRATION = "l1tex__data_bank_conflicts_type_arbitration.sum"
"""Conflicts of accesses with one another, not of a warp with itself: no pattern of addresses."""
OWN_PASSES = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
"""Passes that an instruction's own addresses need, as Nsight Compute works them out."""
PRODUCT_PASSES = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum"
"""Passes in which wgmma reads its operands, 128 bytes each."""
MATRIX_METRICS = {
    "ldmatrix": ("smsp__inst_executed_op_ldsm.sum", "ld", "ldsm"),
    "stmatrix": ("smsp__inst_executed_op_shared_stsm.sum", "st", "stsm"),
}
"""Traffic of instructions that move matrices: their own counter, the one they are not in, and how
`OWN_PASSES` calls them."""
BULK_METRICS = {
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum": "shared",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum": "global",
}
"""Bytes of bulk copies, and the memory that they come to."""


PASS_BYTES = BANKS * BANK_BYTES


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
    warps : frozenset of int
        Warps that took part in any block, numbered over the blocks that run at once.
    """

    site: Site
    memory: Memory
    count: Count
    worst: np.ndarray
    warps: frozenset[int]

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
    barriers_of : Counter of Place
        Barriers of the block, of some of its threads by number, and of the grid (once for each
        block) by line, over all blocks that ran; not the phases of mbarriers and clusters.
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
    fingerprint : str
        Changes when the source of the kernel, or of a function or intrinsic in it, does.
    phases, arrays
        What `tile_steps` sorts (`tiles.Phase`), and the traced arrays by argument.
    static_shared_bytes : int
        Those of `shared_bytes` that the kernel declares itself.
    """

    kernel: str
    grid: tuple
    block: tuple
    blocks: int
    entries: list[Entry] = field(default_factory=list)
    barriers_of: Tally[Place] = field(default_factory=Tally)
    flops: dict[Place, Tally] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    local_arrays: dict = field(default_factory=dict)
    run_time_indices: list[Place] = field(default_factory=list)
    shared_bytes: int = 0
    sampled: tuple = ()
    fingerprint: str = ""
    phases: list | None = None
    arrays: dict = field(default_factory=dict)
    static_shared_bytes: int = 0

    def count(self, space=None, operation=None, array=None, line=None, traffic=None) -> Count:
        """Sum over the entries that match.

        Parameters
        ----------
        space : "global", "shared" or "constant", optional
        operation : "load", "store" or "atomic", optional
        array : str, optional
            Name of the array.
        line : int, optional
            Source line.
        traffic : str, optional
            "" for plain accesses, else what an instruction says, such as "cp.async", "bulk",
            "ldmatrix".
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

    def tile_steps(self, axes: dict[str, str], tile_m: int, tile_n: int) -> Tally:
        """Elements that each tile step moved of each tensor (`tiles.steps`).

        Raises
        ------
        ValueError
            If the trace did not keep them.
        """
        if self.phases is None:
            raise ValueError("tile_steps needs a trace with tiles=True")
        return steps(self.phases, self.arrays, axes, tile_m, tile_n)

    @property
    def barriers(self) -> int:
        """Barriers of the block, and of some of its threads, over all blocks that ran."""
        return self.barriers_of.total()

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
        Sectors of ``cp.async`` follow `passes.copy_sectors`, bytes of bulk copies are those of the
        sectors of `passes.bulk_sectors`. Bulk copies and wgmma do not go through the load/store
        unit and are in none of its counters. ``ldmatrix`` and ``stmatrix`` have
        counters of their own for instructions, but their passes are with those of loads and
        stores. Passes are those that addresses need. So are Nsight's of single instructions
        (`OWN_PASSES`); the others are the hardware's, and hold what meetings cost, too
        (`ARBITRATION`, `meetings`). Loads that the compiler merges or drops still count here:
        instructions and passes of shared loads are those of the source. No counter of atomic
        operations is predicted: what lanes at one address cost is the hardware's choice.
        """
        through = [e for e in self.entries if e.site.traffic not in BYPASS]
        copies = self.count("global", "load", traffic="cp.async")

        def total(space, operation, part):
            wanted = (space, operation)
            chosen = (e for e in through if (e.memory.space, e.site.operation) == wanted)
            return sum(getattr(entry.count, part) for entry in chosen)

        load = total("global", "load", "sectors") + copies.counted_sectors
        found = {
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": load,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": total("global", "store", "sectors"),
            "smsp__inst_executed_op_ldgsts.sum": self.count(
                "shared", "store", traffic="cp.async"
            ).instructions,
        }
        for name, operation in (("ld", "load"), ("st", "store")):
            for metric, part in (
                (SHARED_INSTRUCTIONS, "instructions"),
                (SHARED_PASSES, "passes"),
                (SHARED_CONFLICTS, "conflicts"),
            ):
                found[f"{metric}{name}.sum"] = total("shared", operation, part)
            found[f"{OWN_PASSES}{name}.sum"] = found[f"{SHARED_PASSES}{name}.sum"]
        for matrix, (metric, plain, own) in MATRIX_METRICS.items():
            count = self.count("shared", traffic=matrix)
            found[f"{SHARED_INSTRUCTIONS}{plain}.sum"] -= count.instructions
            found[f"{OWN_PASSES}{plain}.sum"] -= count.passes
            found[metric], found[f"{OWN_PASSES}{own}.sum"] = count.instructions, count.passes
        products = self.count("shared", "load", traffic="wgmma")
        found[PRODUCT_PASSES] = products.bytes // PASS_BYTES
        for metric, space in BULK_METRICS.items():
            count = self.count(space, "store", traffic="bulk").counted_sectors
            found[metric] = SECTOR_BYTES * count
        return found

    def meetings(self) -> dict[str, int]:
        """At most how much more some metrics of `hardware` may be, as timing has it.

        Notes
        -----
        The copy engine and the tensor cores use shared memory on their own, and an access that
        meets them is held up. What a bulk copy brings meets stores, what it takes away meets loads;
        either costs a pass that counts as a bank conflict. Operands of wgmma meet both, and no
        conflict is counted. An H200 shows so (benchmarks/results/shared_meetings.json), with less
        than a pass for 64 bytes that copies move, or 128 that products read.
        """
        found = {}
        for name, operation in (("ld", "load"), ("st", "store")):
            copies = self.count("shared", operation, traffic="bulk").bytes // 64
            products = self.count("shared", "load", traffic="wgmma").bytes // PASS_BYTES
            found[f"{SHARED_CONFLICTS}{name}.sum"] = copies
            found[f"{SHARED_PASSES}{name}.sum"] = copies + products
        return found

    def as_dict(self) -> dict:
        """All of it as plain values, ready for JSON."""
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "blocks": self.blocks,
            "fingerprint": self.fingerprint,
            "sampled": [
                one if isinstance(one, str) else {**one._asdict(), "block": list(one.block)}
                for one in self.sampled
            ],
            "barriers": self.barriers,
            "shared_bytes": self.shared_bytes,
            "static_shared_bytes": self.static_shared_bytes,
            "local_bytes": self.local_bytes,
            "run_time_indices": [_place(place) for place in self.run_time_indices],
            "flops": dict(self.total_flops),
            "hardware": self.hardware(),
            "entries": [_entry(entry) for entry in self.entries],
            "lines": self._by_line(),
            "findings": [
                {
                    "kind": one.kind,
                    "message": one.message,
                    "places": [_place(place) for place in one.places],
                }
                for one in self.findings
            ],
        }

    def _by_line(self) -> list[dict]:
        """Barriers and floating-point operations by source line."""
        places = sorted({*self.barriers_of, *self.flops}, key=lambda one: (one.file, one.line))
        return [
            {
                **_place(place),
                "barriers": self.barriers_of[place],
                "flops": dict(self.flops.get(place, {})),
            }
            for place in places
        ]

    def __rich__(self):
        from .totals import summary

        return summary(self)

    def __str__(self) -> str:
        from rich.console import Console

        # In a notebook, rich would show the text by itself, besides what is captured.
        console = Console(width=100, color_system=None, force_jupyter=False)
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
        "coalescing": entry.count.coalescing,
    }


def _bytes(dtype: str) -> int:
    return {"bfloat16": 2, "bool": 1}.get(dtype) or np.dtype(dtype).itemsize
