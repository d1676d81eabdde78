"""Pictures of tiles: which there are, when they lie in SRAM, what the backward pass makes again."""

from __future__ import annotations

import numpy as np

from flash_numba.problem import Problem
from flash_numba.tiling import FULL, PARTIAL, Schedule

from ..events import FREE, LOAD
from ..run import simulate
from ..theory import counts
from .hierarchy import Picture
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, TENSOR, arrow, axes, bare, box


def tile_grid(problem: Problem, tile_m: int, tile_n: int, m_block: int, n_block: int) -> Picture:
    """D4: Q, K and V cut into tiles, and the block that works on one pair of them."""
    schedule = Schedule(problem, tile_m, tile_n)
    kinds = schedule.kinds()
    rows, cols = kinds.shape
    figure, ax = axes(7, 3.8)
    bare(ax, cols + 4, rows + 2.5)
    colours = {FULL: SKY, PARTIAL: ORANGE}
    for i in range(rows):
        y = rows - 1 - i
        box(ax, 0, y, 1.4, 0.9, f"Q{i}", TENSOR["Q"] if i == m_block else "white")
        for j in range(cols):
            box(ax, j + 2, y, 0.9, 0.9, "", colours.get(int(kinds[i, j]), "white"))
    for j in range(cols):
        at_hand = j == n_block
        box(ax, j + 2, rows + 0.4, 0.9, 0.9, f"K{j}", TENSOR["K"] if at_hand else "white")
        box(ax, j + 2, rows + 1.5, 0.9, 0.9, f"V{j}", TENSOR["V"] if at_hand else "white")
    y = rows - 1 - m_block
    ax.text(n_block + 2.45, y + 0.45, "S, P", ha="center", va="center")
    arrow(ax, (1.4, y + 0.45), (n_block + 2, y + 0.45))
    arrow(ax, (n_block + 2.45, rows + 0.4), (n_block + 2.45, y + 0.9))
    box(ax, cols + 2.4, y, 1.4, 0.9, f"O{m_block}", TENSOR["O"])
    arrow(ax, (n_block + 2.9, y + 0.2), (cols + 2.4, y + 0.2))
    visited = int((kinds > 0).sum())
    text = (
        f"{rows} query tiles of {tile_m} rows against {cols} key tiles of {tile_n}: block "
        f"{m_block} holds "
        f"Q{m_block} and O{m_block} while K{n_block} and V{n_block} pass by. {visited} of "
        f"{rows * cols} pairs are visited, {int((kinds == PARTIAL).sum())} of them masked in part "
        "(orange), the rest of the visited whole (blue); white pairs are skipped."
    )
    return figure, text


def residency(program: str, problem: Problem, tile_m: int, tile_n: int, events: int) -> Picture:
    """D6: which tiles lie in SRAM, event after event, from a run's own log."""
    log = simulate(program, problem, tile_m=tile_m, tile_n=tile_n, record=True).log
    assert log is not None
    columns = log.columns
    since: dict[str, list[int]] = {}
    spans: list[tuple[str, int, int]] = []
    nbytes, held, peak = 0, [], 0
    for index in range(min(events, len(log))):
        name, op = log.names[columns["name"][index]], columns["op"][index]
        if op == LOAD:
            since.setdefault(name, []).append(index)
            nbytes += int(columns["nbytes"][index])
        elif op == FREE:
            spans.append((name, since[name].pop(), index))
            nbytes -= int(columns["nbytes"][index])
        held.append(nbytes)
        peak = max(peak, nbytes)
    spans += [(name, start, len(held)) for name, starts in since.items() for start in starts]
    order = list(dict.fromkeys(name for name, *_ in sorted(spans, key=lambda s: s[1])))
    figure, (ax, below) = axes(8, 3.4, columns=2, width_ratios=(3, 2))
    for name, start, stop in spans:
        row = order.index(name)
        ax.barh(row, stop - start, left=start, height=0.7, color=TENSOR.get(name, GREY))
    ax.set_yticks(range(len(order)), order)
    ax.invert_yaxis()
    ax.set_xlabel("event")
    below.step(range(len(held)), [one / 1024 for one in held], where="post", color=BLACK)
    below.set_xlabel("event")
    below.set_title("KiB of SRAM in use", fontsize=9)
    times = {name: sum(one == name for one, *_ in spans) for name in order}
    text = f"Tiles in SRAM during the first {len(held)} events of {program}: " + ", ".join(
        f"{name} is brought {count} times" for name, count in times.items()
    )
    return figure, text + f"; at most {peak:,} bytes lie there at once."


