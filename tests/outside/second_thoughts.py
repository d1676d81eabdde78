"""Right answers off the beaten track, and slips that a second look at the statements suggests."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math

import numpy as np
from numba import cuda, float32

from .attention_tiles import _divide, _lse, _step


def lse_begins_with_the_first_tile(gpu):
    for h, _, rows in gpu.query_tile_grid():
        r = rows.stop - rows.start
        m, l = gpu.in_registers("m", (r,)), gpu.in_registers("l", (r,))
        for j, cols in gpu.all_key_tiles():
            s = gpu.load("S_ij", gpu.tensor("S")[h, rows, cols])
            if j == 0:
                gpu.compute("m", (m,), (s,), lambda s: s.max(axis=1))
                gpu.compute("l", (l,), (s, m), lambda s, m: np.exp(s - m[:, None]).sum(axis=1))
            else:
                gpu.compute("step", (s, m, l, gpu.in_registers("a", (r,))), (s, m, l), _step)
            gpu.free(s)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("LSE_i", gpu.tensor("LSE")[h, rows], m)


def flash_base_two(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)

        def step(s, m, l, o):
            new = np.maximum(m, s.max(axis=1))
            old, p = np.exp2(m - new), np.exp2(s - new[:, None])
            return p, new, l * old + p.sum(axis=1), o * old[:, None]

        for _, cols in gpu.all_key_tiles():
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale * math.log2(math.e))
            gpu.compute("step", (p, m, l, o), (p, m, l, o), step)
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(k, v)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), lambda m, l: np.float32(math.log(2)) * (m + np.log2(l)))
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


def flash_lse_in_base_two(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.all_key_tiles():
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            p = gpu.in_registers("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.compute("step", (p, m, l, old), (p, m, l), _step)
            gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(k, v)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), lambda m, l: np.log2(np.e) * (m + np.log(l)))
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


def flash_scores_in_sram(gpu):
    Q, K, V, O, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "O", "LSE"))
    for h, _, rows in gpu.query_tile_grid():
        q = gpu.load("Q_i", Q[h, rows])
        r = q.shape[0]
        o = gpu.in_registers("O", (r, gpu.v), 0.0)
        m, l = gpu.in_registers("m", (r,), -np.inf), gpu.in_registers("l", (r,), 0.0)
        old = gpu.in_registers("old", (r,))
        for _, cols in gpu.all_key_tiles():
            k = gpu.load("K_j", K[cols])
            p = gpu.in_sram("P", (r, k.shape[0]))
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.free(k)
            gpu.compute("step", (p, m, l, old), (p, m, l), _step)
            gpu.compute("rescale", (o,), (o, old), lambda o, a: o * a[:, None])
            v = gpu.load("V_j", V[cols])
            gpu.product("O += P V", o, p, v, add=True)
            gpu.free(v, p)
        gpu.compute("O / l", (o,), (o, l), _divide)
        gpu.compute("lse", (m,), (m, l), _lse)
        gpu.store("O_i", O[h, rows], o)
        gpu.store("lse_i", LSE[h, rows], m)
        gpu.free(q)


def _backward_delta_in_dq(gpu, keep=True, twice=False):
    Q, K, V, dO, LSE = (gpu.tensor(n) for n in ("Q", "K", "V", "dO", "LSE"))
    delta, dQ, dK, dV, O = (gpu.tensor(n) for n in ("delta", "dQ", "dK", "dV", "O"))
    scale = np.float32(gpu.scale)

    def gradient(p, dp, d):
        return scale * p * (dp - d[:, None])

    gpu.kernel("queries")
    for h, _, rows in gpu.query_tile_grid():
        g, out = gpu.load("dO_i", dO[h, rows]), gpu.load("O_i", O[h, rows])
        d = gpu.in_registers("delta", (g.shape[0],))
        gpu.compute("delta", (d,), (g, out), lambda a, b: (a * b).sum(axis=1))
        gpu.store("delta_i", delta[h, rows], d)
        gpu.free(out)
        q, lse = gpu.load("Q_i", Q[h, rows]), gpu.load("LSE_i", LSE[h, rows])
        acc = gpu.in_registers("dQ", q.shape, 0.0)
        for _, cols in gpu.all_key_tiles():
            k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
            p = gpu.in_registers("P", (q.shape[0], k.shape[0]))
            ds = gpu.in_registers("dS", p.shape)
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.compute("P", (p,), (p, lse), lambda s, x: np.exp(s - x[:, None]))
            gpu.product("dP", ds, g, v.T)
            gpu.compute("dS", (ds,), (p, ds, d), gradient)
            gpu.product("dQ", acc, ds, k, add=True, scale=gpu.scale if twice else 1.0)
            gpu.free(k, v)
        gpu.store("dQ_i", dQ[h, rows], acc)
        gpu.free(q, g, lse)
    if keep:
        gpu.kernel("keys")
    for _, cols in gpu.key_tile_grid():
        k, v = gpu.load("K_j", K[cols]), gpu.load("V_j", V[cols])
        gk, gv = gpu.in_registers("dK", k.shape, 0.0), gpu.in_registers("dV", v.shape, 0.0)
        for _, rows in gpu.all_query_tiles(0):
            q, g = gpu.load("Q_i", Q[0, rows]), gpu.load("dO_i", dO[0, rows])
            lse, e = gpu.load("LSE_i", LSE[0, rows]), gpu.load("delta_i", delta[0, rows])
            p = gpu.in_registers("P", (q.shape[0], k.shape[0]))
            ds = gpu.in_registers("dS", p.shape)
            gpu.product("S", p, q, k.T, scale=gpu.scale)
            gpu.compute("P", (p,), (p, lse), lambda s, x: np.exp(s - x[:, None]))
            gpu.product("dP", ds, g, v.T)
            gpu.compute("dS", (ds,), (p, ds, e), gradient)
            gpu.product("dV", gv, p.T, g, add=True)
            gpu.product("dK", gk, ds.T, q, add=True)
            gpu.free(q, g, lse, e)
        gpu.store("dK_j", dK[cols], gk)
        gpu.store("dV_j", dV[cols], gv)
        gpu.free(k, v)


def backward_delta_in_dq(gpu):
    _backward_delta_in_dq(gpu)


def backward_scaled_twice(gpu):
    _backward_delta_in_dq(gpu, twice=True)


def backward_one_kernel_too_few(gpu):
    _backward_delta_in_dq(gpu, keep=False)


@cuda.jit
def sum_first_thread(x, y):
    part = cuda.shared.array(64, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    part[t] = float32(0)
    for c in range(t, x.shape[1], 64):
        part[t] += x[row, c]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(len(part)):
            total += part[i]
        y[row] = total


@cuda.jit
def sum_walks_over_parts(x, y):
    part = cuda.shared.array(64, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    part[t] = float32(0)
    for c in range(t, x.shape[1], 64):
        part[t] += x[row, c]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for one in part:
            total += one
        y[row] = total


@cuda.jit
def sum_shared_atomic(x, y):
    total = cuda.shared.array(1, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    for c in range(t, x.shape[1], 64):
        cuda.atomic.add(total, 0, x[row, c])
    cuda.syncthreads()
    if t == 0:
        y[row] = total[0]


@cuda.jit
def sum_global_atomic(x, y):
    for c in range(cuda.threadIdx.x, x.shape[1], 64):
        cuda.atomic.add(y, cuda.blockIdx.x, x[cuda.blockIdx.x, c])


@cuda.jit
def lse_through_shared(x, y):
    tops = cuda.shared.array(32, float32)
    sums = cuda.shared.array(32, float32)
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    top, total = float32(-math.inf), float32(0)
    for c in range(lane, x.shape[1], 32):
        s = x[row, c]
        new = max(top, s)
        total = total * math.exp(top - new) + math.exp(s - new)
        top = new
    tops[lane], sums[lane] = top, total
    cuda.syncthreads()
    if lane == 0:
        for other in range(1, min(32, x.shape[1])):
            new = max(top, tops[other])
            total = total * math.exp(top - new) + sums[other] * math.exp(tops[other] - new)
            top = new
        y[row] = top + math.log(total)


@cuda.jit
def flash_whole_tile_of_scores(gQ, gK, gV, gO, gLSE, scale):
    sKV = cuda.shared.array((2, 16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    scores = cuda.local.array(16, float32)
    t, row = cuda.threadIdx.x, cuda.grid(1)
    for e in range(8):
        o[e] = 0
        if row < gQ.shape[0]:
            q[e] = gQ[row, e]
        else:
            q[e] = 0
    m, l = float32(-math.inf), float32(0)
    tiles = (gK.shape[0] + 15) // 16
    for tile in range(tiles):
        cuda.syncthreads()
        for i in range(t, 128, 16):  # neighbouring threads, neighbouring elements
            key = tile * 16 + i // 8
            inside = key < gK.shape[0]
            sKV[0, i // 8, i % 8] = gK[key, i % 8] if inside else float32(0)
            sKV[1, i // 8, i % 8] = gV[key, i % 8] if inside else float32(0)
        cuda.syncthreads()
        top = m
        for j in range(16):
            scores[j] = float32(-math.inf)
            if tile * 16 + j < gK.shape[0]:
                s = float32(0)
                for e in range(8):
                    s += q[e] * sKV[0, j, e]
                scores[j] = s * scale
            top = max(top, scores[j])
        old = math.exp(m - top)
        l *= old
        for e in range(8):
            o[e] *= old
        for j in range(16):
            p = math.exp(scores[j] - top)
            l += p
            for e in range(8):
                o[e] += p * sKV[1, j, e]
        m = top
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def dkdv_barrier_forgotten(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    sL = cuda.shared.array((2, 16), float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t, key = cuda.threadIdx.x, cuda.grid(1)
    for e in range(8):
        k[e] = gK[key, e] if key < gK.shape[0] else float32(0)
        v[e] = gV[key, e] if key < gK.shape[0] else float32(0)
        dk[e] = dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        n = min(16, gQ.shape[0] - first)
        if t < n:
            sL[0, t], sL[1, t] = gLSE[first + t], gDelta[first + t]
            for e in range(8):
                sQ[t, e], sG[t, e] = gQ[first + t, e], gdO[first + t, e]
        cuda.syncthreads()
        for i in range(n):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - sL[0, i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += scale * p * (dp - sL[1, i]) * sQ[i, e]
    if key < gK.shape[0]:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


def flash2_counts_everything(N, M, d, B_r, B_c):
    return float(2 * N * d + N + 2 * M * d * -(-N // B_r))


ANSWERS = {
    "predict_flash2": {"right": [flash2_counts_everything], "wrong": []},
    "online_lse": {"right": [lse_begins_with_the_first_tile], "wrong": []},
    "flash_forward": {
        "right": [flash_base_two],
        "wrong": [(flash_lse_in_base_two, r"LSE"), (flash_scores_in_sram, r"SRAM|does not fit")],
    },
    "backward": {
        "right": [backward_delta_in_dq],
        "wrong": [(backward_scaled_twice, r"dQ"), (backward_one_kernel_too_few, r"delta")],
    },
    "row_sum_kernel": {
        "right": [sum_first_thread, sum_shared_atomic, sum_walks_over_parts],
        "wrong": [(sum_global_atomic, r"\by\b")],
    },
    "row_lse_kernel": {"right": [lse_through_shared], "wrong": []},
    "flash_kernel": {"right": [flash_whole_tile_of_scores], "wrong": []},
    "dkdv_kernel": {"right": [], "wrong": [(dkdv_barrier_forgotten, r"race|barrier")]},
}
