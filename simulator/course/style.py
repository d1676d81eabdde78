"""Colours and shapes of the pictures."""

from __future__ import annotations

from typing import Any

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, GREY, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#BBBBBB", "#222222"
"""Okabe and Ito's colours, which differ in brightness too."""

TENSOR = {
    "Q": BLUE,
    "K": ORANGE,
    "V": GREEN,
    "O": PINK,
    "S": SKY,
    "P": RED,
    "LSE": GREY,
    "dO": YELLOW,
}
"""The colour of each tensor, the same in every picture."""


def letters(colour: str) -> str:
    """Black or white, whichever is easier to read on an opaque `colour` such as ``"#0072B2"``.

    They are equally easy where (L + 0.05) / 0.05 = 1.05 / (L + 0.05), with the relative luminance L
    of WCAG 2.
    """
    rgb = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"


def use() -> None:
    """Make them the defaults of matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams.update(
        {
            "figure.dpi": 90,
            "savefig.dpi": 90,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 10,
            "svg.hashsalt": "flash_numba",
        }
    )


def axes(width: float = 7.5, height: float = 3.2, columns: int = 1, **options: Any) -> tuple:
    """A figure and its axes."""
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), **options)


def box(
    ax: Any,
    x: float,
    y: float,
    width: float,
    height: float,
    label: str,
    colour: str,
    size: int | None = None,
) -> None:
    """A labelled rectangle in data coordinates; `size` is that of the letters."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=BLACK, alpha=0.85))
    ax.text(x + width / 2, y + height / 2, label, ha="center", va="center", fontsize=size)


def arrow(ax: Any, start: tuple, end: tuple, label: str = "", width: float = 1.5) -> None:
    """An arrow with a label at its middle."""
    ax.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "linewidth": width, "color": BLACK},
    )
    if label:
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        ax.text(
            *middle,
            label,
            ha="center",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )


def bare(ax: Any, width: float, height: float) -> None:
    """A plain canvas of that size, with room for the edges of boxes."""
    ax.set_xlim(-0.05, width + 0.05)
    ax.set_ylim(-0.05, height + 0.05)
    ax.axis("off")
