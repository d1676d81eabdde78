"""The summary of the tests on a GPU: counted from a real run, and green where it is committed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "gpu_tests.py"
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
    code, found = program.run(
        [str(tmp_path), "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    )
    assert code == 1
    assert found.pop("seconds") > 0
    assert found == {
        "passed": 3,
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