FLOW = {
    "forward": (
        [("Q_i", 0), ("K_j", 0), ("V_j", 1)],
        ["S = QKᵀ, P\nforgotten again", "O = αO + PV\nm, l"],
        [("O_i, lse_i", 1)],
    ),
    "backward": (
        [("Q_i", 0), ("K_j", 0), ("lse_i", 0), ("dO_i, δ_i", 1), ("V_j", 1)],
        ["S, P made again", "dP = dO Vᵀ\ndS = P∘(dP - δ)\ndQ += dS K", "dV += PᵀdO\ndK += dSᵀQ"],
        [("dQ_i", 1), ("dK_j, dV_j", 2)],
    ),
}
"""What each pass loads and for which step, the steps, and what is stored and after which step."""


def _middle(row: int, made: list[str]) -> float:
    """Height of a step in the picture."""
    return 7.8 - row * 5.6 / (len(made) - 1)


def forward_and_backward(problem: Problem, tile_m: int, tile_n: int) -> Picture:
    """D5: what each pass loads, makes and keeps, with the counts of a run."""
    passes = {}
    for direction in ("forward", "backward"):
        passes[direction] = counts("flash2", problem, tile_m, tile_n, direction=direction)
    figure, ax = axes(9.5, 3.8)
    bare(ax, 24, 10)
    for x, direction in ((0.0, "forward"), (11.6, "backward")):
        found, (loaded, made, stored) = passes[direction], FLOW[direction]
        ax.text(x + 5.6, 9.4, direction, ha="center", weight="bold")
        for row, (name, into) in enumerate(loaded):
            y = 8.6 - 7.4 * (row + 0.5) / len(loaded) - 0.4
            box(ax, x, y, 2.2, 1.1, name, SKY)
            arrow(ax, (x + 2.2, y + 0.55), (x + 3.4, _middle(into, made)))
        for row, name in enumerate(made):
            box(ax, x + 3.4, _middle(row, made) - 1.0, 4.4, 2.0, name, ORANGE)
            if row:
                arrow(ax, (x + 5.4, _middle(row - 1, made) - 1), (x + 5.4, _middle(row, made) + 1))
        for name, row in stored:
            box(ax, x + 8.6, _middle(row, made) - 0.7, 2.3, 1.4, name, GREEN)
            arrow(ax, (x + 7.8, _middle(row, made)), (x + 8.6, _middle(row, made)))
        told = f"{found.hbm_elements:,} elements, {found.matmul_flops:,} FLOPs"
        ax.text(x + 5.6, 0.0, told, ha="center", fontsize=8)
    N = problem.seqlen_q
    text = (
        "Forward: tiles of Q, K, V come, S and P are made on chip and forgotten, O and lse are "
        "stored. "
        "Backward: the same tiles come with dO, lse and δ; S and P are made again, then dS, and "
        "dQ, dK, "
        f"dV are stored. At N={N:,}: forward {passes['forward'].hbm_elements:,} elements and "
        f"{passes['forward'].matmul_flops:,} FLOPs, backward {passes['backward'].hbm_elements:,} "
        "and "
        f"{passes['backward'].matmul_flops:,}; between them only lse, {N:,} numbers, is kept "
        "beside O."
    )
    return figure, text


def blocks_of_a_matrix(N: int, tiles: list[int], d: int) -> Picture:
    """D8: S cut into B x B blocks: what one block takes, and what that costs in traffic."""
    figure, columns = axes(8, 3.0, columns=len(tiles) + 1)
    problem = Problem(N, N, d, dtype="fp16")
    moved: dict[int, int] = {}
    for ax, tile in zip(columns, tiles, strict=False):
        side = N // tile
        cells = np.zeros((side, side))
        cells[side // 2, side // 2] = 1
        ax.imshow(cells, cmap="cividis", extent=(0, N, N, 0))
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(f"B={tile}: N²/B² = {side * side}", fontsize=8)
        moved[tile] = counts("flash2", problem, tile, tile, direction="forward").hbm_elements
    last = columns[-1]
    last.bar([str(tile) for tile in tiles], [n / 1e6 for n in moved.values()], color=BLUE)
    last.set_title("million elements moved", fontsize=8)
    last.set_xlabel("B")
    text = (
        f"S of {N:,} by {N:,} cut into blocks; one block (bright) is what lies on chip. Smaller "
        "blocks "
        "take less SRAM and move more: "
        + ", ".join(f"B={tile} moves {n:,} elements" for tile, n in moved.items())
        + ". HBM holds neither S nor P for any B."
    )
    return figure, text
