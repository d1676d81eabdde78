"""The tensor-core rung's own kernels, run thread by thread on a CPU: numbers, and traffic."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

import cases
from traced_attention import REVERSED, blank, check, extra, random_problem, run, stored, truth

from flash_numba import masks, reference, tiling
from flash_numba.budget import within_budget
from flash_numba.kernels import tensor_core
from flash_numba.kernels.spec import Spec, padded
from flash_numba.kernels.tensor_core_tiles import TensorTiles, is_scale_folded
from flash_numba.problem import Problem
from simulator import theory
from simulator.run import simulate


def forward(
    problem, q, k, v, order=None, sizes=(1, 2, 32), count=False, chunks=None, **tile
) -> Any:
    """O and lse, and the report; `sizes` are row_blocks, warps and tile_n."""
    depth, depth_v = (padded(d, 16) for d in (problem.head_dim, problem.head_dim_v))
    row_blocks, warps, tile_n = sizes
    tiles = TensorTiles(depth, depth_v, row_blocks, warps, tile_n, 1, **tile)
    if chunks is None:
        chunks = problem.head_dim % 8 == problem.head_dim_v % 8 == 0
    folded = is_scale_folded(problem)
    kernel = tensor_core.make_forward(Spec.of(problem, chunks), tiles, folded)
    out, lse = blank(problem.shapes["o"], q.dtype), blank(problem.shapes["lse"])
    scale = problem.softmax_scale
    factor = np.float32(scale * tensor_core.LOG2_E if folded else tensor_core.LOG2_E)
    arguments = (*map(stored, (q, k, v, out)), lse, factor, np.float32(scale), *extra(problem))
    blocks = tiling.ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    report = None
    if blocks:
        launched = (blocks, tiles.threads, tiles.shared_bytes)
        report = run(kernel, *launched, arguments, order, count)
    return {"o": out, "lse": lse}, report


SIZES = {"seqlen_q": 37, "seqlen_k": 50, "head_dim": 40, "dtype": "fp16"}
CASES = {
    "D40": SIZES,
    "D64-causal-gqa": SIZES | {"head_dim": 64, "causal": True, "num_heads": 2, "num_kv_heads": 1},
    "D128-bf16": SIZES | {"head_dim": 128, "dtype": "bf16"},
    "causal-more-queries": SIZES | {"seqlen_q": 50, "seqlen_k": 21, "causal": True},
    "window-lengths": SIZES | {"batch": 2, "window": (9, 3), "key_lengths": np.array([0, 37])},
    "wider-v": SIZES | {"head_dim": 16, "head_dim_v": 72},
    "narrower-v": SIZES | {"head_dim": 72, "head_dim_v": 16},
    "odd-D": SIZES | {"head_dim": 21, "head_dim_v": 35, "dtype": "bf16", "causal": True},
    "negative-scale": SIZES | {"softmax_scale": -0.7},
    "zero-scale": SIZES | {"softmax_scale": 0.0, "causal": True},
    "dropout": SIZES | {"dropout_p": 0.4, "seed": 2**33 + 5, "dtype": "bf16"},
}


def few_blocks(problem):
    return problem.dtype != "fp32" and problem.batch * problem.num_heads <= 64


SIXTEEN_BITS = [spec for spec in cases.CASES if few_blocks(spec.build().problem)]


@pytest.mark.parametrize("name", CASES)
def test_forward(name):
    problem, q, k, v, dout = random_problem(**CASES[name])
    found, _ = forward(problem, q, k, v)
    check(problem, found, truth(problem, q, k, v, dout))


@pytest.mark.parametrize("name", ["D40", "D64-causal-gqa", "dropout", "odd-D"])
def test_the_form_for_turing(name):
    """Products 8 deep, no asynchronous copies: the same numbers, but for the order of additions."""
    problem, q, k, v, _ = random_problem(**CASES[name] | {"dtype": "fp16"})
    found, report = forward(problem, q, k, v, ampere=False, count=True)
    check(problem, found, truth(problem, q, k, v))
    assert not report.findings
    assert report.count(traffic="cp.async").instructions == 0


@pytest.mark.parametrize("spec", SIXTEEN_BITS, ids=[spec.id for spec in SIXTEEN_BITS])
def test_cases_on_which_other_kernels_failed(spec):
    case = spec.build()
    problem, given = case.problem, (case.q, case.k, case.v)
    found, _ = forward(problem, *given, sizes=(1, 2, 64))
    truth = dict(zip(("o", "lse"), reference.forward(problem, *given), strict=True)) | case.answers
    twin = reference.forward(problem, *given, dtype=problem.dtype)
    for name, same_type in zip(("o", "lse"), twin, strict=True):
        if name in case.exact:
            np.testing.assert_array_equal(np.asarray(found[name], np.float64), truth[name])
        dtype = "fp32" if name == "lse" else problem.dtype
        assert within_budget(found[name], truth[name], same_type, dtype), name


def test_fragments_of_q_in_registers_change_nothing():
    problem, q, k, v, _ = random_problem(**CASES["D64-causal-gqa"])
    again, kept = forward(problem, q, k, v)[0], forward(problem, q, k, v, q_in_registers=True)[0]
    assert all(np.array_equal(again[name], kept[name]) for name in again)


@pytest.mark.parametrize("sizes", [(2, 2, 16), (1, 4, 64), (2, 2, 32)], ids=str)
def test_other_tiles(sizes):
    problem, q, k, v, _ = random_problem(**CASES["D64-causal-gqa"])
    check(problem, forward(problem, q, k, v, sizes=sizes)[0], truth(problem, q, k, v))


def test_order_of_threads_does_not_matter():
    problem, q, k, v, _ = random_problem(**CASES["D64-causal-gqa"])
    first, _ = forward(problem, q, k, v)
    again, _ = forward(problem, q, k, v, order=REVERSED + tuple(range(32, 64)))
    assert all(np.array_equal(first[name], again[name]) for name in first)


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 32 + k_idx // 24) % 2 == 0


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 37, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 13)
    listed = tiling.BlockMask.from_mask(masks.Mask("stripes", stripes), Problem(37, 50, 8), 32, 32)
    problem, q, k, v, _ = random_problem(
        **SIZES, score_mods=changes, block_mask=listed, causal=True
    )
    check(problem, forward(problem, q, k, v)[0], truth(problem, q, k, v))


def test_any_strides():
    problem, q, k, v, _ = random_problem(**SIZES)
    odd = np.zeros((1, 37, 1, 81), np.float16)[..., 1::2]
    odd[...] = q
    want, _ = forward(problem, q, k, v)
    found, _ = forward(problem, odd, k, v[:, ::-1][:, ::-1], chunks=False)
    assert all(np.array_equal(found[name], want[name]) for name in want)


@pytest.mark.parametrize("seqlen_k", [1, 40])
def test_scores_beyond_any_exponent(seqlen_k):
    """The largest score's weight is 1 to the last bit, also where a score has no fraction bits."""
    problem, q, k, v, _ = random_problem(seqlen_q=3, seqlen_k=seqlen_k, head_dim=16, dtype="bf16")
    q[:], k[:] = 30000, 0
    k[:, -1] = 40000
    found, _ = forward(problem, q, k, v)
    np.testing.assert_array_equal(found["o"], np.broadcast_to(v[:, -1:], found["o"].shape))
    np.testing.assert_allclose(found["lse"], 30000 * 39936.0 * 4, rtol=2**-7)


