"""Tile programs up to softmax and P V."""

import numpy as np


def double_q_adds(gpu):
    source, target = gpu.tensor("Q"), gpu.tensor("O")
    for h, _m, part in gpu.query_tile_grid():
        tile = gpu.load("fetch", source[h, part])
        gpu.compute("double in place", (tile,), (tile,), lambda q: q + q)
        gpu.store("put back", target[h, part], tile)
        gpu.free(tile)


def double_q_adds_two(gpu):
    for h, _m, part in gpu.query_tile_grid():
        tile = gpu.load("fetch", gpu.tensor("Q")[h, part])
        out = gpu.in_registers("O", tile.shape)
        gpu.compute("double", (out,), (tile,), lambda q: q + 2)
        gpu.store("put back", gpu.tensor("O")[h, part], out)
        gpu.free(tile)


def double_q_loads_both_summands(gpu):
    for h, _m, part in gpu.query_tile_grid():
        a = gpu.load("fetch a", gpu.tensor("Q")[h, part])
        b = gpu.load("fetch b", gpu.tensor("Q")[h, part])
        out = gpu.in_registers("O", a.shape)
        gpu.compute("add", (out,), (a, b), lambda x, y: x + y)
        gpu.store("put back", gpu.tensor("O")[h, part], out)
        gpu.free(a, b)


def double_q_keeps_tile(gpu):
    for h, _m, part in gpu.query_tile_grid():
        a = gpu.load("fetch", gpu.tensor("Q")[h, part])
        out = gpu.in_registers("O", a.shape)
        gpu.compute("double", (out,), (a,), lambda x: 2 * x)
        gpu.store("put back", gpu.tensor("O")[h, part], out)


def double_q_skips_last(gpu):
    for h, m, part in gpu.query_tile_grid():
        if (m + 1) * gpu.tile_m > gpu.seqlen_q:
            continue
        a = gpu.load("fetch", gpu.tensor("Q")[h, part])
        gpu.compute("double", (a,), (a,), lambda x: 2 * x)
        gpu.store("put back", gpu.tensor("O")[h, part], a)
        gpu.free(a)


def double_q_all_in_every_block(gpu):
    for h, _m, _part in gpu.query_tile_grid():
        a = gpu.load("fetch", gpu.tensor("Q")[h, gpu.all_rows])
        gpu.compute("double", (a,), (a,), lambda x: 2 * x)
        gpu.store("put back", gpu.tensor("O")[h, gpu.all_rows], a)
        gpu.free(a)


def double_q_behind_the_counter(gpu):
    gpu.tensor("O").data[...] = 2 * gpu.tensor("Q").data


def _scores(gpu, scale, reload, transposed=False, wrong_cols=False):
    Q, K, S = (gpu.tensor(name) for name in "QKS")
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("load Q_i", Q[h, rows])
        for j, cols in gpu.all_key_tiles():
            if reload and j:
                gpu.free(q)
                q = gpu.load("load Q_i", Q[h, rows])
            k = gpu.load("load K_j", K[cols])
            s = gpu.in_registers("S", (q.shape[0], k.shape[0]))
            gpu.product("S = Q Kt", s, q, k if transposed else k.T, scale=scale)
            if wrong_cols:
                cols = slice(0, k.shape[0])
            gpu.store("store S_ij", S[h, rows, cols], s)
            gpu.free(k)
        gpu.free(q)


def scores_right(gpu):
    _scores(gpu, gpu.scale, False)


def scores_scaled_afterwards(gpu):
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q", gpu.tensor("Q")[h, rows])
        gpu.compute("scale Q", (q,), (q,), lambda x: x * np.float32(gpu.scale))
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K", gpu.tensor("K")[cols])
            s = gpu.in_registers("S", (q.shape[0], k.shape[0]))
            gpu.product("S", s, q, k.T)
            gpu.store("out", gpu.tensor("S")[h, rows, cols], s)
            gpu.free(k)
        gpu.free(q)


def scores_unscaled(gpu):
    _scores(gpu, 1.0, False)


def scores_divided_by_d(gpu):
    _scores(gpu, 1.0 / gpu.d, False)


def scores_reload_q(gpu):
    _scores(gpu, gpu.scale, True)


def scores_k_not_transposed(gpu):
    _scores(gpu, gpu.scale, False, transposed=True)


def scores_first_columns(gpu):
    _scores(gpu, gpu.scale, False, wrong_cols=True)


def _row_max(gpu, start: float | None = -np.inf, forget=False, twice=False, inside=False):
    S, m = gpu.tensor("S"), gpu.tensor("m")
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        best = gpu.in_registers("best", (r,), start)
        for _, cols in gpu.all_key_tiles():
            if inside:
                best = gpu.in_registers("best", (r,), start)
            s = gpu.load("load S", S[h, rows, cols])
            if twice:
                gpu.compute("look", (best,), (best, s), lambda b, x: np.maximum(b, x.max(axis=1)))
                gpu.free(s)
                s = gpu.load("load S once more", S[h, rows, cols])
            function = (
                (lambda b, x: x.max(axis=1))
                if forget
                else (lambda b, x: np.maximum(b, np.max(x, axis=1)))
            )
            gpu.compute("max", (best,), (best, s), function)
            gpu.free(s)
        gpu.store("store m", m[h, rows], best)


