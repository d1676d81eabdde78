"""The tensor-core rung's one-kernel backward pass, run thread by thread on a CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from fake_gpu import CudaArray
from test_tensor_core_threads import CASES, SIZES, stripes
from traced_attention import REVERSED, blank, check, extra, random_problem, run, stored
from traced_attention import truth as exact
from traced_gpu import install_traced

from flash_numba import flash_attention, flash_attention_backward, masks, tiling
from flash_numba.device import turns
from flash_numba.kernels import tensor_core_backward, tensor_core_gradients
from flash_numba.kernels.spec import Spec, padded
from flash_numba.kernels.tensor_core import LOG2_E
from flash_numba.kernels.tensor_core_gradients_tiles import GradientTiles, gradient_tiles
from flash_numba.kernels.tensor_core_tiles import is_scale_folded
from flash_numba.problem import Problem
from simulator.run import simulate

TILES = 2, 2, 2, 32
"""row_blocks, warps, sharing, tile_m: 32 queries and keys."""


def gradients(
    problem, q, k, v, dout, truth, sizes=TILES, order=None, count=False, chunks=None, **tile
):
    """dQ, dK and dV from the exact O and lse, rounded; and the report."""
    step = 16 * sizes[2]
    depths = padded(problem.head_dim, step), padded(problem.head_dim_v, step)
    tiles = GradientTiles(*depths, *sizes, **tile)
    if chunks is None:
        chunks = problem.head_dim % 8 == problem.head_dim_v % 8 == 0
    spec = Spec.of(problem, chunks)
    assert is_scale_folded(problem)
    lse = truth.lse.numpy().astype(np.float32)
    delta = np.einsum("bihd,bihd->bhi", truth.out.numpy(), dout.astype(np.float64))
    delta = np.ascontiguousarray(delta, np.float32)
    scale = problem.softmax_scale
    factors = np.float32(scale * LOG2_E), np.float32(scale)
    found = {name: blank(x.shape, q.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    query_tiles = tiling.ceil_div(problem.seqlen_q, tiles.tile_m)
    turns = np.zeros(problem.batch * problem.num_heads * query_tiles, np.int32)
    sums = blank((*turns.shape, tiles.tile_m * tiles.depth))
    inputs = *map(stored, (q, k, v, dout)), lse, delta, sums, turns, np.zeros(1, np.int32)
    arguments = *inputs, *map(stored, found.values()), *factors, *extra(problem)
    key_tiles = tiling.ceil_div(problem.seqlen_k, tiles.tile_n)
    blocks = key_tiles * problem.batch * problem.num_kv_heads
    kernel = tensor_core_gradients.make_gradients(spec, tiles)
    launched = blocks, tiles.threads, tiles.shared_bytes
    return found, run(kernel, *launched, arguments, order, count)


def check_gradients(problem, q, k, v, dout, **options) -> Any:
    truth = exact(problem, q, k, v, dout)
    found, report = gradients(problem, q, k, v, dout, truth, **options)
    check(problem, found, truth)
    return found, report


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"negative-scale", "zero-scale", "dropout"}))
def test_gradients(name):
    check_gradients(*random_problem(**CASES[name]))


def masked_without_a_range():
    """Options of masks that hide keys, but none that a range of tiles leaves out."""
    keep = np.random.default_rng(1).random((1, 1, 37, 70)) < 0.5
    return {"seqlen_q": 37, "seqlen_k": 70, "mask": masks.boolean(keep)}


def test_a_mask_without_a_range_is_looked_at_in_every_tile():
    """Which the tiles for head dimensions above 64 do only where something is masked."""
    given = random_problem(**SIZES | masked_without_a_range())
    wide = replace(given[0], head_dim=128, head_dim_v=128)
    chosen = [
        gradient_tiles(Spec.of(problem, True), (9, 0), 227 * 1024)
        for problem in (wide, Problem(37, 70, 128, dtype="fp16"))
    ]
    masked, full = (tiles.notes for tiles in chosen if tiles)
    assert masked
    assert not full
    check_gradients(*given, notes=masked)


@pytest.mark.parametrize(
    "sizes", [(2, 1, 1, 32), (1, 2, 1, 16), (1, 4, 2, 64), (2, 8, 2, 64)], ids=str
)
def test_other_tiles(sizes):
    case = CASES["D64-causal-gqa"] | {"seqlen_q": 70, "seqlen_k": 140}
    check_gradients(*random_problem(**case), sizes=sizes)


def test_order_of_threads_does_not_matter():
    given = random_problem(**CASES["D64-causal-gqa"])
    first, _ = check_gradients(*given)
    reversed_order = REVERSED + tuple(range(32, 64))
    for options in ({"order": reversed_order}, {"heads_at_once": 1}, {"uniform": True}):
        again, _ = check_gradients(*given, **options)
        assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("name", ["D64-causal-gqa", "window-lengths"])
def test_one_barrier_a_tile(name):
    """With a third stage: the same bits."""
    case = CASES[name] | {"seqlen_q": 100}
    given = random_problem(**case)
    first, _ = check_gradients(*given)
    again, _ = check_gradients(*given, stages=3)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("name", ["D64-causal-gqa", "window-lengths"])
def test_the_first_of_many_key_tiles_comes_first(name, monkeypatch):
    """And all walk back through the queries, with two stages and with three: the same bits."""
    monkeypatch.setattr(turns, "FEW", 0)
    given = random_problem(**CASES[name] | {"seqlen_q": 100})
    first, _ = check_gradients(*given)
    again, _ = check_gradients(*given, stages=3)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("few", [0, 16])
def test_visits_that_nobody_notes(few, monkeypatch):
    """Without a mask all query tiles visit: the same bits as those that a thread notes for all."""
    monkeypatch.setattr(turns, "FEW", few)
    lengths = {"batch": 2, "key_lengths": np.array([0, 37]), "num_heads": 2, "num_kv_heads": 1}
    given = random_problem(**CASES["D40"] | lengths | {"seqlen_q": 70})
    first, _ = check_gradients(*given)
    for stages in (2, 3):
        again, _ = check_gradients(*given, stages=stages, notes=False, late_p=False)
        assert all(np.array_equal(first[name], again[name]) for name in first)


def test_block_list():
    listed = tiling.BlockMask.from_mask(masks.Mask("stripes", stripes), Problem(37, 50, 8), 32, 32)
    check_gradients(*random_problem(**SIZES, block_mask=listed))


def test_gradient_of_unseen_queries_and_keys_is_zero():
    """Query tiles that no key tile visits, and key tiles that visit none, have an owner too."""
    sizes = SIZES | {"seqlen_q": 100, "seqlen_k": 40, "causal": True}
    found, _ = check_gradients(*random_problem(**sizes))
    assert not found["dq"][:, :32].any()
    lengths = SIZES | {"batch": 2, "seqlen_k": 70, "key_lengths": np.array([0, 20])}
    found, _ = check_gradients(*random_problem(**lengths))
    assert not found["dq"][0].any()
    assert not found["dk"][1, 32:].any()


def test_public_function_reaches_the_kernel(monkeypatch):
    """Where all gradients are asked for, nothing but a mask touches scores, and tiles fit."""
    names = install_traced(monkeypatch, 163)
    monkeypatch.setattr(tensor_core_backward, "compute_capability", lambda: (8, 0))
    options = CASES["D64-causal-gqa"] | {"head_dim": 24}
    problem, q, k, v, do = random_problem(**options)
    dlse = np.random.default_rng(3).standard_normal(problem.shapes["lse"]).astype(np.float32)
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, kernel="tensor_core")
    for scale, kernels in ((None, ["tensor_core_gradients"]), (-0.2, [*TWO_KERNELS])):
        del names[:]
        found = flash_attention_backward(
            do, q, k, v, o, lse, dlse=dlse, causal=True, scale=scale, kernel="tensor_core"
        )
        assert names == ["row_dots", *kernels]
        if scale is None:
            gradients = {"dq": found.dq, "dk": found.dk, "dv": found.dv}
            check(problem, gradients, exact(problem, q, k, v, do, dlse))


def test_a_dout_that_is_not_of_whole_chunks(monkeypatch):
    """Neighbours in a row do not adjoin: elements are read one by one."""
    install_traced(monkeypatch, 163)
    monkeypatch.setattr(tensor_core_backward, "compute_capability", lambda: (8, 0))
    problem, q, k, v, do = random_problem(**CASES["D64-causal-gqa"] | {"head_dim": 24})
    apart = np.ascontiguousarray(do.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1)
    q, k, v, apart = map(CudaArray, (q, k, v, apart))
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, kernel="tensor_core")
    given = apart, q, k, v, o, lse
    found = flash_attention_backward(*given, causal=True, kernel="tensor_core")
    gradients = {"dq": found.dq.array, "dk": found.dk.array, "dv": found.dv.array}
    check(problem, gradients, exact(problem, q.array, k.array, v.array, do))


TWO_KERNELS = "tensor_core_dq", "tensor_core_dkv"
COUNTED = {
    "multiples": {"seqlen_q": 64, "seqlen_k": 96, "head_dim": 64},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 70, "head_dim": 40, "causal": True},
    "window-gqa-wider-v": {"seqlen_q": 33, "seqlen_k": 70, "head_dim": 8, "head_dim_v": 72}
    | {"window": (9, 3), "num_heads": 2, "num_kv_heads": 1, "batch": 2},
    "element-by-element": {"seqlen_q": 37, "seqlen_k": 50, "head_dim": 21},
}


@pytest.mark.parametrize("name", COUNTED)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """All but dQ's, which the first to add does not read, and the last adds to no sum."""
    problem, q, k, v, dout = random_problem(**COUNTED[name], dtype="fp16")
    _, report = check_gradients(problem, q, k, v, dout, count=True)
    program = {"tile_m": 32, "tile_n": 32, "direction": "backward"}
    counts = simulate("flash2", problem, head=None, **program).counts
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    by_delta_pass = {"dO": rows * problem.head_dim_v}

    def moved(array, size):
        return [report.count("global", kind, array).bytes // size for kind in ("load", "store")]

    for tensor in ("Q", "K", "V", "dO", "LSE", "delta", "dK", "dV"):
        array, size = ("Delta", 4) if tensor == "delta" else (tensor, 4 if tensor == "LSE" else 2)
        expected = counts.reads.get(tensor, 0) - by_delta_pass.get(tensor, 0)
        written = 0 if tensor == "delta" else counts.writes.get(tensor, 0)
        assert moved(array, size) == [expected, written], tensor
    assert moved("dQ", 2) == [0, rows * problem.head_dim]
    if name == "multiples":  # the program adds to zeros, and reads and writes every time
        between = counts.reads["dQ"] - rows * problem.head_dim
        assert moved("Sums", 4) == [between, between]
    assert not report.findings
    if name != "element-by-element":
        assert report.count("shared", "load").conflicts == 0
        assert report.count("shared", "store").conflicts == 0
