"""The thread runner against Nsight Compute: counters of an H200, stored with what was measured.

Equal to the last sector, but for differences that are named here. A kernel that differs and whose
source has changed since it was measured is skipped, and says so: ``python benchmarks/counters.py``
counts it again.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import four_ways  # noqa: E402
from counter_cases import CASES, case_named, functions_of, launches, traced  # noqa: E402

from flash_numba import ladder  # noqa: E402
from flash_numba.problem import DTYPES, Problem  # noqa: E402
from simulator.run import simulate  # noqa: E402
from simulator.threads.report import (  # noqa: E402
    SHARED_CONFLICTS,
    SHARED_INSTRUCTIONS,
    SHARED_PASSES,
)
from simulator.threads.views import beside_hardware  # noqa: E402

RESULTS = BENCHMARKS / "results"
MEASURED = json.loads((RESULTS / "h200_counters.json").read_text())
TRACED = [case.name for case in CASES if case.traced]

GLOBAL = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
ARBITRATION = 0.002
"""Loads and stores of shared memory that meet cost a pass now and then, as timing has it."""


def is_remainder(launch, problem) -> bool:
    """A loop whose number of turns differs between lanes, which the compiler unrolls.

    It runs the turns that are left over first, so that lanes with one turn more are a turn behind
    the others from then on, and a warp's accesses straddle more sectors.
    """
    return launch.name in ("standard_softmax", "standard_dS") and problem["seqlen_k"] % 32 > 0


def allowed(metric: str, launch, problem, counters, report) -> tuple[float, float]:
    """How far a counter may lie below and above its prediction."""
    if metric.startswith(GLOBAL):
        if is_remainder(launch, problem):
            return 0, 0.25 * counters[metric]
        if metric == f"{GLOBAL}ld.sum" and report.count("global", "load", traffic="acquire").lanes:
            return 0, np.inf  # a thread of a block loads again and again until its turn has come
        return 0, 0
    if metric.startswith((SHARED_PASSES, SHARED_CONFLICTS)):
        passes = sum(counters[f"{SHARED_PASSES}{operation}.sum"] for operation in ("ld", "st"))
        meet, source = ARBITRATION * passes, 0
        if launch.name in TWO_PASSES_A_WARP and metric.endswith("ld.sum"):
            meet += 2 * launch.blocks * launch.threads // 32
        if launch.name in COMBINED and metric.startswith(SHARED_PASSES):
            source = report.count("shared", {"ld": "load", "st": "store"}[metric[-6:-4]]).passes
        return meet + source, meet + report.meetings()[metric]
    if metric.startswith(SHARED_INSTRUCTIONS) and launch.name in COMBINED:
        return np.inf, 0
    return 0, 0


def fillers(counters) -> int:
    """At most so many shared loads never happen: ``@!PT LDS RZ, [RZ]``, three before a run of
    cp.async.

    The assembler puts them there. They are executed, but move nothing and take no pass. A run is
    one copy or more.
    """
    return 3 * counters["smsp__inst_executed_op_ldgsts.sum"]


TWO_PASSES_A_WARP = {"tensor_core_forward"}
"""Kernels in which a warp needs up to two passes more to load, counted as conflicts: 64 in 14,720
where queries and keys end within a tile, 565 in 82,485 where they do not. Not explained."""
COMBINED = {"hopper_backward"}
"""Kernels of which the compiler reads and writes neighbours at once and keeps what it read before:
they need fewer instructions, and may need fewer passes, than their source has."""
MERGED = {
    "flash1_backward": ("sLse", "sDelta"),
    "rows_forward": ("p * sV[r, c]",),
    "registers_forward": ("rQ[c] * sK[key + r, c]", "p * sV[key + r, c]"),
}
"""Shared arrays, or reads of them, whose neighbouring fours the compiler reads at once, one value
for all lanes: a quarter of the instructions, of two passes each."""


@cache
def reports_of(name: str) -> list:
    """What the runner says of each launch of a case."""
    return [traced(launch) for launch in launches(case_named(name))]


def predicted(launch, report) -> dict[str, int]:
    """The runner's numbers, with loads of `MERGED` arrays merged."""
    found = report.hardware()
    for merged in MERGED.get(launch.name, ()):
        entries = [
            entry
            for entry in report.entries
            if (entry.memory.space, entry.site.operation) == ("shared", "load")
            and (entry.memory.name == merged or f"+= {merged}" in entry.site.place.text)
        ]
        assert entries, merged
        for count in (entry.count for entry in entries):
            assert count.instructions == count.passes
            found[f"{SHARED_INSTRUCTIONS}ld.sum"] -= 3 * count.instructions // 4
            found[f"{SHARED_PASSES}ld.sum"] -= count.passes // 2
    return found


