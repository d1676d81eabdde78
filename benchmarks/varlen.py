"""Time packed batches beside padded ones of equal work, and beside torch's own.

python benchmarks/varlen.py benchmarks/results/h200_varlen.json
python benchmarks/varlen.py --compile 8 [--compile-for 9.0]

Batches of equal lengths are the same work packed and dense: `ratio` is dense time / packed time of
the same rung. A batch of mixed lengths has no dense twin; its rate is held against torch's
`varlen_attn` alone.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from common import write

from flash_numba import gpu_call
from flash_numba.addresses import unknown
from flash_numba.ahead import Task, compile_all, gpu_to_compile_for
from flash_numba.arguments import pose
from flash_numba.arrays import DeviceArray, contiguous
from flash_numba.attention import gpu_of
from flash_numba.ladder import RUNGS, choose
from flash_numba.problem import Problem
from flash_numba.sequences import Packed, Sequences
from simulator.bench import gpu
from simulator.bench.contenders import Contender
from simulator.bench.measure import times

TOKENS, HIDDEN, DTYPE = 16384, 2048, "float16"
NEEDS = ("q", "k", "v")


def mixed_lengths() -> list[int]:
    """Lengths of a batch as a model meets it: many short ones, a few long ones, 16384 tokens."""
    rng, lengths = np.random.default_rng(7), []
    while sum(lengths) < TOKENS:
        lengths.append(min(int(rng.lognormal(6, 1.2)) + 1, TOKENS - sum(lengths)))
    return lengths


BATCHES = {f"{TOKENS // n} x {n}": [n] * (TOKENS // n) for n in (512, 2048, 8192)}
BATCHES["mixed"] = mixed_lengths()


def flops(lengths, heads, head_dim, causal, direction) -> float:
    """Nominal work, as `simulator.bench` counts it."""
    work = 4.0 * heads * head_dim * sum(n * n for n in lengths)
    return work * (0.5 if causal else 1) * (2.5 if direction == "backward" else 1)


def planned(name: str, direction: str, arrays, stream, packed=None, **options) -> Contender:
    """Kernels of one call on memory that is there, without what the host does before."""
    import torch

    q, k, v, do = arrays
    posed = pose(q, k, v, packed=packed, **options)
    rung = choose(posed.problem, gpu_of(posed), "tensor_core")
    views = dict(posed.arrays)

    def ready(plan: gpu_call.Pass):
        results = [
            torch.empty(
                one.shape, dtype=torch.float32 if one.dtype == "fp32" else q.dtype, device="cuda"
            )
            for one in (*plan.outputs, *plan.memory)
        ]
        given = [views[name].pointer for name in plan.inputs]
        addresses = (*given, *(x.data_ptr() for x in results), 0, 0)
        return results, partial(plan.run, addresses, stream)

    (o, lse, *rest), forward = ready(gpu_call.plan_forward(rung, posed.problem, views))
    forward()
    if direction == "forward":
        return Contender(name, forward, (q, k, v, o, lse, rest, packed))
    views |= {name: DeviceArray.of(x) for name, x in (("o", o), ("lse", lse), ("do", do))}
    grads, backward = ready(
        gpu_call.plan_backward(rung, posed.problem, views, NEEDS, posed.at, {})
    )  # fmt: skip
    backward()
    return Contender(name, backward, (q, k, v, do, o, lse, grads, packed))


def torch_varlen(direction: str, arrays, cu, longest: int, causal: bool) -> Contender | None:
    """torch's own, if this torch has it."""
    import torch

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    call: Any = varlen_attn
    q, k, v, do = arrays
    window = {"window_size": (-1, 0)} if causal else {}

    def attend():
        return call(q, k, v, cu, cu, longest, longest, **window)

    if direction == "forward":

        def forward():
            with torch.no_grad():
                return attend()

        return Contender("torch_varlen", forward)
    leaves = q, k, v = tuple(x.detach().requires_grad_() for x in (q, k, v))
    o = attend()
    return Contender(
        "torch_varlen", lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)
    )  # fmt: skip


