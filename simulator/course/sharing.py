"""Pictures of sequences of many lengths, and of attention over many GPUs."""

from __future__ import annotations

from flash_numba.problem import Problem

from ..theory import counts
from .hierarchy import Picture
from .style import BLUE, GREEN, GREY, ORANGE, PINK, SKY, arrow, axes, bare, box


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
    for ax in (left, right):
        ax.set_xlabel("rows of Q")
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


def sent_bytes(gpus: int, N: int, width: int, layers: int) -> dict[str, float]:
    """Bytes that each GPU sends for a layer's attention in a training step of `gpus` sequences.

    Two bytes an element. Sums over all GPUs are made in a ring, in which each sends 2 (p - 1) / p
    of what is summed. K and V go around such a ring, too; dK and dV one step further, back home.

    Parameters
    ----------
    gpus, N, width, layers : int
        N tokens a sequence; `width` columns of all heads together.

    Returns
    -------
    dict of str to float
        By "data", "tensor", "sequence" and "pipeline" parallelism.
    """
    tokens, others = gpus * N, gpus - 1
    ring = 2 * others / gpus
    return {
        "data": 2 * ring * 4 * width**2,  # gradients of W_Q, W_K, W_V and W_O
        "tensor": 2 * 2 * ring * tokens * width,  # O W_O, and backward dX
        "sequence": 2 * (4 * others + 2 * gpus) * tokens / gpus * width,  # K, V twice; dK, dV
        "pipeline": 2 * 2 * tokens * width * gpus / layers,  # X and dX, once for a stage's layers
    }


def _ways(gpus: int, N: int, heads: int, layers: int) -> dict[str, tuple[str, str, list[str]]]:
    """What each way divides, what it sends, and what each GPU has."""
    tokens, group, stage = N // gpus, heads // gpus, layers // gpus
    return {
        "data": ("sequences", "gradients of weights", [f"sequence {i}" for i in range(gpus)]),
        "tensor": (
            "heads",
            "O W_O and dX, to be summed",
            [f"heads\n{i * group} to\n{i * group + group - 1}" for i in range(gpus)],
        ),
        "sequence": (
            "tokens",
            "K and V, dK and dV",
            [f"tokens {i * tokens:,} on" for i in range(gpus)],
        ),
        "pipeline": (
            "layers",
            "X and dX between stages",
            [f"layers {i * stage} to {i * stage + stage - 1}" for i in range(gpus)],
        ),
    }


def parallel_partitions(
    gpus: int = 4, N: int = 8192, heads: int = 32, d: int = 128, layers: int = 32
) -> Picture:
    """D10: the four ways to divide a model's attention over GPUs, and what each sends."""
    figure, columns = axes(9.5, 3.0, columns=4)
    colours = (BLUE, ORANGE, GREEN, PINK, SKY)[:gpus]
    sent, told = sent_bytes(gpus, N, heads * d, layers), []
    ways = _ways(gpus, N, heads, layers)
    for ax, (name, (divided, what, labels)) in zip(columns, ways.items(), strict=True):
        bare(ax, 4, 6)
        for i, (colour, label) in enumerate(zip(colours, labels, strict=True)):
            side, step = 4 / gpus, 4.4 / gpus
            if name == "tensor":
                box(ax, i * side, 1.4, 0.95 * side, 4.4, f"GPU\n{i}\n\n{label}", colour, 7)
                continue
            gap = 0.0 if name == "sequence" else 0.2
            y = 5.8 - (i + 1) * step
            box(ax, 0, y, 4, step - gap, f"GPU {i}: {label}", colour, 8)
            if name == "pipeline" and i:
                arrow(ax, (2, y + step), (2, y + step - gap))
        ax.set_title(f"{name}: {divided} divided", fontsize=9)
        ax.text(2, 0.8, f"sent: {what}", ha="center", fontsize=7)
        amount = f"{sent[name] / 1e6:,.0f} MB"
        ax.text(2, 0.2, f"{amount} a layer and GPU", ha="center", fontsize=7)
        told.append(f"{name} parallelism divides {divided} and sends {what}, {amount}")
    text = (
        f"Four ways to divide attention over {gpus} GPUs, and what each GPU sends for a layer in a "
        f"training step of {gpus} sequences of {N:,} tokens, {heads} heads of {d}, {layers} "
        "layers, two bytes an element: "
    )
    return figure, text + "; ".join(told) + "."
