"""The committed run of compute-sanitizer found nothing, and saw every kernel of its rungs."""

import json
import re
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "benchmarks/results/sanitize.json").read_text())["rows"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
OF_FP32 = all("part" not in row for row in ROWS)
"""Whether the run is one of the first: of the fp32 rungs only, and older than `SINCE`."""
SINCE = {"row_dots"} if OF_FP32 else set()
FILES = ("flash1*", "flash2*", "standard*", "row_passes", "aux_gradient") if OF_FP32 else ("*",)
RUNGS = ("flash2", "flash1", "standard", *(() if OF_FP32 else ("hopper", "tensor_core")))


def test_no_tool_reported_anything():
    assert all((row["errors"], row["exit_status"]) == (0, 0) for row in ROWS)
    assert {(row["tool"], row["rung"]) for row in ROWS} == set(product(TOOLS, RUNGS))


def test_every_kernel_ran():
    folder = ROOT / "flash_numba/kernels"
    sources = (path.read_text() for name in FILES for path in folder.glob(f"{name}.py"))
    kernels = {name for text in sources for name in re.findall(r"@kernel\(.*\)\s+def (\w+)", text)}
    assert len(kernels) >= 12
    for tool in TOOLS:
        ran = {k for row in ROWS if row["tool"] == tool for k in row["kernels"]}
        assert kernels - SINCE == ran