def fresh(case, number: int) -> tuple[Any, Any]:
    """A launch and what was measured for it; skips if its kernel has changed since."""
    launch, found = launches(case)[number], MEASURED["cases"][case.name]["launches"][number]
    if traced(launch, blocks=()).fingerprint != found["fingerprint"]:
        pytest.skip(f"{launch.name} has changed since it was counted")
    return launch, found


@pytest.mark.parametrize("name", TRACED)
def test_predicted_equals_measured(name):
    case = case_named(name)
    measured = MEASURED["cases"].get(name)
    if measured is None or measured["problem"] != case.problem:
        pytest.skip(f"{name} was not counted yet")
    changed = []
    together = zip(launches(case), measured["launches"], reports_of(name), strict=True)
    for launch, found, report in together:
        wrong = differences(launch, found, case.problem, report)
        if wrong and traced(launch, blocks=()).fingerprint != found["fingerprint"]:
            changed.append(launch.name)
        else:
            assert not wrong, launch.name
    if changed:
        pytest.skip(f"changed since they were counted: {', '.join(changed)}")


def differences(launch, found, problem, report) -> dict:
    """Predictions that a launch misses by more than what is allowed, and the counters."""
    counters = found["counters"]
    sizes = {"blocks": launch.blocks, "threads": launch.threads, "shared": launch.shared_bytes}
    was = {"blocks": found["blocks"], "threads": found["threads"], "shared": found["shared_bytes"]}
    if sizes != was:
        return {"launch": (sizes, was)}
    wrong = {}
    for metric, value in predicted(launch, report).items():
        below, above = allowed(metric, launch, problem, counters, report)
        measured = counters.get(metric, 0)  # counted since, where it is not there
        if metric == f"{SHARED_INSTRUCTIONS}ld.sum":
            more = measured - value
            if 0 <= more <= fillers(counters):
                continue
        if not value - below <= measured <= value + above:
            wrong[metric] = (value, measured)
    return wrong


def test_products_are_the_multiplications_and_additions_of_the_source():
    """The S kernel of the standard rung does little else: one FFMA for each of both."""
    case = case_named("standard-forward-full")
    _, found = fresh(case, 0)
    problem = case.problem
    pairs = problem["num_heads"] * problem["seqlen_q"] * problem["seqlen_k"]
    fused = found["counters"]["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"]
    assert fused == pairs * problem["head_dim"]
    assert reports_of(case.name)[0].total_flops["add"] == fused


COMPULSORY = {
    ("flash1-forward-large", "flash1_forward"): "q k v",
    ("flash2-forward-large", "flash2_forward"): "q k v",
    ("flash2-backward-large", "delta_pass"): "o o",
    ("flash2-backward-large", "flash2_backward"): "q k v o q lse lse",
    ("tensor_core-forward-large", "tensor_core_forward"): "q k v",
    ("tensor_core-backward-large", "row_dots"): "o o",
    ("tensor_core-backward-large", "tensor_core_gradients"): "q k v o lse lse",
    ("hopper-forward-large", "hopper_forward"): "q k v",
    ("hopper-backward-large", "prepare_rows"): "o o lse",
    ("hopper-backward-large", "hopper_backward"): "q k v o lse lse",
}
"""Tensors that a launch finds in DRAM, by their sizes: dO is like o, dQ like q, delta like lse."""
CODE_BYTES = 128 * 1024
"""What a launch reads besides: its instructions and constants."""


