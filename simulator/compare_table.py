"""A comparison as tables, and in words: who moves less, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .counts import Counts
from .programs import PROGRAMS

if TYPE_CHECKING:
    from .compare_result import Comparison

SQUARE = ("S", "P", "dP", "dS", "mask", "dropout")
"""Tensors with an element for every query and key."""

REPEATED = {
    ("tiled", "forward"): "Q and K are read again for every tile of S",
    ("tiled", "backward"): "the others are read again for every tile of P and dS",
    ("flash1", "forward"): "Q, O, l and m move again for every key tile",
    ("flash1", "backward"): "Q, O, dO, lse and dQ move again for every key tile",
    ("flash2", "forward"): "K and V are read again for every query tile",
    ("flash2", "backward"): "Q, dO, lse and delta are read, and dQ added to, for every key tile",
    ("flash2_two_kernel", "forward"): "K and V are read again for every query tile",
    (
        "flash2_two_kernel",
        "backward",
    ): "K and V are read again for every query tile, Q, dO, lse and delta for every key tile",
}
"""What a program moves more than once."""

LARGER_TILE = {
    ("flash1", "forward"): "tile_n",
    ("flash1", "backward"): "tile_n",
    ("flash2", "forward"): "tile_m",
    ("flash2", "backward"): "tile_n",
    ("flash2_two_kernel", "forward"): "tile_m",
    ("flash2_two_kernel", "backward"): "tile_m or tile_n",
}
"""The tile size that decides how often."""


def render(comparison: Comparison) -> Group:
    """Three tables, the units, and sentences below."""
    return Group(
        Text(headline(comparison) + "\n", style="bold"),
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


def sentences(comparison: Comparison) -> list[str]:
    """In words: what did not fit, and for each program who moves less and why."""
    lines = [
        f"{entry.program}: {entry.does_not_fit}."
        for entry in comparison.entries
        if entry.does_not_fit
    ]
    reference = comparison.entries[0]
    for entry in comparison.entries:
        ratio = comparison.ratio(entry)
        if ratio is not None and entry.counted and reference.counted and entry is not reference:
            lines.append(_sentence(comparison, entry.program, ratio, entry.counted))
    definitions = [
        f"{entry.program}: {PROGRAMS[entry.program].title}." for entry in comparison.entries
    ]
    return [*lines, "", *definitions]


def _sentence(comparison: Comparison, program: str, ratio: float, mine: Counts) -> str:
    theirs = comparison.entries[0].counted
    assert theirs is not None
    words = [f"{program} moves {ratio:.3g} times the bytes of algorithm0"]
    words.append(", more, not less: " if ratio > 1 else ": ")
    square, squares = _square(mine), _listed(_square_names(mine, theirs))
    saved = _square(theirs) - square
    if not square and saved:
        words.append(f"{squares} never reach HBM, which saves {saved:,} elements")
    elif saved:
        words.append(f"it moves {abs(saved):,} {'fewer' if saved > 0 else 'more'} of {squares}")
    else:
        words.append(f"it moves {squares} as often")
    paid = (mine.hbm_elements - square) - (theirs.hbm_elements - _square(theirs))
    ways = ("forward", "backward") if comparison.direction == "both" else (comparison.direction,)
    if paid > 0:
        reasons = [REPEATED[program, way] for way in ways if (program, way) in REPEATED]
        reason = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
        link = "but" if saved > 0 else "and"
        words.append(f", {link} {paid:,} more of the other tensors{reason}")
    elif paid < 0:
        words.append(f", and {-paid:,} fewer of the other tensors")
    if mine.matmul_flops != theirs.matmul_flops:
        words.append(f". It computes {mine.matmul_flops / theirs.matmul_flops:.3g} times the FLOPs")
    knobs = dict.fromkeys(LARGER_TILE[program, w] for w in ways if (program, w) in LARGER_TILE)
    if ratio > 1 and knobs:
        words.append(f". A larger {' and '.join(knobs)} would repeat less")
    return "".join(words) + "."


def _square(counts: Counts) -> int:
    return sum(moved.get(name, 0) for moved in (counts.reads, counts.writes) for name in SQUARE)


def _square_names(*several: Counts) -> list[str]:
    moved = {name for counts in several for name in (*counts.reads, *counts.writes)}
    return [name for name in SQUARE if name in moved]


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


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
