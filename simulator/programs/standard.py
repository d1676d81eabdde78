"""Standard attention in tiles: a kernel an operation, S and P whole in HBM.

Every product is tiled so that it fits SRAM, as a matrix library would do it; no tile is skipped,
whatever the mask. It is what FlashAttention is measured against.
"""

from __future__ import annotations

import numpy as np

from ..hbm import Tensor
from ..machine import Machine
from ..memory import extent
from .softmax import log_sum_exp, row_dot, running_softmax, weights

FORWARD_LINES = {
    "S": ("load Q_i, K_j", "S = scale Q_i K_jᵀ", "mask S", "store S_ij"),
    "softmax": (
        "load S_ij",
        "m = max(m, rowmax S),  l = α l + rowsum exp(S - m)",
        "lse = m + log l",
        "load S_ij again",
        "P = exp(S - m) / l",
        "store P_ij",
        "store lse_i",
    ),
    "O": ("load P_ij, V_j", "O = O + P V_j", "store O_i"),
}

BACKWARD_LINES = {
    "dV": ("load P_ij, dO_i", "dV = dV + Pᵀ dO_i", "store dV_j"),
    "dP": ("load dO_i, V_j", "dP = dO_i V_jᵀ", "store dP_ij"),
    "dS": (
        "D = -dlse_i",
        "load P_ij, dP_ij",
        "D = D + rowsum(P ∘ dP)",
        "load P_ij, dP_ij again",
        "dS = scale P ∘ (dP - D)",
        "store dS_ij",
    ),
    "dQ": ("load dS_ij, K_j", "dQ = dQ + dS K_j", "store dQ_i"),
    "dK": ("load dS_ij, Q_i", "dK = dK + dSᵀ Q_i", "store dK_j"),
}


def forward(gpu: Machine) -> None:
    """O and lse in three kernels; S and P cross HBM five times.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V in HBM; S, P, O and LSE are written.
    """
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    S, P, O = gpu.tensor("S"), gpu.tensor("P"), gpu.tensor("O")
    gpu.kernel("S")
    for head, rows, cols in gpu.tile_grid():
        sQ = gpu.load("load Q_i, K_j", Q[head, rows])
        sK = gpu.load("load Q_i, K_j", K[cols])
        rS = gpu.in_registers("S", (extent(rows), extent(cols)))
        gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
        gpu.change_scores("mask S", rS, head, rows, cols)
        gpu.store("store S_ij", S[head, rows, cols], rS)
        gpu.free(sQ, sK)
    gpu.kernel("softmax")
    for head, rows in gpu.row_grid():
        softmax_rows(gpu, head, rows)
    row_blocks(gpu, "O", P, V, O, FORWARD_LINES["O"], dropout=True)


def softmax_rows(gpu: Machine, head: int, rows: slice) -> None:
    """P and lse of one query tile, in two passes over its part of S."""
    S, P, LSE = gpu.tensor("S"), gpu.tensor("P"), gpu.tensor("LSE")
    r = extent(rows)
    row_max = gpu.in_registers("m", (r,), -np.inf)
    row_sum = gpu.in_registers("l", (r,), 0.0)
    alpha = gpu.in_registers("α", (r,), 1.0)
    gpu.watch(row_max=row_max, row_sum=row_sum, rescale=alpha)
    for _, cols in gpu.all_key_tiles():
        sS = gpu.load("load S_ij", S[head, rows, cols])
        gpu.compute(
            "m = max(m, rowmax S),  l = α l + rowsum exp(S - m)",
            (row_max, row_sum, alpha),
            (sS, row_max, row_sum),
            running_softmax,
            exp=r * extent(cols) + r,
        )
        gpu.free(sS)
    lse = gpu.in_registers("lse", (r,))
    gpu.compute("lse = m + log l", (lse,), (row_max, row_sum), log_sum_exp)
    for _, cols in gpu.all_key_tiles():
        sS = gpu.load("load S_ij again", S[head, rows, cols])
        rP = gpu.in_registers("P", sS.shape)
        gpu.compute("P = exp(S - m) / l", (rP,), (sS, row_max, row_sum), weights, exp=rP.size)
        gpu.store("store P_ij", P[head, rows, cols], rP)
        gpu.free(sS)
    gpu.store("store lse_i", LSE[head, rows], lse)


