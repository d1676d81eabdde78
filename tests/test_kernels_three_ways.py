"""One number three ways for every kernel: as it runs, in the tile simulator, and in closed form.

The kernels' own source runs thread by thread. Its traffic of global memory equals the simulator's
tile step by tile step - on tensor cores tile by tile - and, in total, the closed forms. A kernel
that reads rows or columns beyond the end reads one within in their place: that moves nothing new,
and such elements count once.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

import test_flash1_threads as flash1  # noqa: E402
import test_flash2_threads as flash2  # noqa: E402
import test_hopper_backward_threads as hopper_backward  # noqa: E402
import test_hopper_threads as hopper  # noqa: E402
import test_standard_threads as standard  # noqa: E402
import test_tensor_core_gradients_threads as tensor_core_gradients  # noqa: E402
import test_tensor_core_threads as tensor_core  # noqa: E402
import traced_attention  # noqa: E402
from traced_attention import random_problem  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from counter_cases import case_named, launches  # noqa: E402
from four_ways import ROWS  # noqa: E402
from package_kernels import kernels_of_package  # noqa: E402

from simulator import theory  # noqa: E402
from simulator.run import simulate  # noqa: E402
from simulator.threads import trace  # noqa: E402
from simulator.threads.tiles import logged  # noqa: E402
from simulator.threads.views import tile_table  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "multiples": {"seqlen_q": 32, "seqlen_k": 64, "head_dim": 32},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 50, "head_dim": 20, "causal": True},
    "causal-gqa": {"seqlen_q": 40, "seqlen_k": 40, "head_dim": 16, "causal": True}
    | {"num_heads": 2, "num_kv_heads": 1},
}
AXES: dict[str, str] = dict.fromkeys(("Q", "O", "dO", "dQ"), "bmhd")
AXES |= dict.fromkeys(("K", "V", "dK", "dV"), "bnhd")
AXES |= dict.fromkeys(("LSE", "delta", "m", "l"), "bhm")
AXES |= dict.fromkeys(("S", "P", "dP", "dS"), "bhmn")
NAMES = {"Delta": "delta"}
"""Arguments of kernels that the simulator calls otherwise."""


class Kernels:
    """The launches of a rung's pass; `reports` are traces of them, with names for their arrays."""

    def __init__(self, monkeypatch):
        self.reports = []
        for module in (flash1, flash2, standard):
            monkeypatch.setattr(module, "run", self.run)

    def run(self, kernel, blocks, threads, shared_bytes, arguments, order=None, count=False):
        if not blocks:
            return None
        report = trace(kernel, tiles=True)[blocks, threads, 0, shared_bytes](*arguments)
        self.reports.append(report)
        return report

    def flash1(self, problem, q, k, v, do, direction):
        found, _ = flash1.forward(problem, q, k, v)
        if direction == "backward":
            self.reports.clear()
            flash1.backward(problem, q, k, v, do, found)
        return [NAMES] * len(self.reports), {"forward": (16, 32), "backward": (32, 16)}[direction]

    def flash2(self, problem, q, k, v, do, direction):
        out, lse = flash2.forward(problem, q, k, v)
        if direction == "backward":
            self.reports.clear()
            flash2.backward(problem, q, k, v, out, lse, do)
        return [NAMES] * len(self.reports), {"forward": (16, 32), "backward": (32, 16)}[direction]

    def standard(self, problem, q, k, v, do, direction):
        rung = standard.Rung(problem, q, k, v)
        rung.forward()
        names = standard.FORWARD
        if direction == "backward":
            self.reports.clear()
            rung.backward(do)
            del self.reports[:2]  # S and P again, which the simulator keeps
            names = standard.BACKWARD
        found = [dict(zip(a.split(), b.split(), strict=True)) for a, b in names]
        return found, (16, 16)

    def steps(self, names, tile_m: int, tile_n: int) -> Counter:
        """Traffic by step of all launches, by the simulator's names."""
        total = Counter()
        for report, called in zip(self.reports, names, strict=True):
            own = {called.get(name, name): name for name in report.arrays}
            axes = {own[tensor]: AXES[tensor] for tensor in own if tensor in AXES}
            for step, count in report.tile_steps(axes, tile_m, tile_n).items():
                total[step._replace(tensor=called.get(step.tensor, step.tensor))] += count
        return total


PROGRAMS = {"standard": "tiled", "flash1": "flash1", "flash2": "flash2"}
"""The simulator's program of each rung whose kernels are held here."""

NO_PROGRAM = {
    "hopper_backward_wide": "hopper_backward for wide heads: test_hopper_backward_threads",
    "round_pass": "rounds sums of another element type",
    "round_queries": "rounds sums of another element type",
    "list_tiles": "the list of a packed batch's tiles is not counted (docs/counting.md)",
    "aux_gradient": "a program of its own: test_aux_gradient_threads",
    "sum_shares": "a program of its own: test_aux_gradient_threads",
    "rows_forward": "steps to flash2: test_steps_threads",
    "registers_forward": "steps to flash2: test_steps_threads",
    "tiles_forward": "steps to flash2: test_steps_threads",
    "async_forward": "steps to flash2: test_steps_threads",
}
"""Kernels that no program of the simulator pairs with, and why."""


def test_every_kernel_is_held():
    """What the rungs launch at the table of four ways, where three are tested to be equal."""
    held = {one.name for row in ROWS for one in launches(case_named(row.case))[row.skip :]}
    assert held.isdisjoint(NO_PROGRAM)
    assert held | NO_PROGRAM.keys() == kernels_of_package()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("rung", PROGRAMS)
