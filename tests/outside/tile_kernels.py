"""CUDA kernels of attention: a tile of queries, a tile of keys."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math

from numba import cuda, float32


@cuda.jit
def flash_right(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_starts_at_zero(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(0), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_no_second_barrier(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_no_tail_mask(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale if row < gQ.shape[0] else float32(0)
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        for e in range(8):
            sK[t, e] = gK[first + t, e] if first + t < gK.shape[0] else float32(0)
            sV[t, e] = gV[first + t, e] if first + t < gK.shape[0] else float32(0)
        cuda.syncthreads()
        for j in range(16):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def flash_early_return(gQ, gK, gV, gO, gLSE, scale):
    sK = cuda.shared.array((16, 8), float32)
    sV = cuda.shared.array((16, 8), float32)
    q = cuda.local.array(8, float32)
    o = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.grid(1)
    if row >= gQ.shape[0]:
        return
    for e in range(8):
        o[e] = float32(0)
        q[e] = gQ[row, e] * scale
    m, l = float32(-1e30), float32(0)
    for first in range(0, gK.shape[0], 16):
        n = min(16, gK.shape[0] - first)
        if t < n:
            for e in range(8):
                sK[t, e] = gK[first + t, e]
                sV[t, e] = gV[first + t, e]
        cuda.syncthreads()
        for j in range(n):
            s = float32(0)
            for e in range(8):
                s += q[e] * sK[j, e]
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * sV[j, e]
            m = new
        cuda.syncthreads()
    for e in range(8):
        gO[row, e] = o[e] / l
    gLSE[row] = m + math.log(l)


@cuda.jit
def flash_from_hbm(gQ, gK, gV, gO, gLSE, scale):
    o = cuda.local.array(8, float32)
    row = cuda.grid(1)
    if row < gQ.shape[0]:
        for e in range(8):
            o[e] = float32(0)
        m, l = float32(-1e30), float32(0)
        for j in range(gK.shape[0]):
            s = float32(0)
            for e in range(8):
                s += gQ[row, e] * gK[j, e] * scale
            new = max(m, s)
            old, p = math.exp(m - new), math.exp(s - new)
            l = l * old + p
            for e in range(8):
                o[e] = o[e] * old + p * gV[j, e]
            m = new
        for e in range(8):
            gO[row, e] = o[e] / l
        gLSE[row] = m + math.log(l)


@cuda.jit
def dkdv_right(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    sL = cuda.shared.array(16, float32)
    sD = cuda.shared.array(16, float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        n = min(16, gQ.shape[0] - first)
        if t < n:
            sL[t] = gLSE[first + t]
            sD[t] = gDelta[first + t]
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(n):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - sL[i])
            ds = scale * p * (dp - sD[i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


@cuda.jit
def dkdv_scale_forgotten(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        n = min(16, gQ.shape[0] - first)
        if t < n:
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(n):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - gLSE[first + i])
            ds = p * (dp - gDelta[first + i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


@cuda.jit
def dkdv_stale_tail(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ = cuda.shared.array((16, 8), float32)
    sG = cuda.shared.array((16, 8), float32)
    sL = cuda.shared.array(16, float32)
    sD = cuda.shared.array(16, float32)
    k = cuda.local.array(8, float32)
    v = cuda.local.array(8, float32)
    dk = cuda.local.array(8, float32)
    dv = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    key = cuda.grid(1)
    mine = key < gK.shape[0]
    for e in range(8):
        k[e] = gK[key, e] if mine else float32(0)
        v[e] = gV[key, e] if mine else float32(0)
        dk[e] = float32(0)
        dv[e] = float32(0)
    for first in range(0, gQ.shape[0], 16):
        if first + t < gQ.shape[0]:
            sL[t] = gLSE[first + t]
            sD[t] = gDelta[first + t]
            for e in range(8):
                sQ[t, e] = gQ[first + t, e]
                sG[t, e] = gdO[first + t, e]
        cuda.syncthreads()
        for i in range(16):
            s, dp = float32(0), float32(0)
            for e in range(8):
                s += sQ[i, e] * k[e]
                dp += sG[i, e] * v[e]
            p = math.exp(s * scale - sL[i])
            ds = scale * p * (dp - sD[i])
            for e in range(8):
                dv[e] += p * sG[i, e]
                dk[e] += ds * sQ[i, e]
        cuda.syncthreads()
    if mine:
        for e in range(8):
            gdK[key, e] = dk[e]
            gdV[key, e] = dv[e]


ANSWERS = {
    "flash_kernel": {
        "right": [flash_right],
        "wrong": [
            (flash_no_second_barrier, r"race|barrier|sync|wait"),
            (flash_starts_at_zero, r"start|-inf"),
            (flash_no_tail_mask, r"gO|gLSE"),
            (flash_early_return, r"barrier|sync|race|returned|uninit|never|shared|written|thread"),
            (flash_from_hbm, r"gK|gQ|shared|once|load"),
        ],
    },
    "dkdv_kernel": {
        "right": [dkdv_right],
        "wrong": [
            (dkdv_scale_forgotten, r"gdK|gLSE|scale"),
            (dkdv_stale_tail, r"gdK|gdV|shared|never|written|uninit"),
        ],
    },
}
