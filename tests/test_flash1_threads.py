"""flash1's own kernels, run thread by thread on a CPU: their numbers, and their traffic."""

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
    moved,
    random_problem,
    run,
    stored,
    truth,
)

from flash_numba import masks, tiling  # noqa: E402
from flash_numba.kernels import flash1, flash1_backward  # noqa: E402
from flash_numba.kernels.spec import BackwardTiles, ForwardTiles, Spec, padded  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from simulator.run import simulate  # noqa: E402


def forward(problem, q, k, v, order=None, sizes=(4, 4, 8), count=False):
    depths = (padded(d, 4 * sizes[2]) for d in (problem.head_dim, problem.head_dim_v))
    tiles = ForwardTiles(*depths, *sizes, threads=32)
    out, lse = blank(problem.shapes["o"]), blank(problem.shapes["lse"])
    sums = blank(lse.shape), blank(lse.shape)
    scale = np.float32(problem.softmax_scale)
    arguments = (*map(stored, (q, k, v)), out, *sums, lse, scale, *extra(problem))
    kernel = flash1.make_forward(Spec.of(problem, False), tiles)
    blocks = problem.batch * problem.num_heads
    report = run(kernel, blocks, 32, tiles.shared_bytes, arguments, order, count)
    return {"o": out, "lse": lse}, report


def backward(problem, q, k, v, dout, found, dlse=None, order=None, sizes=(4, 4, 8, 4), count=False):
    step = 4 * sizes[2]
    depths = (padded(d, step) for d in (problem.head_dim, problem.head_dim_v))
    tiles = BackwardTiles(*depths, *sizes, threads=32)
    dq = blank(q.shape)
    dk, dv = blank(k.shape, k.dtype), blank(v.shape, v.dtype)
    given = () if dlse is None else (dlse,)
    arguments = (
        *map(stored, (q, k, v, found["o"].astype(q.dtype), dout)), found["lse"], given,
        dq, stored(dk), stored(dv), np.float32(problem.softmax_scale), *extra(problem),
    )  # fmt: skip
    kernel = flash1_backward.make_backward(Spec.of(problem, False), tiles, dlse is not None)
    blocks = problem.batch * problem.num_kv_heads
    report = run(kernel, blocks, 32, tiles.shared_bytes, arguments, order, count)
    return {"dq": dq, "dk": dk, "dv": dv}, report


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    problem, q, k, v, dout = random_problem(**CASES[name])
    want = truth(problem, q, k, v, dout)
    found, _ = forward(problem, q, k, v)
    check(problem, found, want)
    check(problem, backward(problem, q, k, v, dout, found)[0], want)


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 32) % 2 == 0


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 21, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 29)
    mask = masks.Mask("stripes", stripes)
    listed = tiling.BlockMask.from_mask(mask, Problem(21, 50, 20), 16, 32)
    problem, q, k, v, dout = random_problem(**SIZES, score_mods=changes, block_mask=listed)
    want = truth(problem, q, k, v, dout)
    found, _ = forward(problem, q, k, v)
    check(problem, found, want)
    listed = tiling.BlockMask.from_mask(mask, Problem(21, 50, 20), 32, 16)
    problem = Problem(**SIZES, score_mods=changes, block_mask=listed)
    check(problem, backward(problem, q, k, v, dout, found)[0], want)


def test_any_strides():
    problem, q, k, v, dout = random_problem(**SIZES)
    odd = np.zeros((1, 21, 1, 41), np.float32)[..., 1::2]
    odd[...] = q
    want, _ = forward(problem, q, k, v)
    got, _ = forward(problem, odd, k, v[:, ::-1][:, ::-1])
    assert np.array_equal(got["o"], want["o"])
    one = np.broadcast_to(dout[:, :1], dout.shape)
    gradients, _ = backward(problem, odd, k, v, one, got)
    check(problem, gradients, truth(problem, q, k, v, one))


def test_order_of_threads_does_not_matter():
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    first, _ = forward(problem, q, k, v)
    again, _ = forward(problem, q, k, v, order=REVERSED)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    gradients, _ = backward(problem, q, k, v, dout, first)
    again, _ = backward(problem, q, k, v, dout, first, order=REVERSED)
    assert all(np.array_equal(gradients[name], again[name]) for name in gradients)


def test_gradient_of_lse():
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    dlse = np.random.default_rng(3).standard_normal((1, 2, 21)).astype(np.float32)
    found, _ = forward(problem, q, k, v)
    gradients, _ = backward(problem, q, k, v, dout, found, dlse)
    check(problem, gradients, truth(problem, q, k, v, dout, dlse))


@pytest.mark.parametrize(("fore", "back"), [((8, 4, 8), (8, 4, 8, 4)), ((4, 1, 16), (4, 2, 16, 4))])
def test_other_tiles(fore, back):
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    want = truth(problem, q, k, v, dout)
    found, _ = forward(problem, q, k, v, sizes=fore)
    check(problem, found, want)
    check(problem, backward(problem, q, k, v, dout, found, sizes=back)[0], want)


def test_one_key_gives_exact_answers():
    """P is 1 and dP = D to the last bit, however large the score."""
    rng = np.random.default_rng(4)
    problem = Problem(1, 1, 20)
    q, k = np.full((1, 1, 1, 20), 64, np.float32), np.full((1, 1, 1, 20), -64, np.float32)
    v, dout = rng.standard_normal((2, 1, 1, 1, 20)).astype(np.float32)
    found, _ = forward(problem, q, k, v)
    assert np.array_equal(found["o"], v)
    gradients, _ = backward(problem, q, k, v, dout, found)
    assert not gradients["dq"].any()
    assert not gradients["dk"].any()
    assert np.array_equal(gradients["dv"], dout)


COUNTED = {
    "multiples": {"seqlen_q": 32, "seqlen_k": 64, "head_dim": 32},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 50, "head_dim": 20, "causal": True},
    "window-gqa-wider-v": {"seqlen_q": 33, "seqlen_k": 70, "head_dim": 8, "head_dim_v": 36}
    | {"window": (9, 3), "num_heads": 2, "num_kv_heads": 1, "batch": 2},
    "no-keys": {"seqlen_q": 5, "seqlen_k": 0, "head_dim": 8},
}


@pytest.mark.parametrize("name", COUNTED)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor."""
    problem, q, k, v, dout = random_problem(**COUNTED[name])
    found, report = forward(problem, q, k, v, count=True)
    counts = simulate("flash1", problem, head=None, tile_m=16, tile_n=32).counts
    for tensor in ("Q", "K", "V", "O", "m", "l", "LSE"):
        expected = counts.reads.get(tensor, 0), counts.writes.get(tensor, 0)
        assert moved([report], tensor) == expected, tensor
    dlse = np.ones(problem.shapes["lse"], np.float32)
    _, report = backward(problem, q, k, v, dout, found, dlse, count=True)
    counts = simulate(
        "flash1", problem, dlse=True, head=None, tile_m=32, tile_n=16, direction="backward"
    ).counts
    for tensor in ("Q", "K", "V", "O", "dO", "LSE", "dLSE", "dQ", "dK", "dV"):
        expected = counts.reads.get(tensor, 0), counts.writes.get(tensor, 0)
        assert moved([report], tensor) == expected, tensor
