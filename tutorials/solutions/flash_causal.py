import numpy as np


def flash_causal(gpu):
    """flash_forward that skips the tiles it does not see and survives rows without keys."""
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    O, LSE = gpu.tensor("O"), gpu.tensor("LSE")
    for head, m_block, rows in gpu.query_tile_grid():
        if not gpu.sees_keys(head, m_block):
            gpu.fill("store O_i", O[head, rows], 0.0)
            gpu.fill("store lse_i", LSE[head, rows], -np.inf)
            continue
        sQ = gpu.load("load Q_i", Q[head, rows])
        acc_o = gpu.in_registers("O", (sQ.shape[0], gpu.v), 0.0)
        row_max = gpu.in_registers("m", sQ.shape[:1], -np.inf)
        row_sum = gpu.in_registers("l", sQ.shape[:1], 0.0)
        for _, cols in gpu.key_tiles(head, m_block):
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q_i K_jᵀ", rS, sQ, sK.T, scale=gpu.scale)
            gpu.change_scores("mask S", rS, head, rows, cols)
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
    """A row that has seen no key keeps m = -inf; subtracting 0 instead avoids -inf - -inf."""
    m_new = np.maximum(m, S.max(axis=1))
    safe = np.where(np.isneginf(m_new), 0, m_new)
    alpha = np.exp(m - safe)
    P = np.exp(S - safe[:, None])
    return P, m_new, alpha * l + P.sum(axis=1), alpha[:, None] * O


def normalised(O, m, l):
    """O and lse; 0 and -inf for a row without keys."""
    return O / np.where(l == 0, 1, l)[:, None], m + np.log(np.where(l == 0, 1, l))