COUNTED = {
    "multiples": {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 64},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 70, "head_dim": 40, "causal": True},
    "window-gqa-wider-v": {"seqlen_q": 33, "seqlen_k": 70, "head_dim": 8, "head_dim_v": 72}
    | {"window": (9, 3), "num_heads": 2, "num_kv_heads": 1, "batch": 2},
    "element-by-element": {"seqlen_q": 37, "seqlen_k": 50, "head_dim": 21},
    "no-keys": {"seqlen_q": 5, "seqlen_k": 0, "head_dim": 8},
}


def moved(report, array):
    """Elements of a tensor that a launch read and wrote."""
    size = 4 if array == "LSE" else 2
    counts = [report.count("global", operation, array) for operation in ("load", "store")]
    return tuple(count.bytes // size for count in counts)


@pytest.mark.parametrize("name", COUNTED)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor; what shared memory serves meets no bank conflict."""
    problem, q, k, v, _ = random_problem(**COUNTED[name], dtype="fp16")
    _, report = forward(problem, q, k, v, count=True)
    tiles: dict[str, Any] = {"tile_m": 32, "tile_n": 32}
    counts = simulate("flash2", problem, head=None, **tiles).counts
    form = theory.counts("flash2", problem, **tiles, direction="forward", all_heads=True)
    assert counts == form
    for tensor in ("Q", "K", "V", "O", "LSE"):
        expected = counts.reads.get(tensor, 0), counts.writes.get(tensor, 0)
        assert moved(report, tensor) == expected, tensor
    assert not report.findings
    if name != "element-by-element":
        assert report.count("shared", "load").conflicts == 0
        assert report.count("shared", "store").conflicts == 0


def test_the_largest_weight_is_not_rounded():
    """Rounded to bfloat16, 2**2.16 would be off by more than O may be."""
    problem, q, k, v, _ = random_problem(seqlen_q=3, seqlen_k=40, head_dim=16, dtype="bf16")
    q[:], k[:], v[:] = 1, 0, 0
    k[:, -1], v[:, -1] = 0.375, 1
    weight = np.exp(4 * np.float64(k[0, -1, 0, 0]))
    found = forward(problem, q, k, v)[0]["o"]
    np.testing.assert_array_equal(found, np.full_like(found, weight / (weight + 39)))
