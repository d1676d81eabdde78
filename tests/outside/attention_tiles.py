"""Tile programs of attention, forward and backward."""

import numpy as np


def _sub(m):
    return np.where(np.isneginf(m), np.float32(0), m)


def _step(s, m, l):
    new = np.maximum(m, s.max(axis=1))
    old = np.exp(m - _sub(new))
    p = np.exp(s - _sub(new)[:, None])
    return p, new, l * old + p.sum(axis=1), old


def _lse(m, l):
    with np.errstate(divide="ignore"):
        return np.where(l > 0, m + np.log(l), -np.inf)


def _divide(o, l):
    return o / np.where(l > 0, l, 1)[:, None]


def fused_right(gpu):
    Q, K, out = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("LSE")
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            s = gpu.in_registers("S", (r, k.shape[0]))
            gpu.product("S", s, q, k.T, scale=gpu.scale)
            gpu.compute("step", (s, m, l, old), (s, m, l), _step, exp=s.size + r)
            gpu.free(k)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("lse", out[h, rows], m)
        gpu.free(q)


def fused_through_hbm(gpu):
    Q, K, S, out = (gpu.tensor(n) for n in ("Q", "K", "S", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            s = gpu.in_registers("S", (r, k.shape[0]))
            gpu.product("S", s, q, k.T, scale=gpu.scale)
            gpu.store("S", S[h, rows, cols], s)
            gpu.compute("step", (s, m, l, old), (s, m, l), _step, exp=s.size + r)
            gpu.free(k)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("lse", out[h, rows], m)
        gpu.free(q)


def fused_loads_k_again(gpu):
    Q, K, out = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("LSE")
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            s = gpu.in_registers("S", (r, k.shape[0]))
            gpu.product("S", s, q, k.T, scale=gpu.scale)
            gpu.compute("m", (m,), (s, m), lambda s, m: np.maximum(m, s.max(axis=1)))
            gpu.free(k)
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j again", K[cols])
            s = gpu.in_registers("S", (r, k.shape[0]))
            gpu.product("S", s, q, k.T, scale=gpu.scale)
            gpu.compute("l", (l,), (s, m, l), lambda s, m, l: l + np.exp(s - m[:, None]).sum(1))
            gpu.free(k)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("lse", out[h, rows], m)
        gpu.free(q)


def fused_scales_lse(gpu):
    Q, K, out = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("LSE")
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            s = gpu.in_registers("S", (r, k.shape[0]))
            gpu.product("S", s, q, k.T)
            gpu.compute("step", (s, m, l, old), (s, m, l), _step, exp=s.size + r)
            gpu.free(k)
        gpu.compute("lse", (m,), (m, l), lambda m, l: np.float32(gpu.scale) * _lse(m, l))
        gpu.store("lse", out[h, rows], m)
        gpu.free(q)


def _flash(gpu, bug="", causal=False):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, i, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        if causal and not gpu.sees_keys(h, i):
            if bug != "blind rows unwritten":
                gpu.fill("nothing seen", O[h, rows], 0.0)
                gpu.fill("nothing seen", LSE[h, rows], 0.0 if bug == "lse 0" else -np.inf)
            continue
        q = gpu.load("Q_i", Q[h, rows])
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m = gpu.in_registers("m", (r,), 0.0 if bug == "m = 0" else -np.inf)
        l = gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        walk = gpu.key_tiles(h, i) if causal and bug != "no skip" else gpu.all_key_tiles()
        for _, cols in walk:
            if bug == "Q in the loop":
                gpu.free(q)
                q = gpu.load("Q_i", Q[h, rows])
            k = gpu.load("K_j", K[cols])
            v = gpu.load("V_j", V[cols])
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            if causal and bug != "no mask":
                shifted = slice(cols.start + 1, cols.stop + 1) if bug == "mask off by one" else cols
                gpu.change_scores("mask", p, h, rows, shifted)
            if bug == "mask after softmax":
                gpu.compute("step", (p, m, l, old), (p, m, l), _step, exp=p.size + r)
                gpu.change_scores("mask", p, h, rows, cols)
            else:
                gpu.compute("step", (p, m, l, old), (p, m, l), _step, exp=p.size + r)
            if bug != "no rescale":
                gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
            gpu.product("O += P V", o, p, v, add=bug != "no add")
            if bug == "K twice":
                gpu.free(k)
                k = gpu.load("K_j again", K[cols])
                gpu.compute("look", (k,), (k,), lambda k: k)
            gpu.free(k, v)
        lse = gpu.in_registers("lse", (r,))
        gpu.compute("lse", (lse,), (m, l), (lambda m, l: np.log(l)) if bug == "lse log l" else _lse)
        if bug != "no division":
            gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.store("O_i", O[h, rows], o)
        if bug != "no lse":
            gpu.store("lse_i", LSE[h, rows], lse)
        gpu.free(q)


def flash_right(gpu):
    _flash(gpu)


def flash_normalised_every_step(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        lse = gpu.in_registers("lse", (r,), -np.inf)
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.free(k)

            def step(s, o, lse):
                top = s.max(axis=1)
                new = np.logaddexp(lse, top + np.log(np.exp(s - top[:, None]).sum(axis=1)))
                return np.exp(s - new[:, None]), o * np.exp(lse - new)[:, None], new

            gpu.compute("step", (p, o, lse), (p, o, lse), step, exp=p.size)
            v = gpu.load("V_j", V[cols])
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(v)
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], lse)
        gpu.free(q)


def flash_no_rescale(gpu):
    _flash(gpu, "no rescale")


def flash_m_zero(gpu):
    _flash(gpu, "m = 0")


def causal_m_zero(gpu):
    _flash(gpu, "m = 0", causal=True)


def flash_q_in_the_loop(gpu):
    _flash(gpu, "Q in the loop")


def flash_k_twice(gpu):
    _flash(gpu, "K twice")


def flash_no_division(gpu):
    _flash(gpu, "no division")


def flash_no_add(gpu):
    _flash(gpu, "no add")


def flash_no_lse(gpu):
    _flash(gpu, "no lse")


def flash_lse_log_l(gpu):
    _flash(gpu, "lse log l")


def causal_right(gpu):
    _flash(gpu, causal=True)


def causal_no_skip(gpu):
    _flash(gpu, "no skip", causal=True)


def causal_no_mask(gpu):
    _flash(gpu, "no mask", causal=True)


def causal_mask_off_by_one(gpu):
    _flash(gpu, "mask off by one", causal=True)


def causal_mask_after_softmax(gpu):
    _flash(gpu, "mask after softmax", causal=True)


def causal_blind_unwritten(gpu):
    _flash(gpu, "blind rows unwritten", causal=True)


def causal_lse_zero(gpu):
    _flash(gpu, "lse 0", causal=True)


def causal_top_left(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, i, rows in gpu.query_tile_grid():
        if not gpu.sees_keys(h, i):
            gpu.fill("0", O[h, rows], 0.0)
            gpu.fill("-inf", LSE[h, rows], -np.inf)
            continue
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.key_tiles(h, i):
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            see = np.arange(rows.start, rows.stop)[:, None] >= np.arange(cols.start, cols.stop)
            gpu.compute("mask", (p,), (p,), lambda s, see=see: np.where(see, s, -np.inf))
            gpu.compute("step", (p, m, l, old), (p, m, l), _step, exp=p.size + r)
            gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(k, v)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


def _flash1(gpu, bug=""):
    names = ("Q", "K", "V", "O", "m", "l")
    Q, K, V, O, M, L = (gpu.tensor(n) for n in names)
    for h in gpu.head_grid():
        if bug != "no start":
            gpu.fill("O = 0", O[h, gpu.all_rows], 0.0)
            gpu.fill("m = -inf", M[h, gpu.all_rows], 0.0 if bug == "m = 0" else -np.inf)
            gpu.fill("l = 0", L[h, gpu.all_rows], 0.0)
        for _, cols in gpu.outer_key_tiles():
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            for n, (_, rows) in enumerate(gpu.all_query_tiles(h)):
                if bug == "K inside" and n:
                    gpu.free(k, v)
                    k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
                q, o = gpu.load("Q_i", Q[h, rows]), gpu.load("O_i", O[h, rows])
                m, l = gpu.load("m_i", M[h, rows]), gpu.load("l_i", L[h, rows])
                p = gpu.in_registers("P", (q.shape[0], k.shape[0]))
                old, was = (gpu.in_registers(n, m.shape) for n in ("old", "was"))
                gpu.product("S", p, q, k.T, scale=gpu.scale)
                gpu.compute("l before", (was,), (l,), lambda l: l)
                gpu.compute("step", (p, m, l, old), (p, m, l), _step, exp=p.size + q.shape[0])
                if bug == "late division":
                    gpu.compute("O", (o,), (o, old), lambda o, a: o * a[:, None])
                    gpu.product("O += P V", o, p, v, add=True)
                else:
                    share = (
                        (lambda o, a, was, l: o * (a / l)[:, None])
                        if bug == "forgets old l"
                        else (lambda o, a, was, l: o * (a * was / l)[:, None])
                    )
                    gpu.compute("O", (o,), (o, old, was, l), share)
                    gpu.compute("P / l", (p,), (p, l), lambda p, l: p / l[:, None])
                    gpu.product("O += P V", o, p, v, add=True)
                gpu.store("O_i", O[h, rows], o)
                if bug != "m not stored":
                    gpu.store("m_i", M[h, rows], m)
                gpu.store("l_i", L[h, rows], l)
                gpu.free(q, o, m, l)
            gpu.free(k, v)


def flash1_right(gpu):
    _flash1(gpu)


def flash1_no_start(gpu):
    _flash1(gpu, "no start")


def flash1_m_zero(gpu):
    _flash1(gpu, "m = 0")


def flash1_k_inside(gpu):
    _flash1(gpu, "K inside")


def flash1_forgets_old_l(gpu):
    _flash1(gpu, "forgets old l")


def flash1_late_division(gpu):
    _flash1(gpu, "late division")


def flash1_m_not_stored(gpu):
    _flash1(gpu, "m not stored")


def _gqa(gpu, bug=""):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for heads in gpu.kv_head_grid():
        for _, rows in gpu.all_query_tiles(0):
            kept = []
            for h in heads:
                q = gpu.load("Q_i", Q[h, rows])
                r = q.shape[0]
                kept.append(
                    (
                        h,
                        q,
                        gpu.in_registers(f"O{h}", (r, gpu.v), 0.0),
                        gpu.in_registers(f"m{h}", (r,), -np.inf),
                        gpu.in_registers(f"l{h}", (r,), 0.0),
                        gpu.in_registers(f"old{h}", (r,)),
                    )
                )
                if bug == "shared state" and h:
                    kept[-1] = (h, q, *kept[0][2:])
            for _, cols in gpu.all_key_tiles():
                k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
                for n, (_, q, o, m, l, old) in enumerate(kept):
                    if bug == "K per head" and n:
                        gpu.free(k, v)
                        k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
                    p = gpu.in_registers("P", (q.shape[0], k.shape[0]))
                    gpu.product("S", p, q, k.T, scale=gpu.scale)
                    gpu.compute("step", (p, m, l, old), (p, m, l), _step, exp=p.size + p.shape[0])
                    gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
                    gpu.product("O += P V", o, p, v, add=True)
                gpu.free(k, v)
            for h, q, o, m, l, _ in kept:
                gpu.compute("O / l", (o,), (o, l), _divide)
                gpu.compute("lse", (m,), (m, l), _lse)
                gpu.store("O_i", O[0 if bug == "one head" else h, rows], o)
                gpu.store("lse_i", LSE[0 if bug == "one head" else h, rows], m)
                gpu.free(q)


def gqa_right(gpu):
    _gqa(gpu)


def gqa_k_per_head(gpu):
    _gqa(gpu, "K per head")


def gqa_shared_state(gpu):
    _gqa(gpu, "shared state")


def gqa_one_head(gpu):
    _gqa(gpu, "one head")


def gqa_plain(gpu):
    _flash(gpu)


ANSWERS = {
    "fused_lse": {
        "right": [fused_right],
        "wrong": [
            (fused_through_hbm, r"\bS\b"),
            (fused_loads_k_again, r"\bK\b"),
            (fused_scales_lse, r"LSE"),
        ],
    },
    "flash_forward": {
        "right": [flash_right, flash_normalised_every_step],
        "wrong": [
            (flash_no_rescale, r"\bO\b"),
            (flash_m_zero, r"start|-inf"),
            (flash_q_in_the_loop, r"\bQ\b"),
            (flash_k_twice, r"\bK\b"),
            (flash_no_division, r"\bO\b"),
            (flash_no_add, r"\bO\b"),
            (flash_no_lse, r"LSE"),
            (flash_lse_log_l, r"LSE"),
        ],
    },
    "flash_causal": {
        "right": [causal_right],
        "wrong": [
            (causal_no_skip, r"\bK\b|skip"),
            (causal_m_zero, r"start|-inf"),
            (causal_no_mask, r"\bO\b|LSE|mask"),
            (causal_mask_off_by_one, r"\bO\b|LSE|mask"),
            (causal_mask_after_softmax, r"\bO\b|LSE|mask"),
            (causal_blind_unwritten, r"NaN|never|written|O"),
            (causal_lse_zero, r"LSE"),
            (causal_top_left, r"\bO\b|LSE|mask|bottom"),
        ],
    },
    "flash1_forward": {
        "right": [flash1_right],
        "wrong": [
            (flash1_no_start, r"written|never|before|NaN"),
            (flash1_m_zero, r"\bm\b|\bO\b"),
            (flash1_k_inside, r"\bK\b"),
            (flash1_forgets_old_l, r"\bO\b"),
            (flash1_late_division, r"\bO\b"),
            (flash1_m_not_stored, r"\bm\b|\bO\b|\bl\b"),
        ],
    },
    "gqa_forward": {
        "right": [gqa_right],
        "wrong": [
            (gqa_k_per_head, r"\bK\b"),
            (gqa_plain, r"\bK\b"),
            (gqa_shared_state, r"\bO\b|LSE"),
            (gqa_one_head, r"\bO\b|head"),
        ],
    },
}
