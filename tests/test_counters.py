"""The thread runner against Nsight Compute: counters of an H200, stored with what was measured.

Equal to the last sector, but for differences that are named here. A kernel that differs and whose
source has changed since it was measured is skipped, and says so: ``python benchmarks/counters.py``
counts it again.
"""

import copy
import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import arbitration  # noqa: E402
import counter_rules  # noqa: E402
import four_ways  # noqa: E402
from counter_cases import CASES, case_named, functions_of, launches, traced  # noqa: E402
from counter_rules import (  # noqa: E402
    A_FEW,
    GLOBAL,
    REPLAYS,
    bounds,
    predicted,
)
from package_kernels import kernels_of_package  # noqa: E402

from flash_numba import ladder  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from simulator.threads import passes  # noqa: E402
from simulator.threads.report import (  # noqa: E402
    ARBITRATION,
    SHARED_CONFLICTS,
    SHARED_INSTRUCTIONS,
)
from simulator.threads.views import beside_hardware  # noqa: E402

RESULTS = BENCHMARKS / "results"
MEASURED = json.loads((RESULTS / "h200_counters.json").read_text())
TRACED = [case.name for case in CASES if case.traced]


@cache
def reports_of(name: str) -> list:
    """What the runner says of each launch of a case."""
    return [traced(launch) for launch in launches(case_named(name))]


def changed_since(launch, found) -> bool:
    """Whether a launch's kernel has another source than the one that was counted."""
    return traced(launch, blocks=()).fingerprint != found["fingerprint"]


def fresh(case, number: int) -> tuple[Any, Any]:
    """A launch and what was measured for it; skips if its kernel has changed since."""
    launch, found = launches(case)[number], MEASURED["cases"][case.name]["launches"][number]
    if changed_since(launch, found):
        pytest.skip(f"{launch.name} has changed since it was counted")
    return launch, found


def counted_launches(case) -> list[dict]:
    """What was measured of a case; skips if it was not, or if it launches other kernels now."""
    measured = MEASURED["cases"].get(case.name)
    if measured is None or measured["problem"] != case.problem:
        pytest.skip(f"{case.name} was not counted yet")
    names = [launch.name for launch in launches(case)]
    if names != [one["kernel"] for one in measured["launches"]]:
        pytest.skip(f"{case.name} launches other kernels than were counted")
    return measured["launches"]


@pytest.mark.parametrize("name", TRACED)
def test_predicted_equals_measured(name):
    case = case_named(name)
    changed = []
    together = zip(launches(case), counted_launches(case), reports_of(name), strict=True)
    for launch, found, report in together:
        wrong = differences(launch, found, case.problem, report)
        if wrong and changed_since(launch, found):
            changed.append(launch.name)
        else:
            assert not wrong, launch.name
    if changed:
        pytest.skip(f"changed since they were counted: {', '.join(changed)}")


def differences(launch, found, problem, report) -> dict:
    """Predictions that a launch misses by more than `counter_rules.bounds`, and the counters."""
    counters = found["counters"]
    sizes = {"blocks": launch.blocks, "threads": launch.threads, "shared": launch.shared_bytes}
    was = {"blocks": found["blocks"], "threads": found["threads"], "shared": found["shared_bytes"]}
    if sizes != was:
        return {"launch": (sizes, was)}
    wrong = {}
    for metric, value in predicted(launch, report).items():
        if metric not in counters or ARBITRATION not in counters:
            continue  # counted since
        low, high = bounds(metric, value, launch, problem, counters, report)
        if not low <= counters[metric] <= high:
            wrong[metric] = (value, (low, high), counters[metric])
    return wrong


@pytest.mark.parametrize("name", TRACED)
def test_every_bound_can_fail(name):
    case = case_named(name)
    measured = counted_launches(case)
    for launch, found, report in zip(launches(case), measured, reports_of(name), strict=True):
        counters = found["counters"]
        if ARBITRATION not in counters:
            pytest.skip(f"{name} was counted without")
        if changed_since(launch, found):
            pytest.skip(f"{launch.name} has changed since it was counted")
        for metric, value in predicted(launch, report).items():
            low, high = bounds(metric, value, launch, case.problem, counters, report)
            assert high < math.inf
            # All that is combined may be conflicts, or have addresses that are called generic.
            nothing = metric.startswith((SHARED_CONFLICTS, f"{SHARED_INSTRUCTIONS}st"))
            assert low > 0 or value == 0 or (nothing and low < value)


@pytest.mark.parametrize(
    "one", arbitration.measured(MEASURED), ids=lambda one: f"{one.case}-{one.kernel}"
)
def test_what_passes_cost_beyond_addresses_is_arbitration(one):
    """Of large problems, too: Nsight's two ways to count passes, and what the hardware calls it."""
    most = (1 + REPLAYS) * one.met + A_FEW * (one.met > 0) + one.products
    assert 0 <= one.more <= most


