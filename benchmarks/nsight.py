"""Nsight Compute on a program: its counters of each launch that it looks at.

Needs a GPU and ncu.
"""

import csv
import io
import os
import signal
import subprocess
import time

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
    ncu = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    ncu += ["--metrics", ",".join(metrics), *options]
    code, printed, errors = _run([*ncu, *command], timeout)
    for _ in range(TRIES - 1):
        if code == 0 or BUSY not in printed:
            break
        time.sleep(PAUSE_SECONDS)
        code, printed, errors = _run([*ncu, *command], timeout)
    lines = printed.splitlines()
    first = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if code or not first:
        raise RuntimeError(f"{printed[-2000:]}\n{errors[-2000:]}")
    return list(csv.DictReader(io.StringIO("\n".join(lines[first[0] :]))))[1:]


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
