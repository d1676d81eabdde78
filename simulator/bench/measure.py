"""Times in turn: every round takes one sample of each contender, so that all share the weather.

A GPU near its power limit slows down as it warms; what is timed a minute later is not comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from flash_numba import ladder
from flash_numba.ladder import Rung

from .. import theory
from .cells import Cell, Options
from .contenders import Contender, Inputs, ours, peers
from .truth import Truth

SAMPLE_MS = 10.0
"""A sample is as many calls as take about this long."""

ROUNDS = 3, 25
"""Least and most rounds of a cell."""

METHOD = {
    "timing": "CUDA events around as many calls back to back as take about 10 ms; at least 3 "
    "rounds, each of which times every contender of the cell in turn, every second one in reverse; "
    "ms is the median, a ratio the median of the rounds' ratios (peer's time / ours)",
    "ours": "the rung's kernels on allocated memory; backward alone, all its kernels; a row for "
    "each form, the one with the same bits each time and the fast one",
    "peers": "torch scaled_dot_product_attention, one backend at a time, contiguous (batch, heads, "
    "seqlen, head_dim); backward alone by torch.autograd.grad on a retained graph",
    "cache": "L2 is not flushed between calls",
    "data": "standard normal q, k, v and dO; checked against float64 before timing",
    "flops": "4*B*H*N^2*D, half if causal, times 2.5 backward",
    "bytes": "gb_per_s: tiles read and written by the closed form of the rung's schedule; those "
    "that L2 serves count",
}


def times(gpu, contenders: Sequence[Contender], budget_s: float) -> dict[str, list[float]]:
    """Milliseconds of each contender, round by round.

    Parameters
    ----------
    gpu : gpu.TorchGpu or like it
    contenders : sequence of Contender
        Each has run before.
    budget_s : float
        Seconds for all rounds.
    """
    once = {one.name: max(gpu.milliseconds(one, 1), 1e-3) for one in contenders}
    counts = {name: max(1, round(SAMPLE_MS / ms)) for name, ms in once.items()}
    round_s = sum(once[name] * counts[name] for name in once) / 1000
    least, most = ROUNDS
    samples: dict[str, list[float]] = {one.name: [] for one in contenders}
    for turn in range(min(most, max(least, round(budget_s / round_s)))):
        for one in contenders if turn % 2 == 0 else reversed(contenders):
            samples[one.name].append(gpu.milliseconds(one, counts[one.name]))
    return samples


def measure(gpu, options: Options) -> Iterator[tuple[Cell, dict[str, list]]]:
    """Measure cell by cell.

    Yields
    ------
    cell : Cell
        The one just measured.
    found : dict
        Of all cells so far, growing:
        "rows"; "left_out", what a rung does not take or has no memory or time for; "wrong",
        kernels that failed or whose result was wrong. Each of the latter is a dict of rung, cell
        and why.
    """
    found: dict[str, list] = {"rows": [], "left_out": [], "wrong": []}
    for cell in options.cells():
        inputs, racing = Inputs.draw(cell, gpu.device), {}
        truth = Truth(cell, inputs)
        chosen = (one for one in ladder.RUNGS if one.name in options.rungs)
        for rung in (form for one in chosen for form in one.forms(cell.direction)):
            entry = {"rung": rung.label, "cell": asdict(cell)}
            if why := rung.why_not(cell.problem, gpu.gpu):
                found["left_out"].append(entry | {"why": why})
                continue
            try:
                racing[rung] = ours(rung, truth, gpu.stream)
                if gpu.milliseconds(racing[rung], 1) > 1000 * options.budget_s:
                    del racing[rung]
                    why = f"a call takes longer than {options.budget_s:g} s"
                    found["left_out"].append(entry | {"why": why})
            except Exception as error:
                short = "out of memory" in str(error).lower()
                why = "out of memory" if short else f"{type(error).__name__}: {error}"
                found["left_out" if short else "wrong"].append(entry | {"why": why})
        if racing:
            names = [name for name in gpu.peers if name in options.peers]
            contenders = [*racing.values(), *peers(names, cell, inputs)]
            found["rows"] += rows(cell, racing, times(gpu, contenders, options.budget_s))
        del inputs, racing, truth
        gpu.empty()
        yield cell, found


def rows(cell: Cell, rungs: Iterable[Rung], samples: dict[str, list[float]]) -> Iterator[dict]:
    """A row for each rung of a cell, and for each form of its backward pass."""
    names = {rung.label for rung in rungs}
    others = {name: found for name, found in samples.items() if name not in names}
    for rung in rungs:
        own = samples[rung.label]
        ms, moved = median(own), counted_bytes(rung, cell)
        pairs = {name: list(zip(theirs, own, strict=True)) for name, theirs in others.items()}
        yield {
            "rung": rung.name,
            "deterministic": rung.deterministic,
            **asdict(cell),
            "ms": ms,
            "tflops": cell.flops / ms / 1e9,
            "gb_per_s": None if moved is None else moved / ms / 1e6,
            "rounds": len(own),
            "peers": {name: median(theirs) for name, theirs in others.items()},
            "ratios": {name: median(a / b for a, b in pair) for name, pair in pairs.items()},
        }


def counted_bytes(rung: Rung, cell: Cell) -> int | None:
    """Bytes that the closed form of a rung's schedule moves; None if the rung names no schedule."""
    counted_as: Any = getattr(rung.functions(cell.direction), "counted_as", None)
    if counted_as is None:
        return None
    program, tile_m, tile_n = counted_as(cell.problem)
    options: dict[str, Any] = {"direction": cell.direction, "all_heads": True}
    return theory.counts(program, cell.problem, tile_m, tile_n, **options).hbm_bytes
