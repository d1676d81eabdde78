"""The Hopper backward kernels' own source, run thread by thread on a CPU, against float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from test_tensor_core_threads import stripes
from traced_attention import blank, check, extra, random_problem, run, stored
from traced_attention import truth as exact

from flash_numba import ladder, masks, tiling
from flash_numba.arrays import contiguous
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.kernels import hopper, hopper_backward
from flash_numba.kernels.hopper_backward_heads import BACKWARDS_AT_ONCE, heads_at_once
from flash_numba.kernels.hopper_backward_rows import THREADS, make_prepare, make_round
from flash_numba.kernels.hopper_backward_tiles import (
    HopperBackwardTiles,
    WideBackwardTiles,
    hopper_backward_tiles,
)
from flash_numba.kernels.spec import padded
from flash_numba.problem import Problem
from simulator import theory
from simulator.run import simulate


def backward(
    problem,
    q,
    k,
    v,
    dout,
    truth,
    ordered=True,
    turned=False,
    count=False,
    resident=2,
    wide=False,
    **options: Any,
):
    """dQ, dK and dV from the exact O and lse, rounded."""
    depths = padded(problem.head_dim, 64), padded(problem.head_dim_v, 64)
    if wide:
        tiles = WideBackwardTiles(*depths, **options)
    else:
        tiles = HopperBackwardTiles(*depths, **{"tile_m": 16} | options)
    heads, m_blocks = (
        problem.batch * problem.num_heads,
        tiling.ceil_div(problem.seqlen_q, tiles.tile_m),
    )
    blocks = heads * m_blocks
    lse, out = truth.lse.numpy().astype(np.float32), truth.out.numpy().astype(q.dtype)
    rows = blank((blocks, 2 * tiles.tile_m))
    sums = blank((blocks, tiles.tile_m * tiles.depth))
    reports = []

    def launch(kernel, blocks, threads, shared_bytes, given):
        order = tuple(reversed(range(threads))) if turned else None
        reports.append(run(kernel, blocks, threads, shared_bytes, given, order, count))

    gradients = {name: blank(x.shape, q.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    dq = stored(gradients["dq"])
    kernel = make_prepare(problem.dtype, problem.head_dim_v, tiles, True, False, ordered)
    turns = np.full((problem.batch, problem.num_heads, 2 * m_blocks), -7, np.int32)
    ticket = np.full(1, -7, np.int32)
    given = stored(out), stored(dout), lse, (), rows, sums, (dq,), turns, ticket
    launch(kernel, blocks, THREADS, 0, given)

    boxes = (q, tiles.tile_m), (dout, tiles.tile_m), (k, 64), (v, 64)
    boxes += (gradients["dk"], 64), (gradients["dv"], 64)
    maps = [TensorMap(stored(x), count, tiles.panel) for x, count in boxes]
    scale_first, scale, factor = hopper.factors(problem)
    sizes = hopper_backward.sizes_of(problem, tiles, 2)
    spec = hopper_backward.backward_spec(problem)
    kernel = hopper_backward.make_backward(spec, tiles, scale_first, ordered=ordered)
    numbers = np.float32(scale), np.float32(factor)
    given = *maps, rows, sums, dq, turns, ticket, sizes, *numbers, *extra(problem)
    launch(kernel, resident, tiles.threads, tiles.shared_bytes, given)
    if not ordered:
        launch(make_round(problem.dtype, tiles), blocks, THREADS, 0, (sums, dq, np.float32(scale)))
    return gradients, [report for report in reports if report]


def check_gradients(problem, q, k, v, dout, **options):
    truth = exact(problem, q, k, v, dout)
    for batch in range(problem.batch):
        k[batch, problem.key_length(batch) :] = np.nan
        v[batch, problem.key_length(batch) :] = np.nan
    found, reports = backward(problem, q, k, v, dout, truth, **options)
    check(problem, found, truth)
    return found, reports


SIZES: dict[str, Any] = {"seqlen_q": 40, "seqlen_k": 140, "head_dim": 64, "dtype": "fp16"}
CASES = {
    "full": SIZES,
    "causal-gqa": SIZES | {"causal": True, "num_heads": 2, "num_kv_heads": 1},
    "causal-more-queries": SIZES | {"seqlen_q": 70, "seqlen_k": 30, "causal": True},
    "window-lengths": SIZES
    | {"batch": 2, "seqlen_q": 20, "window": (9, 3), "key_lengths": np.array([0, 137])},
    "lengths-within": SIZES
    | {"batch": 2, "seqlen_q": 16, "seqlen_k": 128, "key_lengths": np.array([5, 70])},
    "one-tile": SIZES | {"seqlen_q": 5, "seqlen_k": 3},
    "wide-bf16": SIZES | {"head_dim": 128, "dtype": "bf16", "causal": True},
    "wider-v": SIZES | {"seqlen_q": 20, "seqlen_k": 40, "head_dim": 40, "head_dim_v": 128},
    "narrower-v": SIZES | {"seqlen_q": 20, "seqlen_k": 40, "head_dim": 96, "head_dim_v": 64},
    "negative-scale": SIZES | {"seqlen_q": 20, "seqlen_k": 40, "softmax_scale": -0.7},
    "three-tiles": SIZES | {"seqlen_q": 16, "seqlen_k": 270, "head_dim": 16},
    "dropout": SIZES | {"seqlen_q": 20, "seqlen_k": 40, "dropout_p": 0.4, "seed": 2**33 + 5},
}


@pytest.mark.parametrize("name", CASES)
def test_backward(name):
    """With every check on: races, phases of barriers, registers of products that run."""
    check_gradients(*random_problem(**CASES[name]))


WIDE = {
    "causal-gqa": {"seqlen_q": 70, "head_dim": 32, "head_dim_v": 48},
    "window-lengths": {"seqlen_q": 70, "key_lengths": np.array([0, 60])},
    "one-tile": {},
    "wider-v": {"head_dim_v": 192},
    "three-tiles": {"head_dim_v": 128},
    "dropout": {"seqlen_q": 70, "head_dim_v": 16},
}
"""Sizes that let blocks of 64 keys meet odd numbers of tiles, and none."""


@pytest.mark.parametrize("name", WIDE)
def test_wide_heads(name):
    """The form for wide heads, which is right for narrow ones too: those are quicker to run."""
    check_gradients(*random_problem(**CASES[name] | WIDE[name]), wide=True)


@pytest.mark.parametrize("name", ["causal-gqa", "window-lengths", "three-tiles"])
def test_wide_heads_from_the_last_query_back(name):
    problem = random_problem(**CASES[name] | WIDE[name])
    check_gradients(*problem, wide=True, backwards=True)


def test_who_walks_backwards():
    """Wide heads with a long causal triangle, many heads at a time."""
    problem = Problem(8192, 8192, 256, batch=2, num_heads=8, dtype="fp16", causal=True)
    assert hopper_backward_tiles(problem).backwards
    assert heads_at_once(problem, 64, 132, BACKWARDS_AT_ONCE) == 16
    narrow = {"head_dim": 128, "head_dim_v": 128}
    others: list[dict[str, Any]] = [{"causal": False}, {"seqlen_k": 2048}, narrow]
    assert not any(hopper_backward_tiles(replace(problem, **other)).backwards for other in others)


@pytest.mark.parametrize("wide", [False, True])
def test_sums_that_are_added_as_they_come(wide):
    check_gradients(*random_problem(**CASES["causal-gqa"]), ordered=False, wide=wide)


@pytest.mark.parametrize(
    ("seqlen_k", "causal", "asked"),
    [
        (512, False, [True] * 3),
        (513, False, [True, True, False]),
        (1024, True, [True] * 3),
        (1025, True, [True, True, False]),
    ],
)
def test_who_does_not_mind_the_order_gets_the_faster_form(monkeypatch, seqlen_k, causal, asked):
    """Few key tiles do not repay the passes before and after."""
    problem, found = Problem(64, seqlen_k, 64, dtype="fp16", causal=causal), []
    tensor = contiguous(1 << 20, problem.shapes["q"], "fp16")
    lse = contiguous(1 << 20, problem.shapes["lse"], "fp32")
    given = *[tensor] * 4, lse, *[tensor] * 4, None
    monkeypatch.setattr(
        hopper_backward, "backward_with", lambda tiles, ordered, *rest: found.append(ordered)
    )
    (hopper_rung,) = (rung for rung in ladder.RUNGS if rung.name == "hopper")
    for wish in (None, True, False):
        hopper_rung.wished(wish, problem).functions("backward").backward(problem, *given)
    assert found == asked


@pytest.mark.parametrize(
    ("heads", "causal", "at_once"), [(16, False, 5), (16, True, 2), (32, True, 2), (13, True, 2)]
)
def test_no_small_group_of_heads_is_left_under_a_mask(heads, causal, at_once):
    problem = Problem(16384, 16384, 128, num_heads=heads, dtype="fp16", causal=causal)
    assert heads_at_once(problem, 128, 132) == at_once


@pytest.mark.parametrize("name", ["dout", "q", "dk"])
def test_what_the_copy_engine_cannot_read_tensor_core_does(monkeypatch, name):
    problem, done = Problem(64, 64, 64, dtype="fp16"), []
    monkeypatch.setattr(hopper_backward, "backward_with", lambda *given: done.append("hopper"))
    other = hopper_backward.tensor_core_backward
    monkeypatch.setattr(other, "backward", lambda *given: done.append("tensor_core"))
    names = "q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"
    views: Any = {n: contiguous(1 << 20, problem.shapes["q"], "fp16") for n in names}
    own = views[name].strides
    for strides in (own, (0, 0, 0, 0), (own[0], 0, *own[2:]), (own[0], -own[1], *own[2:])):
        views[name] = views[name]._replace(strides=strides)
        hopper_backward.backward(problem, **views, memory=None)
    assert done == ["hopper"] + 3 * ["tensor_core"]


@pytest.mark.parametrize(
    ("wide", "options"), [(False, {}), (True, {}), (True, {"backwards": True})]
)
def test_score_changes_and_block_list(wide, options):
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 20, 150)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 13)
    tile = (64, 64) if wide else (16, 128)
    listed = tiling.BlockMask.from_mask(masks.Mask("s", stripes), Problem(20, 150, 64), *tile)
    sizes = SIZES | {"seqlen_q": 20, "seqlen_k": 150}
    problem = random_problem(**sizes, score_mods=changes, block_mask=listed)
    check_gradients(*problem, wide=wide, **options)


def test_queries_and_keys_that_do_not_exist_add_nothing():
    """Behind either end weights are 0, whatever a bias makes of the last scores."""
    bias = np.zeros((1, 1, 20, 50), np.float32)
    bias[:, :, -1] = 1000
    sizes = SIZES | {"seqlen_q": 20, "seqlen_k": 50}
    check_gradients(*random_problem(**sizes, score_mods=(masks.bias(bias),)))


@pytest.mark.parametrize("wide", [False, True])
def test_in_another_order_of_threads_the_bits_are_the_same(wide):
    given = random_problem(**SIZES | {"seqlen_q": 20, "causal": True})
    first, _ = check_gradients(*given, wide=wide)
    again, _ = check_gradients(*given, turned=True, wide=wide)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "wide"),
    [("causal-gqa", False), ("wider-v", False), ("three-tiles", False), ("three-tiles", True)],
)
def test_global_memory_traffic_is_what_the_simulator_counts(name, wide):
    """Tensor by tensor, less the passes before and after, which are kernels of their own."""
    problem, q, k, v, dout = random_problem(**CASES[name])
    _, (_, report) = check_gradients(problem, q, k, v, dout, count=True, wide=wide)
    tile_m, tile_n = (64, 64) if wide else (16, 128)
    sizes = {"tile_m": tile_m, "tile_n": tile_n, "direction": "backward"}
    counts = simulate("flash2", problem, head=None, **sizes).counts
    assert counts == theory.counts("flash2", problem, **sizes, all_heads=True)
    rows = problem.batch * problem.num_heads * problem.seqlen_q

    def moved(operation, array, traffic, size):
        return report.count("global", operation, array, traffic=traffic).bytes // size

    assert moved("load", "q_map[0]", "bulk", 2) == counts.reads["Q"]
    by_delta_pass = rows * problem.head_dim_v
    assert moved("load", "do_map[0]", "bulk", 2) == counts.reads["dO"] - by_delta_pass
    for tensor in "KV":
        assert moved("load", f"{tensor.lower()}_map[0]", "bulk", 2) == counts.reads[tensor]
        stored = moved("store", f"d{tensor.lower()}_map[0]", "bulk", 2)
        assert stored == counts.writes[f"d{tensor}"]
    # Of the key tiles that a query tile visits the first one puts its part of dQ, the others add
    # theirs, and the last one takes the sum and writes dQ: whole tiles but for that.
    visits = np.concatenate(
        [
            np.count_nonzero(tiling.Schedule(problem, tile_m, tile_n, batch, head).kinds(), axis=1)
            for batch, head in np.ndindex(problem.batch, problem.num_heads)
        ]
    )
    size = tile_m * padded(problem.head_dim, 64)
    assert moved("store", "Sums", "", 4) == size * np.count_nonzero(visits > 1)
    assert moved("atomic", "Sums", "", 4) == size * np.maximum(visits - 2, 0).sum()
    assert moved("load", "Sums", "", 4) == size * np.count_nonzero(visits > 1)
    assert moved("store", "dQ", "", 2) == rows * problem.head_dim
