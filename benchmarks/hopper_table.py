"""Print the tables of docs/hopper.md: cuDNN's time over that of the Hopper kernels.

python benchmarks/hopper_table.py
"""

from pathlib import Path

from readme_table import span

from simulator.bench import results

RESULTS = Path(__file__).resolve().parent / "results"
FILES = ("h200_fp16.json", "h200_bf16.json")
LENGTHS = {"512 and 1,024 queries": (512, 1024), "2,048 to 16,384": (2048, 4096, 8192, 16384)}
PEER = "torch_cudnn"


def table(direction: str) -> list[str]:
    """A line for each head dimension, mask and form; the least and the most ratio of its cells."""
    rows = [row for name in FILES for row in results.load(RESULTS / name)["rows"]]
    rows = [row for row in rows if row["rung"] == "hopper" and row["direction"] == direction]
    lines = [f"| head_dim | {' | '.join(LENGTHS)} |", "|---|---|---|"]
    for kind in dict.fromkeys(map(kind_of, rows)):
        own = [row for row in rows if kind_of(row) == kind]
        cells = [
            span([row["ratios"][PEER] for row in own if row["seqlen"] in lengths])
            for lengths in LENGTHS.values()
        ]
        head_dim, causal, deterministic = kind
        name = f"{head_dim}, {'causal' if causal else 'full'}{'' if deterministic else ', fast'}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def kind_of(row: dict) -> tuple:
    """What a line of the table is of."""
    return row["head_dim"], row["causal"], row["deterministic"]


if __name__ == "__main__":
    for direction in ("forward", "backward"):
        print("\n".join([*table(direction), ""]))
