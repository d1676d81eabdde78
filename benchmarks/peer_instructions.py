"""Which machine instructions flash2 and torch's fp32 kernel execute, by Nsight Compute.

Both do the same forward pass. Needs a GPU, torch and ncu.

    python benchmarks/peer_instructions.py benchmarks/results/h200_peer_instructions.json
"""

import argparse
import json
import sys
from pathlib import Path

from common import machine
from nsight import executed

CONTENDERS = {"flash2": "flash2_forward", "torch_efficient": "fmha"}
"""Whose kernel it is, and what its name contains."""
BATCH, SEQLEN, HEADS, HEAD_DIM = 1, 2048, 16, 128
TIMEOUT = 60
"""Seconds of one contender under ncu."""


def run_on_gpu(contender: str) -> None:
    """One forward pass."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from flash_numba import flash_attention

    q, k, v = (torch.randn(BATCH, SEQLEN, HEADS, HEAD_DIM, device="cuda") for _ in range(3))
    if contender == "flash2":
        flash_attention(q, k, v, kernel="flash2")
    else:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.cuda.synchronize()


def measure(contender: str) -> dict:
    """A row: the contender, its kernel's name, and how often warps executed each instruction."""
    command = [sys.executable, __file__, "--run", contender]
    chosen = "--kernel-name-base", "mangled", "-k", f"regex:{CONTENDERS[contender]}"
    ((kernel, instructions),) = executed(command, *chosen, timeout=TIMEOUT).items()
    name = kernel.partition("(")[0].partition("[")[0]  # without types and Numba's hash
    return {"contender": contender, "kernel": name, "instructions": instructions}


def main() -> None:
    """Measure both and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--run", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_on_gpu(options.run)
        return
    if options.path is None:
        parser.error("where to write?")
    rows = []
    for contender in CONTENDERS:
        rows.append(measure(contender))
        print(contender, rows[-1]["kernel"], *list(rows[-1]["instructions"].items())[:5])
    shape = {"batch": BATCH, "seqlen": SEQLEN, "heads": HEADS, "head_dim": HEAD_DIM}
    text = json.dumps({"machine": machine(), "shape": shape, "rows": rows}, indent=1)
    options.path.write_text(text + "\n")


if __name__ == "__main__":
    main()
