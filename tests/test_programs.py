"""Every program on random problems: its numbers, and one count however it is walked."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import CASES
from harness import Case, Twin, check, tiled_rounding
from random_problems import random_problem, seeds

from flash_numba import reference
from flash_numba.budget import error_budget, largest_error, within_budget
from flash_numba.problem import Problem
from simulator.counts import Counts
from simulator.events import COLUMNS, EventLog
from simulator.machine import Machine
from simulator.programs import PROGRAMS
from simulator.run import simulate

TILED = [name for name, program in PROGRAMS.items() if not program.idealised]
every_program = pytest.mark.parametrize("name", PROGRAMS)
tiled_program = pytest.mark.parametrize("name", TILED)
each_direction = pytest.mark.parametrize("direction", ["forward", "backward"])
IN_DTYPE = ("o", "dq", "dk", "dv")
NUMERICS, COUNTS = seeds(500), seeds(150)


class Simulated:
    """A program as an implementation that `harness.check` takes.

    An idealised program has no lse; the reference's stands in, as nothing is said about it.
    """

    def __init__(self, name, **tiles):
        self.program = PROGRAMS[name]
        self.options: dict[str, Any] = tiles | {"head": None, "sram_bytes": None}

    def forward(self, problem, q, k, v):
        arrays = simulate(self.program, problem, q, k, v, **self.options).arrays
        lse = arrays["LSE"] if "LSE" in arrays else reference.forward(problem, q, k, v)[1]
        return arrays["O"], lse

    def backward(self, problem, q, k, v, do, dlse):
        given = q, k, v, do, dlse
        run = simulate(self.program, problem, *given, direction="backward", **self.options)
        aux = tuple(total for total in run.aux or () if total is not None)
        return reference.Gradients(run.arrays["dQ"], run.arrays["dK"], run.arrays["dV"], aux)


def answers(implementation, seed: int, dlse: bool, draw: int = 0) -> dict[str, np.ndarray]:
    """What an implementation says to a random problem, by name."""
    problem, given = random_problem(seed).problem, random_problem(seed).arrays(seed, draw)
    q, k, v, do = (given[n] for n in ("q", "k", "v", "do"))
    o, lse = implementation.forward(problem, q, k, v)
    found = implementation.backward(problem, q, k, v, do, given["dlse"] if dlse else None)
    aux = {f"aux {number}": total for number, total in enumerate(found.aux)}
    return {"o": o, "lse": lse, "dq": found.dq, "dk": found.dk, "dv": found.dv} | aux


@cache
def truth_and_allowances(seed: int, dlse: bool):
    """The float64 answers, and how far a result may be from each.

    On a tensor of a few elements the twin may be right by luck, so that it would excuse nothing:
    its error is the largest of four draws of the inputs.
    """
    dtype = random_problem(seed).problem.dtype
    truths = [answers(reference, seed, dlse, draw) for draw in range(4)]
    twins = [answers(Twin(dtype), seed, dlse, draw) for draw in range(4)]
    allowances = {
        what: max(
            error_budget(truth[what], twin[what], dtype if what in IN_DTYPE else "fp32")
            for truth, twin in zip(truths, twins, strict=True)
        )
        for what in truths[0]
    }
    return truths[0], allowances


# Numbers


@every_program
def test_numbers_are_within_the_error_budget(name):
    for seed in NUMERICS:
        drawn = random_problem(seed)
        problem, given = drawn.problem, drawn.arrays(seed)
        dlse = drawn.dlse and not PROGRAMS[name].idealised
        found = answers(Simulated(name, **drawn.tiles), seed, dlse)
        truth, allowances = truth_and_allowances(seed, dlse)
        wider = tiled_rounding(Case(problem, *(given[n] for n in ("q", "k", "v", "do"))), truth)
        assert found.keys() == truth.keys()
        for what, array in found.items():
            allowance = allowances[what] + wider.get(what.split()[0], 0.0)
            assert largest_error(array, truth[what]) <= allowance, f"{what} of seed {seed}: {drawn}"


@every_program
@pytest.mark.parametrize("spec", CASES, ids=[spec.id for spec in CASES])
def test_cases_that_other_kernels_failed(name, spec):
    case: Case = spec.build()
    if case.dlse is not None and PROGRAMS[name].idealised:
        with pytest.raises(ValueError, match=f"dlse must be None for {name}"):
            check(case, Simulated(name))
    else:
        rounding = None if spec.id == "K01" else tiled_rounding  # products of fp16 ones are exact
        check(case, Simulated(name, tile_m=32, tile_n=16), rounding)


@tiled_program
def test_tile_sizes_change_nothing_but_rounding(name):
    problem = Problem(29, 23, 8, num_heads=2, num_kv_heads=1, causal=True, dropout_p=0.2, seed=1)
    rng = np.random.default_rng(2)
    given: dict[str, Any] = {
        n: rng.standard_normal(problem.shapes[n]) for n in ("q", "k", "v", "do", "dlse")
    }
    truth, twin = (reference.backward(problem, **given, dtype=dtype) for dtype in (None, "fp32"))
    for tile_m, tile_n in [(1, 1), (1, 23), (29, 1), (8, 16), (16, 8), (29, 23), (64, 128)]:
        found = Simulated(name, tile_m=tile_m, tile_n=tile_n).backward(problem, **given)
        for what in ("dq", "dk", "dv"):
            of = [getattr(gradients, what) for gradients in (found, truth, twin)]
            assert within_budget(of[0], of[1], of[2], "fp32"), (tile_m, tile_n, what)


# Counts


def stepwise(name: str, direction: str, problem: Problem, tiles, dlse: bool, heads=None):
    """Counts of a run that walks every tile and logs it; and the log's own totals."""
    program = PROGRAMS[name]
    chosen = getattr(program, direction)
    group = problem.group
    shared = [range(kv * group, (kv + 1) * group) for kv in range(problem.num_kv_heads)]
    machines = [(sequence, some) for sequence in range(problem.batch) for some in shared]
    total, logged = Counts(sram_peak_bytes=None if program.idealised else 0), dict.fromkeys(COLUMNS)
    for sequence, sharing in machines if heads is None else [(0, heads)]:
        log = EventLog()
        gpu = Machine(
            problem,
            *tiles,
            batch=sequence,
            heads=sharing,
            lse_gradient=dlse,
            lines=chosen.lines,
            log=log,
        )
        chosen.run(gpu)
        total += gpu.ledger.counts(None if program.idealised else gpu.sram.peak)
        for column, values in log.columns.items():
            logged[column] = (logged[column] or 0) + int(values.sum())
    return total, logged


@every_program
@each_direction
def test_counting_equals_the_run_event_by_event(name, direction):
    for seed in COUNTS:
        drawn = random_problem(seed)
        tiles, problem = (drawn.tile_m, drawn.tile_n), drawn.problem
        dlse = drawn.dlse and direction == "backward" and not PROGRAMS[name].idealised
        options = drawn.tiles | {"direction": direction, "dlse": dlse}
        all_heads = simulate(name, problem, head=None, **options).counts
        expected, logged = stepwise(name, direction, problem, tiles, dlse)
        assert all_heads == expected, (seed, drawn)
        for column, total in {
            "hbm_read": expected.hbm_read_elements,
            "hbm_write": expected.hbm_write_elements,
            "sram_load": expected.sram_load_elements,
            "sram_store": expected.sram_store_elements,
            "matmul_flops": expected.matmul_flops,
            "exp_count": expected.exp_count,
        }.items():
            assert (logged[column] or 0) == total, (seed, column, drawn)
        if problem.batch:
            head = problem.num_heads - 1
            one = simulate(name, problem, head=head, **options).counts
            assert one == stepwise(name, direction, problem, tiles, dlse, [head])[0], (seed, drawn)
