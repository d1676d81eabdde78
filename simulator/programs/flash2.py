"""FlashAttention-2: query tiles outside, O in registers, nothing of size N x M anywhere.

Forward is Algorithm 1 of the paper. Backward comes in two forms after a common pass for
delta = rowsum(dO * O): Algorithm 2 as one kernel that owns key tiles and adds dQ up in HBM
atomically, and a deterministic form of two kernels that recomputes S and dP once more instead.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
"""

import numpy as np

from ..machine import Machine
from ..memory import Tile, extent
from .softmax import (
    exponentials,
    normalised,
    rescaled,
    row_dot,
    running_max,
    running_sum,
    unscaled,
)

FORWARD_LINES = {
    "forward": (
        "load Q_i",
        "load K_j",
        "S = scale Q_i K_jᵀ",
        "mask S",
        "m = max(m, rowmax S),  α = exp(m_old - m)",
        "P = exp(S - m)",
        "l = α l + rowsum P",
        "O = α O",
        "load V_j",
        "O = O + P V_j",
        "O = O / l,  lse = m + log l",
        "store O_i",
        "store lse_i",
    )
}

DELTA_LINES = ("load O_i, dO_i", "delta = rowsum(dO ∘ O)", "store delta_i")

KEY_TILE_LINES = (
    "load K_j, V_j",
    "load Q_i, dO_i, lse_i, delta_i",
    "S = scale Q_i K_jᵀ",
    "mask S",
    "P = exp(S - lse)",
    "dV = dV + Pᵀ dO_i",
    "dP = dO_i V_jᵀ",
    "dS = scale P ∘ (dP - delta)",
    "dK = dK + dSᵀ Q_i",
    "dQ_i = dQ_i + dS K_j  (atomic add)",
    "store dK_j, dV_j",
)

BACKWARD_LINES = {
    "delta": DELTA_LINES,
    "zero dQ": ("store 0 to dQ_i",),
    "dK dV dQ": KEY_TILE_LINES,
}

TWO_KERNEL_LINES = {
    "delta": DELTA_LINES,
    "dQ": (
        "load Q_i, dO_i, lse_i, delta_i",
        "load K_j, V_j",
        "S = scale Q_i K_jᵀ",
        "mask S",
        "P = exp(S - lse)",
        "dP = dO_i V_jᵀ",
        "dS = scale P ∘ (dP - delta)",
        "dQ = dQ + dS K_j",
        "store dQ_i",
    ),
    "dK dV": tuple(line for line in KEY_TILE_LINES if "atomic" not in line),
}


def forward(gpu: Machine, rescale: bool = True) -> None:
    """O and lse; reads each Q tile once, K and V once a visited tile.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V in HBM; O and LSE are written.
    rescale : bool
        False leaves out ``O = α O``: see `softmax.unscaled`.
    """
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    O, LSE = gpu.tensor("O"), gpu.tensor("LSE")
    gpu.kernel("forward")
    for head, m_block, rows in gpu.query_tile_grid():
        r = extent(rows)
        if not gpu.sees_keys(head, m_block):
            gpu.fill("store O_i", O[head, rows], 0.0)
            gpu.fill("store lse_i", LSE[head, rows], -np.inf)
            continue
        sQ = gpu.load("load Q_i", Q[head, rows])
        acc_o = gpu.in_registers("O", (r, gpu.v), 0.0)
        row_max = gpu.in_registers("m", (r,), -np.inf)
        row_sum = gpu.in_registers("l", (r,), 0.0)
        alpha = gpu.in_registers("α", (r,), 1.0)
        gpu.watch(row_max=row_max, row_sum=row_sum, rescale=alpha, O=acc_o)
        for _, cols in gpu.key_tiles(head, m_block):
            c = extent(cols)
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (r, c))
            gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
            gpu.change_scores("mask S", rS, head, rows, cols)
            gpu.compute(
                "m = max(m, rowmax S),  α = exp(m_old - m)",
                (row_max, alpha),
                (rS, row_max),
                running_max,
                exp=r,
            )
            rP = rS  # in place
            gpu.compute("P = exp(S - m)", (rP,), (rS, row_max), exponentials, exp=r * c)
            gpu.compute("l = α l + rowsum P", (row_sum,), (rP, alpha, row_sum), running_sum)
            gpu.compute("O = α O", (acc_o,), (acc_o, alpha), rescaled if rescale else unscaled)
            sV = gpu.load("load V_j", V[cols])
            kept = gpu.drop(rP, head, rows, cols)
            gpu.product("O = O + P V_j", acc_o, kept, sV, add=True)
            gpu.free(sK, sV)
        lse = gpu.in_registers("lse", (r,))
        gpu.compute(
            "O = O / l,  lse = m + log l", (acc_o, lse), (acc_o, row_max, row_sum), normalised
        )
        gpu.store("store O_i", O[head, rows], acc_o)
        gpu.store("store lse_i", LSE[head, rows], lse)
        gpu.free(sQ)


