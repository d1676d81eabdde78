import numpy as np


def backward(gpu):
    """delta, then dK and dV by key tiles, then dQ by query tiles: nothing is added up in HBM."""
    K, V, dQ, dK, dV = (gpu.tensor(name) for name in ("K", "V", "dQ", "dK", "dV"))
    gpu.kernel("delta")
    delta_pass(gpu)
    gpu.kernel("dK dV")
    for _, cols in gpu.key_tile_grid():
        sK, sV = gpu.load("load K_j", K[cols]), gpu.load("load V_j", V[cols])
        acc_dk = gpu.in_registers("dK", sK.shape, 0.0)
        acc_dv = gpu.in_registers("dV", sV.shape, 0.0)
        for _, rows in gpu.all_query_tiles(0):
            query_side = load_query_side(gpu, rows)
            rP, rdS = recompute(gpu, *query_side, sK, sV)
            gpu.product("dV = dV + Pᵀ dO_i", acc_dv, rP.T, query_side[1], add=True)
            gpu.product("dK = dK + dSᵀ Q_i", acc_dk, rdS.T, query_side[0], add=True)
            gpu.free(*query_side)
        gpu.store("store dK_j", dK[cols], acc_dk)
        gpu.store("store dV_j", dV[cols], acc_dv)
        gpu.free(sK, sV)
    gpu.kernel("dQ")
    for head, _, rows in gpu.query_tile_grid():
        query_side = load_query_side(gpu, rows)
        acc_dq = gpu.in_registers("dQ", query_side[0].shape, 0.0)
        for _, cols in gpu.all_key_tiles():
            sK, sV = gpu.load("load K_j", K[cols]), gpu.load("load V_j", V[cols])
            _, rdS = recompute(gpu, *query_side, sK, sV)
            gpu.product("dQ = dQ + dS K_j", acc_dq, rdS, sK, add=True)
            gpu.free(sK, sV)
        gpu.store("store dQ_i", dQ[head, rows], acc_dq)
        gpu.free(*query_side)


def delta_pass(gpu):
    """delta = rowsum(dO ∘ O)."""
    for head, _, rows in gpu.query_tile_grid():
        sO = gpu.load("load O_i", gpu.tensor("O")[head, rows])
        sdO = gpu.load("load dO_i", gpu.tensor("dO")[head, rows])
        delta = gpu.in_registers("delta", sO.shape[:1])
        gpu.compute("rowsum(dO ∘ O)", (delta,), (sO, sdO), lambda a, b: (a * b).sum(axis=1))
        gpu.store("store delta_i", gpu.tensor("delta")[head, rows], delta)
        gpu.free(sO, sdO)


def load_query_side(gpu, rows):
    """Q_i, dO_i, lse_i and delta_i."""
    names = ("Q", "dO", "LSE", "delta")
    return [gpu.load(f"load {name}_i", gpu.tensor(name)[0, rows]) for name in names]


def recompute(gpu, sQ, sdO, sLSE, sDelta, sK, sV):
    """P and dS of one pair of tiles, in registers."""
    shape = (sQ.shape[0], sK.shape[0])
    rP, rdS = gpu.in_registers("P", shape), gpu.in_registers("dS", shape)
    gpu.product("S = scale Q_i K_jᵀ", rP, sQ, sK.T, scale=gpu.scale)
    gpu.compute("P = exp(S - lse)", (rP,), (rP, sLSE), lambda S, lse: np.exp(S - lse[:, None]))
    gpu.product("dP = dO_i V_jᵀ", rdS, sdO, sV.T)

    def gradient(P, dP, delta):
        return np.float32(gpu.scale) * P * (dP - delta[:, None])

    gpu.compute("dS = scale P ∘ (dP - delta)", (rdS,), (rP, rdS, sDelta), gradient)
    return rP, rdS
