"""A comparison in words: who moves less, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    return lines


def definitions(comparison: Comparison) -> list[str]:
    """What each program is."""
    return [f"{entry.program}: {PROGRAMS[entry.program].title}." for entry in comparison.entries]


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
        once = {name: n for name, n in theirs.reads.items() if name not in SQUARE}
        again = any(mine.reads.get(name, 0) > n for name, n in once.items())
        reasons = [REPEATED[key] for way in ways if again and (key := (program, way)) in REPEATED]
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
