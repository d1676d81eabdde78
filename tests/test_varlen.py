"""`flash_attention_varlen` on the host: numbers, counts, refusals, torch; the simulator answers."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Case, tiled_rounding
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import one_by_one, packed_arrays, packed_cases, packed_problem

from flash_numba import (
    explain,
    flash_attention,
    flash_attention_varlen,
    flash_attention_varlen_backward,
    ladder,
    masks,
)
from flash_numba import reference as ref
from flash_numba.budget import within_budget
from flash_numba.ladder import Gpu, NoGpu
from simulator import theory
from simulator.run import simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
PACKED_CASES: dict[str, Any] = {name: case for name, *case in packed_cases()}


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))


def reference_of(alone, batch, q, k, v, do, dlse=None, dtype=None) -> dict[str, Any]:
    """The dense reference of one sequence."""
    arrays: Any = [np.repeat(x, alone.batch, axis=0) for x in (q, k, v, do)]
    with_lse = None if dlse is None else np.repeat(dlse, alone.batch, axis=0)
    o, lse = ref.forward(alone, *arrays[:3], dtype=dtype)
    grads = ref.backward(alone, *arrays, dlse=with_lse, dtype=dtype)
    found = {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    return {name: array[batch][None] for name, array in found.items()}


def packed_reference(problem, q, k, v, do, dlse=None) -> dict[str, Any]:
    """The reference on the packed batch as it is."""
    o, lse = ref.forward(problem, q, k, v)
    grads = ref.backward(problem, q, k, v, do, dlse)
    return {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}


def options_of(problem) -> dict[str, Any]:
    return {
        "causal": problem.causal,
        "window": problem.window,
        "scale": problem.softmax_scale,
        "dropout_p": problem.dropout_p,
        "seed": problem.seed,
    }


def answers(problem, packed, q, k, v, do, dlse=None, **more) -> dict[str, Any]:
    """What the public functions say."""
    lists = packed[:2], {"seqused_q": packed.seqused_q, "seqused_k": packed.seqused_k}
    options = options_of(problem) | more | lists[1]
    o, lse = flash_attention_varlen(q, k, v, *lists[0], return_lse=True, **options)
    grads = flash_attention_varlen_backward(
        do, q, k, v, o, lse, *lists[0], dlse=dlse, **options
    )  # fmt: skip
    return {"o": o, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}


def hold(problem, found, arrays):
    """Each sequence within the budget of its element type, and rows outside of them 0."""
    expected = one_by_one(problem, reference_of, **arrays)
    rounded = lambda *a, **kw: reference_of(*a, dtype=problem.dtype, **kw)  # noqa: E731
    twin = one_by_one(problem, rounded, **arrays)
    wider = {}
    for batch in range(problem.batch):
        parts = {n: problem.of_sequence(n, x, batch)[None] for n, x in (arrays | expected).items()}
        case = Case(problem.sequence(batch), **{n: parts[n] for n in arrays})
        for name, allowed in tiled_rounding(case, parts).items():
            wider[name] = max(wider.get(name, 0.0), allowed)
    for name, exact in expected.items():
        dtype = "fp32" if name == "lse" else problem.dtype
        verdict = within_budget(found[name], exact, twin[name], dtype)
        assert verdict.error <= verdict.allowance + wider.get(name, 0.0), (name, verdict)
        rows = problem.side_of(name).outside
        outside = found[name][:, rows] if name == "lse" else found[name][rows]
        assert (np.float64(outside) == (-np.inf if name == "lse" else 0)).all(), name


@pytest.mark.parametrize("name", PACKED_CASES)
def test_cases_on_which_other_kernels_failed(name):
    (problem, packed), arrays, exact = PACKED_CASES[name]
    found = answers(problem, packed, **arrays)
    hold(problem, found, arrays)
    for which, answer in exact.items():
        np.testing.assert_array_equal(np.float64(found[which]), answer, which)


@st.composite
def batches(draw):
    """Up to four sequences with every feature; lengths of 0 and rows that do not count included."""
    count = draw(st.integers(0, 4))
    lengths = st.lists(st.integers(0, 12), min_size=count, max_size=count)
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([(None, None), (2, None), (0, 3)])),
        "dropout_p": draw(st.sampled_from([0.0, 0.3])),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "num_heads": 2,
        "num_kv_heads": draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.integers(1, 5)),
        "head_dim_v": draw(st.integers(1, 5)),
    }
    used = [None if draw(st.booleans()) else draw(lengths) for _ in "qk"]
    slack = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    rows_q, rows_k = draw(lengths), draw(lengths)
    used = [u and list(map(min, u, rows)) for u, rows in zip(used, (rows_q, rows_k), strict=True)]
    return packed_problem(rows_q, rows_k, *used, slack, **options)


@given(batches(), st.integers(0, 99), st.booleans())
@settings(max_examples=40, deadline=None)
def test_each_sequence_is_a_problem_of_its_own(batch, seed, through_lse):
    problem, packed = batch
    arrays = packed_arrays(problem, seed)
    if through_lse:
        arrays["dlse"] = np.random.default_rng(seed).standard_normal(problem.shapes["lse"])
        arrays["dlse"] = arrays["dlse"].astype(np.float32)
    with ladder_without_gpu():
        found = answers(problem, packed, **arrays)
    hold(problem, found, arrays)
    hold(problem, packed_reference(problem, **arrays), arrays)


def ladder_without_gpu():
    patch = pytest.MonkeyPatch()
    patch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))
    return patch.context()


@given(batches(), st.integers(1, 7), st.integers(1, 7), st.booleans())
@settings(max_examples=40, deadline=None)
def test_counts_are_those_of_the_closed_form_and_sequences(batch, tile_m, tile_n, dlse):
    problem, _ = batch
    tiles = {"tile_m": tile_m, "tile_n": tile_n}
    for direction, program in (("forward", "flash2"), ("backward", "flash2_two_kernel")):
        options: dict[str, Any] = tiles | {"direction": direction}
        if direction == "backward":
            options["dlse"] = dlse
        found = simulate(program, problem, head=None, **options).counts
        assert found == theory.counts(program, problem, **options, all_heads=True)
        alone = [replace(problem.sequence(n), batch=1) for n in range(problem.batch)]
        parts = [simulate(program, one, head=None, **options).counts.reads for one in alone]
        assert found.reads == {n: sum(part.get(n, 0) for part in parts) for n in found.reads}


def test_slopes_and_functions_of_the_caller_see_each_sequence():
    problem, packed = packed_problem([5, 9], [7, 3], head_dim=4, num_heads=2)
    arrays = packed_arrays(problem)
    slopes = np.array([[0.5, 0.25], [0.125, 1.0]], np.float32)

    def even(batch, head, q_idx, k_idx, aux):
        return (q_idx + k_idx + batch) % 2 == 0

    given = {"alibi_slopes": slopes, "mask_mod": even, "softcap": 2.0}
    found = answers(problem, packed, **arrays, **given)
    for number, (q_rows, k_rows) in enumerate(
        [(slice(0, 5), slice(0, 7)), (slice(5, 14), slice(7, 10))]
    ):
        q, k, v = arrays["q"][q_rows], arrays["k"][k_rows], arrays["v"][k_rows]

        def own(batch, head, q_idx, k_idx, aux, number=number):
            return even(number, head, q_idx, k_idx, aux)

        own_given = {"alibi_slopes": slopes[number], "mask_mod": own, "softcap": 2.0}
        o, lse = flash_attention(
            q[None], k[None], v[None], scale=problem.softmax_scale, return_lse=True, **own_given
        )
        np.testing.assert_array_equal(found["o"][q_rows], o[0])
        np.testing.assert_array_equal(found["lse"][:, q_rows], lse[0])


Q = np.zeros((20, 4, 8), np.float32)
K = np.zeros((19, 2, 8), np.float32)
CU_Q, CU_K = np.array([0, 5, 5, 20], np.int32), np.array([0, 3, 9, 19], np.int32)
REFUSED: dict[str, Any] = {
    "int64": ({"cu_seqlens_q": CU_Q.astype(np.int64)}, "must have dtype int32, got int64"),
    "none": ({"cu_seqlens_k": None}, "cu_seqlens_k must be an int32 array, got None"),
    "two-axes": (
        {"cu_seqlens_q": CU_Q[None]},
        "cu_seqlens_q must have shape (batch + 1,), got shape (1, 4)",
    ),
    "short": ({"cu_seqlens_k": CU_K[:3]}, "cu_seqlens_k must have shape (4,)"),
    "falls": (
        {"cu_seqlens_q": CU_Q[::-1].copy()},
        "cu_seqlens_q must never fall and lie in 0..20 (rows of q), got [20, 5, 5, 0]",
    ),
    "too-far": ({"cu_seqlens_k": [0, 3, 9, 20]}, "must never fall and lie in 0..19 (rows of k)"),
    "fractions": ({"cu_seqlens_k": [0, 3.5]}, "cu_seqlens_k must hold whole numbers, got [0, 3.5]"),
    "used": (
        {"seqused_k": [3, 7, 1]},
        "seqused_k must lie between 0 and the sequences' rows [3, 6, 10], got [3, 7, 1]",
    ),
    "used-shape": ({"seqused_q": [3, 7]}, "seqused_q must have shape (3,)"),
    "longest": (
        {"max_seqlen_q": 14},
        "max_seqlen_q must be at least 15, the rows of the longest sequence, got 14",
    ),
    "no-number": ({"max_seqlen_k": 2.5}, "max_seqlen_k must be a whole number >= 0, got 2.5"),
    "dense-q": ({"q": Q[None]}, "q must have 3 axes (total, heads, head_dim), got shape (1, 20,"),
    "v": (
        {"v": K[:5]},
        "k and v must agree in total_k (layout: total, heads, head_dim); k has 19, v has 5",
    ),
    "heads": ({"q": Q[:, :3]}, "heads of q must be a multiple of the heads of k and v, got 3 and"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_argument_allowed_and_received(name):
    wrong, says = REFUSED[name]
    good = {"q": Q, "k": K, "v": K, "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    with pytest.raises((ValueError, TypeError), match=re.escape(says)):
        flash_attention_varlen(**(good | wrong))


def test_gradient_of_another_shape_is_refused():
    o, lse = flash_attention_varlen(Q, K, K, CU_Q, CU_K, return_lse=True)
    with pytest.raises(ValueError, match=re.escape("(20, 4, 8) (total, heads, head_dim), got (1,")):
        flash_attention_varlen_backward(o[None], Q, K, K, o, lse, CU_Q, CU_K)
    with pytest.raises(ValueError, match=re.escape("(4, 20) (num_heads, total_q), got (20, 4)")):
        flash_attention_varlen_backward(o, Q, K, K, o, lse.T, CU_Q, CU_K)


def test_explain_says_which_rung_takes_packed_batches(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: Gpu("H200", (9, 0)))
    half = Q.astype(np.float16), K.astype(np.float16), K.astype(np.float16)
    choice = explain(*half, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K)
    assert choice.rung is not None
    assert choice.rung.name == "tensor_core"
    assert choice.reasons["hopper"] == "has no packed sequences on a GPU"


def test_gradient_of_a_score_change_over_all_sequences():
    """The simulator has it; the kernels say that they have not."""
    problem, packed = packed_problem([5, 9], [7, 3], head_dim=4)
    arrays = packed_arrays(problem)
    mod = masks.relative_positions(np.array([0.5, -0.2], np.float32), np.array([0.3, 0.7]))
    found = answers(problem, packed, **arrays, score_mod=mod)
    own = flash_attention_varlen_backward(
        *(arrays[n] for n in ("do", "q", "k", "v")),
        *(found[n] for n in ("o", "lse")),
        *packed[:2],
        scale=problem.softmax_scale,
        score_mod=mod,
        needs="score_mod",
    ).dscore_mod
    total = np.zeros(2)
    for number in range(2):
        parts = [problem.of_sequence(n, arrays[n], number)[None] for n in ("q", "k", "v", "do")]
        alone = replace(problem.sequence(number), batch=1, score_mods=(mod,))
        total += ref.backward(alone, *parts).aux[0]
    np.testing.assert_allclose(own, total, rtol=1e-4)
