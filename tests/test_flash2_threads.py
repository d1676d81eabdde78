"""flash2's own kernels, run thread by thread on a CPU, against attention in float64."""

from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
greenlet = pytest.importorskip("greenlet")


from flash_numba import dropout, masks, tiling  # noqa: E402
from flash_numba.device.functions import chain_aux  # noqa: E402
from flash_numba.kernels import flash2, flash2_backward, row_passes  # noqa: E402
from flash_numba.kernels.spec import BackwardTiles, ForwardTiles, Spec, padded  # noqa: E402
from flash_numba.problem import DTYPES, Problem  # noqa: E402
from simulator.threads import trace  # noqa: E402

REVERSED = tuple(reversed(range(32)))


def run(kernel, blocks, threads, shared_bytes, arguments, order=None):
    """Run a kernel; races and reads of what nobody wrote are errors."""
    return trace(kernel, count=False, order=order)[blocks, threads, 0, shared_bytes](*arguments)


def random_problem(seed=0, **options) -> Any:
    rng = np.random.default_rng(seed)
    problem = Problem(**options)
    p = problem
    shapes = [
        (p.batch, p.seqlen_q, p.num_heads, p.head_dim),
        (p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim),
        (p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim_v),
        (p.batch, p.seqlen_q, p.num_heads, p.head_dim_v),
    ]
    return problem, *(rng.standard_normal(s).astype(DTYPES[p.dtype]) for s in shapes)


def stored(array):
    return array if array.dtype == np.float32 else array.view(np.uint16)


def extra(problem):
    mask, ranges = problem.visibility, problem.range_mask
    numbers = ()
    if problem.dropout_p:
        limit = dropout.threshold(problem.dropout_p)
        rescale = np.float32(1 / (1 - problem.dropout_p))
        words = problem.seed & 0xFFFFFFFF, problem.seed >> 32, limit
        numbers = (*map(np.uint64, words), rescale)
    return (
        mask.aux if mask else (),
        ranges.aux if ranges else (),
        chain_aux(mod.aux for mod in problem.score_mods),
        () if problem.key_lengths is None else (problem.key_lengths,),
        () if problem.block_mask is None else (kinds(problem),),
        numbers,
    )


def kinds(problem):
    listed = problem.block_mask.kinds
    return np.broadcast_to(listed, (problem.batch, problem.num_heads, *listed.shape[2:]))


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
    out = np.full((*q.shape[:3], v.shape[-1]), np.nan, q.dtype)
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), np.nan, np.float32)
    scale = np.float32(problem.softmax_scale)
    factor = scale if spec.folded else np.float32(1)
    blocks = tiling.ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    arguments = (*map(stored, (q, k, v, out)), lse, factor, scale, *extra(problem))
    run(flash2.make_forward(spec, tiles), blocks, 32, tiles.shared_bytes, arguments, order)
    return out, lse


def backward(problem, q, k, v, out, lse, dout, dlse=None, order=None, sizes=(4, 4, 8, 4)):
    spec, tiles = Spec.of(problem, True), backward_tiles(problem, sizes)
    dq = np.full(q.shape, np.nan, np.float32)
    dk, dv = np.full(k.shape, np.nan, k.dtype), np.full(v.shape, np.nan, v.dtype)
    delta = np.full(lse.shape, np.nan, np.float32)
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


def truth(problem, q, k, v, dout=None, dlse=None):
    torch = pytest.importorskip("torch")
    from dense import attention

    tensors = [
        None if x is None else torch.from_numpy(np.asarray(x, np.float64))
        for x in (q, k, v, dout, dlse)
    ]
    return attention(problem, *tensors)


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 32) % 2 == 0


SIZES = {"seqlen_q": 21, "seqlen_k": 50, "head_dim": 20}
CASES = {
    "full": SIZES,
    "causal-gqa": SIZES | {"causal": True, "num_heads": 2, "num_kv_heads": 1},
    "causal-more-queries": {"seqlen_q": 50, "seqlen_k": 21, "head_dim": 20, "causal": True},
    "window-lengths": SIZES | {"batch": 2, "window": (9, 3), "key_lengths": np.array([0, 37])},
    "wider-v": SIZES | {"head_dim_v": 40},
    "bf16": SIZES | {"dtype": "bf16", "causal": True},
    "fp16": SIZES | {"dtype": "fp16"},
    "negative-scale": SIZES | {"softmax_scale": -0.7},
    "dropout": SIZES | {"dropout_p": 0.4, "seed": 2**33 + 5},
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    problem, q, k, v, dout = random_problem(**CASES[name])
    out, lse = forward(problem, q, k, v)
    want = truth(problem, q, k, v, dout)
    unit = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}[problem.dtype]
    budget = 64 * 2.0**-24 * problem.head_dim + 4 * unit
    assert np.array_equal(lse == -np.inf, want.lse.numpy() == -np.inf)
    seen = lse > -np.inf
    assert np.abs(lse[seen] - want.lse.numpy()[seen]).max() <= budget
    assert np.abs(out.astype(np.float64) - want.out.numpy()).max() <= budget * 4
    gradients = backward(problem, q, k, v, out, lse, dout)
    for got, exact in zip(gradients, (want.dq, want.dk, want.dv), strict=True):
        assert np.abs(got.astype(np.float64) - exact.numpy()).max() <= budget * 16


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 21, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 29)
    listed = tiling.BlockMask.from_mask(masks.Mask("s", stripes), Problem(21, 50, 20), 16, 32)
    problem, q, k, v, _ = random_problem(**SIZES, score_mods=changes, block_mask=listed)
    out, lse = forward(problem, q, k, v)
    want = truth(problem, q, k, v)
    assert np.abs(out - want.out.numpy()).max() <= 1e-5
    assert np.abs(lse - want.lse.numpy()).max() <= 1e-5


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
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    dlse = np.random.default_rng(3).standard_normal((1, 2, 21)).astype(np.float32)
    out, lse = forward(problem, q, k, v)
    want = truth(problem, q, k, v, dout, dlse)
    for got, exact in zip(
        backward(problem, q, k, v, out, lse, dout, dlse), (want.dq, want.dk, want.dv), strict=True
    ):
        assert np.abs(got - exact.numpy()).max() <= 1e-4


@pytest.mark.parametrize("sizes", [(8, 4, 8), (4, 1, 16), (4, 2, 16)], ids=str)
def test_other_forward_tiles(sizes):
    problem, q, k, v, _ = random_problem(**CASES["causal-gqa"])
    out, lse = forward(problem, q, k, v, sizes=sizes)
    want = truth(problem, q, k, v)
    assert np.abs(out - want.out.numpy()).max() <= 1e-5
    assert np.abs(lse - want.lse.numpy()).max() <= 1e-5


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
