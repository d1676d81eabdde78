"""DRAM traffic that Nsight Compute counted on an H200 against what must be read and written."""

import json
import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet", reason="the thread runner needs greenlet")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from counter_cases import case_named  # noqa: E402
from counter_rules import CODE_BYTES  # noqa: E402

from flash_numba.problem import DTYPES, Problem  # noqa: E402
from simulator.hardware import H200  # noqa: E402
from simulator.run import simulate  # noqa: E402

MEASURED = json.loads((BENCHMARKS / "results" / "h200_counters.json").read_text())
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
WRITTEN = {
    ("standard-forward-past-l2", "standard_scores"): "S",
    ("standard-forward-past-l2", "standard_softmax"): "S lse",
    ("standard-forward-past-l2", "row_blocks"): "o",
    ("flash1-forward-large", "flash1_forward"): "o lse lse lse",
    ("flash2-forward-large", "flash2_forward"): "o lse",
    ("flash2-backward-large", "flash2_backward"): "q k v",
    ("tensor_core-forward-large", "tensor_core_forward"): "o lse",
    ("hopper-forward-large", "hopper_forward"): "o lse",
}
"""Tensors that a launch writes, by their sizes."""
PAST_L2 = [one for one in WRITTEN if "S" in WRITTEN[one].split()]
"""Launches that write more than L2 holds."""


def bytes_of(problem: Problem, names: str) -> int:
    """Of tensors by name; S and lse have 4 bytes an element."""
    scores = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
    sizes = {"S": 4 * math.prod(scores), "lse": 4 * math.prod(problem.shapes["lse"])}
    item = DTYPES[problem.dtype].itemsize
    return sum(sizes.get(x) or item * math.prod(problem.shapes[x]) for x in names.split())


def counted_launch(name: str, kernel: str) -> dict:
    """What was measured of a kernel; skips if it was not."""
    for launch in MEASURED["cases"].get(name, {"launches": []})["launches"]:
        if launch["kernel"] == kernel:
            return launch
    pytest.skip(f"{kernel} was not counted yet")


@pytest.mark.parametrize(("name", "kernel"), WRITTEN)
def test_dram_gets_nothing_twice(name, kernel):
    """What is written stays in L2 until other lines need the place."""
    total = bytes_of(Problem(**case_named(name).problem), WRITTEN[name, kernel])
    assert counted_launch(name, kernel)["counters"]["dram__bytes_write.sum"] <= total


@pytest.mark.parametrize(("name", "kernel"), PAST_L2)
def test_dram_gets_what_l2_has_no_room_for(name, kernel):
    """S and P are each twice as large as L2; of the other tensors nothing need leave it."""
    least = bytes_of(Problem(**case_named(name).problem), WRITTEN[name, kernel]) - H200.l2_bytes
    assert least > H200.l2_bytes
    assert counted_launch(name, kernel)["counters"]["dram__bytes_write.sum"] >= least


@pytest.mark.parametrize(("name", "kernel"), COMPULSORY)
def test_dram_reads_each_tensor_once_and_l2_serves_the_rest(name, kernel):
    """The simulator counts what blocks ask for; tiles that are asked for again are in L2."""
    problem = Problem(**case_named(name).problem)
    launch = counted_launch(name, kernel)
    found = launch["counters"]
    total = bytes_of(problem, COMPULSORY[name, kernel])
    assert 0 <= found["dram__bytes_read.sum"] - total <= CODE_BYTES
    if kernel == "flash2_forward":
        tiles = launch["blocks"] // problem.num_heads
        tile_m = problem.seqlen_q // tiles
        reads = simulate("flash2", problem, head=None, tile_m=tile_m, tile_n=64).counts.reads
        asked = 4 * sum(reads.values())
        assert asked == bytes_of(problem, "q") + tiles * bytes_of(problem, "k v")
        assert 32 * found["lts__t_sectors_srcunit_tex_op_read.sum"] >= asked
