"""Every kernel of every rung under compute-sanitizer, forward and backward.

    python benchmarks/sanitize.py benchmarks/results/sanitize.json

A process for each tool, rung and part of the features runs `exercise`: tails, causal and window,
key lengths, a block list, grouped heads, dropout, softcap, the gradients of lse, of a bias and of a
learned tensor, packed sequences, the backward pass that adds in any order. All find their kernels
compiled, by a first process without a tool for each rung and part. The JSON has the errors that
each tool reported; the exit status is 1 if there was any.

initcheck does not see the copy engine write, and reports every later read of what it wrote: the
rows "bulk" and "plain", of `stored_tile.py`, show it of one tile. So under initcheck the arrays
that hopper stores that way (`BULK`) begin as NaN, which the tool takes for written; whatever a
kernel left unwritten would be NaN in a result, and none is.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flash_numba import (
    flash_attention,
    flash_attention_backward,
    flash_attention_varlen,
    flash_attention_varlen_backward,
    gpu_call,
    launch,
    masks,
    tiling,
)
from flash_numba.kernels import hopper_backward_fast
from flash_numba.kernels.hopper_backward_tiles import HopperBackwardTiles
from flash_numba.ladder import RUNGS
from flash_numba.problem import DTYPES, Problem

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TYPES = {rung.name: rung.dtypes for rung in RUNGS if rung.modules}
PARTS = [
    (rung.name, part)
    for rung in RUNGS
    for part in ("changes", "masks", "packed", "fast", "wide")
    if rung.modules
    and (part != "packed" or "packed sequences" not in rung.kernels_lack)
    and (part not in ("fast", "wide") or rung.fast_backward)
]
"""What is run: Hopper's backward pass has other kernels in its fast form and for wide heads."""

BULK = {"hopper": ("o", "dk", "dv")}
"""Outputs that a rung's kernels store through the copy engine."""

CONTROLS = [("initcheck", "stored_tile", how) for how in ("bulk", "plain")]


