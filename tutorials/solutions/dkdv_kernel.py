import math

from numba import cuda, float32

TILE, D = 16, 8


@cuda.jit
def dkdv_kernel(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    """A thread owns a key row; tiles of Q, dO, LSE and delta come through shared memory."""
    sQ = cuda.shared.array((TILE, D), float32)
    sdO = cuda.shared.array((TILE, D), float32)
    sLSE = cuda.shared.array(TILE, float32)
    sDelta = cuda.shared.array(TILE, float32)
    rK = cuda.local.array(D, float32)
    rV = cuda.local.array(D, float32)
    acc_dk = cuda.local.array(D, float32)
    acc_dv = cuda.local.array(D, float32)
    i = cuda.threadIdx.x
    key = cuda.blockIdx.x * TILE + i
    for c in range(D):
        rK[c] = gK[key, c] if key < gK.shape[0] else float32(0)
        rV[c] = gV[key, c] if key < gK.shape[0] else float32(0)
        acc_dk[c] = float32(0)
        acc_dv[c] = float32(0)
    for start in range(0, gQ.shape[0], TILE):
        if start + i < gQ.shape[0]:
            for c in range(D):
                sQ[i, c] = gQ[start + i, c]
                sdO[i, c] = gdO[start + i, c]
            sLSE[i] = gLSE[start + i]
            sDelta[i] = gDelta[start + i]
        cuda.syncthreads()
        for j in range(min(TILE, gQ.shape[0] - start)):
            s = float32(0)
            dp = float32(0)
            for c in range(D):
                s += sQ[j, c] * rK[c]
                dp += sdO[j, c] * rV[c]
            p = math.exp(s * scale - sLSE[j])
            ds = scale * p * (dp - sDelta[j])
            for c in range(D):
                acc_dv[c] += p * sdO[j, c]
                acc_dk[c] += ds * sQ[j, c]
        cuda.syncthreads()
    if key < gK.shape[0]:
        for c in range(D):
            gdK[key, c] = acc_dk[c]
            gdV[key, c] = acc_dv[c]
