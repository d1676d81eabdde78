import numpy as np


def online_lse(gpu):
    """One pass: when the maximum rises, the sum so far shrinks."""
    S, LSE = gpu.tensor("S"), gpu.tensor("LSE")
    for head, _, rows in gpu.query_tile_grid():
        row_max = gpu.in_registers("m", (rows.stop - rows.start,), -np.inf)
        row_sum = gpu.in_registers("l", (rows.stop - rows.start,), 0.0)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load S_ij", S[head, rows, cols])
            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), merged)
            gpu.free(sS)
        lse = gpu.in_registers("lse", (rows.stop - rows.start,))
        gpu.compute("lse = m + log l", (lse,), (row_max, row_sum), lambda m, l: m + np.log(l))
        gpu.store("store lse_i", LSE[head, rows], lse)


def merged(m, l, S):
    """Maximum and sum with one tile more."""
    m_new = np.maximum(m, S.max(axis=1))
    l_new = l * np.exp(m - m_new) + np.exp(S - m_new[:, None]).sum(axis=1)
    return m_new, l_new
