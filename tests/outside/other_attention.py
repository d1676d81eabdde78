"""Other right ways to write attention in tiles, forward and backward, and some more slips."""

import numpy as np

from .other_ways import more


def _fused(gpu, keys_first=False, factor=1, reload=False):
    Q, K, LSE = (gpu.tensor(name) for name in ("Q", "K", "LSE"))
    for head, _, rows in gpu.query_tile_grid():
        n = rows.stop - rows.start
        m, l = gpu.in_registers("m", (n,), -np.inf), gpu.in_registers("l", (n,), 0.0)
        sQ = gpu.load("Q", Q[head, rows])
        for j, cols in gpu.all_key_tiles():
            if reload and j:
                gpu.free(sQ)
                sQ = gpu.load("Q", Q[head, rows])
            sK = gpu.load("K", K[cols])
            if keys_first:
                rS = gpu.in_registers("Sᵀ", (sK.shape[0], n))
                gpu.product("Sᵀ = K Qᵀ", rS, sK, sQ.T, scale=gpu.scale)
                gpu.compute("m, l", (m, l), (m, l, rS), lambda m, l, s: more(m, l, s.T))
            else:
                rS = gpu.in_registers("S", (n, sK.shape[0]))
                gpu.product("S", rS, sQ, sK.T, scale=factor * gpu.scale)
                gpu.compute("m, l", (m, l), (m, l, rS), more)
            gpu.free(sK)
        gpu.compute("lse", (m,), (m, l), lambda m, l: m + np.log(l))
        gpu.store("lse", LSE[head, rows], m)
        gpu.free(sQ)


def fused_lse_queries_first(gpu):
    _fused(gpu)


def fused_lse_keys_first(gpu):
    _fused(gpu, keys_first=True)


def fused_lse_scaled_twice(gpu):
    _fused(gpu, factor=gpu.scale)


def fused_lse_queries_again(gpu):
    _fused(gpu, reload=True)


def _update(s, m, l, o):
    top = np.maximum(m, s.max(axis=1))
    safe = np.where(np.isneginf(top), np.float32(0), top)
    old, p = np.exp(m - safe), np.exp(s - safe[:, None])
    return p, top, old * l + p.sum(axis=1), o * old[:, None]


def _finish(o, m, l):
    with np.errstate(divide="ignore"):
        return o / np.where(l == 0, 1, l)[:, None], m + np.log(l)


def _causal(gpu, hide):
    Q, K, V, O, LSE = (gpu.tensor(name) for name in ("Q", "K", "V", "O", "LSE"))
    for head, block, rows in gpu.query_tile_grid():
        if not gpu.sees_keys(head, block):
            gpu.fill("nothing", O[head, rows], 0.0)
            gpu.fill("nothing", LSE[head, rows], -np.inf)
            continue
        sQ = gpu.load("Q", Q[head, rows])
        n = sQ.shape[0]
        m, l = gpu.in_registers("m", (n,), -np.inf), gpu.in_registers("l", (n,), 0.0)
        acc = gpu.in_registers("O", (n, gpu.v), 0.0)
        for _, cols in gpu.key_tiles(head, block):
            sK = gpu.load("K", K[cols])
            rS = gpu.in_registers("S", (n, sK.shape[0]))
            gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
            gpu.free(sK)
            hide(rS, head, rows, cols)
            gpu.compute("step", (rS, m, l, acc), (rS, m, l, acc), _update)
            sV = gpu.load("V", V[cols])
            gpu.product("O += P V", acc, rS, sV, add=True)
            gpu.free(sV)
        gpu.compute("finish", (acc, m), (acc, m, l), _finish)
        gpu.store("O", O[head, rows], acc)
        gpu.store("lse", LSE[head, rows], m)
        gpu.free(sQ)


def causal_by_the_machine(gpu):
    def hide(rS, head, rows, cols):
        gpu.change_scores("mask", rS, head, rows, cols)

    _causal(gpu, hide)


def causal_by_hand(gpu):
    shift = gpu.seqlen_k - gpu.seqlen_q

    def hide(rS, head, rows, cols):
        i, j = np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop)
        seen = j <= i[:, None] + shift
        gpu.compute("mask", (rS,), (rS,), lambda s: np.where(seen, s, np.float32(-np.inf)))

    _causal(gpu, hide)


def _flash1(gpu, normalised):
    Q, K, V, O, M, L = (gpu.tensor(name) for name in ("Q", "K", "V", "O", "m", "l"))
    for head in gpu.head_grid():
        for tensor, value in ((O, 0.0), (L, 0.0), (M, -np.inf)):
            gpu.fill("begin", tensor[head, gpu.all_rows], value)
        for _, cols in gpu.outer_key_tiles():
            sK, sV = gpu.load("K", K[cols]), gpu.load("V", V[cols])
            for _, rows in gpu.all_query_tiles(head):
                places = Q[head, rows], O[head, rows], M[head, rows], L[head, rows]
                sQ, sO, sM, sL = (gpu.load("row tile", place) for place in places)
                rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
                gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
                if normalised:
                    gpu.compute("O l", (sO,), (sO, sL), lambda o, l: o * l[:, None])
                gpu.compute("step", (rS, sM, sL, sO), (rS, sM, sL, sO), _update)
                gpu.product("O += P V", sO, rS, sV, add=True)
                if normalised or cols.stop == gpu.seqlen_k:
                    gpu.compute("O / l", (sO,), (sO, sL), lambda o, l: o / l[:, None])
                for place, tile in zip(places[1:], (sO, sM, sL), strict=True):
                    gpu.store("row tile", place, tile)
                gpu.free(sQ, sO, sM, sL)
            gpu.free(sK, sV)


