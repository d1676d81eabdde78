"""What README has one try is tried: examples, puzzles, what is refused; and what it tells."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flash_numba.determinism import LONG, MOST, WIDE
from simulator.grade import PUZZLES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("example", "output"), EXAMPLES, ids=["puzzles", "simulate"])
def test_an_example_prints_what_it_says(example, output, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == output


def test_every_python_example_is_run():
    assert len(EXAMPLES) == README.count("```python")


def test_a_start_is_as_short_as_it_says():
    paths = re.findall(r"^\d\. `(tutorials/[\w/]+\.py)`", README, re.MULTILINE)
    lines = [len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths]
    assert len(lines) == 3
    assert f"## A start: three files, {sum(lines)} lines\n" in README
    assert all(Path(path).stem in PUZZLES for path in paths)


def test_what_it_says_of_deterministic_calls():
    told = " ".join(README.split())
    assert (
        f"over {MOST} times the time: heads wider than {WIDE}, under a mask, from {LONG:,}" in told
    )
    assert f"deterministic unless that costs more than {MOST - 1:.0%}".replace("%", " %") in told


def test_tiles_that_it_says_are_refused_are():
    (refused,) = re.findall(r"`flash-numba (step [^`]*)` is refused", README)
    run = subprocess.run(
        [sys.executable, "-m", "simulator.cli", *refused.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 2
    assert "does not fit" in run.stderr
