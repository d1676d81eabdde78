"""Measure the steps from naive to flash2 and torch's fp32 attention in one run.

Results are checked against float64 first, times taken in turn, both as ``flash-numba bench`` does;
about 10 seconds once the kernels are compiled. Needs a GPU and torch.

    python benchmarks/teaching_steps.py [--seqlen 2048] [--output results.json]
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from flash_numba.arrays import DeviceArray
from flash_numba.kernels.steps import STEPS, module_of
from simulator.bench import gpu as gpus
from simulator.bench.cells import Cell
from simulator.bench.contenders import Inputs, OneModule, ours, peers
from simulator.bench.measure import METHOD, times
from simulator.bench.truth import Truth

RESULTS = Path(__file__).parent / "results" / "h200_steps.json"
TOKENS, HIDDEN = 16384, 2048
PEERS = ("torch_efficient", "torch_math")


def compile_step(step: str, head_dim: int) -> None:
    """Leave a step's kernel where `flash_numba.kernel_store` finds it, as others do theirs."""
    gpu = gpus.find()
    small = Cell("forward", "fp32", head_dim, 128, False, 1, 1)
    resources(step, small, Inputs.draw(small, gpu.device), gpu.stream)


def resources(step: str, cell: Cell, inputs: Inputs, stream: int) -> dict[str, int]:
    """Registers and local memory of a thread of a step's kernel."""
    out, lse = inputs.q.clone(), inputs.q.new_empty(cell.problem.shapes["lse"])
    views = [DeviceArray.of(x) for x in (*inputs[:3], out, lse)]
    function: Any = module_of(step).forward(cell.problem, *views, stream)
    return {"registers": function.registers, "local_bytes": function.local_bytes}


def rows_of(gpu: gpus.TorchGpu, cell: Cell) -> list[dict]:
    """A row for each step."""
    inputs = Inputs.draw(cell, gpu.device)
    truth, contenders = Truth(cell, inputs), []
    for step in STEPS:
        contenders.append(ours(OneModule(step, module_of(step)), truth, gpu.stream))
    contenders += peers(PEERS, cell, inputs)
    samples = times(gpu, contenders, budget_s=1.0)
    ms = {name: median(found) for name, found in samples.items()}
    tflops = {name: cell.flops / found / 1e9 for name, found in ms.items()}
    return [
        {
            "step": step,
            **asdict(cell),
            "ms": ms[step],
            "tflops": tflops[step],
            **resources(step, cell, inputs, gpu.stream),
            "peers": {name: ms[name] for name in PEERS if name in ms},
            "peer_tflops": {name: tflops[name] for name in PEERS if name in ms},
        }
        for step in STEPS
    ]


def main():
    """Measure head dimensions 64 and 128, print and write each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with ProcessPoolExecutor(12, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_step, [*STEPS] * 2, [64] * len(STEPS) + [128] * len(STEPS)))
    gpu, rows = gpus.find(), []
    results = {"machine": gpu.machine(), "method": METHOD, "rows": rows}
    for head_dim in (64, 128):
        batch, heads = TOKENS // options.seqlen, HIDDEN // head_dim
        cell = Cell("forward", "fp32", head_dim, options.seqlen, False, batch, heads)
        for row in rows_of(gpu, cell):
            rows.append(row)
            print(f"{cell}: {row['step']:13} {row['tflops']:6.2f} TFLOP/s", flush=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
