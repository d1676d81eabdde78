"""FlashAttention-1: key tiles outside, so O, m and l go to HBM and back at every pair of tiles.

S and P live in SRAM. Forward is Algorithm 1 of the paper and backward its Algorithm 4, with two
liberties: lse is kept instead of m and l, and a tile that the mask hides is not visited.

References
----------
Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS
2022.
"""

import numpy as np

from ..machine import Machine
from ..memory import Tile, extent
from .softmax import exponentials, log_sum_exp, merged, row_dot, tile_softmax, weighted

FORWARD_LINES = {
    "forward": (
        "store 0 to O, 0 to l, -inf to m",
        "load K_j, V_j",
        "load Q_i, O_i, l_i, m_i",
        "S = scale Q_i K_jᵀ",
        "mask S",
        "m̃ = rowmax S,  P̃ = exp(S - m̃),  l̃ = rowsum P̃",
        "m = max(m_i, m̃),  l = e^(m_i - m) l_i + e^(m̃ - m) l̃",
        "O_i = (l_i e^(m_i - m) O_i + e^(m̃ - m) P̃ V_j) / l",
        "store O_i, l, m",
        "load m_i, l_i",
        "lse = m + log l",
        "store lse_i",
    )
}

BACKWARD_LINES = {
    "backward": (
        "store 0 to dQ",
        "load K_j, V_j",
        "load Q_i, O_i, dO_i, dQ_i, lse_i",
        "S = scale Q_i K_jᵀ",
        "mask S",
        "P = exp(S - lse)",
        "dV = dV + Pᵀ dO_i",
        "dP = dO_i V_jᵀ",
        "D = rowsum(dO_i ∘ O_i)",
        "dS = scale P ∘ (dP - D)",
        "dQ_i = dQ_i + dS K_j",
        "store dQ_i",
        "dK = dK + dSᵀ Q_i",
        "store dK_j, dV_j",
    )
}


def forward(gpu: Machine) -> None:
    """O and lse; reads and rewrites O, m and l once a visited pair of tiles.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V in HBM; O, LSE, m and l are written.
    """
    K, V, O = gpu.tensor("K"), gpu.tensor("V"), gpu.tensor("O")
    L, M, LSE = gpu.tensor("l"), gpu.tensor("m"), gpu.tensor("LSE")
    gpu.kernel("forward")
    for head in gpu.head_grid():
        for _, rows in gpu.all_query_tiles(head):
            gpu.fill("store 0 to O, 0 to l, -inf to m", O[head, rows], 0.0)
            gpu.fill("store 0 to O, 0 to l, -inf to m", L[head, rows], 0.0)
            gpu.fill("store 0 to O, 0 to l, -inf to m", M[head, rows], -np.inf)
        for n_block, cols in gpu.outer_key_tiles():
            if not gpu.is_seen(n_block, [head]):
                continue
            sK = gpu.load("load K_j, V_j", K[cols])
            sV = gpu.load("load K_j, V_j", V[cols])
            for _, rows in gpu.query_tiles(head, n_block):
                attend(gpu, head, rows, cols, sK, sV)
            gpu.free(sK, sV)
        for _, rows in gpu.all_query_tiles(head):
            sM = gpu.load("load m_i, l_i", M[head, rows])
            sL = gpu.load("load m_i, l_i", L[head, rows])
            lse = gpu.in_registers("lse", (extent(rows),))
            gpu.compute("lse = m + log l", (lse,), (sM, sL), log_sum_exp)
            gpu.store("store lse_i", LSE[head, rows], lse)
            gpu.free(sM, sL)


def attend(gpu: Machine, head: int, rows: slice, cols: slice, sK: Tile, sV: Tile) -> None:
    """Merge what one query tile finds in one key tile into its O, m and l in HBM."""
    names = ("Q", "O", "l", "m")
    O, L, M = (gpu.tensor(name)[head, rows] for name in names[1:])
    sQ, sO, sL, sM = (
        gpu.load("load Q_i, O_i, l_i, m_i", gpu.tensor(name)[head, rows]) for name in names
    )
    r, c = extent(rows), extent(cols)
    sS = gpu.in_sram("S", (r, c))
    gpu.product("S = scale Q_i K_jᵀ", sS, sQ, sK.T, scale=gpu.scale)
    gpu.change_scores("mask S", sS, head, rows, cols)

    sP = sS  # in place
    tile_max, tile_sum = gpu.in_registers("m̃", (r,)), gpu.in_registers("l̃", (r,))
    line = "m̃ = rowmax S,  P̃ = exp(S - m̃),  l̃ = rowsum P̃"
    gpu.compute(line, (sP, tile_max, tile_sum), (sS,), tile_softmax, exp=r * c)

    row_max, row_sum = gpu.in_registers("m", (r,)), gpu.in_registers("l", (r,))
    alpha = gpu.in_registers("α", (r,))
    shares = gpu.in_registers("share of O", (r,)), gpu.in_registers("share of P̃ V", (r,))
    gpu.compute(
        "m = max(m_i, m̃),  l = e^(m_i - m) l_i + e^(m̃ - m) l̃",
        (row_max, row_sum, alpha, *shares),
        (sM, sL, tile_max, tile_sum),
        merged,
        exp=2 * r,
    )
    gpu.watch(row_max=row_max, row_sum=row_sum, rescale=alpha, O=sO)

    rPV = gpu.in_registers("P̃ V", (r, gpu.v))
    line = "O_i = (l_i e^(m_i - m) O_i + e^(m̃ - m) P̃ V_j) / l"
    gpu.product(line, rPV, gpu.drop(sP, head, rows, cols), sV)
    gpu.compute(line, (sO,), (sO, rPV, *shares), weighted)

    gpu.store("store O_i, l, m", O, sO)
    gpu.store("store O_i, l, m", L, row_sum)
    gpu.store("store O_i, l, m", M, row_max)
    gpu.free(sQ, sO, sL, sM, sS)


