"""Tile programs of the backward pass."""

import numpy as np


def _rowsum(a, b):
    return (a * b).sum(axis=1)


def _delta(gpu, left="dO", right="O", function=_rowsum, reload=False):
    for h, _, rows in gpu.query_tile_grid():
        a = gpu.load("a", gpu.tensor(left)[h, rows])
        b = gpu.load("b", gpu.tensor(right)[h, rows])
        if reload:
            gpu.compute("look", (b,), (b,), lambda b: b)
            gpu.free(b)
            b = gpu.load("b again", gpu.tensor(right)[h, rows])
        d = gpu.in_registers("delta", (a.shape[0],))
        gpu.compute("delta", (d,), (a, b), function)
        gpu.store("delta_i", gpu.tensor("delta")[h, rows], d)
        gpu.free(a, b)


def delta_right(gpu):
    _delta(gpu)


def delta_mean(gpu):
    _delta(gpu, function=lambda a, b: (a * b).mean(axis=1))


def delta_do_do(gpu):
    _delta(gpu, right="dO")


def delta_reload(gpu):
    _delta(gpu, reload=True)


def delta_column_sum(gpu):
    _delta(gpu, function=lambda a, b: (a * b).sum(axis=0))


def delta_from_q(gpu):
    _delta(gpu, right="Q")


def _dv(gpu, bug=""):
    Q, K, dO, LSE, dV = (gpu.tensor(n) for n in ("Q", "K", "dO", "LSE", "dV"))
    for _, cols in gpu.key_tile_grid():
        k = gpu.load("K_j", K[cols])
        c = cols.stop - cols.start
        acc = gpu.in_registers("dV", (c, gpu.v), 0.0)
        for i, rows in gpu.all_query_tiles(0):
            if bug == "K inside" and i:
                gpu.free(k)
                k = gpu.load("K_j", K[cols])
            q, g = gpu.load("Q_i", Q[0, rows]), gpu.load("dO_i", dO[0, rows])
            s = gpu.load("LSE_i", LSE[0, rows])
            p = gpu.in_registers("P", (q.shape[0], c))
            gpu.product("S", p, q, k.T, scale=1.0 if bug == "no scale" else gpu.scale)
            if bug == "no lse":
                gpu.compute("P", (p,), (p, s), lambda x, s: np.exp(x - x.max(1)[:, None]))
            else:
                gpu.compute("P", (p,), (p, s), lambda x, s: np.exp(x - s[:, None]), exp=p.size)
            gpu.product("dV += Pt dO", acc, p.T, g, add=bug != "no add")
            if bug == "stores P":
                gpu.store("P", gpu.tensor("P")[0, rows, cols], p)
            gpu.free(q, g, s)
        gpu.store("dV_j", dV[cols], acc)
        gpu.free(k)


def dv_right(gpu):
    _dv(gpu)


def dv_no_scale(gpu):
    _dv(gpu, "no scale")


def dv_no_lse(gpu):
    _dv(gpu, "no lse")


def dv_no_add(gpu):
    _dv(gpu, "no add")


def dv_k_inside(gpu):
    _dv(gpu, "K inside")


def dv_stores_p(gpu):
    _dv(gpu, "stores P")


def _make_p_ds(gpu, q, k, v, g, lse, d, bug):
    p = gpu.in_registers("P", (q.shape[0], k.shape[0]))
    ds = gpu.in_registers("dS", p.shape)
    gpu.product("S", p, q, k.T, scale=gpu.scale)
    gpu.compute("P", (p,), (p, lse), lambda x, s: np.exp(x - s[:, None]), exp=p.size)
    gpu.product("dP", ds, g, v.T)
    scale = np.float32(1 if bug == "no scale in dS" else gpu.scale)
    if bug == "no delta":
        gpu.compute("dS", (ds,), (p, ds, d), lambda p, x, d: scale * p * x)
    elif bug == "plus delta":
        gpu.compute("dS", (ds,), (p, ds, d), lambda p, x, d: scale * p * (x + d[:, None]))
    else:
        gpu.compute("dS", (ds,), (p, ds, d), lambda p, x, d: scale * p * (x - d[:, None]))
    return p, ds


