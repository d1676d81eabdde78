"""Every case of real kernels' failures on the reference, and a check that the cases can fail."""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, REFUSALS
from harness import Twin, check, check_truth

from flash_numba import reference
from flash_numba.problem import Problem

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