def test_kernel_equals_simulator_equals_closed_form(rung, direction, name, monkeypatch):
    problem, *arrays = random_problem(**CASES[name])
    kernels = Kernels(monkeypatch)
    names, (tile_m, tile_n) = getattr(kernels, rung)(problem, *arrays, direction)
    found = kernels.steps(names, tile_m, tile_n)
    options: dict[str, Any] = {"tile_m": tile_m, "tile_n": tile_n, "direction": direction}
    program = PROGRAMS[rung]
    form = theory.counts(program, problem, **options, all_heads=True)
    simulated = simulate(program, problem, head=None, **options).counts
    assert simulated == form
    totals: dict[str, Counter] = {"read": Counter(), "write": Counter()}
    for step, count in found.items():
        totals[step.direction][step.tensor] += count
    assert totals["read"] == +Counter(form.reads)
    assert totals["write"] == +Counter(form.writes)
    if direction == "forward" or problem.num_heads == problem.num_kv_heads:
        assert found == of_simulator(program, problem, options)


def of_simulator(program, problem, options) -> Counter:
    """Traffic by step of all heads; a backward pass with shared heads is not the sum of these."""
    total = Counter()
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        where: dict[str, Any] = {"batch": batch, "head": head, "record": True}
        log: Any = simulate(program, problem, **where, **options).log
        total += logged(log, AXES)
    return total


MATRIX_CASE = {"seqlen_q": 72, "seqlen_k": 80, "head_dim": 64, "num_heads": 2, "dtype": "fp16"}
MAPS = {f"{name.lower()}_map[0]": name for name in ("Q", "K", "V", "O", "dK", "dV")}


def matrix_kernel(rung, direction, problem, q, k, v, do):
    """Run a kernel of the tensor cores with small tiles: tile_m and tile_n."""
    if direction == "backward":
        truth = hopper_backward.exact(problem, q, k, v, do)
        if rung == "hopper":
            hopper_backward.backward(problem, q, k, v, do, truth)
            return 16, 128
        tensor_core_gradients.gradients(problem, q, k, v, do, truth)
        return 32, 32
    if rung == "tensor_core":
        tensor_core.forward(problem, q, k, v)
        return 32, 32
    tiles = hopper.small_tiles(problem)
    hopper.forward(problem, q, k, v, tiles, blocks=problem.seqlen_q)
    return tiles.tile_m, tiles.tile_n


def by_own_tile(steps: Counter, names: dict) -> Counter:
    """Traffic of each tile of each tensor, whatever it was for."""
    total = Counter()
    for step, count in steps.items():
        tensor = names.get(step.tensor, step.tensor)
        own = step.m_block if "m" in AXES[tensor] else step.n_block
        total[tensor, step.direction, own] += count
    return total


@pytest.mark.parametrize(
    ("direction", "causal"), [("forward", False), ("forward", True), ("backward", True)]
)
@pytest.mark.parametrize("rung", ["tensor_core", "hopper"])
def test_each_tile_moves_as_often_as_in_the_simulator(rung, direction, causal, monkeypatch):
    """Copies run ahead of the step that they are for: each tensor's tiles are looked at alone."""
    reports = []

    class Recorded:
        """`trace` with tiles, which keeps its reports."""

        def __init__(self, kernel, **options):
            self.tracer = trace(kernel, check=False, tiles=True)

        def __getitem__(self, sizes):
            def run(*arguments):
                reports.append(self.tracer[sizes](*arguments))
                return reports[-1]

            return run

    for module in (traced_attention, hopper):
        monkeypatch.setattr(module, "trace", Recorded)
    problem, *given = random_problem(**MATRIX_CASE, causal=causal)
    tile_m, tile_n = matrix_kernel(rung, direction, problem, *given)
    names = {name: MAPS.get(name, name) for name in reports[-1].arrays}
    axes = {name: AXES[tensor] for name, tensor in names.items() if tensor in AXES}
    found = by_own_tile(reports[-1].tile_steps(axes, tile_m, tile_n), names)
    options: dict[str, Any] = {"tile_m": tile_m, "tile_n": tile_n, "direction": direction}
    wanted = by_own_tile(of_simulator("flash2", problem, options), {})
    tensors = ("Q", "K", "V", "O") if direction == "forward" else ("Q", "K", "V", "dK", "dV")
    assert {tensor for tensor, _, _ in found} >= set(tensors)
    for tensor in tensors:
        ours, theirs = (
            {key: count for key, count in one.items() if key[0] == tensor}
            for one in (found, wanted)
        )
        assert ours == theirs, tensor


def test_view_beside_the_simulator(monkeypatch):
    problem, q, k, v, do = random_problem(**CASES["multiples"])
    kernels = Kernels(monkeypatch)
    names, tiles = kernels.flash2(problem, q, k, v, do, "forward")
    options: dict[str, Any] = {"tile_m": tiles[0], "tile_n": tiles[1], "direction": "forward"}
    shown = tile_table(
        kernels.steps(names, tiles[0], tiles[1]), of_simulator("flash2", problem, options)
    )
    rows = list(zip(*(column.cells for column in shown.columns), strict=True))
    assert ("K", "read", "-", "1", "2,048", "2,048", "") in rows
    assert all(row[-1] == "" for row in rows)
    off = tile_table(Counter(), of_simulator("flash2", problem, options))
    assert all(one == "differs" for one in off.columns[-1].cells)


def test_steps_need_a_trace_that_keeps_them():
    kernel = standard.standard.make_softmax(standard.SquareTiles(16), False)
    S = np.zeros((1, 1, 16, 16), np.float32)
    report = trace(kernel)[1, 32](S, S.copy(), np.zeros((1, 1, 16), np.float32), ())
    with pytest.raises(ValueError, match="needs a trace with tiles=True"):
        report.tile_steps(AXES, 16, 16)
