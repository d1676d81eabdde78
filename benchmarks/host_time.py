"""Measure what calls cost the host, and the memory they take: ours beside torch's in the same run.

python benchmarks/host_time.py results.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import machine, write

from flash_numba import flash_attention
from flash_numba.interop import torch_eager
from flash_numba.interop.torch_pass import TorchPass

SHAPE = 2, 128, 4, 64
"""(batch, seqlen, heads, head_dim) of the small problem: the GPU is done before the host is."""

CALLS, SAMPLES = 150, 15
"""Calls of a sample, few enough that the driver's queue never fills; the median counts."""

SEQLENS = 1024, 2048, 4096, 8192, 16384


def host_us(calls: dict) -> dict[str, float]:
    """Microseconds that the host is busy with each call, in turn.

    Parameters
    ----------
    calls : dict of name -> function without arguments
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        for name, call in calls.items():
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
            torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in samples.items()}


def sdpa(q, k, v):
    """torch's attention; arguments and result (batch, heads, seqlen, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v)


def inputs(dtype, gradient: bool, transposed: bool) -> Any:
    """q, k and v of the small problem, for torch with heads before seqlen."""
    batch, seqlen, heads, head_dim = SHAPE
    shape = (batch, heads, seqlen, head_dim) if transposed else SHAPE
    return [
        torch.randn(shape, dtype=dtype, device="cuda", requires_grad=gradient) for _ in range(3)
    ]


def part_calls(before: set) -> dict:
    """The parts of the calls that were planned since: making outputs, and launching."""
    (call,) = (call for key, call in torch_eager._calls.items() if key not in before)
    (backward,) = (call._backward or {}).values()
    return (
        _parts("forward", call._forward_to_o)
        | _parts("forward with grad", call.forward_pass)
        | _parts("backward", backward)
    )


def _parts(name: str, planned: TorchPass) -> dict:
    def allocate():
        return [make() for make in planned.make]

    kept = allocate()
    read = [torch.zeros(SHAPE, dtype=kept[0].dtype, device="cuda") for _ in planned.planned.inputs]
    addresses = [*(x.data_ptr() for x in (*read, *kept)), *planned.more, 0, 0]
    stream = torch.cuda.current_stream().cuda_stream

    def launch(held=(read, kept)):
        planned.run(addresses, stream)

    return {f"{name} allocation": allocate, f"{name} launch": launch}


def call_rows(dtype) -> list[dict]:
    """Host time of forward, forward with gradients to come, and backward."""
    before = set(torch_eager._calls)
    plain, leaves = inputs(dtype, False, False), inputs(dtype, True, False)
    theirs, their_leaves = inputs(dtype, False, True), inputs(dtype, True, True)
    o, their_o = flash_attention(*leaves), sdpa(*their_leaves)
    do, their_do = torch.randn_like(o), torch.randn_like(their_o)

    def backward():
        return torch.autograd.grad(o, leaves, do, retain_graph=True)

    def their_backward():
        return torch.autograd.grad(their_o, their_leaves, their_do, retain_graph=True)

    backward()
    calls = {
        "forward": lambda: flash_attention(*plain),
        "forward torch": lambda: sdpa(*theirs),
        "forward with grad": lambda: flash_attention(*leaves),
        "forward with grad torch": lambda: sdpa(*their_leaves),
        "backward": backward,
        "backward torch": their_backward,
    }
    times = host_us(calls | part_calls(before))
    rows = []
    for name in ("forward", "forward with grad", "backward"):
        allocation, launch = (times[f"{name} {part}"] for part in ("allocation", "launch"))
        rows.append(
            {
                "what": "call",
                "call": name,
                "dtype": str(dtype).removeprefix("torch."),
                "shape": SHAPE,
                "host_us": times[name],
                "torch_sdpa_us": times[f"{name} torch"],
                "launch_us": launch,
                "allocation_us": allocation,
                "checks_us": times[name] - launch - allocation,
            }
        )
    return rows


def graph_row() -> dict:
    """Host time of replaying a graph of a forward and a backward pass, held against eager calls."""
    leaves = inputs(torch.float32, True, False)
    do = torch.randn(SHAPE, device="cuda")

    def both():
        o = flash_attention(*leaves)
        return o, *torch.autograd.grad(o, leaves, do)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            both()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    with torch.no_grad():
        for leaf in leaves:
            leaf.copy_(torch.randn_like(leaf))
    graph.replay()
    for found, expected in zip(captured, both(), strict=True):
        assert torch.equal(found, expected), "a replay differs from an eager call"
    return {
        "what": "graph",
        "shape": SHAPE,
        "replay_us": host_us({"replay": graph.replay})["replay"],
    }


FIRST_CALL = """
import json, sys, time
import torch
made = [torch.randn(2, 256, 4, int(sys.argv[1]), device="cuda", requires_grad=True) for _ in "qkv"]
# torch loads sympy at its first gradients that are handed some: its time, not ours.
torch.autograd.grad(made[0] * made[1], made[0], torch.ones_like(made[0]))
torch.cuda.synchronize()
from flash_numba import flash_attention
times = [time.perf_counter()]
o = flash_attention(*made, causal=True)
torch.cuda.synchronize()
times.append(time.perf_counter())
torch.autograd.grad(o, made, torch.ones_like(o))
torch.cuda.synchronize()
times.append(time.perf_counter())
numba = "numba" in sys.modules
print(json.dumps({"forward_s": times[1] - times[0], "both_s": times[2] - times[0], "numba": numba}))
"""


