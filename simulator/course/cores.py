"""Pictures of a warp's matrices: which lane holds which element."""

from __future__ import annotations

import numpy as np

from .hierarchy import Picture
from .style import axes


def fragments(lanes_of_a: np.ndarray, lanes_of_c: np.ndarray) -> Picture:
    """Which lane of a warp holds which element of A (16 x 16) and of C (16 x 8)."""
    figure, columns = axes(8.5, 4.2, columns=2, width_ratios=(2, 1))
    held = (("A, 16 × 16", lanes_of_a), ("C, 16 × 8", lanes_of_c))
    for ax, (title, lanes) in zip(columns, held, strict=True):
        ax.imshow(lanes, cmap="cividis", aspect="auto")
        for (row, col), lane in np.ndenumerate(lanes):
            colour = "white" if lane < 18 else "black"
            ax.text(col, row, str(lane), ha="center", va="center", fontsize=6, color=colour)
        ax.set_title(title, fontsize=9)
        ax.set_xticks([])
        ax.set_yticks([])
    lanes = lanes_of_a
    text = (
        "Which lane of a warp holds which element. A: lane "
        f"{lanes[0, 0]} holds columns 0 and 1 of row 0, lane {lanes[0, 2]} columns 2 and 3, and so "
        f"on; row 8 begins with lane {lanes[8, 0]} again. C looks like either half of A: "
        "four elements a lane, in the same places."
    )
    return figure, text
