"""Attention as the formulas say it, in float64 NumPy: the truth everything else is held against.

One head at a time and with the whole seqlen_q x seqlen_k matrix in memory. Notation as in the
FlashAttention papers (S scores, P weights, dX the gradient of the loss with respect to X), with one
addition, the change of scores f and its mask: ``P = softmax(f(scale * Q @ K.T))``.

The same code run in a lower precision is the *twin*: what an ordinary framework computes in that
element type, with delta from O as all fused kernels take it (the framework's own sum over P errs
about as much, but by nothing at all where a row sees one key). `budget` derives from it how far a
kernel may be from the truth.

References
----------
Dao et al., "FlashAttention", NeurIPS 2022, section 2.2 (forward) and appendix B.2 (backward,
equations 4 to 6).
"""

from typing import Any, NamedTuple

import numpy as np

from . import dropout
from .checks import shown
from .problem import DTYPES, Problem, check_problem
from .scores import apply_scores, aux_totals, check_differentiable, score_gradient


class Gradients(NamedTuple):
    """Gradients of a loss; float64.

    Attributes
    ----------
    dq : array of shape (batch, seqlen_q, num_heads, head_dim)
    dk : array of shape (batch, seqlen_k, num_kv_heads, head_dim)
    dv : array of shape (batch, seqlen_k, num_kv_heads, head_dim_v)
    aux : tuple of arrays
        For each score change with an `aux_derivative`, in the order of ``problem.score_mods``, the
        gradient of that tensor: of length 1 on the axes where the tensor has stride 0.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    aux: tuple[np.ndarray, ...]


class Arithmetic(NamedTuple):
    """The element types of a computation: the truth has float64 for all three."""

    inputs: np.dtype
    stored: np.dtype
    inside: np.dtype

    def read(self, array) -> np.ndarray:
        """An input, rounded to the type inputs have."""
        return np.asarray(array).astype(self.inputs).astype(self.inside)

    def store(self, array: np.ndarray) -> np.ndarray:
        """The result of one operation, rounded to the type it is stored in."""
        return array.astype(self.stored).astype(self.inside)

    def result(self, array: np.ndarray) -> np.ndarray:
        """A sum over heads, rounded to the type it is stored in; float64."""
        return self.store(array).astype(np.float64)


def arithmetic(dtype: str | None) -> Arithmetic:
    """The arithmetic of the truth (None) or of an ordinary framework in `dtype`.

    Frameworks multiply tiles and take the softmax in fp32 and round what comes out. They do no
    arithmetic in fp8: inputs of that type are worked on in bf16.
    """
    if dtype is None:
        exact = np.dtype(np.float64)
        return Arithmetic(exact, exact, exact)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype must be None or one of {', '.join(DTYPES)}; got {shown(dtype)}")
    stored = DTYPES["bf16" if dtype == "fp8" else dtype]
    return Arithmetic(DTYPES[dtype], stored, np.dtype(np.float32))


# Overflow and NaN spread without a word, as on a GPU.
_silent = np.errstate(over="ignore", invalid="ignore")


@_silent
def forward(problem: Problem, q, k, v, *, dtype: str | None = None):
    """Attention, and the log-sum-exp of its scores.

    Parameters
    ----------
    problem : Problem
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k : array of shape (batch, seqlen_k, num_kv_heads, head_dim)
    v : array of shape (batch, seqlen_k, num_kv_heads, head_dim_v)
        Keys and values at or beyond a sequence's own length are never read.
    dtype : str, optional
        A key of `problem.DTYPES` for the twin in that type; None for the truth.

    Returns
    -------
    o : float64 array of shape (batch, seqlen_q, num_heads, head_dim_v)
    lse : float64 array of shape (batch, num_heads, seqlen_q)
        Natural logarithm. A row that sees no key has o = 0 and lse = -inf.

    Raises
    ------
    ValueError
        If a shape differs from the problem's.
    """
    check_problem(problem)
    problem.check_shapes(q=q, k=k, v=v)
    arith = arithmetic(dtype)
    o = np.zeros(problem.shapes["o"])
    lse = np.full(problem.shapes["lse"], -np.inf)
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        at = _Head(problem, arith, batch, head, q, k, v)
        problem.of_sequence("o", o, batch)[:, head] = at.o
        problem.of_sequence("lse", lse, batch)[head] = at.lse
    return o, lse


@_silent
def backward(problem: Problem, q, k, v, do, dlse=None, *, dtype: str | None = None) -> Gradients:
    """Gradients of a loss from those of its attention output.

    Parameters
    ----------
    problem, q, k, v, dtype
        As for `forward`.
    do : array of shape (batch, seqlen_q, num_heads, head_dim_v)
    dlse : array of shape (batch, num_heads, seqlen_q), optional
        The gradient that comes in through lse.

    Returns
    -------
    Gradients
        A row that sees no key contributes nothing.

    Raises
    ------
    ValueError
        If a shape differs from the problem's, or a score change has no derivative.
    """
    check_problem(problem)
    problem.check_shapes(q=q, k=k, v=v, do=do, **({} if dlse is None else {"dlse": dlse}))
    check_differentiable(problem)
    arith = arithmetic(dtype)
    dq, dk, dv = (np.zeros(problem.shapes[name]) for name in ("dq", "dk", "dv"))
    totals = aux_totals(problem)
    for batch, head in np.ndindex(problem.batch, problem.num_heads):
        at = _Head(problem, arith, batch, head, q, k, v)
        do_head = arith.read(problem.of_sequence("do", do, batch)[:, head])
        dlse_head: Any = 0.0
        if dlse is not None:
            dlse_head = problem.of_sequence("dlse", dlse, batch)[head].astype(arith.inside)
            dlse_head = dlse_head[:, None]
        dk_here, dv_here = (problem.of_sequence(*x, batch) for x in (("dk", dk), ("dv", dv)))
        # dV = P^T dO and dP = dO V^T, both through the dropout of P.
        dv_here[:, at.kv_head] += arith.store(at.kept_weights.T @ do_head)
        dp = arith.store(arith.store(do_head @ at.v.T) * at.keep)
        # Softmax: dS_ij = P_ij (dP_ij - delta_i), where delta_i = sum_j P_ij dP_ij = dO_i . O_i
        # (equation 4). lse adds P_ij dlse_i.
        delta = (do_head * at.o).sum(axis=1, keepdims=True)
        ds = arith.store(at.weights * (dp - delta + dlse_head))
        ds = arith.store(score_gradient(*at.place, ds, at.chain, totals))
        ds = arith.store(ds * arith.inside.type(problem.softmax_scale))
        problem.of_sequence("dq", dq, batch)[:, head] = arith.store(ds @ at.k)
        dk_here[:, at.kv_head] += arith.store(ds.T @ at.q)
    aux = tuple(total for total in totals if total is not None)
    return Gradients(dq, arith.result(dk), arith.result(dv), aux)


class _Head:
    """What one head's forward pass computes, for the backward pass to use again.

    Attributes
    ----------
    place : tuple
        The first arguments of `scores.apply_scores`.
    q, k, v : arrays of shape (N, head_dim), (M, head_dim), (M, head_dim_v)
        Of the sequence's own N queries and M keys.
    weights : array of shape (N, M)
        P, before dropout; a row that sees no key is 0.
    keep : array of shape (N, M), or 1
        What dropout multiplies P with: 0 or 1/(1-p).
    kept_weights : array of shape (N, M)
        P after dropout.
    o : array of shape (N, head_dim_v)
    lse : array of shape (N,)
    chain : tuple of arrays
        From `scores.apply_scores`.
    """

    def __init__(self, problem: Problem, arith: Arithmetic, batch: int, head: int, q, k, v):
        self.kv_head = head // problem.group
        self.q = arith.read(problem.of_sequence("q", q, batch)[:, head])
        self.k = arith.read(problem.of_sequence("k", k, batch)[:, self.kv_head])
        self.v = arith.read(problem.of_sequence("v", v, batch)[:, self.kv_head])
        q_idx, k_idx = np.ogrid[: len(self.q), : len(self.k)]
        self.place = problem, batch, head, q_idx, k_idx

        scores = arith.store(self.q @ self.k.T * arith.inside.type(problem.softmax_scale))
        scores, self.chain = apply_scores(*self.place, scores)
        self.weights, self.lse = _softmax(arith.store(scores))
        self.weights = arith.store(self.weights)
        self.keep = _dropout(*self.place).astype(arith.inside)
        self.kept_weights = arith.store(self.weights * self.keep)
        self.o = arith.store(self.kept_weights @ self.v)


def _softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Softmax and log-sum-exp of each row; 0 and -inf for a row of -inf (or of no columns)."""
    row_max = scores.max(axis=1, keepdims=True, initial=-np.inf)
    empty = row_max == -np.inf
    row_max = np.where(empty, 0, row_max)
    weights = np.exp(scores - row_max)
    row_sum = np.where(empty, 1, weights.sum(axis=1, keepdims=True))
    lse = np.where(empty, -np.inf, row_max + np.log(row_sum))
    return weights / row_sum, lse[:, 0]


def _dropout(problem: Problem, batch: int, head: int, q_idx, k_idx) -> np.ndarray:
    if problem.dropout_p == 0:
        return np.ones(())
    place = batch * problem.num_heads + head, q_idx, k_idx
    keep = dropout.keep_mask(problem.seed, *place, problem.dropout_p)
    return keep / (1 - problem.dropout_p)
