"""Pictures of sequences of many lengths, and of attention over many GPUs."""

from __future__ import annotations

from flash_numba.problem import Problem

from ..theory import counts
from .hierarchy import Picture
from .style import BLUE, GREEN, GREY, ORANGE, PINK, SKY, axes, bare, box


def padding_and_packing(lengths: list[int], tile: int, d: int) -> Picture:
    """D9: sequences padded to the longest, and packed one behind the other."""
    longest, total = max(lengths), sum(lengths)
    colours = (BLUE, ORANGE, GREEN, PINK)
    figure, (left, right) = axes(8.5, 2.8, columns=2)
    offset = 0
    for row, length in enumerate(lengths):
        left.barh(row, length, color=colours[row % 4])
        left.barh(row, longest - length, left=length, color="white", edgecolor=GREY, hatch="//")
        right.barh(0, length, left=offset, color=colours[row % 4], edgecolor="black")
        offset += length
    left.invert_yaxis()
    left.set_title("padded: hatched rows are computed for nothing", fontsize=9)
    right.set_title("packed, with the ends cu_seqlens", fontsize=9)
    right.set_yticks([])
    right.set_ylim(-2, 2)

    def flops(N: int) -> int:
        return counts("flash2", Problem(N, N, d), tile, tile, direction="forward").matmul_flops

    padded, packed = len(lengths) * flops(longest), sum(map(flops, lengths))
    text = (
        f"Sequences of {', '.join(map(str, lengths))} tokens: padded to {longest} they take "
        f"{len(lengths) * longest:,} rows, packed {total:,}. FLOPs: {padded:,} padded, "
        f"{packed:,} packed, "
        f"{padded / packed:.2f} times fewer."
    )
    return figure, text


def parallel_partitions(gpus: int = 4) -> Picture:
    """D10: the four ways to divide a model's attention over GPUs."""
    figure, columns = axes(9.5, 2.8, columns=4)
    colours = (BLUE, ORANGE, GREEN, PINK, SKY)[:gpus]
    ways = (
        ("data", "sequences", "gradients of all weights"),
        ("tensor", "heads", "O·W_O, a row a token"),
        ("sequence", "tokens", "K and V, or O with lse"),
        ("pipeline", "layers", "activations between stages"),
    )
    for ax, (name, divided, sent) in zip(columns, ways, strict=True):
        bare(ax, 4, 5.2)
        for index, colour in enumerate(colours):
            if name == "tensor":
                box(ax, index, 1, 0.95, 3.8, f"GPU {index}", colour)
            else:
                box(ax, 0, 4.8 - (index + 1) * 0.95, 3.9, 0.9, f"GPU {index}", colour)
        ax.set_title(f"{name}: {divided} divided", fontsize=9)
        ax.text(2, 0.4, f"sent: {sent}", ha="center", fontsize=7)
    text = "Four ways to divide attention over GPUs: " + "; ".join(
        f"{name} parallelism divides {divided} and sends {sent}" for name, divided, sent in ways
    )
    return figure, text + "."
