"""Who gets the same bits each time without asking, against what that cost on an H200."""

import json
from pathlib import Path

import pytest

from flash_numba.determinism import MOST, costs_much
from flash_numba.ladder import RUNGS, Gpu, look
from flash_numba.problem import Problem

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
NEAR = 0.05
"""How far two runs may be apart: what costs so little more or less than `MOST` may be either."""


def costs():
    """Problem and time in turn over time as blocks come, of all cells timed in both forms."""
    for name in ("h200_bf16", "h200_fp16", "h200_head_dims"):
        cells = {}
        for row in json.loads((RECORDS / f"{name}.json").read_text())["rows"]:
            if (row["rung"], row["direction"]) == ("hopper", "backward"):
                cell = row["head_dim"], row["causal"], row["seqlen"], row["dtype"]
                cells.setdefault(cell, {})[row["deterministic"]] = row["ms"]
        for (head_dim, causal, seqlen, dtype), ms in cells.items():
            if len(ms) == 2:
                sizes = {"causal": causal, "dtype": dtype}
                yield Problem(seqlen, seqlen, head_dim, **sizes), ms[True] / ms[False]


def test_the_default_is_what_was_measured():
    found = list(costs())
    assert len(found) > 20
    for problem, cost in found:
        if costs_much(problem):
            assert cost > MOST - NEAR, problem
        else:
            assert cost < MOST + NEAR, problem


@pytest.mark.parametrize(
    ("change", "much"),
    [
        ({}, True),
        ({"seqlen_k": 8191}, False),
        ({"head_dim": 128}, False),
        ({"head_dim": 128, "head_dim_v": 160}, True),
        ({"causal": False}, False),
        ({"causal": False, "window": (100, 0)}, True),
    ],
)
def test_who_does_not_say_gets_the_fast_form_where_the_other_costs_much(change, much):
    sizes = {"seqlen_q": 8192, "seqlen_k": 8192, "head_dim": 192, "causal": True, "dtype": "fp16"}
    problem, gpu = Problem(**sizes | change), Gpu("H200", (9, 0))
    assert costs_much(problem) == much
    hopper = next(rung for rung in RUNGS if rung.fast_backward)
    assert look(problem, gpu).rung == (hopper.fast if much else hopper)
    assert look(problem, gpu, deterministic=True).rung is hopper
    assert look(problem, gpu, deterministic=False).rung == hopper.fast
