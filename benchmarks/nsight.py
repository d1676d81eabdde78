"""Nsight Compute on a program: its counters of each launch that it looks at.

Needs a GPU and ncu.
"""

import csv
import io
import os
import re
import signal
import subprocess
import time
from collections import Counter

BUSY = "driver resource was unavailable"
"""What ncu says while somebody else profiles on the machine."""
TRIES, PAUSE_SECONDS = 5, 4


def counted(
    command: list[str], metrics: list[str], *options: str, timeout: float | None = None
) -> list[dict[str, str]]:
    """Run a program under ncu.

    Parameters
    ----------
    command : list of str
        The program and its arguments.
    metrics : list of str
    *options : str
        More of ncu's own.
    timeout : float, optional
        Seconds after which the program is stopped.

    Returns
    -------
    list of dict
        For each launch, in order, ncu's columns by name; `number` reads counts.

    Raises
    ------
    RuntimeError
        If the program fails, takes too long, or ncu says nothing; with what was printed.
    """
    page = "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)
    lines = _printed(command, timeout, *page, *options)
    first = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not first:
        raise RuntimeError("\n".join(lines)[-2000:])
    return list(csv.DictReader(io.StringIO("\n".join(lines[first[0] :]))))[1:]


def executed(
    command: list[str], *options: str, timeout: float | None = None
) -> dict[str, dict[str, int]]:
    """Run a program under ncu: how often warps executed each machine instruction of its kernels.

    Parameters, errors: as for `counted`.

    Returns
    -------
    dict
        By kernel, then by instruction with its modifiers, such as ``LDS.128``, the most often
        executed first.
    """
    page = "--page", "source", "--section", "SourceCounters"
    return by_instruction(_printed(command, timeout, *page, *options))


def by_instruction(lines: list[str]) -> dict[str, dict[str, int]]:
    """The table of `executed` from what ncu prints of its source page.

    Raises
    ------
    RuntimeError
        If there is no kernel in it.
    """
    found: dict[str, Counter[str]] = {}
    kernel, columns = "", []
    for row in csv.reader(lines):
        if row[:1] == ["Kernel Name"]:
            kernel = row[1]
        elif row[:2] == ["Address", "Source"]:
            columns = row
        elif kernel and len(row) == len(columns):
            line = dict(zip(columns, row, strict=True))
            name = re.sub(r"^@!?\w+\s+", "", line["Source"].strip()).split()[0].rstrip(";")
            times = int(line["Instructions Executed"].replace(",", ""))
            found.setdefault(kernel, Counter())[name] += times
    if not found:
        raise RuntimeError("\n".join(lines)[-2000:])
    return {kernel: dict(counts.most_common()) for kernel, counts in found.items()}


def _printed(command: list[str], timeout: float | None, *options: str) -> list[str]:
    """Lines that ncu, asked for CSV, prints of a program; a RuntimeError if that fails."""
    ncu = ["ncu", "--csv", "--clock-control", "none", *options]
    code, printed, errors = _run([*ncu, *command], timeout)
    for _ in range(TRIES - 1):
        if code == 0 or BUSY not in printed:
            break
        time.sleep(PAUSE_SECONDS)
        code, printed, errors = _run([*ncu, *command], timeout)
    if code:
        raise RuntimeError(f"{printed[-2000:]}\n{errors[-2000:]}")
    return printed.splitlines()


def _run(command: list[str], timeout: float | None) -> tuple[int, str, str]:
    """Exit code and what was printed; all that the command started is stopped when late."""
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        os.killpg(run.pid, signal.SIGKILL)
        raise RuntimeError(f"no end after {timeout} s: {run.communicate()}") from late
    return run.returncode, printed, errors


def numbers(row: dict[str, str], metrics: list[str]) -> dict[str, int]:
    """Those of `metrics` that a row has, as counts."""
    return {
        metric: round(float(row[metric].replace(",", ""))) for metric in metrics if row.get(metric)
    }
