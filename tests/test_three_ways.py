"""One number three ways: the program as it runs, its closed form, and a count by brute force."""

from dataclasses import replace
from typing import Any

import brute_force
import numpy as np
import pytest
from random_problems import Random, random_problem, seeds

from flash_numba.problem import Problem
from flash_numba.tiling import SKIPPED, Schedule, ceil_div
from simulator import theory
from simulator.programs import PROGRAMS
from simulator.run import simulate

SEEDS = seeds(500)
each_direction = pytest.mark.parametrize("direction", ["forward", "backward"])


def test_every_program_has_a_closed_form():
    assert set(theory.PROGRAMS) == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
@each_direction
def test_simulated_equals_closed_form_equals_brute_force(name, direction):
    for seed in SEEDS:
        drawn = random_problem(seed)
        dlse = drawn.dlse and direction == "backward" and not PROGRAMS[name].idealised
        check_all_heads(name, direction, drawn, dlse, seed)
        if drawn.problem.batch:
            check_last_head(name, direction, drawn, dlse, seed)


def check_all_heads(name, direction, drawn: Random, dlse, seed):
    options: dict[str, Any] = {"direction": direction, "dlse": dlse}
    simulated = simulate(name, drawn.problem, head=None, **drawn.tiles, **options).counts
    seen = listed(drawn)
    form = theory.counts(
        name, drawn.problem, **drawn.tiles, **options, all_heads=True, visited=seen
    )
    by_force = brute_force.count(
        name, drawn.problem, drawn.tile_m, drawn.tile_n, **options, visits=pairs(seen)
    )
    assert simulated == form, (seed, drawn)
    assert simulated == by_force, (seed, drawn)


def check_last_head(name, direction, drawn: Random, dlse, seed):
    batch, head = drawn.problem.batch - 1, drawn.problem.num_heads - 1
    options: dict[str, Any] = {"direction": direction, "dlse": dlse}
    where: dict[str, Any] = {"batch": batch, "head": head}
    simulated = simulate(name, drawn.problem, **where, **drawn.tiles, **options).counts
    seen = listed(drawn)
    form = theory.counts(
        name,
        drawn.problem,
        **drawn.tiles,
        **where,
        **options,
        visited=None if seen is None else seen[batch, head],
    )
    tiles = drawn.tile_m, drawn.tile_n
    by_force = brute_force.count(
        name, drawn.problem, *tiles, **options, only=(batch, head), visits=pairs(seen)
    )
    assert simulated == form, (seed, drawn)
    assert simulated == by_force, (seed, drawn)


def listed(drawn: Random) -> np.ndarray | None:
    """Visited tiles of every head, where causal, window and key lengths do not say them all."""
    problem = drawn.problem
    if problem.mask is None and problem.block_mask is None:
        return None
    tiles = ceil_div(problem.seqlen_q, drawn.tile_m), ceil_div(problem.seqlen_k, drawn.tile_n)
    seen = np.zeros((problem.batch, problem.num_heads, *tiles), bool)
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        kinds = Schedule(problem, drawn.tile_m, drawn.tile_n, batch, head).kinds()
        seen[batch, head, :, : kinds.shape[1]] = kinds != SKIPPED
    return seen


def pairs(seen: np.ndarray | None):
    """The same as a function that `brute_force.count` takes."""
    if seen is None:
        return None
    return lambda batch, head: {tuple(pair) for pair in np.argwhere(seen[batch, head]).tolist()}


ODD_SHAPES = {
    "tiles beyond the sequence": (Problem(3, 5, 2), 4096, 4096),
    "tiles of one": (Problem(13, 7, 1, causal=True), 1, 1),
    "primes": (Problem(127, 131, 3, causal=True, window=(61, None)), 31, 17),
    "a wide head": (Problem(37, 31, 300, 1, window=(0, 0)), 16, 8),
    "a narrow head": (Problem(31, 37, 1, 300, causal=True), 8, 16),
    "more queries than keys": (Problem(101, 2, 4, causal=True), 13, 3),
    "more keys than queries": (Problem(2, 101, 4, causal=True, window=(0, None)), 3, 13),
    "only what comes after": (Problem(61, 61, 4, window=(None, 0)), 7, 8),
    "only what comes before": (Problem(61, 97, 4, window=(0, None)), 8, 7),
    "a window beyond int64": (Problem(31, 61, 4, window=(1 << 63, 10**30)), 7, 8),
    "own lengths of nothing": (Problem(31, 61, 4, batch=3, key_lengths=[0, 61, 1]), 7, 8),
    "many heads a group": (Problem(13, 61, 2, num_heads=14, num_kv_heads=2, causal=True), 5, 64),
}
"""What no generator draws."""


@pytest.mark.parametrize(("problem", "tile_m", "tile_n"), ODD_SHAPES.values(), ids=ODD_SHAPES)
def test_one_number_for_odd_shapes(problem, tile_m, tile_n):
    for name in PROGRAMS:
        for direction in ("forward", "backward"):
            dlse = direction == "backward" and not PROGRAMS[name].idealised
            drawn = Random(problem, tile_m, tile_n, dlse)
            check_all_heads(name, direction, drawn, dlse, None)
            check_last_head(name, direction, drawn, dlse, None)


@each_direction
@pytest.mark.parametrize("name", ["flash1", "flash2", "flash2_two_kernel", "tiled"])
def test_one_number_at_a_size_that_people_run(name, direction):
    problem = Problem(1000, 1111, 64, batch=2, num_heads=8, num_kv_heads=2, dtype="fp16")
    for causal, window in [(False, (None, None)), (True, (None, None)), (False, (128, 64))]:
        masked = replace(problem, causal=causal, window=window)
        options: dict[str, Any] = {"tile_m": 128, "tile_n": 64, "direction": direction}
        simulated = simulate(name, masked, head=None, **options).counts
        assert simulated == theory.counts(name, masked, **options, all_heads=True)
