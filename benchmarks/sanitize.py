"""Every kernel of every rung under compute-sanitizer, forward and backward.

    python benchmarks/sanitize.py benchmarks/results/sanitize.json

A process for each tool, rung and part of `sanitized_problems` runs `exercise`: tails, causal and
window, key lengths, a block list, grouped heads, dropout, softcap, the gradients of lse, of a bias
and of a learned tensor, packed sequences, the backward pass that adds in any order. All find their
kernels compiled, by a first process without a tool for each problem. The JSON has the errors that
each tool reported; the exit status is 1 if there was any.

initcheck does not see the copy engine write, and reports every later read of what it wrote: the
rows "bulk" and "plain", of `stored_tile.py`, show it of one tile. So under initcheck the arrays
that hopper stores that way (`BULK`) begin as NaN, which the tool takes for written; whatever a
kernel left unwritten would be NaN in a result, and none is.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
from sanitized_problems import PROBLEMS, lengths, run

from flash_numba import gpu_call, launch
from flash_numba.ladder import NoGpu, find_gpu

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BULK = {"hopper": ("o", "dk", "dv")}
"""Outputs that a rung's kernels store through the copy engine."""

CONTROLS = [("initcheck", "stored_tile", how) for how in ("bulk", "plain")]


def fill(names: Sequence[str]) -> None:
    """Let outputs of these names begin as NaN from now on, in this process."""
    whole = gpu_call._Memory._write

    def filled(memory, output):
        array = whole(memory, output)
        if output.name in names and array.nbytes:
            nan = np.frombuffer(bytes([0xFF]) * array.nbytes, array.dtype)
            array.copy_to_device(nan.reshape(array.shape))
        return array

    setattr(gpu_call._Memory, "_write", filled)  # noqa: B010 - as below


def exercise(rung: str, part: str, scale: int, only: int | None = None) -> None:
    """Run `rung` on problems of about ``64 * scale`` positions, and print its kernels' names.

    Those of a part, or its problem number `only`.
    """
    names, whole = set(), launch._function

    def noted(dispatcher, *arguments):
        names.add(dispatcher.py_func.__name__)
        return whole(dispatcher, *arguments)

    setattr(launch, "_function", noted)  # noqa: B010 - a checker would refuse the assignment
    n, m = lengths(scale)
    for number, one in enumerate(PROBLEMS[rung][part]):
        if only in (None, number):
            found = run(rung, one, n, m + one.more_keys)
            assert all(np.isfinite(x.astype(np.float32)).all() for x in found if x is not None)
    print("KERNELS", *sorted(names))


def sanitized(tool: str | None, rung: str, part: str, only: int | None = None) -> dict:
    """One row: a process that exercises `rung`, under `tool` if there is one."""
    scale = "1" if tool == "racecheck" else "2"
    filled = BULK.get(rung, ()) if tool == "initcheck" else ()
    if rung == "stored_tile":
        command = [sys.executable, str(Path(__file__).with_name("stored_tile.py")), part]
    else:
        command = [sys.executable, __file__, "--exercise", rung, part, "--scale", scale]
        command += ["--fill", *filled]
        command += [] if only is None else ["--only", str(only)]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *command]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    text = done.stdout + done.stderr
    found = re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", text)
    kernels = re.findall(r"^KERNELS (.*)$", text, re.MULTILINE)
    if not (found or tool is None) or not kernels or done.returncode:
        print(tool, rung, part, text[-3000:], sep="\n", file=sys.stderr)
    return {
        "tool": tool,
        "rung": rung,
        "part": part,
        "filled": filled,
        "errors": int(found[-1]) if found else None,
        "exit_status": done.returncode,
        "kernels": kernels[0].split() if kernels else [],
        "seconds": round(time.perf_counter() - start, 1),
    }


def as_expected(row: dict) -> bool:
    """Whether a run ended well: with no report but of the control that is there to get some."""
    if (row["rung"], row["part"]) == ("stored_tile", "bulk"):
        return bool(row["errors"])
    return (row["errors"], row["exit_status"]) == (0, 0)


def needs() -> str | None:
    """What is missing to run the tools, in one sentence; None if nothing is."""
    if shutil.which("compute-sanitizer") is None:
        return "compute-sanitizer must be on the PATH; NVIDIA's CUDA toolkit brings it, in its bin"
    if isinstance(gpu := find_gpu(), NoGpu):
        return f"an NVIDIA GPU is needed, with the extra cu12 or cu13; {gpu.reason}"
    if find_spec("torch") is None:
        return "the extra torch is needed, which names the GPU in what is written"
    return None


def main() -> int:
    """Compile, run every tool on every rung, side by side, and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", nargs="?")
    parser.add_argument("--exercise", nargs=2, metavar=("RUNG", "PART"))
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="of the part's problems")
    parser.add_argument("--fill", nargs="*", default=[], metavar="OUTPUT")
    parser.add_argument("--compile", action="store_true", help="and run no tool")
    parser.add_argument("--rungs", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args()
    if options.exercise:
        rung, part = options.exercise
        fill(options.fill)
        exercise(rung, part, options.scale, options.only)
        return 0
    if not options.compile and (lacking := needs()):
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    parts = [(rung, part) for rung in options.rungs for part in PROBLEMS[rung]]
    each = [(*part, n) for part in parts for n in range(len(PROBLEMS[part[0]][part[1]]))]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda one: sanitized(None, *one), each))
        if options.compile:
            return 0
        rows = []
        runs = [*CONTROLS, *((tool, *part) for tool, part in product(TOOLS, parts))]
        for row in pool.map(lambda one: sanitized(*one), runs):
            rows.append(row)
            print(row, flush=True)
            if options.output:
                from common import write  # imports torch, which nothing else here needs

                write(options.output, rows)
    return int(not all(map(as_expected, rows)))


if __name__ == "__main__":
    sys.exit(main())
