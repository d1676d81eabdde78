"""Run the tests that need a GPU, and write a summary of how they went and on what.

python benchmarks/gpu_tests.py [--commit ID] results.json [-- further options of pytest]
python benchmarks/gpu_tests.py results.json --show
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from simulator.bench import gpu

ROOT = Path(__file__).parents[1]


def summary(report: Path) -> dict:
    """Counts of a JUnit report, the tests that failed, and why others were skipped."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    outcomes = {"failed": ("failure", "error"), "skipped": ("skipped",)}
    of_kind = {
        name: [case for case in cases if any(case.find(tag) is not None for tag in tags)]
        for name, tags in outcomes.items()
    }
    counts = {name: len(found) for name, found in of_kind.items()}
    reasons = Counter(case.find("skipped").get("message", "") for case in of_kind["skipped"])  # pyright: ignore[reportOptionalMemberAccess]
    return {
        "passed": len(cases) - sum(counts.values()),
        **counts,
        "failures": [f"{case.get('classname')}::{case.get('name')}" for case in of_kind["failed"]],
        "skips": dict(reasons),
    }


def files() -> list[str]:
    """Files with tests for a GPU; to collect the others takes each worker half a minute."""
    tests = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(path) for path in tests if "pytest.mark.gpu" in path.read_text()]


def run(options: list[str]) -> tuple[int, dict]:
    """Exit code of pytest, and the summary with the seconds it took."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # workers are on all cores
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *options]
        code = subprocess.run(command, check=False, env=os.environ | threads).returncode
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
        return code, summary(report) | {"seconds": float(suite.get("time", "nan"))}


def commit() -> str:
    """What is checked out, with a mark if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def readme(found: dict, path: str | Path) -> str:
    """What README.md says of a summary; tests/test_gpu_tests.py holds it to it."""
    machine, counts = found["machine"], (f"{found[n]} {n}" for n in ("passed", "failed", "skipped"))
    text = (
        f"Tests on a GPU (`make gpu-test`, `benchmarks/results/{Path(path).name}`: "
        f"{machine['gpu']}, {machine['date']}, commit {found['commit'][:7]}): "
        f"{', '.join(counts)}, in {found['seconds']:.0f} s."
    )
    return textwrap.fill(text, 100)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("path", type=Path)
    made.add_argument("--commit", default=None, help="where git does not know")
    made.add_argument("pytest", nargs="*", help="options of pytest")
    made.add_argument("--show", action="store_true", help="print README's words of a summary")
    return made


def main() -> int:
    """Run, write, and pass on pytest's exit code."""
    options = parser().parse_args()
    if options.show:
        print(readme(json.loads(options.path.read_text()), options.path))
        return 0
    try:
        machine = gpu.find().machine()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    code, found = run(["-m", "gpu", *files(), *options.pytest])
    found = {"machine": machine, "commit": options.commit or commit(), "exit_code": code, **found}
    options.path.write_text(json.dumps(found, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
