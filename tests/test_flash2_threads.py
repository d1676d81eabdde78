"""flash2's own kernels, run thread by thread on a CPU, against attention in float64."""

from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")


from traced_attention import (  # noqa: E402
    CASES,
    REVERSED,
    SIZES,
    blank,
    check,
    extra,
    random_problem,
    run,
    stored,
    truth,
)

from flash_numba import masks, tiling  # noqa: E402
from flash_numba.device.column_copies import make_load_columns  # noqa: E402
from flash_numba.kernels import flash2, flash2_backward, row_passes  # noqa: E402
from flash_numba.kernels.spec import BackwardTiles, ForwardTiles, Spec, padded  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from simulator.threads import trace  # noqa: E402


def forward_tiles(problem, vectors=True, sizes=(4, 4, 8)):
    thread_m, thread_n, lanes = sizes
    asynchronous = problem.dtype == "fp32" and vectors
    depth, depth_v = (padded(d, 4 * lanes) for d in (problem.head_dim, problem.head_dim_v))
    return ForwardTiles(depth, depth_v, thread_m, thread_n, lanes, 32, 1, asynchronous)


def backward_tiles(problem, sizes: Any = (4, 4, 8, 4)):
    tiles = forward_tiles(problem, True, sizes[:3])
    own = dict(zip(("thread_n", "thread_m", "lanes", "q_lanes"), sizes, strict=True))
    depths = tiles.depth, tiles.depth_v
    return BackwardTiles(*depths, **own, threads=32, asynchronous=tiles.asynchronous)


def forward(problem, q, k, v, vectors=True, order=None, sizes=(4, 4, 8)):
    spec, tiles = Spec.of(problem, vectors), forward_tiles(problem, vectors, sizes)
    out, lse = blank(problem.shapes["o"], q.dtype), blank(problem.shapes["lse"])
    scale = np.float32(problem.softmax_scale)
    factor = scale if spec.folded else np.float32(1)
    blocks = tiling.ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    arguments = (*map(stored, (q, k, v, out)), lse, factor, scale, *extra(problem))
    run(flash2.make_forward(spec, tiles), blocks, 32, tiles.shared_bytes, arguments, order)
    return out, lse


def backward(problem, q, k, v, out, lse, dout, dlse=None, order=None, sizes=(4, 4, 8, 4)):
    spec, tiles = Spec.of(problem, True), backward_tiles(problem, sizes)
    dq, delta = blank(q.shape), blank(lse.shape)
    dk, dv = blank(k.shape, k.dtype), blank(v.shape, v.dtype)
    rows = tiling.ceil_div(problem.seqlen_q, row_passes.ROWS)
    delta_pass = row_passes.make_delta(
        problem.dtype, problem.head_dim, problem.head_dim_v, True, dlse is not None
    )
    given = () if dlse is None else (dlse,)
    heads = problem.batch * problem.num_heads
    arguments = stored(out), stored(dout), given, delta, dq
    run(delta_pass, rows * heads, row_passes.THREADS, 0, arguments)
    turns = np.zeros((*lse.shape[:2], tiling.ceil_div(problem.seqlen_q, tiles.tile_m)), np.int32)
    one, scale = np.float32(1), np.float32(problem.softmax_scale)
    factors = (scale, scale, one) if spec.folded else (one, scale, scale)
    arguments = (
        *map(stored, (q, k, v, dout)), lse, delta, dq, stored(dk), stored(dv), turns,
        np.zeros(1, np.int32), *factors, *extra(problem),
    )  # fmt: skip
    blocks = tiling.ceil_div(problem.seqlen_k, tiles.tile_n) * problem.batch * problem.num_kv_heads
    kernel = flash2_backward.make_backward(spec, tiles)
    run(kernel, blocks, 32, tiles.shared_bytes, arguments, order)
    return dq, dk, dv


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 32) % 2 == 0


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    problem, q, k, v, dout = random_problem(**CASES[name])
    want = truth(problem, q, k, v, dout)
    out, lse = forward(problem, q, k, v)
    dq, dk, dv = backward(problem, q, k, v, out, lse, dout)
    check(problem, {"o": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}, want)


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 21, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 29)
    mask = masks.Mask("stripes", stripes)
    listed = tiling.BlockMask.from_mask(mask, Problem(21, 50, 20), 16, 32)
    problem, q, k, v, dout = random_problem(**SIZES, score_mods=changes, block_mask=listed)
    want = truth(problem, q, k, v, dout)
    out, lse = forward(problem, q, k, v)
    check(problem, {"o": out, "lse": lse}, want)
    listed = tiling.BlockMask.from_mask(mask, Problem(21, 50, 20), 32, 16)
    problem = Problem(**SIZES, score_mods=changes, block_mask=listed)
    dq, dk, dv = backward(problem, q, k, v, out, lse, dout)
    check(problem, {"dq": dq, "dk": dk, "dv": dv}, want)


def test_any_strides():
    problem, q, k, v, _ = random_problem(**SIZES)
    want, _ = forward(problem, q, k, v)
    odd = np.zeros((1, 21, 1, 41), np.float32)[..., 1::2]
    odd[...] = q
    got, _ = forward(problem, odd, k, v, vectors=False)
    assert np.array_equal(got, want)


