"""Closed forms, capacities and well-known mistakes that several puzzles on tiles share."""

from __future__ import annotations

import numpy as np

from ..theory import counts
from .cases import Case
from .formulas import Tensors, attention


def form(program: str, case: Case, direction: str = "forward"):
    """The closed form of a program on a case, all heads of the group."""
    return counts(program, case.problem, case.B_r, case.B_c, direction=direction, all_heads=True)


def forward_sram(case: Case) -> int:
    """Elements of a tile of Q, of K and of V."""
    return (case.B_r + 2 * case.B_c) * case.d


def forward_registers(case: Case) -> int:
    """Elements of S, P, two of O, and six row vectors."""
    return 2 * case.B_r * (case.B_c + case.d) + 6 * case.B_r


def backward_sram(case: Case) -> int:
    """Elements of a tile of Q, dO, K, V, and of four row vectors."""
    return 2 * (case.B_r + case.B_c) * case.d + 4 * case.B_r


def backward_registers(case: Case) -> int:
    """Elements of S, P, dP, dS, of dQ and an addition to it, dK and dV."""
    return 4 * case.B_r * case.B_c + 2 * (case.B_r + case.B_c) * case.d + 4 * case.B_r


def matmuls(products: int):
    """FLOPs of so many products of N x M x d, for full attention."""
    return lambda c: 2 * products * c.heads * c.N * c.M * c.d


def one_tile(case: Case) -> int:
    """Elements of a tile of S and two row vectors."""
    return case.B_r * case.B_c + 2 * case.B_r


def without_scale(case: Case, given: Tensors) -> Tensors:
    """Attention with a softmax_scale of 1."""
    return attention(given, 1.0, np.float32, case.hidden)


def without_transpose(case: Case, given: Tensors) -> Tensors:
    """S from K_j where K_jᵀ is meant, which nobody notices where a tile is square."""
    if case.d != case.B_c or case.M % case.B_c:
        return {}
    tiles = np.split(given["K"], case.T_c)
    scale = np.float32(case.problem.softmax_scale)
    return {"S": scale * np.concatenate([given["Q"] @ tile for tile in tiles], axis=2)}


def unscaled_scores(case: Case, given: Tensors) -> Tensors:
    """Gradients from exp(Q Kᵀ - LSE), where LSE is of the scaled scores."""
    P = np.exp(given["S"] / np.float32(case.problem.softmax_scale) - given["LSE"][..., None])
    return {"dV": (P.swapaxes(1, 2) @ given["dO"]).sum(axis=0)}


def without_mask(case: Case, given: Tensors) -> Tensors:
    """Attention in which the visited tiles are used whole."""
    last_rows = np.minimum(np.arange(case.N) // case.B_r * case.B_r + case.B_r, case.N) - 1
    first_cols = np.arange(case.M) // case.B_c * case.B_c
    skipped = first_cols > last_rows[:, None] + case.M - case.N
    return attention(given, case.problem.softmax_scale, np.float32, skipped)


def without_division(case: Case, given: Tensors) -> Tensors:
    """O that is not divided by the row sum."""
    return {"O": given["O"] * given["l"][..., None]}


def without_rescale(case: Case, given: Tensors) -> Tensors:
    """Row sums and O that add up numbers of different maxima."""
    l, O, _ = _unscaled_sums(case, given)
    return {"LSE": given["m"] + np.log(l), "O": O / l[..., None]}


def without_rescale_of_O(case: Case, given: Tensors) -> Tensors:
    """O that adds up numbers of different maxima, over the right row sum."""
    _, O, l = _unscaled_sums(case, given)
    return {"O": O / l[..., None]}


def _unscaled_sums(case: Case, given: Tensors) -> tuple[np.ndarray, ...]:
    """Row sum and O without rescaling, and the right row sum, tile by tile."""
    S, V = given["S"], given["V"]
    m = np.full(S.shape[:2], -np.inf, np.float32)
    l, O, right_l = np.zeros_like(m), np.zeros_like(given["O"]), np.zeros_like(m)
    for start in range(0, case.M, case.B_c):
        tile = S[..., start : start + case.B_c]
        m_new = np.maximum(m, tile.max(axis=2))
        P = np.exp(tile - m_new[..., None])
        right_l = right_l * np.exp(m - m_new) + P.sum(axis=2)
        l, m = l + P.sum(axis=2), m_new
        O += P @ V[start : start + case.B_c]
    return l, O, right_l


FORWARD_MISTAKES = {
    "it is what one gets without softmax_scale (gpu.scale)": without_scale,
    "it is what one gets if sums are not rescaled when the row maximum rises": without_rescale,
    "it is what one gets if O is not rescaled when the row maximum rises": without_rescale_of_O,
    "it is what one gets if O is never divided by the row sum": without_division,
}
CAUSAL_MISTAKES = {"it is what one gets if visited tiles are not masked": without_mask}


def larger(case: Case, direction: str) -> dict[str, int]:
    """Of both forms of the backward pass, the larger number for each tensor."""
    both = [getattr(form(name, case, "backward"), direction) for name in FORMS]
    return {name: max(one.get(name, 0) for one in both) for name in both[0].keys() | both[1].keys()}


FORMS = "flash2", "flash2_two_kernel"


def without_delta(case: Case, given: Tensors) -> Tensors:
    """Gradients of weights that need not sum to 1."""
    dS = given["P"] * given["dP"] * np.float32(case.problem.softmax_scale)
    return {"dQ": dS @ given["K"], "dK": (dS.swapaxes(1, 2) @ given["Q"]).sum(axis=0)}
