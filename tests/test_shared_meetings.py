"""Who holds up accesses of shared memory, by an H200's counters: the rule of `Report.meetings`.

`benchmarks/shared_meetings.py` let four warps store, store matrices or load, again and again, while
a neighbour did something else. What accesses need beside one that does nothing is their own; the
rest is the neighbour's.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import shared_meetings as program  # noqa: E402

from flash_numba.device.hopper.tensor_map import TensorMap  # noqa: E402
from simulator.threads import trace  # noqa: E402
from simulator.threads.report import SHARED_CONFLICTS, SHARED_INSTRUCTIONS  # noqa: E402
from simulator.threads.report import SHARED_PASSES as PASSES  # noqa: E402

FOUND = json.loads((BENCHMARKS / "results" / "shared_meetings.json").read_text())
LAUNCHES = {(one["access"], one["neighbour"]): one["launches"] for one in FOUND["cases"]}
END = {"store": "st", "matrices": "st", "load": "ld"}
ACCESSES, NEIGHBOURS = program.ACCESSES, program.NEIGHBOURS
POLLING = 0.001
"""Passes of stores that threads hold up who ask an mbarrier again and again."""


def more(access, neighbour, metric):
    """How much more each launch needs than beside a neighbour that does nothing."""
    name = f"{metric}{END[access]}.sum"
    (alone,) = {one[name] for one in LAUNCHES[access, "nothing"]}
    return [one[name] - alone for one in LAUNCHES[access, neighbour]]


def test_all_pairs_were_measured():
    assert list(LAUNCHES) == [(a, b) for a in ACCESSES for b in NEIGHBOURS]
    assert all(len(launches) == program.LAUNCHES for launches in LAUNCHES.values())
    assert FOUND["machine"]["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize("neighbour", ["arrivals", "loads", "stores"])
@pytest.mark.parametrize("access", ACCESSES)
def test_threads_and_arrivals_hold_up_nobody(access, neighbour):
    """A neighbour adds its own accesses of that kind, as many passes as they take alone."""
    own = more(access, neighbour, SHARED_INSTRUCTIONS)
    alone = LAUNCHES[access, "nothing"][0]
    instructions = alone[f"{SHARED_INSTRUCTIONS}{END[access]}.sum"]
    for metric in (PASSES, SHARED_CONFLICTS):
        each = alone[f"{metric}ld.sum"] // instructions if access == "load" else metric == PASSES
        assert more(access, neighbour, metric) == [one * each for one in own]


@pytest.mark.parametrize("access", ACCESSES)
def test_waiting_at_a_barrier_holds_up_a_few_stores(access):
    passes, conflicts = (more(access, "waits", one) for one in (PASSES, SHARED_CONFLICTS))
    alone = LAUNCHES[access, "nothing"][0][f"{PASSES}{END[access]}.sum"]
    assert passes == conflicts
    assert all(0 <= one <= POLLING * alone for one in passes)


@pytest.mark.parametrize("access", ACCESSES)
def test_what_comes_meets_stores_and_what_leaves_meets_loads(access):
    """As bank conflicts; the other way round nothing happens."""
    meets, misses = ("copies out", "copies in") if access == "load" else ("copies in", "copies out")
    assert not any(more(access, misses, PASSES) + more(access, misses, SHARED_CONFLICTS))
    assert min(more(access, meets, PASSES)) > 0
    assert more(access, meets, PASSES) == more(access, meets, SHARED_CONFLICTS)


@pytest.mark.parametrize("access", ACCESSES)
def test_products_meet_both_and_no_conflict_is_counted(access):
    assert min(more(access, "products", PASSES)) > 0
    assert not any(more(access, "products", SHARED_CONFLICTS))


def test_time_decides():
    assert len(set(more("store", "copies in", PASSES))) > 1
    assert len(set(more("store", "products", PASSES))) > 1


@pytest.mark.parametrize("neighbour", ["copies in", "copies out", "products"])
@pytest.mark.parametrize("access", ACCESSES)
def test_meetings_are_bounded_by_what_the_engines_move(access, neighbour, monkeypatch):
    """The runner's bound, of a kernel with a 64th of the turns, holds 64 of them."""
    monkeypatch.setattr(program, "TURNS", 64)
    tensor = np.zeros((1, program.BOX, 1, program.BOX), np.uint16)
    given = TensorMap(tensor, program.BOX, program.BOX), np.zeros(256, np.int32)
    kernel = program.make_meeting.__wrapped__(access, neighbour)
    report = trace(kernel, check=False)[1, 256, 0, program.SHARED_BYTES](*given)
    most = report.meetings()
    for metric in (PASSES, SHARED_CONFLICTS):
        bound = 64 * program.BLOCKS * most[f"{metric}{END[access]}.sum"]
        assert max(more(access, neighbour, metric)) <= bound
