"""Measure the Hopper rung's forward pass against torch's cuDNN and flash backends in the same run.

Every contender is captured in a CUDA graph and replayed in turn, so that what is compared is the
GPU's time; the result is checked first. One process a kernel compiles it, then waits for its turn
on the GPU. Needs a Hopper GPU.

    python benchmarks/hopper.py results/h200_hopper.json [--quick]
"""

import argparse
import multiprocessing
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from common import write
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_numba.kernels import hopper
from flash_numba.problem import Problem

TOKENS, HIDDEN = 16384, 2048
"""Every row has 16k tokens in its batch and heads * head_dim = 2048."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
REPEATS, TARGET_MS = 5, 5.0


def kernels() -> list[tuple[str, int, bool]]:
    """(dtype, head_dim, causal) of each kernel that is measured."""
    timed = [(dtype, d, causal) for dtype in TYPES for d in (64, 128) for causal in (False, True)]
    return timed + [("bf16", d, causal) for d in (96, 192, 256) for causal in (False, True)]


def contenders(problem: Problem, q, k, v, out, lse) -> dict[str, Any]:
    """Functions of a stream, by name; torch's take their arrays in the layout they are made for."""
    q_t, k_t, v_t = (x.transpose(1, 2).contiguous() for x in (q, k, v))

    def ours(stream):
        hopper.forward(problem, q, k, v, out, lse, stream.cuda_stream)

    def torch_with(backend):
        def call(stream):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q_t, k_t, v_t, is_causal=problem.causal)

        return call

    return {"hopper": ours} | {name: torch_with(backend) for name, backend in BACKENDS.items()}


def check(problem: Problem, q, k, v, out, theirs) -> float:
    """Relative error of our O against float32 in the first heads; torch's must be alike.

    Raises
    ------
    AssertionError
        If it is more than twice torch's.
    """
    few = [x[:1, :, :2].transpose(1, 2).float() for x in (q, k, v)]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        want = F.scaled_dot_product_attention(*few, is_causal=problem.causal)
    errors = [
        float((got.float() - want).norm() / want.norm())
        for got in (out[:1, :, :2].transpose(1, 2), theirs[:1, :2])
    ]
    assert errors[0] <= 2 * errors[1], f"relative error {errors[0]}, torch's {errors[1]}"
    return errors[0]


def captured(call, count: int):
    """A graph of `count` calls."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call(stream)
    return graph


def milliseconds(replay) -> float:
    """Time of one replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def cell(dtype, head_dim, causal, seqlen) -> dict:
    """One row of the results."""
    batch, heads = TOKENS // seqlen, max(HIDDEN // head_dim, 1)
    shape = (batch, seqlen, heads, head_dim)
    q, k, v = (torch.randn(shape, device="cuda").to(TYPES[dtype]) for _ in range(3))
    out = torch.full_like(q, torch.nan)
    lse = torch.full((batch, heads, seqlen), torch.nan, device="cuda")
    problem = Problem(
        seqlen, seqlen, head_dim, batch=batch, num_heads=heads, dtype=dtype, causal=causal
    )
    calls = contenders(problem, q, k, v, out, lse)
    now = torch.cuda.current_stream()
    calls["hopper"](now)
    error = check(problem, q, k, v, out, calls["flash"](now))
    work = 4 * batch * heads * seqlen**2 * head_dim / (2 if causal else 1)
    count = max(2, int(TARGET_MS / (work / 5e11)))
    graphs = {name: captured(call, count) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(REPEATS + 1):
        for name, graph in graphs.items():
            taken = milliseconds(graph.replay) / count
            if turn > 0:
                times[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    found = {name: round(work / taken / 1e9, 1) for name, taken in medians.items()}
    return {
        "direction": "forward", "dtype": dtype, "head_dim": head_dim, "causal": causal,
        "seqlen": seqlen, "batch": batch, "heads": heads, "relative_error": error,
        "ms": medians, "tflops": found, "ratio": round(medians["cudnn"] / medians["hopper"], 3),
    }  # fmt: skip


def measure(kernel, lengths, lock, results) -> None:
    """Rows of one kernel, in a process of its own."""
    dtype, head_dim, causal = kernel
    for seqlen in (lengths[0], lengths[-1]):  # their tiles may differ
        one = torch.zeros((1, seqlen, 1, head_dim), device="cuda", dtype=TYPES[dtype])
        lse = torch.zeros((1, 1, seqlen), device="cuda")
        problem = Problem(seqlen, seqlen, head_dim, dtype=dtype, causal=causal)
        hopper.forward(problem, one, one, one, torch.empty_like(one), lse)
    with lock:
        for seqlen in lengths if head_dim in (64, 128) else lengths[::2]:
            row = cell(dtype, head_dim, causal, seqlen)
            print(*kernel, seqlen, row["tflops"], row["ratio"], flush=True)
            results.append(row)


def main():
    """Measure all kernels and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--quick", action="store_true", help="three lengths only")
    options = parser.parse_args()
    lengths = (512, 2048, 8192) if options.quick else LENGTHS
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        lock, results = manager.Lock(), manager.list()
        workers = [
            spawn.Process(target=measure, args=(kernel, lengths, lock, results))
            for kernel in kernels()
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        failed = [kernel for kernel, one in zip(kernels(), workers, strict=True) if one.exitcode]
        assert not failed, f"no results of {failed}"
        order = list(kernels())
        rows = sorted(
            results,
            key=lambda row: (
                order.index((row["dtype"], row["head_dim"], row["causal"])), row["seqlen"],
            ),
        )  # fmt: skip
    write(options.path, rows)


if __name__ == "__main__":
    main()