def _backward(gpu, bug="", atomic=True):
    Q, K, V, dO, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "dO", "LSE"))
    delta, dQ, dK, dV = (gpu.tensor(n) for n in ("delta", "dQ", "dK", "dV"))
    gpu.kernel("delta")
    _delta(gpu)
    if atomic and bug != "no zeros":
        gpu.kernel("zeros")
        for h, _, rows in gpu.query_tile_grid():
            gpu.fill("dQ = 0", dQ[h, rows], 0.0)
    if bug != "same kernel":
        gpu.kernel("keys")
    for _, cols in gpu.key_tile_grid():
        k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
        gk = gpu.in_registers("dK", k.shape, 0.0)
        gv = gpu.in_registers("dV", v.shape, 0.0)
        for h in range(len(gpu.heads)):
            for _, rows in gpu.all_query_tiles(h):
                q, g = gpu.load("Q_i", Q[h, rows]), gpu.load("dO_i", dO[h, rows])
                lse, d = gpu.load("LSE_i", LSE[h, rows]), gpu.load("delta_i", delta[h, rows])
                p, ds = _make_p_ds(gpu, q, k, v, g, lse, d, bug)
                gpu.product("dV", gv, p.T, g, add=True)
                gpu.product("dK", gk, ds.T, q, add=True)
                if atomic:
                    part = gpu.in_registers("dQ part", q.shape)
                    gpu.product("dQ", part, ds, k)
                    if bug == "dQ stored":
                        gpu.store("dQ", dQ[h, rows], part)
                    elif bug == "load add store":
                        old = gpu.load("dQ", dQ[h, rows])
                        gpu.compute("add", (part,), (part, old), lambda a, b: a + b)
                        gpu.store("dQ", dQ[h, rows], part)
                        gpu.free(old)
                    else:
                        gpu.accumulate("dQ", dQ[h, rows], part)
                gpu.free(q, g, lse, d)
        gpu.store("dK_j", dK[cols], gk)
        gpu.store("dV_j", dV[cols], gv)
        gpu.free(k, v)
    if atomic:
        return
    gpu.kernel("queries")
    for h, _, rows in gpu.query_tile_grid():
        q, g = gpu.load("Q_i", Q[h, rows]), gpu.load("dO_i", dO[h, rows])
        lse, d = gpu.load("LSE_i", LSE[h, rows]), gpu.load("delta_i", delta[h, rows])
        acc = gpu.in_registers("dQ", q.shape, 0.0)
        for _, cols in gpu.all_key_tiles():
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            _, ds = _make_p_ds(gpu, q, k, v, g, lse, d, bug)
            gpu.product("dQ", acc, ds, k, add=True)
            gpu.free(k, v)
        gpu.store("dQ_i", dQ[h, rows], acc)
        gpu.free(q, g, lse, d)


def backward_atomic(gpu):
    _backward(gpu)


def backward_two(gpu):
    _backward(gpu, atomic=False)


def backward_no_delta(gpu):
    _backward(gpu, "no delta")


def backward_plus_delta(gpu):
    _backward(gpu, "plus delta", atomic=False)


def backward_no_scale(gpu):
    _backward(gpu, "no scale in dS")


def backward_no_zeros(gpu):
    _backward(gpu, "no zeros")


def backward_dq_stored(gpu):
    _backward(gpu, "dQ stored")


def backward_load_add_store(gpu):
    _backward(gpu, "load add store")


def backward_same_kernel(gpu):
    _backward(gpu, "same kernel", atomic=False)


ANSWERS = {
    "delta": {
        "right": [delta_right],
        "wrong": [
            (delta_mean, r"delta"),
            (delta_do_do, r"delta|\bO\b"),
            (delta_reload, r"\bO\b"),
            (delta_column_sum, r"delta"),
            (delta_from_q, r"delta|\bQ\b"),
        ],
    },
    "recompute_dv": {
        "right": [dv_right],
        "wrong": [
            (dv_no_scale, r"dV"),
            (dv_no_lse, r"dV"),
            (dv_no_add, r"dV"),
            (dv_k_inside, r"\bK\b"),
            (dv_stores_p, r"\bP\b"),
        ],
    },
    "backward": {
        "right": [backward_atomic, backward_two],
        "wrong": [
            (backward_no_delta, r"dQ|dK"),
            (backward_plus_delta, r"dQ|dK"),
            (backward_no_scale, r"dQ|dK"),
            (backward_no_zeros, r"dQ"),
            (backward_dq_stored, r"dQ"),
            (backward_load_add_store, r"dQ"),
            (backward_same_kernel, r"delta"),
        ],
    },
}
