"""The tables of docs/hopper.md that are measured."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_document_has_what_was_measured(direction, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    table = runpy.run_path(str(ROOT / "benchmarks" / "hopper_table.py"))["table"]
    assert "\n".join(table(direction)) in (ROOT / "docs" / "hopper.md").read_text()