def test_products_are_the_multiplications_and_additions_of_the_source():
    """The S kernel of the standard rung does little else: one FFMA for each of both."""
    case = case_named("standard-forward-full")
    _, found = fresh(case, 0)
    problem = case.problem
    pairs = problem["num_heads"] * problem["seqlen_q"] * problem["seqlen_k"]
    fused = found["counters"]["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"]
    assert fused == pairs * problem["head_dim"]
    assert reports_of(case.name)[0].total_flops["add"] == fused


def test_the_table_of_four_ways_is_made_of_code_and_counters():
    for row in four_ways.ROWS:
        (simulated, form), written = four_ways.by_simulator(row)
        threads = four_ways.by_threads(reports_of(row.case), row.skip)
        assert simulated == form == threads[0], row.case
        assert written == [threads[1]] * 2, row.case
    shown = {functions_of(case_named(row.case)).__name__ for row in four_ways.ROWS}
    passes = {
        rung.functions(direction).__name__
        for rung in ladder.RUNGS
        if rung.modules
        for direction in ("forward", "backward")
    }
    assert shown == passes
    text = four_ways.DOCUMENT.read_text()
    assert "\n".join(["", *four_ways.table(reports_of), ""]) in text


def test_the_table_says_where_the_program_counts_more():
    """What is subtracted is the program's zeros and the sum that it reads, and no more."""
    text = four_ways.DOCUMENT.read_text()
    left_out = [row for row in four_ways.ROWS if row.written_once]
    assert text.count("| backward, dQ written once |") == 2 * len(left_out) > 0
    for row in left_out:
        (whole, _), written = four_ways.by_simulator(row._replace(written_once=False))
        (less, _), rest = four_ways.by_simulator(row)
        q = Problem(**case_named(row.case).problem).shapes["q"]
        dq = 2 * math.prod(q)  # 16-bit elements
        assert (whole - less, written[0] - rest[0]) == (dq, dq)


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
    counters |= {f"{SHARED_CONFLICTS}ld.sum": 3, ARBITRATION: 5}
    rows = list(zip(*(one.cells for one in beside_hardware(report, counters).columns), strict=True))
    assert len(rows) == len(report.hardware())
    notes = {row[0]: row[-1] for row in rows}
    assert notes[f"{GLOBAL}st.sum"] == "equal"
    assert notes[f"{SHARED_INSTRUCTIONS}ld.sum"].startswith("source-level")
    assert notes[f"{SHARED_CONFLICTS}ld.sum"] == "+3; met others 5 times"


def test_every_kernel_is_counted():
    """In a case that is traced, and in the record of what Nsight Compute measured of that case."""
    cases = [case for case in CASES if case.traced]
    launched = {launch.name for case in cases for launch in launches(case)}
    assert launched == kernels_of_package()
    measured = [MEASURED["cases"].get(case.name, {"launches": []}) for case in cases]
    assert {one["kernel"] for case in measured for one in case["launches"]} == launched


def test_tolerances_are_those_of_the_document():
    """Every rule of `counter_rules` is named there, every number has its reason."""
    text = four_ways.DOCUMENT.read_text()
    head = "| tolerance | value | because |\n|---|---|---|\n"
    rows = text[text.index(head) + len(head) :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    values = {name.strip("`"): float(value.replace(",", "")) for name, value, _ in cells}
    assert all(why for _, _, why in cells)
    own = vars(counter_rules).keys() - vars(passes).keys()
    rules = {name: vars(counter_rules)[name] for name in own if name.isupper()}
    numbers = {name: value for name, value in rules.items() if isinstance(value, int | float)}
    assert values == numbers
    share = 1 - 1 / numbers["AT_ONCE"]
    assert f"{share:.0%} (1 - 1 / `AT_ONCE`) may be missing" in text
    for name in ("HOISTED", "MERGED", "PREDICATED", "PREDICATED_COPIES", "COMBINED", *values):
        assert f"`{name}`" in text[: text.index(head)] or name in ("REPLAYS", "A_FEW")
    assert rules["COMBINED"] <= set(re.findall(r"`(\w+)`", text)) | {"hopper_backward_wide"}


def test_the_document_says_how_often_accesses_met():
    assert arbitration.sentence(MEASURED) in four_ways.DOCUMENT.read_text().splitlines()
    more = copy.deepcopy(MEASURED)
    plain = [one for one in arbitration.measured(more) if not one.products]
    one = max(plain, key=lambda one: one.more)
    for launch in more["cases"][one.case]["launches"]:
        if launch["kernel"] == one.kernel:
            launch["counters"][ARBITRATION] = one.more - 7
    assert arbitration.sentence(more).endswith("needs up to 7 passes more.")


def test_machine_and_problems_are_stored():
    assert MEASURED["machine"]["gpu"] == "NVIDIA H200"
    assert {"driver", "versions", "date"} <= MEASURED["machine"].keys()
    for name, case in MEASURED["cases"].items():
        assert case["problem"], name
        assert all(one["fingerprint"] for one in case["launches"]), name
