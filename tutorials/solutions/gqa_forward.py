import numpy as np


def gqa_forward(gpu):
    """Each tile of K and V serves every head before it is freed."""
    Q, K, V = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("V")
    O, LSE = gpu.tensor("O"), gpu.tensor("LSE")
    for heads in gpu.kv_head_grid():
        for _, rows in gpu.all_query_tiles(0):
            r = rows.stop - rows.start
            sQ = [gpu.load("load Q_i", Q[head, rows]) for head in heads]
            acc = [gpu.in_registers(f"O{head}", (r, gpu.v), 0.0) for head in heads]
            row_max = [gpu.in_registers(f"m{head}", (r,), -np.inf) for head in heads]
            row_sum = [gpu.in_registers(f"l{head}", (r,), 0.0) for head in heads]
            for _, cols in gpu.all_key_tiles():
                sK = gpu.load("load K_j", K[cols])
                sV = gpu.load("load V_j", V[cols])
                for head in heads:
                    rS = gpu.in_registers("S", (r, sK.shape[0]))
                    gpu.product("S = scale Q_i K_jᵀ", rS, sQ[head], sK.T, scale=gpu.scale)
                    state = (rS, row_max[head], row_sum[head], acc[head])
                    gpu.compute("P, m, l, O = α O", state, state, softmax_step)
                    gpu.product("O = O + P V_j", acc[head], rS, sV, add=True)
                gpu.free(sK, sV)
            for head in heads:
                lse = gpu.in_registers("lse", (r,))
                state = (acc[head], row_max[head], row_sum[head])
                gpu.compute("O / l, m + log l", (acc[head], lse), state, normalised)
                gpu.store("store O_i", O[head, rows], acc[head])
                gpu.store("store lse_i", LSE[head, rows], lse)
            gpu.free(*sQ)


def softmax_step(S, m, l, O):
    """P in place of S; what was summed so far shrinks by α."""
    m_new = np.maximum(m, S.max(axis=1))
    alpha = np.exp(m - m_new)
    P = np.exp(S - m_new[:, None])
    return P, m_new, alpha * l + P.sum(axis=1), alpha[:, None] * O


def normalised(O, m, l):
    """O and lse of the whole row."""
    return O / l[:, None], m + np.log(l)
