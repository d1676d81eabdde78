"""The standard rung's kernels, run thread by thread on a CPU: their numbers, and their traffic."""

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
from flash_numba.kernels import standard, standard_backward, standard_products  # noqa: E402
from flash_numba.kernels.spec import padded  # noqa: E402
from flash_numba.kernels.standard_tiles import SquareTiles, square_tiles  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from simulator.run import simulate  # noqa: E402


def vectors(array) -> bool:
    """Whether `launch.allows_vectors` would say so."""
    steps = [step for step, size in zip(array.strides[:3], array.shape, strict=False) if size > 1]
    last, item = array.strides[3], array.itemsize
    return last == item and array.shape[3] % 4 == 0 and all(s % (4 * item) == 0 for s in steps)


class Rung:
    """The host side of the rung, on a CPU; `reports` are those of its launches, in order."""

    def __init__(self, problem, q, k, v, order=None, tile=16, count=False):
        self.problem, self.q, self.k, self.v = problem, *map(stored, (q, k, v))
        self.tiles, self.reports = SquareTiles(tile), []
        self.traced = {"order": order, "count": count}
        self.aux = extra(problem)
        self.lengths, self.dropout = problem.key_lengths is not None, problem.dropout_p > 0
        self.vectors = all(map(vectors, (self.q, self.k, self.v)))
        self.scale = np.float32(problem.softmax_scale)
        self.m_blocks = tiling.ceil_div(problem.seqlen_q, tile) * problem.batch * problem.num_heads
        self.n_blocks = tiling.ceil_div(problem.seqlen_k, tile)
        self.P, self.S = self.matrix(), self.matrix()

    def matrix(self):
        """NaN, with rows padded to 16 bytes."""
        p = self.problem
        whole = blank((p.batch, p.num_heads, p.seqlen_q, padded(p.seqlen_k, 4)))
        return whole[..., : p.seqlen_k]

    def run(self, kernel, blocks, width, *arguments):
        shared_bytes = self.tiles.shared_bytes(width) if width else 0
        sizes = blocks, self.tiles.threads, shared_bytes
        report = run(kernel, *sizes, arguments, **self.traced)
        if report is not None:
            self.reports.append(report)

    def weights(self, slopes=()):
        """S and P; returns lse."""
        p, (mask_aux, _, score_aux, lengths, _, _) = self.problem, self.aux
        lse = blank(p.shapes["lse"])
        kernel = standard.make_scores(
            standard.plain_spec(p, self.vectors), self.tiles, bool(slopes)
        )
        arguments = self.q, self.k, self.S, slopes, self.scale, mask_aux, score_aux, lengths
        self.run(kernel, self.m_blocks * self.n_blocks, p.head_dim, *arguments)
        kernel = standard.make_softmax(self.tiles, self.lengths)
        self.run(kernel, self.m_blocks, 0, self.S, self.P, lse, lengths)
        return lse

    def forward(self):
        p, lse = self.problem, self.weights()
        out = blank(p.shapes["o"], self.q.dtype) if p.dtype == "fp32" else self.words("o")
        flags = self.lengths, self.dropout, self.vectors
        kernel = standard_products.make_row_blocks(p.dtype, p.head_dim_v, self.tiles, *flags)
        arguments = self.P, self.v, out, self.aux[3], self.aux[5]
        self.run(kernel, self.m_blocks, p.head_dim_v, *arguments)
        return {"o": self.numbers(out), "lse": lse}

    def words(self, name):
        return np.full(self.problem.shapes[name], 0x7FFF, np.uint16)

    def numbers(self, array):
        from flash_numba.problem import DTYPES

        return array.view(DTYPES[self.problem.dtype])

    def backward(self, dout, dlse=None):
        p, dout, (*_, lengths, _, dropout) = self.problem, stored(dout), self.aux
        dP, dS = self.matrix(), self.matrix()
        slopes = (dS,) if p.score_mods else ()
        self.weights(slopes)
        self.reports.clear()
        found = {
            name: blank(p.shapes[name[1]]) if p.dtype == "fp32" else self.words(name[1])
            for name in ("dq", "dk", "dv")
        }
        d, dv = p.head_dim, p.head_dim_v
        columns = self.n_blocks * p.batch * p.num_kv_heads
        products, backward = standard_products, standard_backward
        fast = self.vectors and vectors(dout)
        kernel = products.make_column_blocks(
            p.dtype, dv, self.tiles, self.lengths, self.dropout, fast
        )
        self.run(kernel, columns, dv, self.P, dout, found["dv"], lengths, dropout)
        kernel = backward.make_weight_gradients(
            p.dtype, dv, self.tiles, self.lengths, self.dropout, fast
        )
        pairs = self.m_blocks * self.n_blocks
        self.run(kernel, pairs, dv, dout, self.v, dP, lengths, dropout)
        flags = self.lengths, dlse is not None, bool(slopes), False
        kernel = backward.make_score_gradients(self.tiles, *flags)
        given = () if dlse is None else (dlse,)
        self.run(kernel, self.m_blocks, 0, self.P, dP, dS, (), given, self.scale, lengths)
        kernel = products.make_row_blocks(p.dtype, d, self.tiles, self.lengths, False, fast)
        self.run(kernel, self.m_blocks, d, dS, self.k, found["dq"], lengths, ())
        kernel = products.make_column_blocks(p.dtype, d, self.tiles, self.lengths, False, fast)
        self.run(kernel, columns, d, dS, self.q, found["dk"], lengths, ())
        return {name: self.numbers(array) for name, array in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    problem, q, k, v, dout = random_problem(**CASES[name])
    want = truth(problem, q, k, v, dout)
    rung = Rung(problem, q, k, v)
    check(problem, rung.forward(), want)
    check(problem, rung.backward(dout), want)


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // 16 + k_idx // 32) % 2 == 0


def test_score_changes_and_block_list():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, 1, 21, 50)).astype(np.float32)
    changes = masks.softcap(2.0), masks.bias(bias), masks.alibi(np.full((1, 1), 0.1), 29)
    listed = tiling.BlockMask.from_mask(masks.Mask("s", stripes), Problem(21, 50, 20), 16, 16)
    problem, q, k, v, dout = random_problem(**SIZES, score_mods=changes, block_mask=listed)
    want = truth(problem, q, k, v, dout)
    rung = Rung(problem, q, k, v)
    check(problem, rung.forward(), want)
    check(problem, rung.backward(dout), want)


