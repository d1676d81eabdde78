"""How a test holds an implementation of attention against the right answer.

An implementation is a module or object with ``forward(problem, q, k, v) -> (o, lse)`` and
``backward(problem, q, k, v, do, dlse) -> .dq, .dk, .dv``, as `flash_numba.reference` is.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flash_numba import reference
from flash_numba.budget import within_budget
from flash_numba.problem import DTYPES, Problem


@dataclass
class Case:
    """One input; `answers` by name (o, lse, dq, dk, dv), those in `exact` bit for bit.

    Without `answers` only finiteness, agreement with the reference and `repeats` equal runs of the
    backward pass are asked for.
    """

    problem: Problem
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    dlse: np.ndarray | None = None
    answers: dict[str, np.ndarray] = field(default_factory=dict)
    exact: tuple[str, ...] = ()
    repeats: int = 1


def normal(rng, shape, dtype="fp32") -> np.ndarray:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def inputs(rng, problem: Problem) -> dict[str, Any]:
    """Standard normal q, k, v and do of the problem's type."""
    return {n: normal(rng, problem.shapes[n], problem.dtype) for n in ("q", "k", "v", "do")}


def dense(
    problem: Problem,
    q,
    k,
    v,
    do,
    dlse=None,
    *,
    visible: Any = True,
    bias: Any = 0.0,
    cap: float | None = None,
    keep: Any = 1.0,
) -> dict[str, np.ndarray]:
    """Attention and its gradients over whole arrays, the mask given as an explicit array.

    `visible`, `bias` and `keep` broadcast to (batch, heads, seqlen_q, seqlen_k).
    """
    q, k, v, do = (np.asarray(x, np.float64) for x in (q, k, v, do))
    group, scale = q.shape[2] // k.shape[2], problem.softmax_scale
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    s = scale * np.einsum("bihd,bjhd->bhij", q, k)
    capped = s if cap is None else cap * np.tanh(s / cap)
    s = np.where(visible, capped + bias, -np.inf)
    top = s.max(axis=-1, keepdims=True, initial=-1e300)
    e = np.where(visible, np.exp(s - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    some = total > 0
    p = e / np.where(some, total, 1)
    lse = np.where(some, top + np.log(np.where(some, total, 1)), -np.inf)[..., 0]
    dp = keep * np.einsum("bihd,bjhd->bhij", do, v)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    ds = ds + (0 if dlse is None else p * np.asarray(dlse, np.float64)[..., None])
    ds = scale * ds * (1 if cap is None else 1 - (capped / cap) ** 2)

    def of_kv_heads(gradient):
        heads = gradient.shape[2] // group, group
        return gradient.reshape(*gradient.shape[:2], *heads, gradient.shape[3]).sum(axis=3)

    return {
        "o": np.einsum("bhij,bjhd->bihd", keep * p, v),
        "lse": lse,
        "dq": np.einsum("bhij,bjhd->bihd", ds, k),
        "dk": of_kv_heads(np.einsum("bhij,bihd->bjhd", ds, q)),
        "dv": of_kv_heads(np.einsum("bhij,bihd->bjhd", keep * p, do)),
    }


def run(case: Case, implementation) -> dict[str, np.ndarray]:
    """What an implementation answers, by name."""
    o, lse = implementation.forward(case.problem, case.q, case.k, case.v)
    gradients = backward(case, implementation)
    return {"o": o, "lse": lse} | gradients


def backward(case: Case, implementation) -> dict[str, np.ndarray]:
    found = implementation.backward(case.problem, case.q, case.k, case.v, case.do, case.dlse)
    return {"dq": found.dq, "dk": found.dk, "dv": found.dv}


class Twin:
    """The reference in a lower precision, as an implementation."""

    def __init__(self, dtype: str):
        self.dtype = dtype

    def forward(self, problem, q, k, v):
        return reference.forward(problem, q, k, v, dtype=self.dtype)

    def backward(self, problem, q, k, v, do, dlse):
        return reference.backward(problem, q, k, v, do, dlse, dtype=self.dtype)


def check(case: Case, implementation) -> None:
    """Hold an implementation against a case; raises AssertionError."""
    found = run(case, implementation)
    truth = run(case, reference) | case.answers
    twin = run(case, Twin(case.problem.dtype))
    for name, array in found.items():
        if name in case.exact:
            np.testing.assert_array_equal(np.asarray(array, np.float64), truth[name], name)
        dtype = "fp32" if name == "lse" else case.problem.dtype
        verdict = within_budget(array, truth[name], twin[name], dtype)
        assert verdict, f"{name}: {verdict}"
    for _ in range(case.repeats - 1):
        for name, array in backward(case, implementation).items():
            np.testing.assert_array_equal(array, found[name], f"{name} of a repeated run")


def check_truth(case: Case) -> None:
    """Hold the float64 reference against the answers, to float64's accuracy."""
    found = run(case, reference)
    for name, answer in case.answers.items():
        scale = np.abs(answer[np.isfinite(answer)]).max(initial=1.0)
        np.testing.assert_allclose(found[name], answer, 1e-11, 1e-11 * scale, err_msg=name)
