"""Measure the fp32 rungs against torch's fp32 attention in the same run, results checked first.

python benchmarks/fp32.py results.json [--quick]
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from common import HIDDEN, TOKENS, flops, milliseconds, write
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_numba.kernels import flash2, flash2_backward
from flash_numba.problem import Problem


def inputs(seqlen, head_dim) -> Any:
    """q, k, v, dO of shape (batch, seqlen, heads, head_dim)."""
    shape = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    return [torch.randn(shape, device="cuda") for _ in range(4)]


def torch_backend(backend, q, k, v, causal):
    """torch's attention with one backend; arguments and result (batch, seqlen, heads, head_dim)."""
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal
        )
    return out.transpose(1, 2)


def backward_calls(problem, q, k, v, out, lse, dout, stream) -> dict:
    """Our backward pass and torch's, after a look at whether they agree."""
    q_leaf, k_leaf, v_leaf = leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    graph = torch_backend(SDPBackend.EFFICIENT_ATTENTION, q_leaf, k_leaf, v_leaf, problem.causal)
    dq, dk, dv = grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    size = sum(flash2_backward.workspace(problem))
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")

    def ours():
        flash2_backward.backward(problem, q, k, v, out, lse, dout, dq, dk, dv, memory, None, stream)

    def theirs():
        return torch.autograd.grad(graph, leaves, dout, retain_graph=True)

    ours()
    for got, want in zip(grads, theirs(), strict=True):
        error = ((got - want).abs().max() / want.abs().max()).item()
        assert error < 1e-4, f"flash2's gradient differs from torch's by {error}"
    return {"flash2": ours, "torch_efficient": theirs}


def row(direction, seqlen, head_dim, causal):
    """Time one cell: our kernel and its peers."""
    q, k, v, dout = inputs(seqlen, head_dim)
    batch, _, heads, _ = q.shape
    problem = Problem(seqlen, seqlen, head_dim, batch=batch, num_heads=heads, causal=causal)
    out = torch.full_like(q, torch.nan)
    lse = torch.full((batch, heads, seqlen), torch.nan, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    flash2.forward(problem, q, k, v, out, lse, stream)
    peer = torch_backend(SDPBackend.EFFICIENT_ATTENTION, q, k, v, causal)
    error = (out - peer).abs().max().item()
    assert error < 1e-4, f"flash2 differs from torch by {error}"
    if direction == "forward":
        calls = {
            "flash2": lambda: flash2.forward(problem, q, k, v, out, lse, stream),
            "torch_efficient": lambda: torch_backend(
                SDPBackend.EFFICIENT_ATTENTION, q, k, v, causal
            ),
        }
    else:
        calls = backward_calls(problem, q, k, v, out, lse, dout, stream)
    times = milliseconds(calls)
    work = flops(direction, batch, heads, seqlen, head_dim, causal)
    ms = times.pop("flash2")
    return {
        "rung": "flash2",
        "direction": direction,
        "dtype": "fp32",
        "head_dim": head_dim,
        "seqlen": seqlen,
        "causal": causal,
        "batch": batch,
        "heads": heads,
        "ms": ms,
        "tflops": work / ms / 1e9,
        "peers": times,
        "peer_tflops": {name: work / t / 1e9 for name, t in times.items()},
    }


def main():
    """Measure every cell, print it, write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--seqlens", type=int, nargs="*", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--directions", nargs="*", default=["forward", "backward"])
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    rows = []
    for direction in options.directions:
        for head_dim in (64, 128):
            for seqlen in options.seqlens:
                for causal in (False, True):
                    found = row(direction, seqlen, head_dim, causal)
                    rows.append(found)
                    peer = found["peers"]["torch_efficient"]
                    ratio = peer / found["ms"]
                    print(
                        f"{direction:8} D={head_dim:3} N={seqlen:5} causal={causal!s:5} "
                        f"{found['tflops']:6.2f} TFLOP/s, torch "
                        f"{found['peer_tflops']['torch_efficient']:6.2f}, ratio {ratio:.3f}",
                        flush=True,
                    )
    write(options.path, rows)


if __name__ == "__main__":
    main()
