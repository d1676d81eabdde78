"""The committed run of compute-sanitizer found nothing, and saw every kernel of the fp32 rungs."""

import json
import re
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "benchmarks/results/sanitize.json").read_text())["rows"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SINCE = {"row_dots"}
"""Kernels that are newer than the committed run."""
FILES = ("flash1*", "flash2*", "standard*", "row_passes", "aux_gradient")


def test_no_tool_reported_anything():
    found = {(row["tool"], row["rung"]): (row["errors"], row["exit_status"]) for row in ROWS}
    assert found == dict.fromkeys(product(TOOLS, ("flash2", "flash1", "standard")), (0, 0))


def test_every_kernel_ran():
    folder = ROOT / "flash_numba/kernels"
    sources = (path.read_text() for name in FILES for path in folder.glob(f"{name}.py"))
    kernels = {name for text in sources for name in re.findall(r"@kernel\(.*\)\s+def (\w+)", text)}
    assert len(kernels) >= 12
    for tool in TOOLS:
        ran = {k for row in ROWS if row["tool"] == tool for k in row["kernels"]}
        assert kernels - SINCE == ran
