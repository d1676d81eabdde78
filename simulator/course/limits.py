"""Pictures of how traffic, arithmetic and time grow, and of the roof over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flash_numba.problem import Problem

from ..claims.evidence import best_rates, measured_on
from ..hardware import Gpu, roofline
from ..theory import counts
from ..theory.asymptotics import break_even_tile
from .hierarchy import Picture
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, axes

PROGRAMS = {"algorithm0": RED, "flash1": ORANGE, "flash2": BLUE}


def growth(gpu: Gpu, d: int, lengths: list[int]) -> Picture:
    """D12: HBM bytes, FLOPs and least time against the sequence length."""
    figure, columns = axes(9, 3.0, columns=3)
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PROGRAMS}
    for N in lengths:
        for name in PROGRAMS:
            found = counts(name, Problem(N, N, d, dtype="fp16"), 128, 128, direction="forward")
            time = roofline(
                gpu,
                hbm_bytes=found.hbm_bytes,
                matmul_flops=found.matmul_flops,
                exp_count=found.exp_count,
                dtype="fp16",
            )
            rows[name].append((found.hbm_bytes, found.matmul_flops, time.total_s * 1e6))
    titles = "bytes of HBM", "FLOPs of products", f"least µs on an {gpu.name}"
    for index, (ax, title) in enumerate(zip(columns, titles, strict=True)):
        for name, colour in PROGRAMS.items():
            values = [row[index] for row in rows[name]]
            ax.plot(lengths, values, "o-", color=colour, label=name, markersize=3)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("N")
    columns[0].legend(fontsize=8)
    last = {name: found[-1] for name, found in rows.items()}
    text = f"One head, d={d}, tiles of 128, fp16, against N. At N={lengths[-1]:,}: " + "; ".join(
        f"{name} moves {moved:,.0f} bytes, {flops:,.0f} FLOPs, at least {time:.0f} µs"
        for name, (moved, flops, time) in last.items()
    )
    return figure, text + ". All grow as N²; FLOPs are the same for all three."


def roof(gpu: Gpu, N: int, d: int, tiles: list[int]) -> Picture:
    """D13: the roofline of a GPU with standard attention and FlashAttention under it."""
    peak, width = gpu.matmul_flops_per_s("fp16"), gpu.hbm_bytes_per_s
    figure, ax = axes(7, 3.4)
    intensity = np.logspace(0, 4, 200)
    ax.plot(intensity, np.minimum(peak, width * intensity) / 1e12, color=BLACK)
    ax.axvline(peak / width, color=GREY, linestyle=":")
    points = [("algorithm0", None)] + [("flash2", tile) for tile in tiles]
    told = []
    for name, tile in points:
        problem = Problem(N, N, d, dtype="fp16")
        found = counts(name, problem, tile or 1, 64, direction="forward")
        ratio = found.matmul_flops / found.hbm_bytes
        reached = min(peak, width * ratio) / 1e12
        label = "standard" if tile is None else f"B_r={tile}"
        ax.plot(ratio, reached, "s" if tile is None else "o", color=RED if tile is None else BLUE)
        ax.annotate(
            label, (ratio, reached), textcoords="offset points", xytext=(6, -10), fontsize=8
        )
        told.append(f"{label} does {ratio:.0f} FLOPs a byte, at most {reached:.0f} TFLOP/s")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("FLOPs a byte of HBM")
    ax.set_ylabel("TFLOP/s")
    text = (
        f"Roofline of an {gpu.name}: {width / 1e12:.1f} TB/s and {peak / 1e12:.0f} TFLOP/s in "
        "fp16 meet at "
        f"{peak / width:.0f} FLOPs a byte. Forward pass, N={N:,}, d={d}, every tile taken from "
        "HBM: "
    )
    return figure, text + "; ".join(told) + "."


def break_even(d: int, N: int) -> Picture:
    """Traffic against the tile, and where FlashAttention begins to move less."""
    figure, ax = axes(7, 3.2)
    problem = Problem(N, N, d, dtype="fp16")
    tiles = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    standard = counts("algorithm0", problem, 1, 1, direction="forward").hbm_elements
    for name, colour in (("flash1", ORANGE), ("flash2", BLUE)):
        moved = [
            counts(name, problem, tile, tile, direction="forward").hbm_elements / standard
            for tile in tiles
        ]
        ax.plot(tiles, moved, "o-", color=colour, label=name, markersize=3)
        ax.axvline(break_even_tile(name, d), color=colour, linestyle=":")
    ax.axhline(1, color=RED, label="algorithm0")
    ax.axhline(4 * N * d / standard, color=GREEN, label="the least: 4Nd")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("rows of a tile")
    ax.set_ylabel("elements over standard's")
    ax.legend(fontsize=8)
    first, second = (break_even_tile(name, d) for name in ("flash1", "flash2"))
    text = (
        f"Elements moved at N={N:,}, d={d}, over those of standard attention, against the rows "
        "of a tile: "
        f"flash1 moves less from {first} on, flash2 from {second} on (dotted); below they move "
        "more."
    )
    return figure, text


def measured_roof(gpu: Gpu, rows: list[dict], where: str, tiles_of: Callable) -> Picture:
    """Measured rows of flash2 in fp32 under the roof of their GPU, with its kernels' own tiles.

    `tiles_of` says which on a GPU, for a problem and a direction: `kernels.spec.flash2_tiles`.
    """
    peak, width = gpu.matmul_flops_per_s("fp32"), gpu.hbm_bytes_per_s
    figure, ax = axes(7, 3.4)
    intensity = np.logspace(0, 3, 200)
    ax.plot(intensity, np.minimum(peak, width * intensity) / 1e12, color=BLACK)
    looks = {
        ("forward", 64): (BLUE, "o"),
        ("forward", 128): (BLUE, "s"),
        ("backward", 64): (ORANGE, "o"),
        ("backward", 128): (ORANGE, "s"),
    }
    told = []
    for (direction, d), (colour, marker) in looks.items():
        reached, shapes = [], set()
        for row in rows:
            if (row["direction"], row["head_dim"]) != (direction, d):
                continue
            problem = Problem(row["seqlen"], row["seqlen"], d, causal=row["causal"])
            tiles = tiles_of(gpu, problem, direction)
            shapes.add(f"{tiles[0]}x{tiles[1]}")
            found = counts("flash2", problem, *tiles, direction=direction)
            flops = found.matmul_flops * row["batch"] * row["heads"]
            reached.append((found.matmul_flops / found.hbm_bytes, flops / row["ms"] / 1e9))
        label = f"{direction}, d={d}, {' or '.join(sorted(shapes))}"
        ax.plot(*zip(*reached, strict=True), marker, color=colour, label=label, alpha=0.7)
        ratio, rate = (max(column) for column in zip(*reached, strict=True))
        told.append(f"{label} does up to {ratio:.0f} FLOPs a byte and {rate:.0f} TFLOP/s")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("FLOPs a byte, every tile taken from HBM")
    ax.set_ylabel("TFLOP/s")
    ax.legend(fontsize=8)
    text = (
        f"flash2 in fp32 ({where}) under the roof of an {gpu.name}, {width / 1e12:.1f} TB/s and "
        f"{peak / 1e12:.0f} TFLOP/s, by tiles of queries x keys: "
    )
    return figure, text + "; ".join(told) + "."


def measured_tiles(stored: dict) -> Picture:
    """Rates of one kernel against its query tile, by `benchmarks/tile_sizes.py`."""
    cells = sorted({(row["head_dim"], row["seqlen"]) for row in stored["rows"]})
    head_dims, lengths = (sorted(set(part)) for part in zip(*cells, strict=True))
    tiles = sorted(best_rates(stored["rows"], *cells[0]))
    figure, columns = axes(8, 3.0, columns=len(head_dims), sharey=True)
    told = []
    for ax, d in zip(columns, head_dims, strict=True):
        for N, colour in zip(lengths, (BLUE, ORANGE, GREEN), strict=True):
            rates = best_rates(stored["rows"], d, N)
            ax.plot(
                range(len(tiles)), [rates[B] for B in tiles], "o-", color=colour, label=f"N={N:,}"
            )
            told.append(f"d={d}, N={N:,}: " + ", ".join(f"B_r={B} {rates[B]:.0f}" for B in tiles))
        ax.set_xticks(range(len(tiles)), [str(B) for B in tiles])
        ax.set_title(f"d={d}", fontsize=9)
        ax.set_xlabel("B_r")
    columns[0].set_ylim(bottom=0)
    columns[0].set_ylabel("TFLOP/s")
    columns[0].legend(fontsize=8)
    text = f"Forward in fp16 ({measured_on(stored)}), TFLOP/s of each tile in its faster shape: "
    return figure, text + "; ".join(told) + "."