def stripes(batch, head, q_idx, k_idx, aux):
    """A mask without a key range, for a block list."""
    return (q_idx // aux[0] + k_idx // aux[0]) % 3 != 0


def tempered(score, batch, head, q_idx, k_idx, aux):
    """A score change with a learned number a head."""
    return score * aux[0][head]


def tempered_derivative(score, batch, head, q_idx, k_idx, aux):
    """d tempered / d score."""
    return aux[0][head]


def tempered_aux_derivative(score, batch, head, q_idx, k_idx, term, aux):
    """d tempered / d aux[0][head]."""
    return score


def fill(names: Sequence[str]) -> None:
    """Let outputs of these names begin as NaN from now on, in this process."""
    whole = gpu_call._Memory._write

    def filled(memory, output):
        array = whole(memory, output)
        if output.name in names and array.nbytes:
            nan = np.frombuffer(bytes([0xFF]) * array.nbytes, array.dtype)
            array.copy_to_device(nan.reshape(array.shape))
        return array

    setattr(gpu_call._Memory, "_write", filled)  # noqa: B010 - as below


def exercise(rung: str, part: str, scale: int) -> None:
    """Run `rung` on problems of about ``64 * scale`` positions, and print its kernels' names."""
    names, whole = set(), launch._function

    def noted(dispatcher, *arguments):
        names.add(dispatcher.py_func.__name__)
        return whole(dispatcher, *arguments)

    setattr(launch, "_function", noted)  # noqa: B010 - a checker would refuse the assignment
    found = (packed if part == "packed" else padded)(rung, part, 64 * scale + 7, 64 * scale + 21)
    assert all(np.isfinite(x.astype(np.float32)).all() for x in found if x is not None)
    print("KERNELS", *sorted(names))


def normal(*shape, dtype="fp32") -> np.ndarray:
    """Random numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(DTYPES[dtype])


def padded(rung: str, part: str, n: int, m: int):
    """O, lse and gradients of two sequences of `n` queries and `m` keys."""
    if part == "fast":
        few = hopper_backward_fast.FEW_MASKED  # with as many key tiles it is not fast
        m += few * HopperBackwardTiles.tile_n
    depth = 136 if part == "wide" else 40
    listed = masks.Mask("stripes", stripes, (32,))
    blocks = tiling.BlockMask.from_mask(listed, Problem(n, m, depth), 32, 64)
    rule = tempered_derivative, 0, ("head",), tempered_aux_derivative
    learned = masks.ScoreMod("tempered", tempered, (normal(2),), *rule)
    of_masks = {"window": (60, 3), "key_lengths": np.array([0, m - 5]), "block_mask": blocks}
    options: dict[str, Any] = {
        "changes": {"causal": True, "dropout_p": 0.2, "seed": 5, "softcap": 2.0}
        | {"score_mod": learned, "bias": normal(2, 1, m)},
        "masks": of_masks,
        "wide": of_masks,
        "fast": of_masks | {"deterministic": False},
    }[part] | {"kernel": rung}
    needs = ("q", "k", "v", *(("bias", "score_mod") if part == "changes" else ()))
    dtype = TYPES[rung][part == "masks"]
    q, do = normal(2, n, 2, depth, dtype=dtype), normal(2, n, 2, 24, dtype=dtype)
    k, v = normal(2, m, 1, depth, dtype=dtype), normal(2, m, 1, 24, dtype=dtype)
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    dlse = normal(2, 2, n)
    found = flash_attention_backward(do, q, k, v, o, lse, dlse=dlse, needs=needs, **options)
    return o, np.maximum(lse, -1e30), *found


def packed(rung: str, part: str, n: int, m: int):
    """O, lse and gradients of three sequences behind each other, one of them without a key."""
    dtype = TYPES[rung][0]
    q, do = normal(n, 2, 40, dtype=dtype), normal(n, 2, 24, dtype=dtype)
    k, v = normal(m, 1, 40, dtype=dtype), normal(m, 1, 24, dtype=dtype)
    options = {"cu_seqlens_q": [0, 5, 40, n], "cu_seqlens_k": [0, 3, 3, m], "causal": True}
    options |= {"seqused_k": [3, 0, m - 9], "kernel": rung}
    o, lse = flash_attention_varlen(q, k, v, return_lse=True, **options)
    dlse = normal(2, n)
    found = flash_attention_varlen_backward(do, q, k, v, o, lse, dlse=dlse, **options)
    return o, np.maximum(lse, -1e30), *found


def sanitized(tool: str | None, rung: str, part: str) -> dict:
    """One row: a process that exercises `rung`, under `tool` if there is one."""
    scale = "1" if tool == "racecheck" else "2"
    filled = BULK.get(rung, ()) if tool == "initcheck" else ()
    if rung == "stored_tile":
        command = [sys.executable, str(Path(__file__).with_name("stored_tile.py")), part]
    else:
        command = [sys.executable, __file__, "--exercise", rung, part, "--scale", scale]
        command += ["--fill", *filled]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *command]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    text = done.stdout + done.stderr
    found = re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", text)
    kernels = re.findall(r"^KERNELS (.*)$", text, re.MULTILINE)
    if not (found or tool is None) or not kernels or done.returncode:
        print(tool, rung, part, text[-3000:], sep="\n", file=sys.stderr)
    return {
        "tool": tool,
        "rung": rung,
        "part": part,
        "filled": filled,
        "errors": int(found[-1]) if found else None,
        "exit_status": done.returncode,
        "kernels": kernels[0].split() if kernels else [],
        "seconds": round(time.perf_counter() - start, 1),
    }


def as_expected(row: dict) -> bool:
    """Whether a run ended well: with no report but of the control that is there to get some."""
    if (row["rung"], row["part"]) == ("stored_tile", "bulk"):
        return bool(row["errors"])
    return (row["errors"], row["exit_status"]) == (0, 0)


def main() -> None:
    """Compile, run every tool on every rung, side by side, and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", nargs="?")
    parser.add_argument("--exercise", nargs=2, metavar=("RUNG", "PART"))
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--fill", nargs="*", default=[], metavar="OUTPUT")
    parser.add_argument("--compile", action="store_true", help="and run no tool")
    parser.add_argument("--rungs", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args()
    if options.exercise:
        rung, part = options.exercise
        fill(options.fill)
        exercise(rung, part, options.scale)
        return
    parts = [part for part in PARTS if part[0] in options.rungs]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda one: sanitized(None, *one), parts))
        if options.compile:
            return
        rows = []
        runs = [*CONTROLS, *((tool, *part) for tool, part in product(TOOLS, parts))]
        for row in pool.map(lambda one: sanitized(*one), runs):
            rows.append(row)
            print(row, flush=True)
            if options.output:
                from common import write  # imports torch, which nothing else here needs

                write(options.output, rows)
    sys.exit(not all(map(as_expected, rows)))


if __name__ == "__main__":
    main()
