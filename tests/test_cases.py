"""Every case of real kernels' failures on the reference, and a check that the cases can fail."""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, REFUSALS
from harness import Twin, check, check_truth

from flash_numba import reference
from flash_numba.problem import Problem

LOG2_E = np.log2(np.e)

every_case = pytest.mark.parametrize("spec", CASES, ids=[spec.id for spec in CASES])


@every_case
def test_the_reference_gives_the_right_answer(spec):
    check_truth(spec.build())


@every_case
def test_the_twin_stays_within_its_own_budget(spec):
    case = replace(spec.build(), exact=())
    check(case, Twin(case.problem.dtype))


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.id for refusal in REFUSALS])
def test_wrong_shapes_are_refused(refusal):
    arrays = (np.zeros(shape, np.float32) for shape in refusal.shapes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the parts are checked below
        Problem.of(*arrays)
    for part in refusal.says:
        assert part in str(error.value)


class Broken:
    """The reference in fp32 with one fault."""

    def __init__(self, change):
        self.change = change

    def forward(self, problem, q, k, v):
        return self.change(*reference.forward(problem, q, k, v, dtype="fp32"))

    def backward(self, problem, q, k, v, do, dlse):
        return reference.backward(problem, q, k, v, do, dlse, dtype="fp32")


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        ("K09", lambda o, lse: (o, np.maximum(lse, -1e30))),
        ("K11-113", lambda o, lse: (o * 113 / 128, lse)),
        ("K12", lambda o, lse: (np.where(o == 0, np.nan, o), lse)),
        ("K14", lambda o, lse: (o, lse / np.log(2))),
        ("K20", lambda o, lse: (np.roll(o, 1, axis=1), lse)),
    ],
)
def test_a_broken_implementation_fails(number, fault):
    case = next(spec for spec in CASES if spec.id == number).build()
    with pytest.raises(AssertionError):
        check(case, Broken(fault))


def test_a_silent_zero_gradient_of_lse_fails():
    class Silent:
        forward = staticmethod(reference.forward)

        @staticmethod
        def backward(problem, q, k, v, do, dlse):
            return reference.backward(problem, q, k, v, do)

    case = next(spec for spec in CASES if spec.id == "K15").build()
    with pytest.raises(AssertionError, match="dq"):
        check(case, Silent)


def log2_weight(score: float, scale: float) -> np.float64:
    """The logarithm of a query's only weight in the backward passes of tensor_core and hopper.

    They take it from lse by one multiply-add, whose product is not rounded; lse, lse in log2 units
    and the factor were. In float64 the product of two float32 is exact.
    """
    factor, lse = np.float32(scale * LOG2_E), np.float32(score) * np.float32(scale)
    lse2 = lse * np.float32(LOG2_E)
    return np.float64(np.float32(score)) * np.float64(factor) - np.float64(lse2)


def test_a_weight_from_lse_is_off_by_what_its_roundings_lose():
    """The bound of CONTRIBUTING.md: four roundings of 1 in 2**24, of numbers of log2(e) lse."""
    rng = np.random.default_rng(5)
    for score, scale in zip(10 ** rng.uniform(0, 12, 2000), rng.uniform(0.1, 4, 2000), strict=True):
        assert abs(log2_weight(score, scale)) <= 6 * score * scale / 2**24


def test_why_two_rungs_have_no_gradients_of_k06():
    """The weight, which is 1, becomes 0 or infinite: lse2 may be off by 2**13, and is by too much.

    That the difference comes first, as in the forward pass, would be one more instruction for each
    score. `test_attention_gpu.NO_GRADIENTS` names the rungs; their O of K06 is exact.
    """
    case = next(spec for spec in CASES if spec.id == "K06").build()
    (lse,) = case.answers["lse"].ravel()
    off = log2_weight(lse * 8, 1 / 8)
    assert 2 * 128 < abs(off) <= 2**13 == np.spacing(np.float32(lse * LOG2_E)) / 2
