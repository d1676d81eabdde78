import numpy as np


def fused_lse(gpu):
    """A tile of S is made, used and forgotten in registers."""
    Q, K, LSE = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("LSE")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        row_max = gpu.in_registers("m", sQ.shape[:1], -np.inf)
        row_sum = gpu.in_registers("l", sQ.shape[:1], 0.0)
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, rS), merged)
            gpu.free(sK)
        lse = gpu.in_registers("lse", sQ.shape[:1])
        gpu.compute("lse = m + log l", (lse,), (row_max, row_sum), lambda m, l: m + np.log(l))
        gpu.store("store lse_i", LSE[head, rows], lse)
        gpu.free(sQ)


def merged(m, l, S):
    """Maximum and sum with one tile more."""
    m_new = np.maximum(m, S.max(axis=1))
    l_new = l * np.exp(m - m_new) + np.exp(S - m_new[:, None]).sum(axis=1)
    return m_new, l_new
