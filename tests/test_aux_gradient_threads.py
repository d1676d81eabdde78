"""The kernel of gradients of learned tensors in the scores, run thread by thread on a CPU."""

from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")

from aux_gradients import broadcast_bias, hold, steep_mod  # noqa: E402
from traced_attention import REVERSED, blank, extra, moved, random_problem, run  # noqa: E402

from flash_numba import masks, tiling  # noqa: E402
from flash_numba import reference as ref  # noqa: E402
from flash_numba.kernels import aux_gradient, aux_plan  # noqa: E402
from flash_numba.kernels.aux_gradient import SUM_THREADS  # noqa: E402
from flash_numba.kernels.aux_plan import AuxPlan  # noqa: E402
from flash_numba.kernels.spec import Spec  # noqa: E402
from flash_numba.kernels.standard_tiles import SquareTiles  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from flash_numba.scores import aux_shape  # noqa: E402
from simulator import theory  # noqa: E402
from simulator.programs import AUX_GRADIENT  # noqa: E402
from simulator.run import simulate  # noqa: E402


def gradient(problem, q, k, v, dout, shares=None, tile=16, order=None, count=False):
    """The gradient of the last score change, the reports of its launches, and the plan."""
    number = len(problem.score_mods) - 1
    plan = AuxPlan.of(problem, number, tile)
    plan = plan if shares is None else plan._replace(shares=shares)
    o, lse = ref.forward(problem, q, k, v)
    delta = (dout * o).sum(axis=-1).transpose(0, 2, 1)
    sums, total = blank((plan.shares, *plan.shape)), blank(plan.shape)
    rows = lse.astype(np.float32), delta.astype(np.float32)
    arguments = q, k, v, dout, *rows, sums, np.float32(problem.softmax_scale), *extra(problem)
    tiles = SquareTiles(tile)
    kernel = aux_gradient.make_aux_gradient(Spec.of(problem, False), tiles, plan.rule)
    width = max(problem.head_dim, problem.head_dim_v)
    sizes = tiles.threads, tiles.shared_bytes(width) + tiles.sums_bytes
    reports = [run(kernel, plan.tiles * plan.shares, *sizes, arguments, order, count)]
    blocks = tiling.ceil_div(total.size, SUM_THREADS)
    if plan.shares > 1:
        reports.append(
            run(aux_gradient.sum_shares, blocks, SUM_THREADS, 0, (sums, total), None, count)
        )
    found = total if plan.shares > 1 else sums[0]
    mod = problem.score_mods[number]
    return found.reshape(aux_shape(problem, mod)), reports, plan


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 16) % 2 == 0


SIZES: dict[str, Any] = {"seqlen_q": 21, "seqlen_k": 35, "head_dim": 20, "batch": 2, "num_heads": 2}
LISTED = tiling.BlockMask.from_mask(masks.Mask("stripes", stripes), Problem(21, 35, 20), 16, 16)
OPTIONS: dict[str, dict[str, Any]] = {
    "causal-gqa": {"causal": True, "num_kv_heads": 1},
    "window-lengths": {"window": (9, 3), "key_lengths": np.array([0, 31])},
    "dropout-wider-v": {"dropout_p": 0.4, "seed": 2**33 + 5, "head_dim_v": 40},
    "listed": {"block_mask": LISTED},
}
AXES = {"causal-gqa": (), "window-lengths": (0, 3), "dropout-wider-v": (1, 2), "listed": (0, 1)}


@pytest.mark.parametrize("name", OPTIONS)
def test_gradient_of_a_bias(name):
    drawn = random_problem(**SIZES | OPTIONS[name])
    _, change = broadcast_bias(np.random.default_rng(1), drawn[0], AXES[name])
    mods = (masks.softcap(2.0), change) if name == "listed" else (change,)
    problem, *arrays = random_problem(**SIZES | OPTIONS[name], score_mods=mods)
    found, _, _ = gradient(problem, *arrays)
    hold(problem, arrays, (found,))


@pytest.mark.parametrize("shares", [1, 2, 7])
def test_blocks_that_share_a_tile(shares):
    """20 terms need three walks with 8 sums a thread; the gradient is the same within rounding."""
    weights, theta = np.random.default_rng(2).standard_normal((2, 20)).astype(np.float32)
    mods = (masks.relative_positions(weights, theta),)
    problem, *arrays = random_problem(seqlen_q=21, seqlen_k=35, head_dim=8, score_mods=mods)
    found, _, plan = gradient(problem, *arrays, shares=shares)
    assert plan.tiles == 3
    hold(problem, arrays, (found,))


def test_changes_before_and_after_and_order_of_threads():
    learned = np.array([[0.2, -0.3], [0.1, 0.4]], np.float32)
    mods = (masks.softcap(3.0), steep_mod(learned))
    problem, *arrays = random_problem(**SIZES | OPTIONS["causal-gqa"], score_mods=mods)
    found, _, _ = gradient(problem, *arrays)
    hold(problem, arrays, (found,), slope=9.0)
    again, _, _ = gradient(problem, *arrays, order=REVERSED)
    assert np.array_equal(found, again)


@pytest.mark.parametrize("name", OPTIONS)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor; and the closed form says the same."""
    plain = random_problem(**SIZES | OPTIONS[name])[0]
    _, change = broadcast_bias(np.random.default_rng(1), plain, AXES[name])
    problem, *arrays = random_problem(**SIZES | OPTIONS[name], score_mods=(change,))
    _, reports, plan = gradient(problem, *arrays, count=True)
    options: dict[str, Any] = {"tile_m": 16, "tile_n": 16, "direction": "backward"}
    counts = simulate(AUX_GRADIENT, problem, head=None, **options).counts
    seen = (LISTED.kinds != tiling.SKIPPED) if name == "listed" else None
    assert counts == theory.counts("aux_gradient", problem, **options, all_heads=True, visited=seen)
    delta = theory.counts("flash2", problem, **options, all_heads=True, visited=seen).reads
    for tensor in ("Q", "K", "V", "dO", "LSE", "delta"):
        read, written = moved(reports[:1], "Delta" if tensor == "delta" else tensor)
        before = delta["O"] if tensor == "dO" else 0  # the delta pass reads dO like O
        assert read == counts.reads[tensor] - before, tensor
        assert written == 0
    size = int(np.prod(plan.shape))
    assert moved(reports[:1], "Sums") == (0, plan.shares * size)
    if plan.shares > 1:
        assert moved(reports[1:], "Sums") == (plan.shares * size, 0)
        assert moved(reports[1:], "Gradient") == (0, size)


def test_the_program_gives_the_gradient():
    """The simulator's program and the reference agree on its numbers too."""
    weights, theta = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)
    mods = (masks.softcap(2.0), masks.relative_positions(weights, theta))
    problem, *arrays = random_problem(**SIZES, causal=True, score_mods=mods)
    found = simulate(
        AUX_GRADIENT, problem, *arrays, head=None, tile_m=16, tile_n=16, direction="backward"
    ).aux
    assert found is not None
    hold(problem, arrays, (found[1],))


@pytest.mark.parametrize("limit_kb", [64, 99, 163, 227])
def test_tiles_fit_every_gpu(limit_kb, monkeypatch):
    monkeypatch.setattr(aux_plan, "shared_limit", lambda cc: 1024 * limit_kb)
    for head_dim in (1, 64, 128, 256):
        tiles = aux_plan.chosen_tiles(Problem(8, 8, head_dim), (9, 0))
        needed = tiles.shared_bytes(head_dim) + tiles.sums_bytes + 8 * tiles.tile
        assert needed <= 1024 * limit_kb
