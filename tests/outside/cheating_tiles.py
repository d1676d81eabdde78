"""Tile programs whose numbers and traffic look right because they do what no GPU can."""

import numpy as np

from .attention_tiles import _divide, _lse, _step


def scores_without_loading_k(gpu):
    Q, K, S = (gpu.tensor(name) for name in "QKS")
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        for _, cols in gpu.all_key_tiles():
            s = gpu.in_registers("S", (q.shape[0], cols.stop - cols.start))
            keys = K.data[cols]
            gpu.compute("S", (s,), (q,), lambda q, keys=keys: gpu.scale * q @ keys.T)
            gpu.store("S_ij", S[h, rows, cols], s)
        gpu.free(q)


def softmax_hoards_the_row(gpu):
    S, P = gpu.tensor("S"), gpu.tensor("P")
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        hoard = []
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("S_ij", S[h, rows, cols])
            copy = gpu.in_registers(f"S{cols.start}", s.shape)
            gpu.compute("keep", (copy,), (s,), lambda s: s)
            gpu.compute("step", (s, m, l, old), (s, m, l), _step)
            gpu.free(s)
            hoard.append((cols, copy))
        for cols, copy in hoard:
            gpu.compute(
                "P", (copy,), (copy, m, l), lambda s, m, l: np.exp(s - m[:, None]) / l[:, None]
            )
            gpu.store("P_ij", P[h, rows, cols], copy)


def flash_keeps_keys_between_blocks(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    kept = {}
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for j, cols in gpu.all_key_tiles():
            if j not in kept:
                k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
                kept[j] = gpu.in_registers("K", k.shape), gpu.in_registers("V", v.shape)
                gpu.compute("keep", kept[j], (k, v), lambda k, v: (k, v))
                gpu.free(k, v)
            k, v = kept[j]
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.compute("step", (p, m, l, old), (p, m, l), _step)
            gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
            gpu.product("O += P V", o, p, v, add=True)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


def flash_keeps_all_scores(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        scores = []
        for j, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            s = gpu.in_registers(f"S{j}", (r, k.shape[0]))
            gpu.product("S", s, q, k.T, scale=gpu.scale)
            gpu.compute("m", (m,), (s, m), lambda s, m: np.maximum(m, s.max(axis=1)))
            gpu.free(k)
            scores.append(s)
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        for (_, cols), p in zip(gpu.all_key_tiles(), scores, strict=True):
            v = gpu.load("V_j", V[cols])
            gpu.compute("P", (p,), (p, m), lambda s, m: np.exp(s - m[:, None]))
            gpu.compute("l", (l,), (l, p), lambda l, p: l + p.sum(axis=1))
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(v)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


ANSWERS = {
    "scores": {"right": [], "wrong": [(scores_without_loading_k, r"\bK\b")]},
    "softmax_rows": {"right": [], "wrong": [(softmax_hoards_the_row, r"regist|chip|\bS\b")]},
    "flash_forward": {
        "right": [],
        "wrong": [
            (flash_keeps_keys_between_blocks, r"block|\bK\b"),
            (flash_keeps_all_scores, r"regist|chip|\bS\b"),
        ],
    },
}