def test_any_strides():
    problem, q, k, v, dout = random_problem(**SIZES)
    odd = np.zeros((1, 21, 1, 41), np.float32)[..., 1::2]
    odd[...] = q
    want = Rung(problem, q, k, v).forward()
    rung = Rung(problem, odd, k, v)
    assert np.array_equal(rung.forward()["o"], want["o"])
    one = np.broadcast_to(dout[:, :1], dout.shape)
    check(problem, rung.backward(one), truth(problem, q, k, v, one))


def test_order_of_threads_does_not_matter():
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    rungs = Rung(problem, q, k, v), Rung(problem, q, k, v, order=REVERSED)
    first, again = (rung.forward() | rung.backward(dout) for rung in rungs)
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_gradient_of_lse():
    problem, q, k, v, dout = random_problem(**CASES["causal-gqa"])
    dlse = np.random.default_rng(3).standard_normal((1, 2, 21)).astype(np.float32)
    want = truth(problem, q, k, v, dout, dlse)
    check(problem, Rung(problem, q, k, v).backward(dout, dlse), want)


def test_larger_tiles():
    problem, q, k, v, dout = random_problem(**SIZES | {"dropout_p": 0.4, "seed": 3})
    want = truth(problem, q, k, v, dout)
    rung = Rung(problem, q, k, v, tile=32)
    check(problem, rung.forward() | rung.backward(dout), want)


