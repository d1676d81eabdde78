"""The error budget lets through what an ordinary framework gets wrong, and no more."""

import numpy as np
import pytest
from harness import Case, Twin, inputs, run

from flash_numba import reference
from flash_numba.budget import error_budget, within_budget
from flash_numba.problem import DTYPES, Problem

TYPES = pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8"])


def answers(dtype):
    problem = Problem(40, 50, 32, num_heads=2, dtype=dtype, causal=True)
    given = Case(problem, **inputs(np.random.default_rng(4), problem))
    return run(given, reference), run(given, Twin(dtype))


@TYPES
def test_the_twin_errs_as_its_type_does(dtype):
    truth, twin = answers(dtype)
    # Half the spacing of numbers near 1; fp8 inputs are worked on in bf16.
    spacing = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "fp8": 2**-8}[dtype]
    for name in ("o", "dq", "dk", "dv"):
        scale = np.abs(truth[name]).max()
        error = np.abs(twin[name] - truth[name]).max() / scale
        assert spacing / 20 < error < spacing * 8, name


@TYPES
def test_the_twin_stores_what_its_type_can_hold(dtype):
    _, twin = answers(dtype)
    stored = DTYPES["bf16" if dtype == "fp8" else dtype]
    for name in ("o", "dq", "dk", "dv"):
        np.testing.assert_array_equal(twin[name], twin[name].astype(stored).astype(np.float64))


def test_inputs_are_rounded_to_the_twins_type():
    q = k = np.zeros((1, 1, 1, 4))
    v = np.full((1, 1, 1, 4), 1.0001)
    assert np.all(reference.forward(Problem(1, 1, 4), q, k, v, dtype="fp16")[0] == 1)
    assert np.all(reference.forward(Problem(1, 1, 4), q, k, v)[0] == 1.0001)


def test_the_budget_is_twice_the_twins_error_plus_twice_one_rounding():
    ref = np.array([1.0, -2.0, 100.0])
    twin = ref + np.array([0.0, 0.25, -0.125])
    rounding = np.abs(np.float32(ref) + np.float32(0.3) - np.float32(0.3) - np.float32(ref)).max()
    assert rounding > 0
    assert error_budget(ref, twin, "fp32") == 2 * 0.25 + 2 * float(rounding)


def test_a_coarser_type_has_a_larger_budget():
    ref = np.random.default_rng(5).standard_normal(100)
    fp32, fp16, bf16 = (error_budget(ref, ref, dtype) for dtype in ("fp32", "fp16", "bf16"))
    assert 0 < fp32 < fp16 < bf16


def test_the_verdict_compares_the_largest_error():
    ref = np.array([1.0, 2.0])
    assert within_budget(ref, ref, ref, "fp32")
    verdict = within_budget(ref + np.array([0, 1e-3]), ref, ref, "fp32")
    assert not verdict
    assert verdict.error == pytest.approx(1e-3)
    assert str(verdict).startswith("Verdict(error=0.00")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_no_twin_excuses_what_is_not_finite(wrong):
    ref = np.array([1.0, 2.0])
    twin = np.array([np.nan, np.inf])
    verdict = within_budget(np.array([1.0, wrong]), ref, twin, "fp16")
    assert not verdict
    assert verdict.error == np.inf
    assert np.isfinite(verdict.allowance)


def test_an_infinity_must_be_the_same_one():
    ref = np.array([-np.inf, 0.0])
    assert within_budget(ref, ref, ref, "fp32")
    for wrong in (np.inf, -1e38, np.nan):
        assert not within_budget(np.array([wrong, 0.0]), ref, ref, "fp32")


def test_empty_results_are_right():
    assert within_budget(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)), "fp16")


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"shape of ref, \(2,\), got \(2, 1\)"):
        within_budget(np.zeros((2, 1)), np.zeros(2), np.zeros(2), "fp32")


def test_an_unknown_type_is_refused():
    q = np.zeros((1, 1, 1, 4))
    with pytest.raises(ValueError, match=r"dtype must be None or one of fp32.*got 'float16'"):
        reference.forward(Problem(1, 1, 4), q, q, q, dtype="float16")