def flash1_normalised_always(gpu):
    _flash1(gpu, True)


def flash1_normalised_at_the_end(gpu):
    _flash1(gpu, False)


def _grouped(gpu, groups_of, backwards=False):
    Q, K, V, O, LSE = (gpu.tensor(name) for name in ("Q", "K", "V", "O", "LSE"))
    for heads in gpu.kv_head_grid():
        for _, rows in gpu.all_query_tiles(0):
            n = rows.stop - rows.start
            for group in groups_of(heads):
                state = {}
                for head in group:
                    m = gpu.in_registers(f"m of {head}", (n,), -np.inf)
                    l = gpu.in_registers(f"l of {head}", (n,), 0.0)
                    acc = gpu.in_registers(f"O of {head}", (n, gpu.v), 0.0)
                    state[head] = gpu.load("Q", Q[head, rows]), m, l, acc
                key_tiles = list(gpu.all_key_tiles())
                for _, cols in reversed(key_tiles) if backwards else key_tiles:
                    sK, sV = gpu.load("K", K[cols]), gpu.load("V", V[cols])
                    for sQ, m, l, acc in state.values():
                        rS = gpu.in_registers("S", (n, sK.shape[0]))
                        gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
                        gpu.compute("step", (rS, m, l, acc), (rS, m, l, acc), _update)
                        gpu.product("O += P V", acc, rS, sV, add=True)
                    gpu.free(sK, sV)
                for head, (sQ, m, l, acc) in state.items():
                    gpu.compute("finish", (acc, m), (acc, m, l), _finish)
                    gpu.store("O", O[head, rows], acc)
                    gpu.store("lse", LSE[head, rows], m)
                    gpu.free(sQ)


def grouped_together(gpu):
    _grouped(gpu, lambda heads: [list(heads)])


def grouped_backwards(gpu):
    _grouped(gpu, lambda heads: [list(reversed(heads))], backwards=True)


def grouped_one_head_after_another(gpu):
    _grouped(gpu, lambda heads: [[head] for head in heads])


def delta_by_einsum(gpu):
    for head, _, rows in gpu.query_tile_grid():
        tiles = [gpu.load(name, gpu.tensor(name)[head, rows]) for name in ("dO", "O")]
        out = gpu.in_registers("delta", (rows.stop - rows.start,))
        gpu.compute("delta", (out,), tuple(tiles), lambda a, b: np.einsum("ic,ic->i", a, b))
        gpu.free(*tiles)
        gpu.store("delta", gpu.tensor("delta")[head, rows], out)


def delta_in_two_steps(gpu):
    O, dO, out = (gpu.tensor(name) for name in ("O", "dO", "delta"))
    for head, _, rows in gpu.query_tile_grid():
        sO, sdO = gpu.load("O", O[head, rows]), gpu.load("dO", dO[head, rows])
        gpu.compute("O = O dO", (sO,), (sO, sdO), np.multiply)
        row = gpu.in_registers("delta", sO.shape[:1])
        gpu.compute("delta", (row,), (sO,), lambda x: x @ np.ones(x.shape[1], np.float32))
        gpu.store("delta", out[head, rows], row)
        gpu.free(sO, sdO)


def _value_gradient(gpu, keys_first):
    Q, K, dO, LSE, dV = (gpu.tensor(name) for name in ("Q", "K", "dO", "LSE", "dV"))
    for _, cols in gpu.key_tile_grid():
        sK = gpu.load("K", K[cols])
        acc = gpu.in_registers("dV", (sK.shape[0], gpu.v), 0.0)
        for _, rows in gpu.all_query_tiles(0):
            sQ, sLSE = gpu.load("Q", Q[0, rows]), gpu.load("LSE", LSE[0, rows])
            sdO = gpu.load("dO", dO[0, rows])
            if keys_first:
                rP = gpu.in_registers("Pᵀ", (sK.shape[0], sQ.shape[0]))
                gpu.product("Sᵀ", rP, sK, sQ.T, scale=gpu.scale)
                gpu.compute("Pᵀ", (rP,), (rP, sLSE), lambda s, lse: np.exp(s - lse))
                gpu.product("dV", acc, rP, sdO, add=True)
            else:
                rP = gpu.in_registers("P", (sQ.shape[0], sK.shape[0]))
                gpu.product("S", rP, sQ, sK.T, scale=gpu.scale)
                gpu.compute("S - lse", (rP,), (rP, sLSE), lambda s, lse: s - lse[:, None])
                gpu.compute("P", (rP,), (rP,), np.exp)
                gpu.product("dV", acc, rP.T, sdO, add=True)
            gpu.free(sQ, sLSE, sdO)
        gpu.store("dV", dV[cols], acc)
        gpu.free(sK)


def value_gradient_keys_first(gpu):
    _value_gradient(gpu, True)


def value_gradient_queries_first(gpu):
    _value_gradient(gpu, False)


ANSWERS = {
    "fused_lse": {
        "right": [fused_lse_queries_first, fused_lse_keys_first],
        "wrong": [(fused_lse_scaled_twice, r"LSE"), (fused_lse_queries_again, r"Q too often")],
    },
    "flash_causal": {"right": [causal_by_the_machine, causal_by_hand], "wrong": []},
    "flash1_forward": {
        "right": [flash1_normalised_always, flash1_normalised_at_the_end],
        "wrong": [],
    },
    "gqa_forward": {
        "right": [grouped_together, grouped_backwards],
        "wrong": [(grouped_one_head_after_another, r"[KV] too often")],
    },
    "delta": {"right": [delta_by_einsum, delta_in_two_steps], "wrong": []},
    "recompute_dv": {
        "right": [value_gradient_keys_first, value_gradient_queries_first],
        "wrong": [],
    },
}
