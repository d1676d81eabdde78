"""Pictures of attention itself: how data flows through it, and a softmax that is running."""

from __future__ import annotations

from typing import Any

import numpy as np

from .hierarchy import Picture
from .style import BLUE, GREY, ORANGE, PINK, TENSOR, arrow, axes, bare, box


def attention_flow(q: Any, k: Any, v: Any, head: int, words: list[str]) -> Picture:
    """D1: Q, K, V, S, P and O of one head of a real layer, and where the heads meet."""
    Q, K, V = (x[0, :, head].astype(np.float64) for x in (q, k, v))
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    figure, (flow, weights) = axes(8.5, 3.6, columns=2, width_ratios=(1, 1))
    bare(flow, 10, 10)
    for x, name in ((0.5, "Q"), (3.0, "K"), (7.2, "V")):
        box(flow, x, 8, 1.8, 1.4, f"{name}\n{Q.shape[0]}×{Q.shape[1]}", TENSOR[name])
    box(flow, 1.4, 5.4, 2.4, 1.4, f"S = QKᵀ/√d\n{S.shape[0]}×{S.shape[1]}", TENSOR["S"])
    box(flow, 1.4, 2.8, 2.4, 1.4, "P =\nsoftmax(S)", TENSOR["P"])
    box(flow, 5.6, 2.8, 2.0, 1.4, f"O = PV\n{V.shape[0]}×{V.shape[1]}", TENSOR["O"])
    heads = q.shape[2]
    box(flow, 4.4, 0.2, 5.2, 1.4, f"concat of {heads} heads · W_O", GREY)
    for start, end in (
        ((1.4, 8), (2.2, 6.8)),
        ((3.9, 8), (3.0, 6.8)),
        ((2.6, 5.4), (2.6, 4.2)),
        ((3.8, 3.5), (5.6, 3.5)),
        ((8.1, 8), (6.8, 4.2)),
        ((6.6, 2.8), (6.8, 1.6)),
    ):
        arrow(flow, start, end)
    shown = 24
    image = weights.imshow(P[:shown, :shown], cmap="cividis")
    weights.set_xticks(range(shown), words[:shown], rotation=90, fontsize=6)
    weights.set_yticks(range(shown), words[:shown], fontsize=6)
    weights.set_title(f"P of head {head}, first {shown} words", fontsize=9)
    figure.colorbar(image, ax=weights, shrink=0.8)
    strongest = np.argmax(P[:shown, :shown], axis=1)
    pairs = ", ".join(f"'{words[i]}' to '{words[int(strongest[i])]}'" for i in (4, 9, 14))
    text = (
        f"Data flow of one head: Q and K make S of {S.shape[0]} by {S.shape[1]}, softmax makes "
        "P, P and "
        f"V make O; {heads} heads are set beside each other and multiplied with W_O. On the "
        "right the "
        f"weights P of the first {shown} words; the strongest of some rows: {pairs}."
    )
    return figure, text


def running_softmax(seed: int, N: int = 256) -> Picture:
    """The running maximum, sum and factor of one row, a score at a time."""
    scores = 3 * np.random.default_rng(seed).standard_normal(N)
    maxima = np.maximum.accumulate(scores)
    sums = np.exp(scores[None] - maxima[:, None])
    sums = np.where(np.tri(N, dtype=bool), sums, 0).sum(axis=1)
    rises = np.flatnonzero(np.diff(maxima) > 0) + 1
    figure, (top, bottom) = axes(8, 3.0, columns=2)
    top.plot(scores, ".", color=GREY, markersize=3, label="scores")
    top.plot(maxima, color=BLUE, label="m, maximum so far")
    top.plot(rises, maxima[rises], "^", color=ORANGE, label="it rises")
    top.set_xlabel("scores seen")
    top.legend(fontsize=8)
    bottom.plot(sums, color=PINK)
    bottom.plot(rises, sums[rises], "^", color=ORANGE)
    bottom.set_xlabel("scores seen")
    bottom.set_title("l, sum of e^(s - m) so far", fontsize=9)
    text = (
        f"Left: {N} scores and their running maximum, which rises {len(rises)} times, last at "
        "score "
        f"{rises[-1]}. Right: the running sum l grows, and falls at each rise, where it is "
        "rescaled to "
        f"the new maximum; in the end it is {sums[-1]:.1f}."
    )
    return figure, text