def backward(gpu: Machine) -> None:
    """dQ, dK, dV in one kernel that owns key tiles; dQ is added up atomically.

    Parameters
    ----------
    gpu : Machine
        With Q, K, V, O, LSE, dO (and dLSE, if lse has a gradient) in HBM.
    """
    delta_pass(gpu)
    gpu.kernel("zero dQ")
    for head, rows in gpu.row_grid():
        gpu.fill("store 0 to dQ_i", gpu.tensor("dQ")[head, rows], 0.0)
    gpu.kernel("dK dV dQ")
    key_tile_blocks(gpu, accumulate_dq=True)


def backward_two_kernels(gpu: Machine) -> None:
    """dQ, dK, dV in two kernels, each owning what it writes: no atomics, the same bits each time.

    Parameters
    ----------
    gpu : Machine
        As for `backward`.
    """
    delta_pass(gpu)
    gpu.kernel("dQ")
    query_tile_blocks(gpu)
    gpu.kernel("dK dV")
    key_tile_blocks(gpu, accumulate_dq=False)


def delta_pass(gpu: Machine) -> None:
    """delta = rowsum(dO * O), minus the gradient through lse if there is one."""
    O, dO, delta = gpu.tensor("O"), gpu.tensor("dO"), gpu.tensor("delta")
    gpu.kernel("delta")
    for head, rows in gpu.row_grid():
        sO = gpu.load("load O_i, dO_i", O[head, rows])
        sdO = gpu.load("load O_i, dO_i", dO[head, rows])
        r_delta = gpu.in_registers("delta", (extent(rows),))
        gpu.compute("delta = rowsum(dO ∘ O)", (r_delta,), (sO, sdO), row_dot)
        if gpu.lse_gradient:
            sdLSE = gpu.load("load O_i, dO_i", gpu.tensor("dLSE")[head, rows])
            gpu.compute("delta = rowsum(dO ∘ O)", (r_delta,), (r_delta, sdLSE), np.subtract)
            gpu.free(sdLSE)
        gpu.store("store delta_i", delta[head, rows], r_delta)
        gpu.free(sO, sdO)


def query_tile_blocks(gpu: Machine) -> None:
    """One block per query tile: dQ stays in registers while key tiles pass by."""
    K, V, dQ = gpu.tensor("K"), gpu.tensor("V"), gpu.tensor("dQ")
    for head, m_block, rows in gpu.query_tile_grid():
        if not gpu.sees_keys(head, m_block):
            gpu.fill("store dQ_i", dQ[head, rows], 0.0)
            continue
        sQ, sdO, sLSE, sDelta = load_query_side(gpu, head, rows)
        acc_dq = gpu.in_registers("dQ", (extent(rows), gpu.d), 0.0)
        for _, cols in gpu.key_tiles(head, m_block):
            sK = gpu.load("load K_j, V_j", K[cols])
            sV = gpu.load("load K_j, V_j", V[cols])
            rP, chain = recompute_weights(gpu, head, rows, cols, sQ, sK, sLSE)
            rdS = score_gradient(gpu, head, rows, cols, rP, sdO, sV, sDelta, chain, aux=False)
            gpu.watch(P=rP, dS=rdS, lse=sLSE, delta=sDelta)
            gpu.product("dQ = dQ + dS K_j", acc_dq, rdS, sK, add=True)
            gpu.free(sK, sV)
        gpu.store("store dQ_i", dQ[head, rows], acc_dq)
        gpu.free(sQ, sdO, sLSE, sDelta)


