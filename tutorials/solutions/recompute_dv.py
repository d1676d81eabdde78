import numpy as np


def recompute_dv(gpu):
    """P is made again from Q, K and LSE; dV_j stays in registers."""
    Q, K, dO = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("dO")
    LSE, dV = gpu.tensor("LSE"), gpu.tensor("dV")
    for _, cols in gpu.key_tile_grid():
        sK = gpu.load("load K_j", K[cols])
        acc_dv = gpu.in_registers("dV", (sK.shape[0], gpu.v), 0.0)
        for _, rows in gpu.all_query_tiles(0):
            sQ = gpu.load("load Q_i", Q[0, rows])
            sdO = gpu.load("load dO_i", dO[0, rows])
            sLSE = gpu.load("load lse_i", LSE[0, rows])
            rP = gpu.in_registers("P", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q_i K_jᵀ", rP, sQ, sK.T, scale=gpu.scale)
            gpu.compute("P = exp(S - lse)", (rP,), (rP, sLSE), weights)
            gpu.product("dV = dV + Pᵀ dO_i", acc_dv, rP.T, sdO, add=True)
            gpu.free(sQ, sdO, sLSE)
        gpu.store("store dV_j", dV[cols], acc_dv)
        gpu.free(sK)


def weights(S, lse):
    """P of one tile."""
    return np.exp(S - lse[:, None])
