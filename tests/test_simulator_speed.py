"""`make bench` prints, and leaves the committed results as they are unless told to write."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "simulator_speed.py"


@pytest.mark.parametrize("writes", [False, True])
def test_writes_only_when_told(monkeypatch, tmp_path, capsys, writes):
    spec = importlib.util.spec_from_file_location("simulator_speed", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    measured = {
        "against_dense": {"ratio": 1.5},
        "counting_seconds": 0.5,
        "recorded_steps_a_second": 4000,
        "peak_bytes": 1000,
    }
    for name, value in measured.items():
        monkeypatch.setattr(program, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(program, "RESULTS", tmp_path / "speed.json")
    monkeypatch.setenv(program.THREADS, "1")
    monkeypatch.setattr(sys, "argv", ["simulator_speed.py", *(["--write"] if writes else [])])
    program.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines[:4]] == ["met ", "met ", "MISS", "met "]
    assert program.RESULTS.exists() == writes
    if writes:
        assert len(json.loads(program.RESULTS.read_text())["bars"]) == 4
