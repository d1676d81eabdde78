"""What the GPU benchmarks share: the machine, timing, and writing results."""

import datetime
import json
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

import torch

TOKENS, HIDDEN = 16384, 2048
"""Every row has 16k tokens in its batch and heads * head_dim = 2048."""


def machine() -> dict:
    """GPU, driver, versions and date of a run."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.split()
    packages = ("numba", "numba-cuda", "numpy", "torch")
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver[0] if driver else "unknown",
        "versions": {
            "python": sys.version.split()[0],
            "cuda": torch.version.cuda,
            **{package: version(package) for package in packages},
        },
        "date": datetime.date.today().isoformat(),
    }


def milliseconds(calls: dict, repeats: int = 9, target_ms: float = 12.0) -> dict:
    """Median time of each call, one after the other in turn (the chip is power limited).

    Parameters
    ----------
    calls : dict of name -> function without arguments
    repeats : int
        Samples of each; a sample is as many calls as take about `target_ms`.
    """
    counts, samples = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()
        counts[name] = max(1, int(target_ms / max(_sample(call, 1), 1e-3)))
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(_sample(call, counts[name]))
    return {name: statistics.median(times) for name, times in samples.items()}


def _sample(call, count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def flops(direction: str, batch: int, heads: int, seqlen: int, head_dim: int, causal: bool):
    """Products of attention: 4·B·H·N²·D forward, 2.5 times that backward; half if causal."""
    forward = 4 * batch * heads * seqlen * seqlen * head_dim * (0.5 if causal else 1)
    return forward * (2.5 if direction == "backward" else 1)


def write(path: str | Path, rows: list[dict]) -> None:
    """Write `rows` with the machine they were measured on."""
    Path(path).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