def row_max_right(gpu):
    _row_max(gpu)


def row_max_starts_at_zero(gpu):
    _row_max(gpu, start=0.0)


def row_max_of_last_tile(gpu):
    _row_max(gpu, forget=True)


def row_max_reads_twice(gpu):
    _row_max(gpu, twice=True)


def row_max_begins_anew(gpu):
    _row_max(gpu, inside=True)


def row_max_uninitialised(gpu):
    _row_max(gpu, start=None)


def _lse(gpu, update, finish, start=-np.inf):
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        m, l = gpu.in_registers("m", (r,), start), gpu.in_registers("l", (r,), 0.0)
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load S_ij", gpu.tensor("S")[h, rows, cols])
            gpu.compute("m, l", (m, l), (s, m, l), update, exp=s.size + r)
            gpu.free(s)
        gpu.compute("lse", (m,), (m, l), finish)
        gpu.store("store LSE_i", gpu.tensor("LSE")[h, rows], m)


def _online(s, m, l):
    new = np.maximum(m, s.max(axis=1))
    return new, l * np.exp(m - new) + np.exp(s - new[:, None]).sum(axis=1)


def _finish(m, l):
    return m + np.log(l)


def lse_right(gpu):
    _lse(gpu, _online, _finish)


def lse_logaddexp(gpu):
    def update(s, m, l):
        tile_max = s.max(axis=1)
        tile_lse = tile_max + np.log(np.exp(s - tile_max[:, None]).sum(axis=1))
        return np.logaddexp(m, tile_lse), l

    _lse(gpu, update, lambda m, l: m)


def lse_no_rescale(gpu):
    def update(s, m, l):
        new = np.maximum(m, s.max(axis=1))
        return new, l + np.exp(s - new[:, None]).sum(axis=1)

    _lse(gpu, update, _finish)


def lse_naive(gpu):
    _lse(gpu, lambda s, m, l: (np.zeros_like(m), l + np.exp(s).sum(axis=1)), _finish, 0.0)


def lse_starts_at_zero(gpu):
    _lse(gpu, _online, _finish, 0.0)


def lse_inverted_factor(gpu):
    def update(s, m, l):
        new = np.maximum(m, s.max(axis=1))
        return new, l * np.exp(np.minimum(new - m, 50)) + np.exp(s - new[:, None]).sum(axis=1)

    _lse(gpu, update, _finish)


def lse_without_m(gpu):
    _lse(gpu, _online, lambda m, l: np.log(l))


def lse_log2(gpu):
    _lse(gpu, _online, lambda m, l: m + np.log2(l))


def lse_m_minus_log(gpu):
    _lse(gpu, _online, lambda m, l: m - np.log(l))


def _softmax(gpu, weights, passes=2, start=-np.inf):
    S, P = gpu.tensor("S"), gpu.tensor("P")
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        m, l = gpu.in_registers("m", (r,), start), gpu.in_registers("l", (r,), 0.0)
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load S_ij", S[h, rows, cols])
            gpu.compute("m, l", (m, l), (s, m, l), _online, exp=s.size + r)
            if passes == 1:
                gpu.compute("P", (s,), (s, m, l), weights, exp=s.size)
                gpu.store("store P_ij", P[h, rows, cols], s)
            gpu.free(s)
        if passes == 1:
            continue
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load S_ij again", S[h, rows, cols])
            gpu.compute("P", (s,), (s, m, l), weights, exp=s.size)
            gpu.store("store P_ij", P[h, rows, cols], s)
            gpu.free(s)


def softmax_right(gpu):
    _softmax(gpu, lambda s, m, l: np.exp(s - m[:, None]) / l[:, None])


def softmax_from_lse(gpu):
    _softmax(gpu, lambda s, m, l: np.exp(s - (m + np.log(l))[:, None]))


def softmax_starts_at_zero(gpu):
    _softmax(gpu, lambda s, m, l: np.exp(s - m[:, None]) / l[:, None], start=0.0)


def softmax_not_divided(gpu):
    _softmax(gpu, lambda s, m, l: np.exp(s - m[:, None]))


def softmax_one_pass(gpu):
    _softmax(gpu, lambda s, m, l: np.exp(s - m[:, None]) / l[:, None], passes=1)


def softmax_of_each_tile(gpu):
    def tile(s, m, l):
        e = np.exp(s - s.max(axis=1)[:, None])
        return e / e.sum(axis=1)[:, None]

    _softmax(gpu, tile)


