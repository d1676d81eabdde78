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


SLOW = "test_mutations_gpu.py"
"""Its tests start processes that compile all anew, minutes each: a pytest of its own runs them."""


def summary(*suites: ElementTree.Element) -> dict:
    """Counts of JUnit suites, the tests that failed, and why others were skipped."""
    cases = [case for suite in suites for case in suite.iter("testcase")]
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


def run(*options: list[str]) -> tuple[int, dict]:
    """Run pytests at once, one with each of `options`.

    Returns
    -------
    tuple[int, dict]
        The highest of their exit codes, and the summary of all with the seconds of the longest.
    """
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # workers are on all cores
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"{number}.xml") for number in range(len(options))]
        commands = [
            [sys.executable, "-m", "pytest", f"--junitxml={report}", *own]
            for report, own in zip(reports, options, strict=True)
        ]
        running = [subprocess.Popen(command, env=os.environ | threads) for command in commands]
        code = max([one.wait() for one in running])
        suites = [next(ElementTree.parse(report).getroot().iter("testsuite")) for report in reports]
    seconds = max(float(suite.get("time", "nan")) for suite in suites)
    return code, summary(*suites) | {"seconds": seconds}


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
    slow = str(ROOT / "tests" / SLOW)
    others = [path for path in files() if path != slow]
    on_gpu = ["-m", "gpu"]
    code, found = run([*on_gpu, *others, *options.pytest], [*on_gpu, slow, "-n", "7"])
    found = {"machine": machine, "commit": options.commit or commit(), "exit_code": code, **found}
    options.path.write_text(json.dumps(found, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
