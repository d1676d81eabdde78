"""A comparison as tables with their units, and words below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .compare_words import definitions, sentences

if TYPE_CHECKING:
    from .compare_result import Comparison


def render(comparison: Comparison) -> Group:
    """What the programs are, three tables, the units, and sentences below."""
    return Group(
        Text(headline(comparison) + "\n", style="bold"),
        *(Text(line) for line in [*definitions(comparison), ""]),
        _hbm_table(comparison),
        Text(),
        _sram_table(comparison),
        Text(),
        _time_table(comparison),
        *_number_table(comparison),
        *(Text(line) for line in ["", *_units(comparison), "", *sentences(comparison)]),
    )


def headline(comparison: Comparison) -> str:
    """What was compared, on one line."""
    problem = comparison.problem
    left, right = problem.window
    heads = (
        f"all of {problem.batch} x {problem.num_heads} heads ({problem.num_kv_heads} kv)"
        if comparison.all_heads
        else "one query head"
    )
    parts = [
        {"both": "forward + backward"}.get(comparison.direction, comparison.direction),
        f"{problem.seqlen_q:,} queries x {problem.seqlen_k:,} keys",
        f"head_dim {problem.head_dim}",
        problem.dtype,
        f"tile {comparison.tile_m}x{comparison.tile_n}",
        *(["causal"] if problem.causal else []),
        *([f"window {left} {right}"] if (left, right) != (None, None) else []),
        heads,
        comparison.gpu.name,
    ]
    return " · ".join(parts)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _hbm_table(comparison: Comparison) -> Table:
    table = _table(
        "HBM",
        "read\nelements",
        "written\nelements",
        "moved\nbytes",
        "ratio of\nbytes",
        "closed\nform",
    )
    for entry in comparison.entries:
        counts, ratio = entry.counted, comparison.ratio(entry)
        if counts is None:
            table.add_row(entry.program, "does not fit")
            continue
        table.add_row(
            entry.program,
            f"{counts.hbm_read_elements:,}",
            f"{counts.hbm_write_elements:,}",
            size(counts.hbm_bytes),
            "-" if ratio is None else f"{ratio:.3f}",
            "equal" if entry.equal else "DIFFERS",
        )
    return table


def _sram_table(comparison: Comparison) -> Table:
    capacity = f"peak, of\n{size(comparison.gpu.shared_bytes_per_block)}"
    table = _table("SRAM", "loaded\nelements", "stored\nelements", capacity)
    for entry in comparison.entries:
        counts = entry.counted
        if counts is None:
            needs = size(entry.theory.sram_peak_bytes or 0)
            table.add_row(entry.program, "does not fit", "", f"needs {needs}")
            continue
        table.add_row(
            entry.program,
            f"{counts.sram_load_elements:,}",
            f"{counts.sram_store_elements:,}",
            "no tiles" if counts.sram_peak_bytes is None else size(counts.sram_peak_bytes),
        )
    return table


def _time_table(comparison: Comparison) -> Table:
    table = _table("work", "matmul\nFLOPs", "exp", "time at\nleast", "bound by")
    for entry in comparison.entries:
        roof = comparison.roofline(entry)
        if entry.counted is None or roof is None:
            table.add_row(entry.program, "does not fit")
            continue
        table.add_row(
            entry.program,
            f"{entry.counted.matmul_flops:,}",
            f"{entry.counted.exp_count:,}",
            duration(roof.total_s),
            {"memory": "HBM"}.get(roof.bound, roof.bound),
        )
    return table


def _number_table(comparison: Comparison) -> list:
    """The distances from the reference, if programs computed."""
    found = {entry.program: entry.differences for entry in comparison.entries if entry.differences}
    if not found:
        return []
    outputs = next(iter(found.values()))
    table = _table("numbers", *(f"error of\n{name} up to" for name in outputs))
    for program, distances in found.items():
        table.add_row(program, *(f"{distance:.1e}" for distance in distances.values()))
    return [Text(), table]


def _units(comparison: Comparison) -> list[str]:
    gpu, dtype = comparison.gpu, comparison.problem.dtype
    flops = gpu.matmul_flops_per_s(dtype)
    computed = any(entry.differences for entry in comparison.entries)
    return [
        "An element counts each time it moves between HBM and the chip, or is used from SRAM. "
        "Ratios are of algorithm0's bytes. KiB = 1024 bytes.",
        f"Time at least, with the whole {gpu.name} at work and nothing cached: the longest of HBM "
        f"bytes at {gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s, FLOPs at {flops / 1e12:,.0f} TFLOP/s "
        f"({dtype}) and exp at {gpu.exp_per_s / 1e12:.2f} T/s.",
        *(["Errors are distances from attention in float64; programs compute in fp32."] * computed),
    ]


def size(nbytes: int) -> str:
    """Bytes with a binary unit: 4.5 MiB."""
    value, unit = float(nbytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes:,} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds with a unit that leaves a readable number."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:,.3g} {unit}"
    return f"{seconds / 1e-9:,.3g} ns"
