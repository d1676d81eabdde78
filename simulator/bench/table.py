"""Results as tables of 80 columns, one for each direction, element type and head dimension."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .cells import PEERS


def render(results: dict[str, Any]) -> Group:
    """The machine, the tables, and what their columns mean.

    Parameters
    ----------
    results : dict
        As `results.load` returns it.
    """
    parts: list[Text | Table] = [Text(machine_line(results["machine"]), style="bold")]
    for (direction, dtype, head_dim), rows in groupby(results["rows"], _table_of):
        rows = sorted(rows, key=lambda row: (row["seqlen"], row["causal"]))
        parts += [Text(f"\n{direction} · {dtype} · head_dim {head_dim}"), _table(rows)]
    for name in ("left_out", "wrong"):
        parts += [Text(""), *_without_row(name, results.get(name, []))]
    return Group(*parts, Text(LEGEND))


HEADS = {peer: peer.removeprefix("torch_") for peer in PEERS} | {"torch_efficient": "effic."}
"""What columns are called."""

LEGEND = (
    "TFLOP/s: 4·B·H·N²·D, half if causal, 2.5 times that backward. GB/s: tiles that the "
    "closed form counts; L2 serves some. Last columns: torch's time over ours in the same "
    "rounds, by backend of scaled_dot_product_attention; above 1 ours is faster."
)


def machine_line(machine: dict[str, Any]) -> str:
    """GPU, date, driver and versions."""
    versions = machine["versions"]
    names = [f"{name} {versions[name]}" for name in ("torch", "numba-cuda") if name in versions]
    return ", ".join([machine["gpu"], machine["date"], f"driver {machine['driver']}", *names])


def _table_of(row: dict) -> tuple:
    return row["direction"], row["dtype"], row["head_dim"]


def _table(rows: list[dict]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    peers = [name for name in PEERS if any(name in row["ratios"] for row in rows)]
    table.add_column("N", justify="right", no_wrap=True)
    table.add_column("mask", no_wrap=True)
    table.add_column("rung", no_wrap=True)
    for name in ("ms", "TFLOP/s", "GB/s", *(HEADS[peer] for peer in peers)):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for row in rows:
        cell = f"{row['seqlen']}", "causal" if row["causal"] else "full"
        speed = row["gb_per_s"]
        table.add_row(
            *(("", "") if cell == before else cell),
            row["rung"] if row["deterministic"] else f"{row['rung']} fast",
            f"{row['ms']:.3f}" if row["ms"] < 100 else f"{row['ms']:.0f}",
            f"{row['tflops']:.1f}",
            "-" if speed is None else f"{speed:.0f}",
            *(f"{row['ratios'][peer]:.2f}" if peer in row["ratios"] else "-" for peer in peers),
        )
        before = cell
    return table


def _without_row(name: str, entries: list[dict]) -> list[Text]:
    """A line for each reason, with how many cells it holds for."""
    words = {"left_out": "not timed", "wrong": "no figure"}[name]
    counts: dict[tuple, int] = {}
    for entry in entries:
        key = entry["rung"], entry["why"]
        counts[key] = counts.get(key, 0) + 1
    style = "bold red" if name == "wrong" else ""
    return [
        Text(f"{words}: {rung}: {why} ({count} {'cell' if count == 1 else 'cells'})", style=style)
        for (rung, why), count in counts.items()
    ]