def backward(gpu: Machine) -> None:
    """dQ, dK, dV; dQ goes to HBM and back at every visited pair of tiles, dK and dV stay in SRAM.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V, O, LSE, dO (and dLSE, if lse has a gradient) in HBM.
    """
    K, V, dQ, dK, dV = (gpu.tensor(name) for name in ("K", "V", "dQ", "dK", "dV"))
    gpu.kernel("backward")
    for heads in gpu.kv_head_grid():
        for head in heads:
            for _, rows in gpu.all_query_tiles(head):
                gpu.fill("store 0 to dQ", dQ[head, rows], 0.0)
        for n_block, cols in gpu.outer_key_tiles():
            if not gpu.is_seen(n_block):
                gpu.fill("store dK_j, dV_j", dK[cols], 0.0)
                gpu.fill("store dK_j, dV_j", dV[cols], 0.0)
                continue
            sK = gpu.load("load K_j, V_j", K[cols])
            sV = gpu.load("load K_j, V_j", V[cols])
            sdK = gpu.in_sram("dK", sK.shape, 0.0)
            sdV = gpu.in_sram("dV", sV.shape, 0.0)
            for head in heads:
                for _, rows in gpu.query_tiles(head, n_block):
                    add_gradients(gpu, head, rows, cols, sK, sV, sdK, sdV)
            gpu.store("store dK_j, dV_j", dK[cols], sdK)
            gpu.store("store dK_j, dV_j", dV[cols], sdV)
            gpu.free(sdK, sdV, sK, sV)


def add_gradients(
    gpu: Machine, head: int, rows: slice, cols: slice, sK: Tile, sV: Tile, sdK: Tile, sdV: Tile
) -> None:
    """Add what one pair of tiles gives to dK_j and dV_j in SRAM and to dQ_i in HBM."""
    names = ("Q", "O", "dO", "dQ", "LSE", *(["dLSE"] if gpu.lse_gradient else []))
    sQ, sO, sdO, sdQ, sLSE, *sdLSE = loaded = [
        gpu.load("load Q_i, O_i, dO_i, dQ_i, lse_i", gpu.tensor(name)[head, rows]) for name in names
    ]
    r, c = extent(rows), extent(cols)
    sS = gpu.in_sram("S", (r, c))
    gpu.product("S = scale Q_i K_jᵀ", sS, sQ, sK.T, scale=gpu.scale)
    chain = gpu.change_scores("mask S", sS, head, rows, cols)
    sP = sS  # in place
    gpu.compute("P = exp(S - lse)", (sP,), (sS, sLSE), exponentials, exp=r * c)
    gpu.product("dV = dV + Pᵀ dO_i", sdV, gpu.drop(sP, head, rows, cols).T, sdO, add=True)

    sdP = gpu.in_sram("dP", (r, c))
    gpu.product("dP = dO_i V_jᵀ", sdP, sdO, sV.T)
    delta = gpu.in_registers("D", (r,))
    gpu.compute("D = rowsum(dO_i ∘ O_i)", (delta,), (sdO, sO), row_dot)

    def gradient(P, dP, D, dlse=0.0):
        dP = dP * gpu.kept(head, rows, cols)
        return gpu.score_gradient(P * (dP - (D - dlse)[:, None]), chain, head, rows, cols)

    sdS = sdP  # in place
    gpu.compute("dS = scale P ∘ (dP - D)", (sdS,), (sP, sdP, delta, *sdLSE), gradient)
    gpu.watch(P=sP, dS=sdS, lse=sLSE, delta=delta)

    gpu.product("dQ_i = dQ_i + dS K_j", sdQ, sdS, sK, add=True)
    gpu.store("store dQ_i", gpu.tensor("dQ")[head, rows], sdQ)
    gpu.product("dK = dK + dSᵀ Q_i", sdK, sdS.T, sQ, add=True)
    gpu.free(*loaded, sS, sdP)
