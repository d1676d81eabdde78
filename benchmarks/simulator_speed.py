"""How fast the simulator is: against dense NumPy, counting alone, recording, and in memory.

Takes about a minute and prints the bars, which are what the project demands of itself, beside what
was measured; ``--write`` writes results/simulator_speed.json (times in seconds, memory in bytes). A
value is the best of several runs, since other work on a machine only ever slows a run down.
NumPy's products run on one thread, unless ``OPENBLAS_NUM_THREADS`` says otherwise: on a busy
machine threads that wait for each other make small products many times slower.

    python benchmarks/simulator_speed.py [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flash_numba.problem import Problem
from simulator.programs import PROGRAMS
from simulator.run import simulate

RESULTS = Path(__file__).parent / "results" / "simulator_speed.json"
HEAD_DIM = 64
THREADS = "OPENBLAS_NUM_THREADS"
SEQLENS = (2048, 4096, 8192)
"""Sequence lengths at which memory is measured."""


def main() -> None:
    """Measure everything, print the bars, and write the results if told to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write results/simulator_speed.json")
    options = parser.parse_args()
    numerics = against_dense(8192, repeats=8)
    counting = {name: counting_seconds(name, 1 << 20, repeats=3) for name in PROGRAMS}
    steps = recorded_steps_a_second(4096, repeats=3)
    memory = {str(n): peak_bytes("flash2", n) for n in SEQLENS}
    growth = memory[str(SEQLENS[-1])] / memory[str(SEQLENS[-2])]
    results = {
        "benchmark": "simulator_speed",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "blas_threads": int(os.environ[THREADS]),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "numerics": numerics,
        "counting_seconds": counting,
        "recorded_tile_steps_a_second": steps,
        "peak_bytes": {"flash2": memory, "dense": {"8192": peak_bytes("dense", 8192)}},
        "bars": [
            bar("flash2 / dense time, N=8192, at most", numerics["ratio"], 2.0),
            bar("flash2 forward, counting N=1048576, seconds, at most", counting["flash2"], 1.0),
            bar("recorded 64x64 tile steps a second, at least", steps, 5000, at_least=True),
            bar("peak memory, N=8192 over N=4096, at most", growth, 2.1),
        ],
    }
    for entry in results["bars"]:
        print(f"{'met ' if entry['met'] else 'MISS'} {entry['what']} {entry['bar']}: ", end="")
        print(f"{entry['value']:,.4g}")
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        print(f"wrote {RESULTS}")


def bar(what: str, value: float, limit: float, at_least: bool = False) -> dict:
    """A demand, what was measured, and whether it is met."""
    met = value >= limit if at_least else value <= limit
    return {"what": what, "bar": limit, "value": value, "met": bool(met)}


def against_dense(seqlen: int, repeats: int) -> dict:
    """flash2 with numbers and counts, and dense attention, in turn: best seconds, their ratio."""
    problem, given = inputs(seqlen)
    work = {
        "dense": lambda: dense(problem, **given),
        "dense_in_place": lambda: dense_in_place(problem, **given),
        "flash2": lambda: simulate("flash2", problem, **given, tile_m=128, tile_n=64),
    }
    runs = [{name: seconds(run) for name, run in work.items()} for _ in range(repeats)]
    best = {name: min(run[name] for run in runs) for name in work}
    return {
        "seqlen": seqlen,
        "head_dim": HEAD_DIM,
        "dtype": "fp32",
        "tile": [128, 64],
        "repeats": repeats,
        "seconds": best,
        "ratio": best["flash2"] / best["dense"],
    }


def counting_seconds(name: str, seqlen: int, repeats: int) -> float:
    """Counting a causal forward without numbers, tiles of 128."""
    problem = Problem(seqlen, seqlen, HEAD_DIM, dtype="fp16", causal=True)
    return min(
        seconds(lambda: simulate(name, problem, tile_m=128, tile_n=128)) for _ in range(repeats)
    )


def recorded_steps_a_second(seqlen: int, repeats: int) -> float:
    """Visited pairs of 64x64 tiles a second, with numbers, counts and the event log."""
    problem, given = inputs(seqlen)
    best = min(
        seconds(lambda: simulate("flash2", problem, **given, tile_m=64, tile_n=64, record=True))
        for _ in range(repeats)
    )
    return (seqlen // 64) ** 2 / best


def peak_bytes(name: str, seqlen: int) -> int:
    """The most that a forward allocates at once beyond its inputs, in a process of its own."""
    command = [sys.executable, __file__, "--peak", name, str(seqlen)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def print_peak(name: str, seqlen: int) -> None:
    """What the process of `peak_bytes` does."""
    problem, given = inputs(seqlen)
    tracemalloc.start()
    if name == "dense":
        dense(problem, **given)
    else:
        simulate(name, problem, **given, tile_m=128, tile_n=64)
    print(tracemalloc.get_traced_memory()[1])


def inputs(seqlen: int) -> tuple[Problem, dict[str, Any]]:
    """One head of full attention on standard normal fp32 arrays."""
    problem = Problem(seqlen, seqlen, HEAD_DIM)
    rng = np.random.default_rng(0)
    shape = (1, seqlen, 1, HEAD_DIM)
    return problem, {name: rng.standard_normal(shape, np.float32) for name in "qkv"}


def dense(problem: Problem, q, k, v) -> np.ndarray:
    """Attention in the three lines that its formula takes."""
    scores = q[0, :, 0] @ k[0, :, 0].T * np.float32(problem.softmax_scale)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v[0, :, 0]


def dense_in_place(problem: Problem, q, k, v) -> np.ndarray:
    """The same with one N x N array instead of several."""
    scores = q[0, :, 0] @ k[0, :, 0].T
    scores *= np.float32(problem.softmax_scale)
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores @ v[0, :, 0]


def seconds(work) -> float:
    """Wall time of one call."""
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def machine() -> dict:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(terse=True)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(sys.argv[2], int(sys.argv[3]))
    elif THREADS not in os.environ:
        # NumPy reads it when it is imported, so begin again.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {THREADS: "1"})
    else:
        main()
