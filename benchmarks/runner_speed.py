"""How fast the thread runner is: counted accesses a second, numbers alone, and its report.

Run ``python benchmarks/runner_speed.py``; it takes about a minute and writes
``benchmarks/results/runner_speed.json``. Times are seconds of one core's own time, the best of
several runs. A bar is what the project demands of itself.
"""

from __future__ import annotations

import gc
import json
import math
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from counter_cases import Case, launches
from simulator_speed import bar, machine

from flash_numba.device.numba_cuda import cuda, types
from simulator.threads import trace

RESULTS = Path(__file__).parent / "results" / "runner_speed.json"
TILE, DEPTH = 32, 64
PADDED = DEPTH + 1
MANY = 10_000_000


@cuda.jit
def naive(Q, K, V, O, scale):
    """FlashAttention-2 forward as one first writes it: one thread a query."""
    sQ = cuda.shared.array((TILE, DEPTH), types.float32)
    sK = cuda.shared.array((TILE, PADDED), types.float32)
    sV = cuda.shared.array((TILE, DEPTH), types.float32)
    row, first = cuda.threadIdx.x, cuda.blockIdx.x * TILE
    for r in range(TILE):
        for c in range(row, DEPTH, TILE):
            sQ[r, c] = Q[first + r, c]
    acc = cuda.local.array(DEPTH, types.float32)
    rS = cuda.local.array(TILE, types.float32)
    for c in range(DEPTH):
        acc[c] = 0
    row_max, row_sum = types.float32(-math.inf), types.float32(0)
    for block in range(K.shape[0] // TILE):
        cuda.syncthreads()
        for r in range(TILE):
            for c in range(row, DEPTH, TILE):
                sK[r, c] = K[block * TILE + r, c]
                sV[r, c] = V[block * TILE + r, c]
        cuda.syncthreads()
        new_max = row_max
        for r in range(TILE):
            dot = types.float32(0)
            for c in range(DEPTH):
                dot += sQ[row, c] * sK[r, c]
            rS[r] = dot * scale
            new_max = max(new_max, rS[r])
        rescale = math.exp(row_max - new_max)
        row_sum *= rescale
        for c in range(DEPTH):
            acc[c] *= rescale
        for r in range(TILE):
            p = math.exp(rS[r] - new_max)
            row_sum += p
            for c in range(DEPTH):
                acc[c] += p * sV[r, c]
        row_max = new_max
    for c in range(DEPTH):
        O[first + row, c] = acc[c] / row_sum


@cuda.jit
def copies(x, y, turns):
    """A load and a store a turn."""
    i = cuda.grid(1)
    for _ in range(turns):
        y[i] = x[i]


def seconds(run) -> tuple[float, Any]:
    """Time of this process that `run` takes, and its result.

    No garbage is looked for meanwhile, as in `timeit`: that takes the longer the more a process
    keeps.
    """
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        result = run()
        return time.process_time() - start, result
    finally:
        gc.enable()


def traced_naive(**options) -> float:
    """Best seconds of the naive kernel at N = 64."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((64, DEPTH), np.float32) for _ in range(3)]
    out = np.full((64, DEPTH), np.nan, np.float32)
    run = trace(naive, **options)[2, TILE]
    return min(seconds(lambda: run(*arrays, out, np.float32(0.125)))[0] for _ in range(5))


def traced_tensor_core_step() -> float:
    """Best seconds of a 128-thread block of tensor_core: 128 queries, 128 keys, head_dim 64."""
    sizes = {"seqlen_q": 128, "seqlen_k": 128, "head_dim": 64, "num_heads": 1, "dtype": "fp16"}
    (launch,) = launches(Case("tensor_core", "forward", "step", sizes))
    assert launch.threads == 128
    sizes = launch.blocks, launch.threads, 0, launch.shared_bytes
    run = trace(launch.kernel, blocks=(0,))[sizes]
    return min(seconds(lambda: run(*launch.arguments))[0] for _ in range(3))


def main() -> None:
    """Measure everything and write the results."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((64, DEPTH), np.float32) for _ in range(3)]
    report = trace(naive)[2, TILE](*arrays, np.full((64, DEPTH), np.nan, np.float32), np.float32(1))
    accesses = report.count().lanes
    checked, alone = traced_naive(), traced_naive(count=False)
    tensor_core_step = traced_tensor_core_step()
    turns = MANY // 2 // 1024
    x = np.zeros(1024, np.float32)
    spent, large = seconds(lambda: trace(copies)[8, 128](x, np.zeros_like(x), turns + 1))
    shown = min(seconds(lambda: str(large))[0] for _ in range(3))
    as_json = min(seconds(lambda: json.dumps(large.as_dict()))[0] for _ in range(3))
    results = {
        "benchmark": "runner_speed",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "numba", "greenlet")},
        },
        "accesses": accesses,
        "seconds": {
            "all checks": checked,
            "numbers alone": alone,
            "tensor-core tile step": tensor_core_step,
        },
        "large": {
            "accesses": large.count().lanes,
            "seconds": spent,
            "report_seconds": shown,
            "json_seconds": as_json,
        },
        "bars": [
            bar("accesses a second, all checks, at least", accesses / checked, 5e5, at_least=True),
            bar(
                "all checks over numbers alone, time, at least", checked / alone, 2.0, at_least=True
            ),
            bar("tensor-core tile step of 128 x 128 x 64, seconds, at most", tensor_core_step, 2.0),
            bar("report of 10 million accesses, seconds, at most", shown, 1.0),
        ],
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for entry in results["bars"]:
        print(f"{'met ' if entry['met'] else 'MISS'} {entry['what']} {entry['bar']}: ", end="")
        print(f"{entry['value']:,.4g}")


if __name__ == "__main__":
    main()
