"""The Hopper kernel's own source, run thread by thread on a CPU, against attention in float64."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from test_flash2_threads import extra, random_problem, truth

from flash_numba import masks
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.kernels import hopper
from flash_numba.kernels.hopper_tiles import HopperTiles
from flash_numba.kernels.spec import padded
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask, ceil_div
from simulator import theory
from simulator.run import simulate
from simulator.threads import trace


def small_tiles(problem, **options: Any) -> HopperTiles:
    panel = options.get("panel", 64)
    depth, depth_v = padded(problem.head_dim, panel), padded(problem.head_dim_v, panel)
    return HopperTiles(depth, depth_v, 32)._replace(**options)


def forward(problem, q, k, v, tiles, blocks=2, **how: Any) -> Any:
    spec = hopper.forward_spec(problem)
    out = np.full((*q.shape[:3], v.shape[-1]), np.nan, q.dtype)
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), np.nan, np.float32)
    rows = 64, tiles.tile_n, tiles.tile_n, tiles.store_rows
    maps = [
        TensorMap(array.view(np.uint16), count, tiles.panel)
        for array, count in zip((q, k, v, out), rows, strict=True)
    ]
    scale_first, scale, factor = hopper.factors(problem)
    sizes = problem.seqlen_k, problem.group
    arguments = (*maps, lse, sizes, np.float32(scale), np.float32(factor), *extra(problem))
    work = ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    kernel = hopper.make_forward(spec, tiles, scale_first)
    run = trace(kernel, **how)
    report = run[min(work, blocks), tiles.threads, 0, tiles.shared_bytes](*arguments)
    return out, lse, report


SIZES = {"seqlen_q": 70, "seqlen_k": 100, "head_dim": 64, "dtype": "fp16"}
CASES = {
    "full": SIZES,
    "causal-gqa": SIZES | {"causal": True, "num_heads": 3, "num_kv_heads": 1},
    "causal-more-queries": SIZES | {"seqlen_q": 300, "seqlen_k": 40, "causal": True},
    "window-lengths": SIZES | {"batch": 3, "window": (9, 3), "key_lengths": np.array([0, 37, 70])},
    "one-tile": SIZES | {"seqlen_k": 5},
    "no-keys": SIZES | {"seqlen_k": 0},
    "many-tiles-of-one-step": SIZES | {"num_heads": 11, "seqlen_k": 20},
    "many-tiles": SIZES | {"num_heads": 3, "seqlen_q": 210, "seqlen_k": 210, "causal": True},
    "consumers-that-see-less": SIZES | {"seqlen_q": 200, "seqlen_k": 230, "causal": True},
    "consumers-without-rows": SIZES | {"num_heads": 5, "seqlen_q": 40, "seqlen_k": 20},
    "wider-v-bf16": SIZES | {"head_dim": 40, "head_dim_v": 128, "dtype": "bf16"},
    "negative-scale": SIZES | {"softmax_scale": -0.7},
    "scale-lost-in-float32": SIZES | {"softmax_scale": 1e-50},
    "dropout": SIZES | {"dropout_p": 0.4, "seed": 2**33 + 5},
}
TILES: dict[str, dict] = {
    "wider-v-bf16": {"q_stages": 1, "stages": 3},
    "one-tile": {"warpgroups": 3, "tile_n": 16},
    "causal-gqa": {"tile_n": 48},
    "consumers-that-see-less": {"warpgroups": 3, "stages": 3},
    "consumers-without-rows": {"warpgroups": 3, "stages": 4},
}


def check(problem, got, want, lse_budget=1e-5):
    out, lse, _ = got
    assert np.array_equal(lse == -np.inf, want.lse.numpy() == -np.inf)
    seen = lse > -np.inf
    assert np.abs(lse[seen] - want.lse.numpy()[seen]).max(initial=0) <= lse_budget
    # P and O are rounded to the type; P is at most 2**2 times the row's largest weight.
    unit = {"fp16": 2.0**-11, "bf16": 2.0**-8}[problem.dtype]
    assert np.abs(out.astype(np.float64) - want.out.numpy()).max() <= 8 * unit


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    """With every check on: races, phases of barriers, registers of products that run."""
    problem, q, k, v, _ = random_problem(**CASES[name])
    want = truth(problem, q, k, v)
    for batch in range(problem.batch):
        k[batch, problem.key_length(batch) :] = np.nan
        v[batch, problem.key_length(batch) :] = np.nan
    tiles = small_tiles(problem, **TILES.get(name, {}))
    got = forward(problem, q, k, v, tiles)
    check(problem, got, want)
    check_traffic(problem, tiles, got[2])


@pytest.mark.parametrize(("scale", "dtype"), [(1, "fp16"), (6, "bf16"), (60, "fp16")])
def test_maxima_that_lag(scale, dtype):
    """Keys get longer: maxima grow by less than 2, by 2 to 8, by far more than 8 (log2 units)."""
    options = {"seqlen_k": 160, "causal": True, "dtype": dtype}
    problem, q, k, v, _ = random_problem(**SIZES | options | {"seqlen_q": 160})
    k[:] = (k * np.linspace(0.05, 0.05 * scale, 160)[:, None, None]).astype(k.dtype)
    want = truth(problem, q, k, v)
    check(problem, forward(problem, q, k, v, small_tiles(problem, late_maxima=True)), want, 1e-4)


def check_traffic(problem, tiles, report):
    """What the copy engine moves is what the tile simulator and the closed form count."""
    sizes = {"tile_m": tiles.tile_m, "tile_n": tiles.tile_n, "direction": "forward"}
    counts = simulate("flash2", problem, head=None, **sizes).counts
    assert counts == theory.counts("flash2", problem, **sizes, all_heads=True)

    def moved(operation, array, traffic, size):
        return report.count("global", operation, array, traffic=traffic).bytes // size

    assert moved("load", "q_map[0]", "bulk", 2) == counts.reads.get("Q", 0)
    assert moved("store", "o_map[0]", "bulk", 2) == counts.writes["O"]
    assert moved("store", "LSE", "", 4) == counts.writes["LSE"]
    for name in ("K", "V"):
        loaded = moved("load", f"{name.lower()}_map[0]", "bulk", 2)
        if problem.key_lengths is None:
            assert loaded == counts.reads.get(name, 0)
        else:  # rows behind a sequence's own end come along in its last tile
            assert loaded >= counts.reads.get(name, 0)


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 32) % 3 != 0


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 70, 100)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 30)
    listed = BlockMask.from_mask(masks.Mask("s", stripes), Problem(70, 100, 64), 128, 32)
    options = SIZES | {"score_mods": changes, "block_mask": listed}
    problem, q, k, v, _ = random_problem(**options)
    check(problem, forward(problem, q, k, v, small_tiles(problem)), truth(problem, q, k, v))


def test_narrow_lines_and_the_order_of_threads():
    """head_dim 96 has lines of 64 bytes; in whatever order threads run, the bits are the same."""
    problem, q, k, v, _ = random_problem(**SIZES | {"head_dim": 96, "causal": True})
    tiles = small_tiles(problem, panel=32, depth=96, depth_v=96, o_panels=3)
    first = forward(problem, q, k, v, tiles)
    check(problem, first, truth(problem, q, k, v))
    order = tuple(reversed(range(tiles.threads)))
    again = forward(problem, q, k, v, tiles, order=order)
    assert np.array_equal(first[0].view(np.uint16), again[0].view(np.uint16))
    assert np.array_equal(first[1], again[1])


def test_the_largest_weight_is_not_rounded():
    """Rounded to bfloat16, 2**2.16 would be off by more than O may be."""
    problem, q, k, v, _ = random_problem(seqlen_q=3, seqlen_k=40, head_dim=16, dtype="bf16")
    q[:], k[:], v[:] = 1, 0, 0
    k[:, -1], v[:, -1] = 0.375, 1
    weight = np.exp(4 * np.float64(k[0, -1, 0, 0]))
    found = forward(problem, q, k, v, small_tiles(problem))[0]
    np.testing.assert_array_equal(found, np.full_like(found, weight / (weight + 39)))
