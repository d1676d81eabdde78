"""The committed run of compute-sanitizer found nothing, and saw every kernel of its rungs."""

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "benchmarks/results/sanitize.json").read_text())["rows"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
RUNGS = ("flash2", "flash1", "standard", "hopper", "tensor_core")
NOT_YET = {"round_queries", "hopper_backward_wide"}
"""Kernels that the committed run lacks: its part of the fast form had too few keys, and the one of
head dimensions above 128 is younger."""
OF_RUNGS = [row for row in ROWS if row["rung"] != "stored_tile"]
"""Rows but the two that show what initcheck makes of a bulk store."""


def test_no_tool_reported_anything():
    assert all((row["errors"], row["exit_status"]) == (0, 0) for row in OF_RUNGS)
    assert {(row["tool"], row["rung"]) for row in OF_RUNGS} == set(product(TOOLS, RUNGS))


def test_initcheck_reports_reads_of_a_bulk_store_and_of_no_plain_one():
    tiles = {row["part"]: row for row in ROWS if row["rung"] == "stored_tile"}
    assert {row["tool"] for row in tiles.values()} == {"initcheck"}
    assert (tiles["plain"]["errors"], tiles["plain"]["exit_status"]) == (0, 0)
    if not tiles["bulk"]["kernels"]:
        pytest.skip("the bulk store of the committed run did not compile")
    assert tiles["bulk"]["errors"] > 0


def test_what_is_stored_in_bulk_began_as_nan_under_initcheck_alone():
    filled = {(row["tool"], row["rung"]): row["filled"] for row in OF_RUNGS if row["filled"]}
    assert filled == {("initcheck", "hopper"): ["o", "dk", "dv"]}


def test_without_its_tool_it_says_so_at_once(tmp_path):
    """And without a GPU: before anything is compiled."""
    tool = tmp_path / "compute-sanitizer"
    for lacking in ("compute-sanitizer must", "an NVIDIA GPU is"):
        run = subprocess.run(
            [sys.executable, ROOT / "benchmarks/sanitize.py", tmp_path / "out.json"],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PATH": str(tmp_path)},
            check=False,
        )
        assert run.returncode == 2
        assert run.stderr.startswith(f"error: {lacking}")
        assert run.stderr.count("\n") == 1
        assert not (tmp_path / "out.json").exists()
        tool.touch(0o755)


def test_every_kernel_ran():
    folder = ROOT / "flash_numba/kernels"
    sources = (path.read_text() for path in folder.glob("*.py"))
    kernels = {name for text in sources for name in re.findall(r"@kernel\(.*\)\s+def (\w+)", text)}
    assert len(kernels) >= 12
    for tool in TOOLS:
        ran = {k for row in OF_RUNGS if row["tool"] == tool for k in row["kernels"]}
        assert kernels - NOT_YET == ran
