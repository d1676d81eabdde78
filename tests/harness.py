"""How a test holds an implementation of attention against the right answer.

An implementation is a module or object with ``forward(problem, q, k, v) -> (o, lse)`` and
``backward(problem, q, k, v, do, dlse) -> .dq, .dk, .dv``, as `flash_numba.reference` is.
"""

from collections.abc import Mapping
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


def run(case: Case, implementation, gradients: bool = True) -> dict[str, np.ndarray]:
    """What an implementation answers, by name."""
    o, lse = implementation.forward(case.problem, case.q, case.k, case.v)
    found = {"o": o, "lse": lse}
    return found | backward(case, implementation) if gradients else found


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


def tiled_rounding(case: Case, truth: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What a backward may round away that takes delta from O and sums the heads of a group in fp32.

    The twin's delta is rowsum(P∘dP): where a row has few keys, dP - delta cancels to the last bit.
    Taken as rowsum(dO∘O) it is another sum of head_dim_v products than dP, each sum off by about
    sqrt(head_dim_v) units in the last place (Higham and Mary, 2019), O by two more. P is at most 1.
    """
    problem, unit = case.problem, 2.0**-24
    q, k, v, do = (np.abs(np.asarray(x, np.float64)) for x in (case.q, case.k, case.v, case.do))
    sums = do * (v.max(initial=0.0) + np.abs(truth["o"]))
    tau = (np.sqrt(problem.head_dim_v) + 2) * unit / (1 - problem.dropout_p) * sums.sum(axis=-1)
    along_k = (tau[..., None] * q).sum(axis=1).max(initial=0.0) * problem.group
    scale, shared = abs(problem.softmax_scale), np.sqrt(problem.group) * unit
    return {
        "dq": scale * tau.max(initial=0.0) * k.max(initial=0.0),
        "dk": scale * along_k + shared * np.abs(truth["dk"]).max(initial=0.0),
        "dv": shared * np.abs(truth["dv"]).max(initial=0.0),
        "aux": tau.sum(),
    }


def check(case: Case, implementation, rounding=None, gradients: bool = True) -> None:
    """Hold an implementation against a case, with its `gradients`; raises AssertionError.

    `rounding`, such as `tiled_rounding`, widens the budget: what it names need not be exact.
    """
    found = run(case, implementation, gradients)
    truth = run(case, reference) | case.answers
    twin = run(case, Twin(case.problem.dtype))
    wider = rounding(case, truth) if rounding else {}
    for name, array in found.items():
        if name in case.exact and not wider.get(name):
            np.testing.assert_array_equal(np.asarray(array, np.float64), truth[name], name)
        dtype = "fp32" if name == "lse" else case.problem.dtype
        verdict = within_budget(array, truth[name], twin[name], dtype)
        assert verdict.error <= verdict.allowance + wider.get(name, 0.0), f"{name}: {verdict}"
    for _ in range(case.repeats - 1):
        for name, array in backward(case, implementation).items():
            np.testing.assert_array_equal(array, found[name], f"{name} of a repeated run")


def check_truth(case: Case) -> None:
    """Hold the float64 reference against the answers, to float64's accuracy."""
    found = run(case, reference)
    for name, answer in case.answers.items():
        scale = np.abs(answer[np.isfinite(answer)]).max(initial=1.0)
        np.testing.assert_allclose(found[name], answer, 1e-11, 1e-11 * scale, err_msg=name)
