import numpy as np


def flash1_forward(gpu):
    """FlashAttention-1: K and V once; O, m and l rewritten for every key tile."""
    Q, K, V, O = (gpu.tensor(name) for name in ("Q", "K", "V", "O"))
    m, l = gpu.tensor("m"), gpu.tensor("l")
    for head in gpu.head_grid():
        gpu.fill("O = 0", O[head, gpu.all_rows], 0.0)
        gpu.fill("l = 0", l[head, gpu.all_rows], 0.0)
        gpu.fill("m = -∞", m[head, gpu.all_rows], -np.inf)
        for _, cols in gpu.outer_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            sV = gpu.load("load V_j", V[cols])
            for _, rows in gpu.all_query_tiles(head):
                sQ = gpu.load("load Q_i", Q[head, rows])
                sO = gpu.load("load O_i", O[head, rows])
                sm = gpu.load("load m_i", m[head, rows])
                sl = gpu.load("load l_i", l[head, rows])
                rP = gpu.in_registers("P", (sQ.shape[0], sK.shape[0]))
                gpu.product("S = scale Q_i K_jᵀ", rP, sQ, sK.T, scale=gpu.scale)
                state = (rP, sm, sl, sO)
                gpu.compute("P, m, l, O unnormalised", state, state, softmax_step)
                rO = gpu.in_registers("O", sO.shape)
                gpu.product("P V_j", rO, rP, sV)
                gpu.compute("O = (O + P V_j) / l", (sO,), (sO, rO, sl), normalised)
                gpu.store("store O_i", O[head, rows], sO)
                gpu.store("store m_i", m[head, rows], sm)
                gpu.store("store l_i", l[head, rows], sl)
                gpu.free(sQ, sO, sm, sl)
            gpu.free(sK, sV)


def softmax_step(S, m, l, O):
    """O was normalised by the old l: undo that, and shrink it by α."""
    m_new = np.maximum(m, S.max(axis=1))
    alpha = np.exp(m - m_new)
    P = np.exp(S - m_new[:, None])
    return P, m_new, alpha * l + P.sum(axis=1), (alpha * l)[:, None] * O


def normalised(O, PV, l):
    """O of all keys so far."""
    return (O + PV) / l[:, None]
