"""What a run should cost by formula, and what standard attention would: beside every frame."""

from __future__ import annotations

from dataclasses import dataclass

from flash_numba.problem import Problem

from .. import theory
from ..counts import Counts
from ..programs import BROKEN
from .replay import Replay

BASELINE = "algorithm0"


@dataclass(frozen=True)
class Costs:
    """Totals to hold a run against.

    Attributes
    ----------
    closed : Counts or None
        The closed form of the whole run; None if the program has none.
    equal : bool
        Whether the log adds up to it exactly, tensor by tensor.
    baseline : int
        HBM elements, read and written, of standard attention (`BASELINE`).
    """

    closed: Counts | None
    equal: bool
    baseline: int


def costs_of(replay: Replay) -> Costs:
    """The closed form of a run, whether the log equals it, and standard attention's traffic."""
    meta = replay.meta
    direction, tiles = meta["direction"], (meta["tile_m"], meta["tile_n"])
    problem = _problem(meta)
    baseline = theory.counts(BASELINE, problem, *tiles, direction=direction).hbm_elements
    program = "flash2" if meta["program"] in BROKEN else meta["program"]
    if program not in theory.PROGRAMS:
        return Costs(None, False, baseline)
    closed = theory.counts(
        program,
        problem,
        *tiles,
        direction=direction,
        dlse="dLSE" in replay.names,
        visited=replay.kinds > 0 if meta["listed_tiles"] else None,
    )
    return Costs(closed, replay.tensors(len(replay) - 1) == _moved(closed), baseline)


def _problem(meta) -> Problem:
    """The one head's problem; its keys are the sequence's own, so no key lengths are needed."""
    listed = meta["listed_tiles"]
    return Problem(
        seqlen_q=meta["seqlen_q"],
        seqlen_k=meta["seqlen_k"],
        head_dim=meta["head_dim"],
        head_dim_v=meta["head_dim_v"],
        dtype=meta["dtype"],
        causal=meta["causal"] and not listed,
        window=(None, None) if listed else tuple(meta["window"]),
    )


def _moved(counts: Counts) -> dict[str, tuple[int, int]]:
    names = counts.reads.keys() | counts.writes.keys()
    return {name: (counts.reads.get(name, 0), counts.writes.get(name, 0)) for name in names}
