"""The committed run of compute-sanitizer found nothing, and saw every kernel of its rungs."""

import json
import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "benchmarks/results/sanitize.json").read_text())["rows"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
OF_FP32 = all("part" not in row for row in ROWS)
"""Whether the run is one of the first: of the fp32 rungs only, and older than `SINCE`."""
SINCE = {"row_dots"} if OF_FP32 else set()
FILES = ("flash1*", "flash2*", "standard*", "row_passes", "aux_gradient") if OF_FP32 else ("*",)
RUNGS = ("flash2", "flash1", "standard", *(() if OF_FP32 else ("hopper", "tensor_core")))
OF_RUNGS = [row for row in ROWS if row["rung"] != "stored_tile"]
"""Rows but the two that show what initcheck makes of a bulk store."""


def test_no_tool_reported_anything():
    assert all((row["errors"], row["exit_status"]) == (0, 0) for row in OF_RUNGS)
    assert {(row["tool"], row["rung"]) for row in OF_RUNGS} == set(product(TOOLS, RUNGS))


@pytest.mark.skipif(OF_FP32, reason="the committed run has no rung that stores in bulk")
def test_initcheck_reports_reads_of_a_bulk_store_and_of_no_plain_one():
    """Which is why what hopper stores in bulk began as NaN, under that tool and no other."""
    tiles = {row["part"]: row for row in ROWS if row["rung"] == "stored_tile"}
    assert tiles["plain"]["errors"] == 0 < tiles["bulk"]["errors"]
    assert {row["tool"] for row in tiles.values()} == {"initcheck"}
    filled = {(row["tool"], row["rung"]): row["filled"] for row in OF_RUNGS if row["filled"]}
    assert filled == {("initcheck", "hopper"): ["o", "dk", "dv"]}


def test_every_kernel_ran():
    folder = ROOT / "flash_numba/kernels"
    sources = (path.read_text() for name in FILES for path in folder.glob(f"{name}.py"))
    kernels = {name for text in sources for name in re.findall(r"@kernel\(.*\)\s+def (\w+)", text)}
    assert len(kernels) >= 12
    for tool in TOOLS:
        ran = {k for row in OF_RUNGS if row["tool"] == tool for k in row["kernels"]}
        assert kernels - SINCE == ran
