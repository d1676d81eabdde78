"""The program that measures all records: its commands are what the programs take."""

import sys
from pathlib import Path

import pytest
from test_cli import invoke

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_tests  # noqa: E402
import records  # noqa: E402


@pytest.mark.parametrize("program", records.PROGRAMS, ids=lambda program: program.file)
def test_a_record_is_one_that_is_committed_or_awaited(program):
    """`h200_tests.json` was not written yet."""
    there = (ROOT / "benchmarks" / "results" / program.file).exists()
    assert there or program.file == "h200_tests.json"
    command = program.command(Path("there"), "abc")
    assert str(Path("there") / program.file) in command
    assert "FILE" not in command
    assert "ID" not in command


def test_the_options_of_the_tests_are_understood():
    (program,) = (p for p in records.PROGRAMS if p.file == "h200_tests.json")
    found = gpu_tests.parser().parse_args(program.command(Path("there"), "abc")[2:])
    assert (found.path, found.commit) == (Path("there/h200_tests.json"), "abc")
    assert found.pytest == list(records.PYTEST[1:])


def stub(tmp_path, text: str, **fields) -> records.Program:
    """A program of these words, which get the record's path."""
    source = tmp_path / "stub.py"
    source.write_text(text)
    return records.Program("stub.json", (str(source), "FILE"), **{"seconds": 30, **fields})


def test_a_program_leaves_its_record_and_its_words(tmp_path):
    run = records.Records(tmp_path / "found", "abc", 60)
    text = "import os, sys; print('hello')\n"
    text += "open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    run.run(stub(tmp_path, text), 1)
    found = tmp_path / "found"
    assert (found / "stub.json").read_text() == "1"
    assert (found / "stub.json.txt").read_text() == "hello\n"
    assert "stub.json: exit status 0" in (found / "log.txt").read_text()


def test_a_program_that_takes_too_long_is_cut_and_said(tmp_path):
    run = records.Records(tmp_path / "found", "abc", 9)
    run.run(stub(tmp_path, "import time; time.sleep(60)", seconds=5), 0)
    run.run(stub(tmp_path, "print('late')"), 0)
    log = (tmp_path / "found" / "log.txt").read_text()
    assert "stub.json: cut after 5 s" in log
    assert "stub.json: no time left" in log


def test_an_unknown_record_is_an_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["records.py", str(tmp_path / "x"), "--only", "h200_fp8.json"])
    with pytest.raises(SystemExit):
        records.main()
    assert "no record is named h200_fp8.json" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


BENCHES = [p for p in records.PROGRAMS if p.arguments[: len(records.BENCH)] == records.BENCH]


@pytest.mark.parametrize("program", BENCHES, ids=lambda program: program.file)
def test_a_benchmark_takes_its_options(program, monkeypatch):
    """They are read and problems listed; nothing is compiled."""
    ahead = pytest.importorskip("flash_numba.ahead", exc_type=ImportError)
    asked = []
    monkeypatch.setattr(ahead, "compile_all", lambda tasks, *_: asked.extend(tasks) or iter(()))
    options = program.command(Path("there"), "")[3:]
    result = invoke(*options, "--compile", "1", "--compile-for", "9.0")
    assert result.exit_code == 0, result.output
    assert len(asked) >= 40
    assert program.compiles
