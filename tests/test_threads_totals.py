"""What a printed trace says of files, and what its columns mean."""

import re

import pytest

pytest.importorskip("numba", reason="kernels need numba")

import traced_kernels as kernels
from bug_zoo import empty, vector

from simulator.threads import advice, trace
from simulator.threads.errors import Place, shown_file
from simulator.threads.totals import LEGEND
from simulator.trace_cli import load_case


def test_a_line_is_told_with_its_file():
    """Whose path is shown as it is from where the packages lie, on any machine."""
    shown = str(trace(kernels.copy)[1, 32](vector(), empty(64)))
    assert re.search(r"^Dearest lines of tests/traced_kernels\.py$", shown, re.MULTILINE)
    assert LEGEND in " ".join(shown.split())
    kernel, grid, block, arguments, shared = load_case("simulator.threads.cases:naive")
    report = trace(kernel)[grid, block, 0, shared](*arguments)
    folder = "flash_numba/kernels/steps"
    shown = str(report)
    title = f"Dearest lines of {folder}/step1_naive.py; where named, of {folder}/rows.py"
    assert title in " ".join(shown.split())
    assert re.search(r"^ *\d+ .* score \+=", shown, re.MULTILINE)
    assert re.search(r"^ *\d+ .* rows\.py: sX\[row, column\]", shown, re.MULTILINE)
    assert re.match(r"bank conflict: line \d+ of step1_naive\.py \(score", advice(report)[0])


def test_a_line_of_no_file_is_told_alone():
    """Such as one of a notebook's cell, whose file has a name of its own on each machine."""
    assert shown_file(Place("/tmp/ipykernel_1/2.py", 3)) == ""
    assert shown_file(Place(__file__, 3)) == "tests/test_threads_totals.py"