@pytest.mark.parametrize(("name", "kernel"), COMPULSORY)
def test_dram_reads_each_tensor_once_and_l2_serves_the_rest(name, kernel):
    """The simulator counts what blocks ask for; tiles that are asked for again are in L2."""
    problem = Problem(**case_named(name).problem)
    names = COMPULSORY[name, kernel].split()
    sizes = [int(np.prod(problem.shapes[x])) for x in names]
    item = DTYPES[problem.dtype].itemsize
    total = sum(size * (4 if x == "lse" else item) for x, size in zip(names, sizes, strict=True))
    measured = MEASURED["cases"].get(name, {"launches": []})["launches"]
    launch = next((one for one in measured if one["kernel"] == kernel), None)
    if launch is None:
        pytest.skip(f"{kernel} was not counted yet")
    found = launch["counters"]
    assert 0 <= found["dram__bytes_read.sum"] - total <= CODE_BYTES
    if kernel == "flash2_forward":
        tiles = launch["blocks"] // problem.num_heads
        tile_m = problem.seqlen_q // tiles
        reads = simulate("flash2", problem, head=None, tile_m=tile_m, tile_n=64).counts.reads
        asked = 4 * sum(reads.values())
        assert asked == 4 * (sizes[0] + tiles * (sizes[1] + sizes[2]))
        assert 32 * found["lts__t_sectors_srcunit_tex_op_read.sum"] >= asked


def test_the_table_of_four_ways_is_made_of_code_and_counters():
    text = four_ways.DOCUMENT.read_text()
    assert "\n".join(["", *four_ways.table(reports_of), ""]) in text
    shown = {functions_of(case_named(row.case)).__name__ for row in four_ways.ROWS}
    passes = {
        rung.functions(direction).__name__
        for rung in ladder.RUNGS
        if rung.modules
        for direction in ("forward", "backward")
    }
    assert shown == passes
    for row in four_ways.ROWS:
        (simulated, form), written = four_ways.by_simulator(row)
        threads = four_ways.by_threads(reports_of(row.case), row.skip)
        assert simulated == form == threads[0], row.case
        assert written == [threads[1]] * 2, row.case


@pytest.mark.parametrize("row", four_ways.ROWS, ids=lambda row: row.case)
def test_sectors_of_four_ways_are_those_of_the_hardware(row):
    """Without exception, bulk copies included."""
    reports = reports_of(row.case)
    theirs = four_ways.measured(row.case, reports)
    if theirs is None:
        pytest.skip(f"{row.case} was not counted yet, or has changed since")
    assert theirs == four_ways.sectors(reports)


def test_cases_hand_tensor_maps_over_host_memory():
    """Tiles move by the copy engine; lse alone is stored by threads."""
    case = case_named("hopper-forward-short")
    (report,) = reports_of(case.name)
    sectors = {name: count for name, count in report.hardware().items() if GLOBAL in name}
    rows = case.problem["seqlen_q"] * case.problem["num_heads"]
    assert sectors == {f"{GLOBAL}ld.sum": 0, f"{GLOBAL}st.sum": rows * 4 // 32}


def test_report_shows_measured_beside_predicted():
    _, found = fresh(case_named("standard-forward-full"), 1)
    report = reports_of("standard-forward-full")[1]
    counters = found["counters"] | {f"{SHARED_INSTRUCTIONS}ld.sum": 7}
    rows = list(zip(*(one.cells for one in beside_hardware(report, counters).columns), strict=True))
    assert len(rows) == len(report.hardware())
    notes = {row[0]: row[-1] for row in rows}
    assert notes[f"{GLOBAL}st.sum"] == "equal"
    assert notes[f"{SHARED_INSTRUCTIONS}ld.sum"].startswith("source-level")


def test_machine_and_problems_are_stored():
    assert MEASURED["machine"]["gpu"] == "NVIDIA H200"
    assert {"driver", "versions", "date"} <= MEASURED["machine"].keys()
    for name, case in MEASURED["cases"].items():
        assert case["problem"], name
        assert all(one["fingerprint"] for one in case["launches"]), name