def cells() -> Iterator[dict]:
    """What is timed."""
    for head_dim in (64, 128):
        for batch in BATCHES:
            for causal in (False, True):
                for direction in ("forward", "backward"):
                    yield {
                        "head_dim": head_dim,
                        "batch": batch,
                        "causal": causal,
                        "direction": direction,
                    }


def tasks() -> Iterator[Task]:
    """The kernels of all cells, for `compile_all`."""
    (rung,) = (one for one in RUNGS if one.name == "tensor_core")
    for cell in cells():
        lengths, head_dim = BATCHES[cell["batch"]], cell["head_dim"]
        sizes = {"batch": len(lengths), "num_heads": HIDDEN // head_dim, "dtype": "fp16"}
        dense = Problem(lengths[0], lengths[0], head_dim, causal=cell["causal"], **sizes)
        if len(set(lengths)) == 1:
            yield Task(rung, dense, cell["direction"])
        shift = contiguous(unknown("memory"), (len(lengths),), "int64")
        packed = Sequences(TOKENS, TOKENS, on_gpu=shift)
        total = {"seqlen_q": TOKENS, "seqlen_k": TOKENS, "sequences": packed}
        yield Task(rung, replace(dense, **total), cell["direction"])


def contenders(cell: dict, stream: int) -> list[Contender]:
    """All that can do the work of a cell, each run once."""
    import torch

    lengths, head_dim = BATCHES[cell["batch"]], cell["head_dim"]
    causal, direction = cell["causal"], cell["direction"]
    shape = TOKENS, HIDDEN // head_dim, head_dim
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda", "dtype": getattr(torch, DTYPE)}
    arrays = [torch.randn(shape, **options) for _ in range(4)]
    cu = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)).cuda()
    found = [
        planned("packed", direction, arrays, stream, Packed(cu, cu), causal=causal),
    ]
    if len(set(lengths)) == 1:
        dense = [x.view(len(lengths), lengths[0], *shape[1:]) for x in arrays]
        found.append(planned("dense", direction, dense, stream, causal=causal))
    peer = torch_varlen(direction, arrays, cu, max(lengths), causal)
    if peer is not None:
        peer.run()
        found.append(peer)
    return found


def row(device, cell: dict, budget_s: float) -> dict:
    """Times and rates of a cell."""
    racing = contenders(cell, device.stream)
    samples = times(device, racing, budget_s)
    lengths = BATCHES[cell["batch"]]
    work = flops(
        lengths, HIDDEN // cell["head_dim"], *(cell[n] for n in ("head_dim", "causal", "direction"))
    )
    ms = {name: median(found) for name, found in samples.items()}
    own = samples["packed"]
    ratios = {
        name: median(a / b for a, b in zip(found, own, strict=True))
        for name, found in samples.items()
        if name != "packed"
    }
    rates = {name: work / found / 1e9 for name, found in ms.items()}
    return cell | {"dtype": DTYPE, "ms": ms, "tflops": rates, "ratio": ratios, "rounds": len(own)}


def main() -> None:
    """Time all cells and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?")
    parser.add_argument("--compile", type=int, metavar="N", help="only compile, in N processes")
    parser.add_argument("--compile-for", metavar="CC", help="another GPU's compute capability")
    parser.add_argument("--budget", type=float, default=0.15, help="seconds of timing a cell")
    options = parser.parse_args()
    if options.compile:
        capability = gpu_to_compile_for(options.compile_for).compute_capability
        for line in compile_all(tasks(), capability, options.compile):
            print(line, flush=True)
        return
    if options.path is None:
        parser.error("path must say where to write the table")
    device, rows = gpu.find(), []
    for cell in cells():
        rows.append(row(device, cell, options.budget))
        print(*rows[-1].values(), flush=True)
        device.empty()
    write(options.path, [*rows, {"mixed_lengths": BATCHES["mixed"]}])


if __name__ == "__main__":
    main()
