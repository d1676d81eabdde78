"""One number, four ways: the table of docs/counting.md, from code and committed counters.

For a pass of each rung: bytes of global memory by the tile simulator, by the closed form and by the
kernels' own source run thread by thread; then the sectors of that run beside those that Nsight
Compute counted on an H200 (results/h200_counters.json). Needs no GPU.

    python benchmarks/four_ways.py [--write]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import arbitration
from counter_cases import case_named, launches, traced

from flash_numba.problem import DTYPES, Problem
from simulator import theory
from simulator.run import simulate
from simulator.threads import Report

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "counting.md"
COUNTERS = ROOT / "benchmarks" / "results" / "h200_counters.json"
HEAD = [
    "| rung | pass | | bytes: tile simulator | closed form | thread run | "
    "sectors: thread run | Nsight Compute |",
    "|---|---|---|---|---|---|---|---|",
]
VECTORS = {"LSE": "lse", "Delta": "delta", "Rows": "delta"}
"""Arrays of kernels, and tensors of the simulator, that are left out of the bytes: the threads of a
row load the same element of them, which counts once for each."""
GLOBAL = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
LOADS = (f"{GLOBAL}ld.sum",)
STORES = (f"{GLOBAL}st.sum", f"{GLOBAL}red.sum", f"{GLOBAL}atom.sum")
BULK_LOADS = "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"
BULK_STORES = "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum"
SECTOR_BYTES = 32


class Row(NamedTuple):
    """A pass of a rung on one of `counter_cases.CASES`.

    Attributes
    ----------
    case : str
    program : str
        Of the simulator.
    tile_m, tile_n : int
        Tiles of the kernels on that problem.
    skip : int
        Launches at the start that are no part of the program: standard keeps no P for its backward
        pass and makes S and P anew.
    written_once : bool
        There is one key tile, and the kernel writes dQ as it comes; the program, which does not
        know that, fills dQ with zeros first, and reads it to add. Both are left out of its bytes,
        and the table says so.
    """

    case: str
    program: str
    tile_m: int
    tile_n: int
    skip: int = 0
    written_once: bool = False


ROWS = [
    Row("standard-forward-full", "tiled", 64, 64),
    Row("standard-backward-short", "tiled", 64, 64, 2),
    Row("flash1-forward-short", "flash1", 64, 64),
    Row("flash1-backward-short", "flash1", 64, 64),
    Row("flash2-forward-full", "flash2", 128, 64),
    Row("flash2-backward-short", "flash2", 64, 128),
    Row("tensor_core-forward-full", "flash2", 128, 128),
    Row("tensor_core-backward-even", "flash2", 128, 128, written_once=True),
    Row("tensor_core-backward-two-kernels", "flash2_two_kernel", 128, 128),
    Row("hopper-forward-short", "flash2", 64, 128),
    Row("hopper-backward-even", "flash2", 128, 128, written_once=True),
]
"""One a rung and pass whose kernels are its own."""


def by_simulator(row: Row) -> tuple[list[int], list[int]]:
    """(bytes read, bytes written) by the program, and by the closed form."""
    case = case_named(row.case)
    problem = Problem(**case.problem)
    options: dict[str, Any] = {"tile_m": row.tile_m, "tile_n": row.tile_n}
    options |= {"direction": case.direction}
    simulated = simulate(row.program, problem, head=None, **options).counts
    form = theory.counts(row.program, problem, **options, all_heads=True)

    def total(elements) -> int:
        item = DTYPES[problem.dtype].itemsize
        return sum(
            count * (4 if tensor in ("m", "l") else item)
            for tensor, count in elements.items()
            if tensor not in (*VECTORS, *VECTORS.values())
        )

    dq = total({"dQ": simulated.reads.get("dQ", 0)}) if row.written_once else 0
    return [total(one.reads) - dq for one in (simulated, form)], [
        total(one.writes) - dq for one in (simulated, form)
    ]


def by_threads(reports: list[Report], skip: int) -> tuple[int, int]:
    """Bytes that the kernels read and wrote."""
    found = {"load": 0, "store": 0}
    for report in reports[skip:]:
        for entry in report.entries:
            site, memory = entry.site, entry.memory
            if memory.space == "global" and memory.name not in VECTORS:
                for operation in found:
                    if site.operation in (operation, "atomic"):
                        found[operation] += entry.count.bytes
    return found["load"], found["store"]


def sectors(reports: list[Report]) -> tuple[int, int]:
    """Sectors loaded and stored in the thread run, bulk copies included."""
    reads = writes = 0
    for report in reports:
        hardware = report.hardware()
        reads += hardware[LOADS[0]] + hardware[BULK_LOADS] // SECTOR_BYTES
        writes += hardware[STORES[0]] + report.count("global", "atomic").sectors
        writes += hardware[BULK_STORES] // SECTOR_BYTES
    return reads, writes


def measured(case: str, reports: list[Report]) -> tuple[int, int] | None:
    """The same by Nsight Compute; None where it, or its bulk copies, were not counted.

    Counters of a kernel whose source has changed since are shown if they are still equal.
    """
    reads = writes = changed = 0
    bulk = any(report.count("global", traffic="bulk").lanes for report in reports)
    counted = json.loads(COUNTERS.read_text())["cases"].get(case)
    if counted is None or len(counted["launches"]) != len(reports):
        return None
    for launch, report in zip(counted["launches"], reports, strict=True):
        counters = launch["counters"]
        changed += launch["fingerprint"] != report.fingerprint
        if bulk and not {BULK_LOADS, BULK_STORES} <= counters.keys():
            return None
        reads += sum(counters[name] for name in LOADS)
        reads += counters.get(BULK_LOADS, 0) // SECTOR_BYTES
        writes += sum(counters[name] for name in STORES)
        writes += counters.get(BULK_STORES, 0) // SECTOR_BYTES
    return None if changed and (reads, writes) != sectors(reports) else (reads, writes)


def lines_of(row: Row, reports: list[Report]) -> list[str]:
    """The two lines of a row: what is read, and what is written."""
    case = case_named(row.case)
    simulated, threads = by_simulator(row), by_threads(reports, row.skip)
    ours = sectors(reports)
    theirs = measured(row.case, reports) or ("not counted",) * 2
    found = []
    for i, what in enumerate(("read", "written")):
        cells = [*simulated[i], threads[i], ours[i], theirs[i]]
        shown = [f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]
        way = case.direction + ", two kernels" * (case.kind == "two-kernels")
        way += ", dQ written once" * row.written_once
        found.append(f"| `{case.rung}` | {way} | {what} | {' | '.join(shown)} |")
    return found


def traced_now(case: str) -> list[Report]:
    """Reports of a case's launches."""
    return [traced(launch) for launch in launches(case_named(case))]


def table(reports_of: Any = None) -> list[str]:
    """The lines of the table.

    Parameters
    ----------
    reports_of : function, optional
        ``reports_of(case name)`` gives reports of its launches that were made before.
    """
    reports_of = reports_of or traced_now
    return HEAD + [line for row in ROWS for line in lines_of(row, reports_of(row.case))]


def main():
    """Print the table, or put it, and what `arbitration` says, into the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    lines = table()
    if not parser.parse_args().write:
        print("\n".join(lines))
        return
    text = DOCUMENT.read_text().split("\n")
    first = text.index(HEAD[0])
    last = next(i for i in range(first, len(text)) if not text[i].startswith("|"))
    document = "\n".join(text[:first] + lines + text[last:])
    DOCUMENT.write_text(arbitration.written(document, json.loads(COUNTERS.read_text())))


if __name__ == "__main__":
    main()