def test_order_of_threads_does_not_matter():
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    first = forward(problem, q, k, v)
    again = forward(problem, q, k, v, order=REVERSED)
    assert all(map(np.array_equal, first, again))
    gradients = backward(problem, q, k, v, *first, dout)
    again = backward(problem, q, k, v, *first, dout, order=REVERSED)
    assert all(map(np.array_equal, gradients, again))


def test_gradient_of_lse():
    """Also of a row with one key, where it is all that dS is."""
    problem, q, k, v, dout = random_problem(**CASES["causal-more-queries"])
    dlse = np.random.default_rng(3).standard_normal(problem.shapes["lse"]).astype(np.float32)
    out, lse = forward(problem, q, k, v)
    dq, dk, dv = backward(problem, q, k, v, out, lse, dout, dlse)
    want = truth(problem, q, k, v, dout, dlse)
    check(problem, {"dq": dq, "dk": dk, "dv": dv}, want)


@pytest.mark.parametrize("sizes", [(8, 4, 8), (4, 1, 16), (4, 2, 16)], ids=str)
def test_other_forward_tiles(sizes):
    problem, q, k, v, _ = random_problem(**CASES["causal-gqa"])
    out, lse = forward(problem, q, k, v, sizes=sizes)
    want = truth(problem, q, k, v)
    assert np.abs(out - want.out.numpy()).max() <= 1e-5
    assert np.abs(lse - want.lse.numpy()).max() <= 1e-5


def traced_forward(tiles: ForwardTiles, **sizes):
    """The report of one block of 64 threads that answers a whole problem, and answers it right."""
    problem, q, k, v, _ = random_problem(head_dim=32, **sizes)
    out, lse = np.full_like(q, np.nan), np.full((1, 1, problem.seqlen_q), np.nan, np.float32)
    scale = np.float32(problem.softmax_scale)
    arguments = (q, k, v, out, lse, np.float32(1), scale, *extra(problem))
    kernel = flash2.make_forward(Spec.of(problem, True), tiles)
    report = trace(kernel)[1, 64, 0, tiles.shared_bytes](*arguments)
    want = truth(problem, q, k, v)
    assert np.abs(out - want.out.numpy()).max() <= 1e-5
    assert np.abs(lse - want.lse.numpy()).max() <= 1e-5
    return report


@pytest.mark.parametrize("asynchronous", [True, False])
def test_eight_keys_a_thread(asynchronous):
    """K lies in columns with a skew, P apart: no bank conflict as they come and in products."""
    tiles = ForwardTiles(32, 32, 4, 8, 8, 64, 1, asynchronous)
    report = traced_forward(tiles, seqlen_q=21, seqlen_k=90, causal=True)
    loads = report.count("shared", "load")
    assert loads.conflicts == 0
    assert loads.passes == 2 * loads.instructions
    conflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
    assert report.hardware()[conflicts] == 0, "Q, P and, where it is not copied, K"


def test_a_warp_leaves_out_tiles_that_its_rows_do_not_see():
    """Two warps of 32 rows, tiles of 8 keys: all visit 8, under the diagonal the first visits 4."""
    tiles = ForwardTiles(32, 32, 8, 1, 8, 64, 1)
    stores = {}
    for causal in (False, True):
        report = traced_forward(tiles, seqlen_q=64, seqlen_k=64, causal=causal)
        stores[causal] = report.count("shared", "store").instructions
    assert stores[False] - stores[True] == 4 * 2, "P is stored four rows at a time"


@pytest.mark.parametrize("sizes", [(8, 4, 8, 4), (4, 2, 16, 4), (4, 1, 16, 8)], ids=str)
def test_other_backward_tiles(sizes):
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    out, lse = forward(problem, q, k, v)
    want = truth(problem, q, k, v, dout)
    gradients = backward(problem, q, k, v, out, lse, dout, sizes=sizes)
    for got, exact in zip(gradients, (want.dq, want.dk, want.dv), strict=True):
        assert np.abs(got - exact.numpy()).max() <= 1e-4


def test_one_key_gives_exact_answers():
    """P is 1 and dP = delta to the last bit, however large the score."""
    rng = np.random.default_rng(4)
    problem = Problem(1, 1, 20, softmax_scale=20**-0.5)
    q, k = np.full((1, 1, 1, 20), 64, np.float32), np.full((1, 1, 1, 20), -64, np.float32)
    v, dout = rng.standard_normal((2, 1, 1, 1, 20)).astype(np.float32)
    out, lse = forward(problem, q, k, v)
    assert np.array_equal(out, v)
    dq, dk, dv = backward(problem, q, k, v, out, lse, dout)
    assert not dq.any()
    assert not dk.any()
    assert np.array_equal(dv, dout)


def test_tiles_that_threads_cannot_copy_are_refused():
    problem = random_problem(**SIZES)[0]
    with pytest.raises(ValueError, match="got rows=64, threads=32 and group=8"):
        flash2.make_forward(Spec.of(problem, True), forward_tiles(problem, True, (8, 8, 8)))


def test_columns_that_threads_cannot_copy_are_refused():
    how = 32, True, True
    with pytest.raises(ValueError, match="got rows=30, threads=32 and parts=1"):
        make_load_columns("fp32", 32, 32, 30, 4, *how)
    with pytest.raises(ValueError, match="group must be 4, or 8 of 64 rows, got group=8 of 32"):
        make_load_columns("fp32", 32, 32, 32, 8, *how)
