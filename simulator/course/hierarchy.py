"""Pictures of memory: what a GPU has, and what programs move between its levels."""

from __future__ import annotations

from typing import Any

from flash_numba.problem import Problem

from ..hardware import Gpu
from ..run import simulate
from .style import BLUE, GREEN, GREY, ORANGE, SKY, TENSOR, arrow, axes, bare, box, letters

Picture = tuple[Any, str]


def memory_levels(gpu: Gpu) -> Picture:
    """D3: the levels of a GPU's memory, their sizes, and the way between them."""
    shared = gpu.shared_bytes_per_sm * gpu.sm_count
    registers = gpu.register_bytes_per_sm * gpu.sm_count
    figure, ax = axes(7.5, 3.4)
    bare(ax, 10, 6)
    rows = (
        (f"registers  {gpu.register_bytes_per_sm // 1024} KiB × {gpu.sm_count} SMs", 3, SKY),
        (f"SRAM (shared memory)  {gpu.shared_bytes_per_sm // 1024} KiB × {gpu.sm_count}", 5, GREEN),
        (f"L2 cache  {gpu.l2_bytes // 2**20} MiB", 7, GREY),
        (f"HBM  {gpu.hbm_bytes_per_s / 1e12:.1f} TB/s", 9.4, ORANGE),
    )
    for level, (label, width, colour) in enumerate(rows):
        y = 4.8 - 1.5 * level
        box(ax, 5 - width / 2, y, width, 1, label, colour)
        if level:
            arrow(ax, (5, y + 1), (5, y + 1.5))
            arrow(ax, (5.3, y + 1.5), (5.3, y + 1))
    flops = gpu.tensor_flops_per_s["fp16"]
    text = (
        f"Levels of memory of an {gpu.name}, smallest and fastest on top: registers "
        f"{registers / 2**20:.0f} MiB and SRAM {shared / 2**20:.0f} MiB over {gpu.sm_count} SMs, "
        "L2 "
        f"cache {gpu.l2_bytes // 2**20} MiB, HBM with {gpu.hbm_bytes_per_s / 1e12:.1f} TB/s. For "
        "every "
        f"byte from HBM it could do {flops / gpu.hbm_bytes_per_s:.0f} fp16 operations."
    )
    return figure, text


def traffic_by_operation(N: int, d: int) -> Picture:
    """D2: what each operation of standard attention moves, counted."""
    problem = Problem(N, N, d, dtype="fp16")
    log = simulate("algorithm0", problem, record=True).log
    assert log is not None
    columns, kernels = log.columns, log.meta["kernels"]
    names = [log.names[index] for index in columns["name"].tolist()]
    figure, ax = axes(7.5, 2.8)
    moved: dict[tuple[str, str, str], int] = {}
    for index, name in enumerate(names):
        for way, column in (("reads", "hbm_read"), ("writes", "hbm_write")):
            if elements := int(columns[column][index]):
                kernel = kernels[columns["kernel"][index]]
                key = kernel, way, name
                moved[key] = moved.get(key, 0) + elements
    labels = [f"{kernel} {way}" for kernel in kernels for way in ("reads", "writes")]
    left = dict.fromkeys(labels, 0)
    for (kernel, way, name), elements in moved.items():
        label = f"{kernel} {way}"
        ax.barh(label, elements / 1e6, left=left[label] / 1e6, color=TENSOR[name])
        middle, colour = (left[label] + elements / 2) / 1e6, letters(TENSOR[name])
        ax.text(middle, label, name, ha="center", va="center", color=colour)
        left[label] += elements
    ax.invert_yaxis()
    ax.set_xlabel("million elements between HBM and the chip")
    total, matrix = sum(moved.values()), N * N
    text = (
        f"Standard attention at N={N:,}, d={d}: "
        + "; ".join(f"{label} {left[label]:,} elements" for label in labels)
        + f". Of {total:,} elements {4 * matrix / total:.0%} are S and P."
    )
    return figure, text


def level_flow(N: int, d: int) -> Picture:
    """D11: elements that cross between HBM, SRAM and what is computed on, by program."""
    problem = Problem(N, N, d, dtype="fp16")
    rows = {
        name: simulate(name, problem, tile_m=128, tile_n=64).counts
        for name in ("algorithm0", "flash1", "flash2")
    }
    figure, ax = axes(7.5, 2.8)
    parts = (
        ("HBM ↔ chip", lambda c: c.hbm_elements, ORANGE),
        ("SRAM ↔ registers", lambda c: c.sram_load_elements + c.sram_store_elements, BLUE),
    )
    for offset, (label, of, colour) in enumerate(parts):
        values = [of(counts) / 1e6 for counts in rows.values()]
        places = [index + 0.38 * offset for index in range(len(rows))]
        ax.barh(places, values, 0.36, label=label, color=colour)
    ax.set_yticks([index + 0.19 for index in range(len(rows))], list(rows))
    ax.set_xlabel("million elements")
    ax.legend(loc="lower right")
    ax.invert_yaxis()
    text = f"Elements moved at N={N:,}, d={d}, tiles of 128 and 64: " + "; ".join(
        f"{name} {counts.hbm_elements:,} between HBM and chip, "
        f"{counts.sram_load_elements + counts.sram_store_elements:,} between SRAM and registers"
        for name, counts in rows.items()
    )
    return figure, text + "."


def kernels_apart_and_fused(N: int, d: int) -> Picture:
    """D7: the kernels of standard attention beside the one of FlashAttention, by traffic."""
    problem = Problem(N, N, d, dtype="fp16")
    figure, ax = axes(7.5, 2.4)
    colours = (BLUE, ORANGE, GREEN, GREY, SKY)
    text = f"HBM traffic at N={N:,}, d={d}, kernel after kernel: "
    parts = []
    for row, name in enumerate(("with_mask_and_dropout", "algorithm0", "flash2")):
        log = simulate(name, problem, tile_m=128, tile_n=64, record=True).log
        assert log is not None
        left = 0.0
        moved = []
        for index, kernel in enumerate(log.meta["kernels"]):
            here = log.columns["kernel"] == index
            elements = int((log.columns["hbm_read"] + log.columns["hbm_write"])[here].sum())
            ax.barh(name, elements / 1e6, left=left, color=colours[index], edgecolor="black")
            middle, colour = left + elements / 2e6, letters(colours[index])
            ax.text(middle, row, kernel, ha="center", va="center", fontsize=8, color=colour)
            left += elements / 1e6
            moved.append(f"{kernel} {elements:,}")
        parts.append(f"{name}: {', '.join(moved)}")
    ax.invert_yaxis()
    ax.set_xlabel("million elements between HBM and the chip")
    return figure, text + "; ".join(parts) + "."
