"""The summary of the tests on a GPU: counted from a real run, and green where it is committed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "gpu_tests.py"
COMMITTED = ROOT / "benchmarks" / "results" / "h200_tests.json"
README = ROOT / "README.md"
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_good(n):
    pass

def test_bad():
    assert False

@pytest.fixture
def broken():
    raise ValueError

def test_error(broken):
    pass

@pytest.mark.skip(reason="one GPU only")
def test_skipped():
    pass
"""


@pytest.fixture
def program() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_tests", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_counts_are_those_of_the_run(program, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_beside.py").write_text("def test_also_good(): pass")
    common = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    code, found = program.run(
        [str(tmp_path / "test_it.py"), *common], [str(tmp_path / "test_beside.py"), *common]
    )
    assert code == 1
    assert found.pop("seconds") > 0
    assert found == {
        "passed": 4,
        "failed": 2,
        "skipped": 1,
        "failures": ["test_it::test_bad", "test_it::test_error"],
        "skips": {"one GPU only": 1},
    }


def test_without_a_gpu_it_says_what_is_needed(tmp_path):
    run = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "out.json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert run.returncode == 2
    assert "error: an NVIDIA GPU is needed" in run.stderr
    assert not (tmp_path / "out.json").exists()


FOUND = {
    "machine": {"gpu": "NVIDIA H200", "date": "2026-11-30"},
    "commit": "0123456789abcdef",
    "exit_code": 0,
    "passed": 900,
    "failed": 0,
    "skipped": 6,
    "failures": [],
    "seconds": 207.6,
}


def test_it_shows_what_the_readme_says(program, tmp_path, monkeypatch, capsys):
    path = tmp_path / "h200_tests.json"
    path.write_text(json.dumps(FOUND))
    monkeypatch.setattr(sys, "argv", ["gpu_tests.py", str(path), "--show"])
    assert program.main() == 0
    assert " ".join(capsys.readouterr().out.split()) == (
        "Tests on a GPU (`make gpu-test`, `benchmarks/results/h200_tests.json`: NVIDIA H200, "
        "2026-11-30, commit 0123456): 900 passed, 0 failed, 6 skipped, in 208 s."
    )


def test_the_readme_says_what_was_committed(program):
    """Nothing where nothing was; and what is committed is green."""
    text = " ".join(README.read_text().split())
    assert (COMMITTED.name in text) == COMMITTED.exists()
    if COMMITTED.exists():
        found = json.loads(COMMITTED.read_text())
        assert (found["exit_code"], found["failed"], found["failures"]) == (0, 0, [])
        assert " ".join(program.readme(found, COMMITTED).split()) in text


def test_all_tests_for_a_gpu_are_in_the_files_that_are_run(program):
    folder = ROOT / "tests"
    marked = {path for path in folder.rglob("*.py") if "mark.gpu" in path.read_text()}
    assert marked - {Path(__file__)} == set(map(Path, program.files())) - {Path(__file__)}
    assert str(folder / program.SLOW) in program.files()