def backward(gpu: Machine) -> None:
    """dQ, dK, dV in five kernels; dP and dS lie in HBM like P.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V, P, dO (and dLSE, if lse has a gradient) in HBM.
    """
    Q, K, V, P, dO = (gpu.tensor(name) for name in ("Q", "K", "V", "P", "dO"))
    dP, dS, dQ, dK, dV = (gpu.tensor(name) for name in ("dP", "dS", "dQ", "dK", "dV"))
    column_blocks(gpu, "dV", P, dO, dV, BACKWARD_LINES["dV"], dropout=True)
    gpu.kernel("dP")
    for head, rows, cols in gpu.tile_grid():
        sdO = gpu.load("load dO_i, V_j", dO[head, rows])
        sV = gpu.load("load dO_i, V_j", V[cols])
        rdP = gpu.in_registers("dP", (extent(rows), extent(cols)))
        gpu.product("dP = dO_i V_jᵀ", rdP, sdO, sV.T)
        gpu.store("store dP_ij", dP[head, rows, cols], gpu.drop(rdP, head, rows, cols))
        gpu.free(sdO, sV)
    gpu.kernel("dS")
    for head, rows in gpu.row_grid():
        gradient_rows(gpu, head, rows)
    row_blocks(gpu, "dQ", dS, K, dQ, BACKWARD_LINES["dQ"])
    column_blocks(gpu, "dK", dS, Q, dK, BACKWARD_LINES["dK"])


def gradient_rows(gpu: Machine, head: int, rows: slice) -> None:
    """dS of one query tile, in two passes over its parts of P and dP."""
    P, dP, dS = gpu.tensor("P"), gpu.tensor("dP"), gpu.tensor("dS")
    D = gpu.in_registers("D", (extent(rows),), 0.0)
    if gpu.lse_gradient:
        sdLSE = gpu.load("D = -dlse_i", gpu.tensor("dLSE")[head, rows])
        gpu.compute("D = -dlse_i", (D,), (sdLSE,), np.negative)
        gpu.free(sdLSE)
    for _, cols in gpu.all_key_tiles():
        sP = gpu.load("load P_ij, dP_ij", P[head, rows, cols])
        sdP = gpu.load("load P_ij, dP_ij", dP[head, rows, cols])
        gpu.compute("D = D + rowsum(P ∘ dP)", (D,), (D, sP, sdP), plus_row_dot)
        gpu.free(sP, sdP)
    for _, cols in gpu.all_key_tiles():
        sP = gpu.load("load P_ij, dP_ij again", P[head, rows, cols])
        sdP = gpu.load("load P_ij, dP_ij again", dP[head, rows, cols])
        rdS = gpu.in_registers("dS", sP.shape)
        chain = gpu.score_chain(head, rows, cols)

        def gradient(P, dP, D, chain=chain, cols=cols):
            return gpu.score_gradient(P * (dP - D[:, None]), chain, head, rows, cols)

        gpu.compute("dS = scale P ∘ (dP - D)", (rdS,), (sP, sdP, D), gradient)
        gpu.watch(P=sP, dS=rdS, delta=D)
        gpu.store("store dS_ij", dS[head, rows, cols], rdS)
        gpu.free(sP, sdP)


def plus_row_dot(D, A, B):
    """D + rowsum(A * B)."""
    return D + row_dot(A, B)


def row_blocks(
    gpu: Machine, kernel: str, A: Tensor, B: Tensor, out: Tensor, lines, dropout: bool = False
) -> None:
    """A kernel with one block per query tile: out_i = sum_j A_ij B_j (O = P V, dQ = dS K)."""
    load, product, store = lines
    gpu.kernel(kernel)
    for head, rows in gpu.row_grid():
        acc = gpu.in_registers(kernel, (extent(rows), B.shape[-1]), 0.0)
        gpu.watch(**{kernel: acc})
        for _, cols in gpu.all_key_tiles():
            sA = gpu.load(load, A[head, rows, cols])
            sB = gpu.load(load, B[cols])
            weights = gpu.drop(sA, head, rows, cols) if dropout else sA
            gpu.product(product, acc, weights, sB, add=True)
            gpu.free(sA, sB)
        gpu.store(store, out[head, rows], acc)


def column_blocks(
    gpu: Machine, kernel: str, A: Tensor, B: Tensor, out: Tensor, lines, dropout: bool = False
) -> None:
    """A kernel with one block per key tile: out_j = sum_i A_ijᵀ B_i (dV = Pᵀ dO, dK = dSᵀ Q)."""
    load, product, store = lines
    gpu.kernel(kernel)
    for cols in gpu.column_grid():
        acc = gpu.in_registers(kernel, (extent(cols), B.shape[-1]), 0.0)
        for head in range(len(gpu.heads)):
            for _, rows in gpu.all_query_tiles(head):
                sA = gpu.load(load, A[head, rows, cols])
                sB = gpu.load(load, B[head, rows])
                weights = gpu.drop(sA, head, rows, cols) if dropout else sA
                gpu.product(product, acc, weights.T, sB, add=True)
                gpu.free(sA, sB)
        gpu.store(store, out[cols], acc)