def softmax_three_passes(gpu):
    S, P = gpu.tensor("S"), gpu.tensor("P")
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load for m", S[h, rows, cols])
            gpu.compute("m", (m,), (s, m), lambda s, m: np.maximum(m, s.max(axis=1)))
            gpu.free(s)
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load for l", S[h, rows, cols])
            gpu.compute("l", (l,), (s, m, l), lambda s, m, l: l + np.exp(s - m[:, None]).sum(1))
            gpu.free(s)
        for _, cols in gpu.all_key_tiles():
            s = gpu.load("load for P", S[h, rows, cols])
            gpu.compute("P", (s,), (s, m, l), lambda s, m, l: np.exp(s - m[:, None]) / l[:, None])
            gpu.store("store P_ij", P[h, rows, cols], s)
            gpu.free(s)


def _values(gpu, add=True, spill=False, first_v=False):
    P, V, O = (gpu.tensor(name) for name in "PVO")
    for h, _, rows in gpu.query_tile_grid():
        o = gpu.in_registers("O", (rows.stop - rows.start, gpu.v), 0.0)
        for _, cols in gpu.all_key_tiles():
            p = gpu.load("load P_ij", P[h, rows, cols])
            v = gpu.load("load V_j", V[slice(0, p.shape[1]) if first_v else cols])
            gpu.product("O += P V", o, p, v, add=add)
            gpu.free(p, v)
            if spill:
                gpu.store("store O_i", O[h, rows], o)
        if not spill:
            gpu.store("store O_i", O[h, rows], o)


def values_right(gpu):
    _values(gpu)


def values_overwritten(gpu):
    _values(gpu, add=False)


def values_spilled(gpu):
    _values(gpu, spill=True)


def values_first_tile_of_v(gpu):
    _values(gpu, first_v=True)


def values_by_key_tile(gpu):
    P, V, O = (gpu.tensor(name) for name in "PVO")
    gpu.kernel("zero")
    for h, _, rows in gpu.query_tile_grid():
        gpu.fill("0", O[h, rows], 0.0)
    gpu.kernel("add")
    for _, cols in gpu.key_tile_grid():
        v = gpu.load("load V_j", V[cols])
        for h in range(len(gpu.heads)):
            for _, rows in gpu.all_query_tiles(h):
                p = gpu.load("load P_ij", P[h, rows, cols])
                o = gpu.in_registers("O", (p.shape[0], gpu.v))
                gpu.product("P V", o, p, v)
                gpu.accumulate("add to O_i", O[h, rows], o)
                gpu.free(p)
        gpu.free(v)


ANSWERS = {
    "double_q": {
        "right": [double_q_adds],
        "wrong": [
            (double_q_adds_two, r"\bO\b"),
            (double_q_loads_both_summands, r"Q.*(twice|2|reads?|load)|(read|load).*Q"),
            (double_q_keeps_tile, r"free"),
            (double_q_skips_last, r"O.*(NaN|never|written|last|row)|last"),
            (double_q_all_in_every_block, r"block|Q|written"),
            (double_q_behind_the_counter, r"load|store|data|moved|writ|read"),
        ],
    },
    "scores": {
        "right": [scores_right, scores_scaled_afterwards],
        "wrong": [
            (scores_unscaled, r"scale|\bS\b"),
            (scores_divided_by_d, r"scale|\bS\b"),
            (scores_reload_q, r"Q"),
            (scores_k_not_transposed, r"\bS\b"),
            (scores_first_columns, r"\bS\b"),
        ],
    },
    "row_max": {
        "right": [row_max_right],
        "wrong": [
            (row_max_starts_at_zero, r"\bm\b"),
            (row_max_of_last_tile, r"\bm\b"),
            (row_max_reads_twice, r"\bS\b"),
            (row_max_begins_anew, r"\bm\b"),
            (row_max_uninitialised, r"nothing|put|fill|empty"),
        ],
    },
    "online_lse": {
        "right": [lse_right, lse_logaddexp],
        "wrong": [
            (lse_no_rescale, r"LSE.*|rescal"),
            (lse_naive, r"overflow|inf|NaN|large|hundreds|LSE"),
            (lse_starts_at_zero, r"start|-inf"),
            (lse_inverted_factor, r"LSE"),
            (lse_without_m, r"LSE"),
            (lse_log2, r"LSE"),
            (lse_m_minus_log, r"LSE"),
        ],
    },
    "softmax_rows": {
        "right": [softmax_right, softmax_from_lse],
        "wrong": [
            (softmax_starts_at_zero, r"start|-inf"),
            (softmax_not_divided, r"\bP\b"),
            (softmax_one_pass, r"\bP\b"),
            (softmax_of_each_tile, r"\bP\b"),
            (softmax_three_passes, r"\bS\b"),
        ],
    },
    "weighted_values": {
        "right": [values_right],
        "wrong": [
            (values_overwritten, r"\bO\b"),
            (values_spilled, r"\bO\b.*|store|writ"),
            (values_first_tile_of_v, r"\bO\b"),
            (values_by_key_tile, r"\bO\b|accumul"),
        ],
    },
}
