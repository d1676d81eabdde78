"""How often accesses of shared memory met, in a sentence of docs/counting.md.

The thread runner predicts the passes that an instruction's own addresses need. Where accesses of
different warps and engines meet, the hardware needs more, and counts what it calls arbitration.
Needs no GPU: the numbers are those of results/h200_counters.json.

    python benchmarks/arbitration.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from simulator.threads.report import ARBITRATION, OWN_PASSES, PRODUCT_PASSES, SHARED_PASSES

COUNTERS = Path(__file__).parent / "results" / "h200_counters.json"
OWN = {"ld": ("ld", "ldsm"), "st": ("st", "stsm")}
"""By whose passes those of loads and of stores are made up."""
LITTLE = 0.002
BEGIN = "Measured: "


class Launch(NamedTuple):
    """Passes of a launch over shared memory.

    Attributes
    ----------
    case, kernel : str
    own, more : int
        Those that addresses need, and how many were counted beyond.
    met, products : int
        What the hardware counts as arbitration, and passes of wgmma over its operands.
    """

    case: str
    kernel: str
    own: int
    more: int
    met: int
    products: int


def measured(counted: dict) -> list[Launch]:
    """The launches of a record that pass over shared memory and counted arbitration."""
    found = []
    for case, one in counted["cases"].items():
        for launch in one["launches"]:
            counters = launch["counters"]
            if ARBITRATION not in counters:
                continue
            passes = sum(counters[f"{SHARED_PASSES}{end}.sum"] for end in OWN)
            own = sum(counters[f"{OWN_PASSES}{x}.sum"] for ends in OWN.values() for x in ends)
            if own:
                met, products = counters[ARBITRATION], counters[PRODUCT_PASSES]
                found.append(Launch(case, launch["kernel"], own, passes - own, met, products))
    return found


def sentence(counted: dict) -> str:
    """What a record says, as a line of the document."""
    plain = [one for one in measured(counted) if not one.products]
    none = sum(one.more == 0 for one in plain)
    most = sorted(
        (one for one in plain if one.more > LITTLE * one.own), key=lambda x: -x.more / x.own
    )
    named = ", ".join(f"{x.more / x.own:.2%} `{x.kernel}` of `{x.case}`" for x in most)
    over = max(one.more - one.met for one in plain)
    last = "No launch exceeds its addresses' passes by more than the arbitration that it counted"
    last += " itself."
    if over > 0:
        last = (
            f"Beyond addresses and its own arbitration, a launch needs up to {over:,} passes more."
        )
    return (
        f"{BEGIN}of {len(plain)} launches that pass over shared memory and use no `wgmma`, {none} "
        f"need the passes of their addresses and none more, {len(plain) - none - len(most)} up to "
        f"{LITTLE:.1%} more, and {len(most)} beyond that: {named}. {last}"
    )


def written(text: str, counted: dict) -> str:
    """A document with the present sentence in place of the one it has."""
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(BEGIN))
    return "\n".join([*lines[:at], sentence(counted), *lines[at + 1 :]])


if __name__ == "__main__":
    print(sentence(json.loads(COUNTERS.read_text())))