def key_tile_blocks(gpu: Machine, *, accumulate_dq: bool) -> None:
    """One block per key tile: dK and dV stay in registers while query tiles pass by."""
    K, V, dQ, dK, dV = (gpu.tensor(name) for name in ("K", "V", "dQ", "dK", "dV"))
    for n_block, cols in gpu.key_tile_grid():
        c = extent(cols)
        if not gpu.is_seen(n_block):
            gpu.fill("store dK_j, dV_j", dK[cols], 0.0)
            gpu.fill("store dK_j, dV_j", dV[cols], 0.0)
            continue
        sK = gpu.load("load K_j, V_j", K[cols])
        sV = gpu.load("load K_j, V_j", V[cols])
        acc_dk = gpu.in_registers("dK", (c, gpu.d), 0.0)
        acc_dv = gpu.in_registers("dV", (c, gpu.v), 0.0)
        for head in range(len(gpu.heads)):
            for _, rows in gpu.query_tiles(head, n_block):
                sQ, sdO, sLSE, sDelta = load_query_side(gpu, head, rows)
                rP, chain = recompute_weights(gpu, head, rows, cols, sQ, sK, sLSE)
                kept = gpu.drop(rP, head, rows, cols)
                gpu.product("dV = dV + Pᵀ dO_i", acc_dv, kept.T, sdO, add=True)
                rdS = score_gradient(gpu, head, rows, cols, rP, sdO, sV, sDelta, chain)
                gpu.watch(P=rP, dS=rdS, lse=sLSE, delta=sDelta)
                gpu.product("dK = dK + dSᵀ Q_i", acc_dk, rdS.T, sQ, add=True)
                if accumulate_dq:
                    line = "dQ_i = dQ_i + dS K_j  (atomic add)"
                    rdQ = gpu.in_registers("dQ", (extent(rows), gpu.d))
                    gpu.product(line, rdQ, rdS, sK)
                    gpu.accumulate(line, dQ[head, rows], rdQ)
                gpu.free(sQ, sdO, sLSE, sDelta)
        gpu.store("store dK_j, dV_j", dK[cols], acc_dk)
        gpu.store("store dK_j, dV_j", dV[cols], acc_dv)
        gpu.free(sK, sV)


def load_query_side(gpu: Machine, head: int, rows: slice) -> list[Tile]:
    """Q_i, dO_i, lse_i and delta_i into SRAM."""
    names = ("Q", "dO", "LSE", "delta")
    return [gpu.load("load Q_i, dO_i, lse_i, delta_i", gpu.tensor(n)[head, rows]) for n in names]


def recompute_weights(
    gpu: Machine, head: int, rows: slice, cols: slice, sQ: Tile, sK: Tile, sLSE: Tile
) -> tuple[Tile, tuple]:
    """P of one tile from Q, K and lse, in registers; and the chain of its score changes."""
    shape = r, c = extent(rows), extent(cols)
    rS = gpu.in_registers("S", shape)
    gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
    chain = gpu.change_scores("mask S", rS, head, rows, cols)
    rP = rS  # in place
    gpu.compute("P = exp(S - lse)", (rP,), (rS, sLSE), exponentials, exp=r * c)
    return rP, chain


def score_gradient(
    gpu: Machine,
    head: int,
    rows: slice,
    cols: slice,
    rP: Tile,
    sdO: Tile,
    sV: Tile,
    sDelta: Tile,
    chain: tuple,
    aux: bool = True,
) -> Tile:
    """dS of one tile from P, dO, V and delta, in registers."""
    rdP = gpu.in_registers("dP", rP.shape)
    gpu.product("dP = dO_i V_jᵀ", rdP, sdO, sV.T)

    def gradient(P, dP, delta):
        dP = dP * gpu.kept(head, rows, cols)
        return gpu.score_gradient(P * (dP - delta[:, None]), chain, head, rows, cols, aux=aux)

    rdS = rdP  # in place
    gpu.compute("dS = scale P ∘ (dP - delta)", (rdS,), (rP, rdP, sDelta), gradient)
    return rdS