def test_one_key_gives_exact_answers():
    """P is 1 and dP = D to the last bit, however large the score."""
    rng = np.random.default_rng(4)
    problem = Problem(1, 1, 20)
    q, k = np.full((1, 1, 1, 20), 64, np.float32), np.full((1, 1, 1, 20), -64, np.float32)
    v, dout = rng.standard_normal((2, 1, 1, 1, 20)).astype(np.float32)
    rung = Rung(problem, q, k, v)
    assert np.array_equal(rung.forward()["o"], v)
    gradients = rung.backward(dout)
    assert not gradients["dq"].any()
    assert not gradients["dk"].any()
    assert np.array_equal(gradients["dv"], dout)


COUNTED = {
    "multiples": {"seqlen_q": 32, "seqlen_k": 48, "head_dim": 32},
    "causal-tails": {"seqlen_q": 41, "seqlen_k": 50, "head_dim": 20, "causal": True},
    "gqa-wider-v": {"seqlen_q": 17, "seqlen_k": 35, "head_dim": 8, "head_dim_v": 36}
    | {"num_heads": 2, "num_kv_heads": 1, "batch": 2},
    "no-keys": {"seqlen_q": 5, "seqlen_k": 0, "head_dim": 8},
}
# The operands of the two products, by kernel and argument, as tensors of the program.
FORWARD = [("Q K S", "Q K S"), ("S P LSE", "S P LSE"), ("A B Out", "P V O")]
BACKWARD = [
    ("A B Out", "P dO dV"),
    ("dO V dP", "dO V dP"),
    ("P dP dS dLSE", "P dP dS dLSE"),
    ("A B Out", "dS K dQ"),
    ("A B Out", "dS Q dK"),
]


def traffic(reports, names):
    """Elements read and written, by tensor of the program, over launches that had blocks."""
    found = {}
    for report, (arguments, tensors) in zip(reports, names, strict=True):
        for argument, tensor in zip(arguments.split(), tensors.split(), strict=True):
            read, written = moved([report], argument)
            before = found.get(tensor, (0, 0))
            found[tensor] = before[0] + read, before[1] + written
    return found


@pytest.mark.parametrize("name", COUNTED)
def test_global_memory_traffic_is_what_the_simulator_counts(name):
    """Element for element, tensor by tensor."""
    problem, q, k, v, dout = random_problem(**COUNTED[name])
    rung = Rung(problem, q, k, v, count=True)
    rung.forward()
    some = problem.seqlen_k > 0
    forward = traffic(rung.reports, FORWARD if some else FORWARD[1:])
    rung.backward(dout, np.ones(problem.shapes["lse"], np.float32))
    backward = traffic(rung.reports, BACKWARD if some else [BACKWARD[2], BACKWARD[3]])
    for found, options in ((forward, {}), (backward, {"direction": "backward", "dlse": True})):
        counts = simulate("tiled", problem, head=None, tile_m=16, tile_n=16, **options).counts
        tensors = {*found, *counts.reads, *counts.writes}
        expected = {
            name: (counts.reads.get(name, 0), counts.writes.get(name, 0)) for name in tensors
        }
        assert {name: found.get(name, (0, 0)) for name in tensors} == expected


@pytest.mark.parametrize("limit_kb", [64, 99, 163, 227])
def test_tiles_fit_every_gpu(limit_kb):
    for head_dim in (1, 64, 128, 256):
        tiles = square_tiles(head_dim, 256 + 1 - head_dim, 1024 * limit_kb)
        assert tiles.shared_bytes(max(head_dim, 257 - head_dim)) <= 1024 * limit_kb
    with pytest.raises(ValueError, match="at most 256, got 64 and 300"):
        square_tiles(64, 300, 1024 * limit_kb)
    with pytest.raises(ValueError, match="more shared memory a block than the 1000 bytes"):
        square_tiles(64, 64, 1000)
