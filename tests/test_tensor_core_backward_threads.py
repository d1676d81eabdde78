"""The tensor-core rung's backward kernels, run thread by thread on a CPU: numbers, and traffic."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from test_tensor_core_threads import CASES, SIZES, stripes
from traced_attention import REVERSED, blank, check, extra, random_problem, run, stored
from traced_attention import truth as exact

from flash_numba import masks, tiling
from flash_numba.kernels import tensor_core_dkv, tensor_core_dq
from flash_numba.kernels.spec import Spec, padded
from flash_numba.kernels.tensor_core import LOG2_E
from flash_numba.kernels.tensor_core_backward_tiles import KeyGradientTiles, QueryGradientTiles
from flash_numba.kernels.tensor_core_tiles import is_scale_folded
from flash_numba.problem import Problem
from simulator import theory
from simulator.run import simulate


def backward(
    problem, q, k, v, dout, truth, order=None, apart=False, count=False, chunks=None, ampere=True
):
    """dQ, dK and dV from the exact O and lse, rounded; tiles of 32 queries and keys."""
    depth, depth_v = padded(problem.head_dim, 16), padded(problem.head_dim_v, 16)
    if chunks is None:
        chunks = problem.head_dim % 8 == problem.head_dim_v % 8 == 0
    spec, folded = Spec.of(problem, chunks), is_scale_folded(problem)
    lse = truth.lse.numpy().astype(np.float32)
    delta = np.einsum("bihd,bihd->bhi", truth.out.numpy(), dout.astype(np.float64))
    delta = np.ascontiguousarray(delta, np.float32)
    scale = problem.softmax_scale
    factors = np.float32(scale * LOG2_E if folded else LOG2_E), np.float32(scale)
    inputs = *map(stored, (q, k, v, dout)), lse, delta
    gradients = {name: blank(x.shape, q.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    dq, dk, dv = map(stored, gradients.values())
    reports = []

    tiles: Any = QueryGradientTiles(depth, depth_v, 2, 1, 32, 1, ampere)
    kernel = tensor_core_dq.make_query_gradient(spec, tiles, folded)
    blocks = tiling.ceil_div(problem.seqlen_q, 32) * problem.batch * problem.num_heads
    arguments = *inputs, dq, *factors, *extra(problem)
    launched = blocks, tiles.threads, tiles.shared_bytes
    reports.append(run(kernel, *launched, arguments, order, count))

    tiles = KeyGradientTiles(depth, depth_v, 2, 1, 32, 1, ampere)
    blocks = tiling.ceil_div(problem.seqlen_k, 32) * problem.batch * problem.num_kv_heads
    launched = blocks, tiles.threads, tiles.shared_bytes
    arguments = *inputs, dk, dv, *factors, *extra(problem)
    for wants in [(True, False), (False, True)] if apart else [(True, True)]:
        kernel = tensor_core_dkv.make_key_gradients(spec, tiles, folded, wants)
        reports.append(run(kernel, *launched, arguments, order, count))
    return gradients, [report for report in reports if report]


def check_gradients(problem, q, k, v, dout, **options):
    truth = exact(problem, q, k, v, dout)
    found, reports = backward(problem, q, k, v, dout, truth, **options)
    check(problem, found, truth)
    return found, reports


@pytest.mark.parametrize("name", CASES)
def test_backward(name):
    check_gradients(*random_problem(**CASES[name]))


def test_gradients_apart_and_in_another_order_are_the_same_bits():
    given = random_problem(**CASES["D64-causal-gqa"])
    first, _ = check_gradients(*given)
    for options in ({"apart": True}, {"order": REVERSED}):
        again, _ = check_gradients(*given, **options)
        assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("name", ["D40", "D64-causal-gqa", "odd-D"])
def test_backward_for_turing(name):
    check_gradients(*random_problem(**CASES[name] | {"dtype": "fp16"}), ampere=False)


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 37, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 13)
    listed = tiling.BlockMask.from_mask(masks.Mask("stripes", stripes), Problem(37, 50, 8), 32, 32)
    check_gradients(*random_problem(**SIZES, score_mods=changes, block_mask=listed))


def test_queries_that_do_not_exist_add_nothing():
    """The tail of the last query tile has weights of 0, whatever a bias makes of its scores."""
    bias = np.zeros((1, 1, 37, 50), np.float32)
    bias[:, :, -1] = 1000
    check_gradients(*random_problem(**SIZES, score_mods=(masks.bias(bias),)))


COUNTED = {
    "multiples": {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 64},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 70, "head_dim": 40, "causal": True},
    "window-gqa-wider-v": {"seqlen_q": 33, "seqlen_k": 70, "head_dim": 8, "head_dim_v": 72}
    | {"window": (9, 3), "num_heads": 2, "num_kv_heads": 1, "batch": 2},
    "element-by-element": {"seqlen_q": 37, "seqlen_k": 50, "head_dim": 21},
}


@pytest.mark.parametrize("name", COUNTED)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor, less the delta pass, which is a kernel of its own."""
    problem, q, k, v, dout = random_problem(**COUNTED[name], dtype="fp16")
    _, reports = check_gradients(problem, q, k, v, dout, count=True)
    program = {"tile_m": 32, "tile_n": 32, "direction": "backward"}
    counts = simulate("flash2_two_kernel", problem, head=None, **program).counts
    assert counts == theory.counts("flash2_two_kernel", problem, **program, all_heads=True)
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    by_delta_pass = {"dO": rows * problem.head_dim_v}
    for tensor in ("Q", "K", "V", "dO", "LSE", "delta", "dQ", "dK", "dV"):
        array, size = ("Delta", 4) if tensor == "delta" else (tensor, 4 if tensor == "LSE" else 2)
        found = [
            sum(report.count("global", operation, array).bytes for report in reports) // size
            for operation in ("load", "store")
        ]
        expected = counts.reads.get(tensor, 0) - by_delta_pass.get(tensor, 0)
        written = 0 if tensor == "delta" else counts.writes.get(tensor, 0)
        assert found == [expected, written], tensor
    for report in reports:
        assert not report.findings
        if name != "element-by-element":
            assert report.count("shared", "load").conflicts == 0
