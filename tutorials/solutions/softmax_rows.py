import numpy as np


def softmax_rows(gpu):
    """Two passes over S: learn the maximum and the sum, then use them."""
    S, P = gpu.tensor("S"), gpu.tensor("P")
    for head, _, rows in gpu.query_tile_grid():
        row_max = gpu.in_registers("m", (rows.stop - rows.start,), -np.inf)
        row_sum = gpu.in_registers("l", (rows.stop - rows.start,), 0.0)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load S_ij", S[head, rows, cols])
            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), merged)
            gpu.free(sS)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load S_ij again", S[head, rows, cols])
            rP = gpu.in_registers("P", sS.shape)
            gpu.compute("P = exp(S - m) / l", (rP,), (sS, row_max, row_sum), weights)
            gpu.store("store P_ij", P[head, rows, cols], rP)
            gpu.free(sS)


def merged(m, l, S):
    """Maximum and sum with one tile more."""
    m_new = np.maximum(m, S.max(axis=1))
    l_new = l * np.exp(m - m_new) + np.exp(S - m_new[:, None]).sum(axis=1)
    return m_new, l_new


def weights(S, m, l):
    """One tile of the softmax."""
    return np.exp(S - m[:, None]) / l[:, None]
