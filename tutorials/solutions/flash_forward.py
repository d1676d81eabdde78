import numpy as np


def flash_forward(gpu):
    """FlashAttention-2: Q once, K and V once a query tile, S and P never in HBM."""
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    O, LSE = gpu.tensor("O"), gpu.tensor("LSE")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        acc_o = gpu.in_registers("O", (sQ.shape[0], gpu.v), 0.0)
        row_max = gpu.in_registers("m", sQ.shape[:1], -np.inf)
        row_sum = gpu.in_registers("l", sQ.shape[:1], 0.0)
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
            state = (rS, row_max, row_sum, acc_o)
            gpu.compute("P, m, l, O = α O", state, state, softmax_step)
            sV = gpu.load("load V_j", V[cols])
            gpu.product("O = O + P V_j", acc_o, rS, sV, add=True)
            gpu.free(sK, sV)
        lse = gpu.in_registers("lse", sQ.shape[:1])
        gpu.compute("O / l, m + log l", (acc_o, lse), (acc_o, row_max, row_sum), normalised)
        gpu.store("store O_i", O[head, rows], acc_o)
        gpu.store("store lse_i", LSE[head, rows], lse)
        gpu.free(sQ)


def softmax_step(S, m, l, O):
    """P in place of S; what was summed so far shrinks by α."""
    m_new = np.maximum(m, S.max(axis=1))
    alpha = np.exp(m - m_new)
    P = np.exp(S - m_new[:, None])
    return P, m_new, alpha * l + P.sum(axis=1), alpha[:, None] * O


def normalised(O, m, l):
    """O and lse of the whole row."""
    return O / l[:, None], m + np.log(l)
