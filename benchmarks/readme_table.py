"""Print a table of README on the kernels' speed from the results of ``flash-numba bench``.

python benchmarks/readme_table.py benchmarks/results/h200_fp32.json
"""

import argparse

from simulator.bench import results

SEQLEN = 2048
"""Of the column TFLOP/s, without a mask; the slowest rung has a row there."""
RUNGS = ("standard", "flash1", "flash2", "tensor_core", "hopper")
FUSED = "torch_flash", "torch_cudnn"
PEERS = {"fp32": ("torch_efficient", "torch_math"), "fp16": FUSED, "bf16": FUSED}
"""Of the last columns, by element type."""


def span(values: list[float]) -> str:
    """Least and most, or a dash."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def key_of(row: dict) -> tuple:
    """What a line of the table is of."""
    return row["rung"], row["direction"], row["head_dim"], row["deterministic"]


def table(found: dict) -> list[str]:
    """A line for each rung, pass and head dimension."""
    lines = []
    keys = dict.fromkeys(map(key_of, found["rows"]))
    (dtype,) = {row["dtype"] for row in found["rows"]}
    for key in sorted(keys, key=lambda key: RUNGS.index(key[0])):
        rung, direction, head_dim, deterministic = key
        rows = [row for row in found["rows"] if key_of(row) == key]
        (one,) = (r for r in rows if r["seqlen"] == SEQLEN and not r["causal"])
        ratios = [
            span([r["ratios"][peer] for r in rows if peer in r["ratios"]]) for peer in PEERS[dtype]
        ]
        form = direction if deterministic else f"{direction} fast"
        cells = [f"`{rung}`", form, f"{head_dim}", f"{one['tflops']:.1f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    print("\n".join(table(results.load(parser.parse_args().path))))
