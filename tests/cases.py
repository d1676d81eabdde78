"""Inputs on which real attention kernels have failed, each with its right answer.

Every case comes from a public report of another project (`origin`). Right answers are worked out by
hand or by `harness.dense`, which shares no code with flash_numba. On any implementation:

    @pytest.mark.parametrize("spec", CASES, ids=[spec.id for spec in CASES])
    def test_cases(spec):
        check(spec.build(), implementation)

`build(whole=True)` makes the case in its reported size, for a GPU; otherwise it is shrunk where
that keeps the reason, which `shrunk` says.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from harness import Case, dense, inputs, normal

from flash_numba import masks
from flash_numba.problem import DTYPES, Problem

CASES: list["Spec"] = []


class Spec(NamedTuple):
    id: str
    origin: str
    shrunk: str
    make: Callable[..., Case]

    def build(self, whole: bool = False) -> Case:
        return self.make(np.random.default_rng(zlib.crc32(self.id.encode())), whole)


def case(number: str, origin: str, shrunk: str = "", variants=(None,)):
    """Register a function ``(rng, whole[, variant]) -> Case`` as one case a variant."""

    def register(make):
        for variant in variants:
            name = number if variant is None else f"{number}-{variant}"

            def build(rng, whole, variant=variant):
                return make(rng, whole) if variant is None else make(rng, whole, variant)

            CASES.append(Spec(name, origin, shrunk, build))
        return make

    return register


@case("K01", "flash-attention 334")
def one_position(rng, whole):
    problem = Problem(1, 1, 16, dtype="fp16")
    given = inputs(rng, problem)
    given["do"] = np.ones((1, 1, 1, 16), np.float16)
    zero, v = np.zeros((1, 1, 1, 16)), np.float64(given["v"])
    answers = {"dq": zero, "dk": zero, "dv": zero + 1, "o": v}
    return Case(problem, **given, answers=answers, exact=("o", "dq", "dk", "dv"))


@case("K03", "flash-attention 1052", "70 positions still leave the last of several tiles partial")
def causal_gradients(rng, whole):
    seqlen, head_dim = (1024, 128) if whole else (70, 32)
    problem = Problem(seqlen, seqlen, head_dim, dtype="fp16", causal=True)
    given = inputs(rng, problem)
    answers = dense(problem, **given, visible=np.tri(seqlen, dtype=bool))
    return Case(problem, **given, answers=answers)


@case("K04", "pytorch 196678", variants=(70, 134, 198))
def scores_near_minus_120(rng, whole, seqlen):
    problem = Problem(seqlen, seqlen, 64, causal=True)
    given = inputs(rng, problem)
    given["q"] *= np.float32(0.1)
    given["k"] *= np.float32(0.1)
    given["q"][..., 0], given["k"][..., 0] = 1, -120 * 8
    given["do"] = np.ones_like(given["do"])
    answers = dense(problem, **given, visible=np.tri(seqlen, dtype=bool))
    assert np.all(np.abs(answers["lse"] + 120 - np.log(seqlen) / 2) < np.log(seqlen) / 2 + 0.1)
    return Case(problem, **given, answers=answers)


@case("K06", "pytorch 121558")
def one_huge_score(rng, whole):
    problem = Problem(1, 1, 64, dtype="bf16")
    huge = np.full((1, 1, 1, 64), 133120, DTYPES["bf16"])
    zero = np.zeros((1, 1, 1, 64))
    answers = {"o": zero + 133120, "lse": np.full((1, 1, 1), 133120.0**2 * 8)}
    answers |= {"dq": zero, "dk": zero, "dv": zero + 1}
    exact = ("o", "dq", "dk", "dv")
    return Case(problem, huge, huge, huge, np.ones_like(huge), None, answers, exact)


@case("K08", "flashinfer 4451", "heads 4 over 1: still four query heads share a kv head")
def one_very_negative_score(rng, whole):
    heads, kv_heads = (32, 8) if whole else (4, 1)
    problem = Problem(1, 1, 128, 128, 1, heads, kv_heads, dtype="fp16", causal=True)
    given = inputs(rng, problem)
    given["q"][:], given["k"][:] = 64, -64
    o = np.repeat(np.float64(given["v"]), heads // kv_heads, axis=2)
    answers = dense(problem, **given) | {"o": o}
    assert np.allclose(answers["lse"], -46340.95)
    return Case(problem, **given, answers=answers, exact=("o",))


@case("K09", "flashinfer 4452")
def one_key_for_the_last_query(rng, whole):
    problem = Problem(34, 1, 16, causal=True)
    q, k, v, do = (np.zeros(problem.shapes[n], np.float32) for n in ("q", "k", "v", "do"))
    v[:], do[:] = 1, 1
    o, lse = np.zeros((1, 34, 1, 16)), np.full((1, 1, 34), -np.inf)
    o[:, 33], lse[..., 33] = 1, 0
    answers = {"o": o, "lse": lse, "dq": q, "dk": k, "dv": np.ones(v.shape)}
    return Case(problem, q, k, v, do, None, answers, tuple(answers))


@case("K11", "flashinfer 3716", variants=(31, 33, 65, 113))
def mean_of_the_valid_values(rng, whole, seqlen):
    problem = Problem(5, seqlen, 64, num_heads=8)
    given = inputs(rng, problem)
    given["q"][:] = 0
    mean = np.float64(given["v"]).mean(axis=1, keepdims=True)
    answers = dense(problem, **given) | {"o": np.broadcast_to(mean, problem.shapes["o"])}
    answers["lse"] = np.full((1, 8, 5), np.log(seqlen))
    return Case(problem, **given, answers=answers)


@case("K12", "pytorch 103963")
def rows_that_a_mask_leaves_empty(rng, whole):
    visible = np.zeros((1, 1, 8, 8), bool)
    visible[..., :4, :4] = True
    problem = Problem(8, 8, 16, mask=masks.boolean(visible))
    given = inputs(rng, problem)
    answers = dense(problem, **given, visible=visible)
    assert not answers["o"][:, 4:].any()
    assert not answers["dq"][:, 4:].any()
    return Case(problem, **given, answers=answers)


@case("K14", "pytorch 181645", "70 positions: a base-2 lse is as wrong in every row")
def natural_logarithm(rng, whole):
    seqlen = 1024 if whole else 70
    problem = Problem(seqlen, seqlen, 32, dtype="fp16")
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K15", "flash-attention 1817", "35 positions and head_dim 16: all rows still take part")
def gradient_through_lse_alone(rng, whole):
    seqlen, head_dim = (256, 64) if whole else (35, 16)
    problem = Problem(seqlen, seqlen, head_dim, batch=2, num_heads=4)
    given = inputs(rng, problem)
    given["do"][:] = 0
    given["dlse"] = np.full(problem.shapes["dlse"], 1 / (2 * 4 * seqlen), np.float32)
    answers = dense(problem, **given)
    assert answers["dq"].any()
    return Case(problem, **given, answers=answers)


@case("K18", "flash-attention 1133", variants=("window", "causal"))
def a_window_that_is_causal(rng, whole, kind):
    window = (96, 0) if kind == "window" else (None, None)
    problem = Problem(97, 97, 128, causal=kind == "causal", window=window)
    given = inputs(np.random.default_rng(18), problem)
    answers = dense(problem, **given, visible=np.tri(97, dtype=bool))
    return Case(problem, **given, answers=answers)


@case("K19", "flash-attention 2199")
def a_window_with_empty_rows(rng, whole):
    problem = Problem(129, 13, 32, window=(32, 64))
    given = inputs(rng, problem)
    ahead = np.arange(13) - (np.arange(129)[:, None] + 13 - 129)
    visible = (ahead >= -32) & (ahead <= 64)
    assert (~visible.any(axis=1)).sum() == 52
    return Case(problem, **given, answers=dense(problem, **given, visible=visible))


@case("K20", "transformers 39408")
def a_window_of_three_tokens(rng, whole):
    problem = Problem(8, 8, 16, window=(2, 0))
    given = inputs(rng, problem)
    visible = np.tri(8, dtype=bool) & ~np.tri(8, k=-3, dtype=bool)
    assert visible.sum(axis=1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    return Case(problem, **given, answers=dense(problem, **given, visible=visible))


@case("K22", "triton 4541", "35 positions: a backward that is always causal errs on every row")
def gradients_without_a_mask(rng, whole):
    seqlen, head_dim = (128, 64) if whole else (35, 16)
    problem = Problem(seqlen, seqlen, head_dim, num_heads=2)
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K23", "triton 621", variants=(16, 32, 96, 128))
def every_column_counts(rng, whole, head_dim):
    problem = Problem(5, 7, head_dim)
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K25", "attention-gym 86")
def farther_keys_score_lower(rng, whole):
    slopes = np.array([[0.5, 0.25]], np.float32)
    problem = Problem(5, 5, 16, num_heads=2, score_mods=(masks.alibi(slopes, 0),))
    given = inputs(rng, problem)
    distance = np.abs(np.arange(5)[:, None] - np.arange(5))
    bias = -slopes.astype(np.float64)[:, :, None, None] * distance
    assert (np.diff(bias[..., 0, :]) < 0).all()
    return Case(problem, **given, answers=dense(problem, **given, bias=bias))


@case("K26", "flash-attention 1065")
def softcap_backward(rng, whole):
    problem = Problem(20, 20, 16, score_mods=(masks.softcap(50.0),))
    given = inputs(rng, problem)
    given["q"] *= 20
    answers = dense(problem, **given, cap=50.0)
    assert np.abs(answers["dq"] - dense(problem, **given)["dq"]).max() > 0.01
    return Case(problem, **given, answers=answers)


@case("K27", "flash-attention 145", "70 positions still span several tiles", ("fp16", "bf16"))
def error_like_the_twin(rng, whole, dtype):
    seqlen = 256 if whole else 70
    problem = Problem(seqlen, seqlen, 64, batch=2, num_heads=2, dtype=dtype)
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K30", "flash-attention 2470", variants=("no-keys", "no-queries", "no-batch"))
def empty_inputs(rng, whole, kind):
    sizes = {"no-keys": (2, 5, 0), "no-queries": (2, 0, 5), "no-batch": (0, 5, 5)}[kind]
    problem = Problem(sizes[1], sizes[2], 16, batch=sizes[0], num_heads=2)
    given = inputs(rng, problem)
    answers = {name: np.zeros(problem.shapes[name]) for name in ("o", "dq", "dk", "dv")}
    answers["lse"] = np.full(problem.shapes["lse"], -np.inf)
    return Case(problem, **given, answers=answers, exact=tuple(answers))


@case("K38", "flash-attention 355", "one sequence, 9 positions: the strides stay as odd")
def strided_gradient(rng, whole):
    batch, seqlen = (2, 32) if whole else (1, 9)
    problem = Problem(seqlen, seqlen, 128, batch=batch, num_heads=4, num_kv_heads=1)
    given = inputs(rng, problem)
    given["do"] = normal(rng, (batch, 4, seqlen, 256)).transpose(0, 2, 1, 3)[..., ::2]
    return Case(problem, **given, answers=dense(problem, **given))


@case("K39", "pytorch 138529")
def gradient_of_stride_0(rng, whole):
    problem = Problem(9, 9, 16, num_heads=2)
    given = inputs(rng, problem)
    given["do"] = np.broadcast_to(np.float32(1), problem.shapes["do"])
    return Case(problem, **given, answers=dense(problem, **given))


@case("K41", "flash-attention 2777")
def columns_apart(rng, whole):
    problem = Problem(9, 9, 16, num_heads=2)
    given = inputs(rng, problem)
    given["q"] = normal(rng, (1, 16, 9, 2)).transpose(0, 2, 3, 1)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K43", "pytorch 112577")
def heads_of_stride_0(rng, whole):
    problem = Problem(5, 33, 16, num_heads=4)
    given = inputs(rng, problem)
    given["k"] = np.broadcast_to(normal(rng, (1, 33, 1, 16)), problem.shapes["k"])
    return Case(problem, **given, answers=dense(problem, **given))


@case("K48", "flash-attention 1812", "40 heads: read as the layout says, they are heads")
def axes_in_another_order(rng, whole):
    heads, head_dim = (71280, 128) if whole else (40, 8)
    problem = Problem(3, 3, head_dim, num_heads=heads, dtype="fp16")
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K49", "flash-attention 359", "3 sequences of 64 over 8: queries still far outnumber keys")
def many_queries_share_few_keys(rng, whole):
    batch, seqlen_q, seqlen_k, head_dim = (300, 2048, 128, 128) if whole else (3, 64, 8, 16)
    problem = Problem(seqlen_q, seqlen_k, head_dim, batch=batch, dtype="fp16")
    return Case(problem, **inputs(rng, problem), repeats=50 if whole else 3)


@case("K50", "flash-attention 2244", "3 runs: without threads that race all runs are alike")
def repeated_backward(rng, whole):
    problem = Problem(70, 70, 32, num_heads=2, dtype="fp16", causal=True)
    given = inputs(rng, problem)
    answers = dense(problem, **given, visible=np.tri(70, dtype=bool))
    return Case(problem, **given, answers=answers, repeats=30 if whole else 3)


@case("K53", "pytorch PR 197563")
def one_dropout_mask_both_ways(rng, whole):
    problem = Problem(65, 65, 16, num_heads=2, dropout_p=0.48, seed=2**40 + 7)
    given = inputs(rng, problem)
    keep = np.array([[[[kept(problem, h, i, j) for j in range(65)] for i in range(65)]
                      for h in range(2)]])  # fmt: skip
    return Case(problem, **given, answers=dense(problem, **given, keep=keep / 0.52))


def kept(problem: Problem, batch_head: int, row: int, col: int) -> bool:
    """Whether dropout keeps one weight: Philox4x32-10 in Python's whole numbers."""
    counter, key = [col // 4, row, batch_head, 0], [problem.seed % 2**32, problem.seed // 2**32]
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [b // 2**32 ^ counter[1] ^ key[0], b % 2**32,
                   a // 2**32 ^ counter[3] ^ key[1], a % 2**32]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter[col % 4] >= round(problem.dropout_p * 2**32)


@case("K54", "flash-attention 1786", "20 sequences: only a grid of blocks has a limit of 65535")
def many_sequences(rng, whole):
    problem = Problem(16, 16, 16, batch=65536 if whole else 20)
    given = inputs(rng, problem)
    return Case(problem, **given, answers=dense(problem, **given))


@case("K55", "flash-attention 2260", "4 sequences: only offsets of 32 bits overflow")
def many_elements(rng, whole):
    problem = Problem(1, 1, 128, batch=8300 if whole else 4, num_heads=16, dtype="fp16")
    given = inputs(rng, problem)
    given["do"] = np.ones(problem.shapes["do"], np.float16)
    zero = np.zeros(problem.shapes["q"])
    answers = {"o": np.float64(given["v"]), "dq": zero, "dk": zero, "dv": zero + 1}
    return Case(problem, **given, answers=answers, exact=("o", "dv"))


class Refusal(NamedTuple):
    """Arrays that must be refused before anything runs, and what the ValueError must say."""

    id: str
    origin: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    says: tuple[str, ...]


LAYOUT = "batch, seqlen, heads, head_dim"
REFUSALS = [
    Refusal("K45", "pytorch PR 193728", ((1, 4, 2, 8), (1, 5, 2, 8), (1, 6, 2, 8)),
            ("k has 5", "v has 6", "seqlen_k", LAYOUT)),
    Refusal("K48", "flash-attention 1812", ((1, 3, 9, 8), (1, 3, 7, 8), (1, 3, 7, 8)),
            ("heads", "9", "7", LAYOUT)),
]  # fmt: skip
"""K48 as reported has equal shapes, which are a valid problem of many heads (see the case)."""