def first_call_rows(head_dim: int) -> list[dict]:
    """From import finished to the first result, in new processes: empty cache, then filled."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {"FLASH_NUMBA_CACHE": folder}
        command = [sys.executable, "-c", FIRST_CALL, str(head_dim)]
        found = [
            json.loads(
                subprocess.run(command, env=variables, check=True, capture_output=True).stdout
            )
            for _ in range(3)
        ]
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    for cache, runs in (("empty", found[:1]), ("filled", found[1:])):
        forward, both = (
            statistics.median(run[name] for run in runs) for name in ("forward_s", "both_s")
        )
        loaded = any(run["numba"] for run in runs)
        rows.append(
            {
                "what": "first call",
                "head_dim": head_dim,
                "cache": cache,
                "forward_s": forward,
                "both_s": both,
                "numba_loaded": loaded,
                "cache_bytes": size,
            }
        )
    return rows


def memory_row(kernel: str, direction: str, seqlen: int) -> dict:
    """Bytes at the peak of a pass beyond its inputs and outputs; one head of 64 columns."""
    shape = 1, seqlen, 1, 64
    q, k, v = (torch.randn(shape, device="cuda", requires_grad=True) for _ in "qkv")
    o, lse = flash_attention(q, k, v, kernel=kernel, return_lse=True)
    do = torch.randn_like(o)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if direction == "forward":
        results = flash_attention(q, k, v, kernel=kernel, return_lse=True)
    else:
        results = torch.autograd.grad(o, (q, k, v), do)
    torch.cuda.synchronize()
    outputs = torch.cuda.memory_allocated() - before
    del results, lse
    extra = torch.cuda.max_memory_allocated() - before - outputs
    return {
        "what": "memory",
        "kernel": kernel,
        "direction": direction,
        "seqlen": seqlen,
        "head_dim": 64,
        "extra_bytes": extra,
        "output_bytes": outputs,
    }


def readme(rows: list[dict], machine: dict, path: str) -> str:
    """What README.md says of these rows; tests/test_readme.py holds it to them."""
    by_what: dict[str, list[dict]] = {}
    for row in rows:
        by_what.setdefault(row["what"], []).append(row)
    table = [
        f"| {row['call']} | {row['host_us']:.1f} | {row['launch_us']:.1f} "
        f"| {row['allocation_us']:.1f} | {row['checks_us']:.1f} | {row['torch_sdpa_us']:.1f} |"
        for row in by_what["call"]
        if row["dtype"] == "float32"
    ]
    first = (
        f"{row['cache']} cache {row['forward_s']:.2f} s, with gradients {row['both_s']:.2f} s"
        for row in by_what["first call"]
        if row["head_dim"] == 64
    )
    extra = {
        (r["kernel"], r["direction"], r["seqlen"]): r["extra_bytes"] for r in by_what["memory"]
    }
    memory = (
        f"{kernel} {extra[kernel, 'forward', SEQLENS[-1]] / 2**20:,.1f} and "
        f"{extra[kernel, 'backward', SEQLENS[-1]] / 2**20:,.1f}"
        for kernel in ("standard", "flash1", "flash2")
    )
    lines = [
        "Time of the host for a repeated call, µs; batch 2, 128 tokens, 4 heads, head_dim 64,",
        "fp32; torch: `scaled_dot_product_attention` (`benchmarks/host_time.py`,",
        f"`benchmarks/results/{Path(path).name}`: {machine['gpu']}, {machine['date']}):",
        "",
        "| call | all | launch | allocation | checks, autograd | torch |",
        "|---|---|---|---|---|---|",
        *table,
        "",
        "From imports done to the first result in a new process, head_dim 64:",
        f"{'; '.join(first)}.",
        "A CUDA graph of a forward and a backward pass",
        f"replays in {by_what['graph'][0]['replay_us']:.1f} µs.",
        "Memory beyond inputs and outputs at N = 16,384, one head, MiB forward and backward:",
        f"{'; '.join(memory)}.",
    ]
    return "\n".join(lines)


def main():
    """Measure everything, print it, write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--head-dims", type=int, nargs="*", default=[64], help="of first calls")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict] = []

    def add(*found: dict):
        rows.extend(found)
        write(options.path, rows)  # at once, should the time not last
        for row in found:
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)

    for dtype in (torch.float32, torch.float16):
        add(*call_rows(dtype))
    for head_dim in options.head_dims:
        add(*first_call_rows(head_dim))
    for kernel in ("standard", "flash1", "flash2"):
        for direction in ("forward", "backward"):
            add(*(memory_row(kernel, direction, seqlen) for seqlen in SEQLENS))
    add(graph_row())
    print(readme(rows, machine(), options.path))


if __name__ == "__main__":
    main()
