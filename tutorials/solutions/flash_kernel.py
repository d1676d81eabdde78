import math

from numba import cuda, float32

TILE, D = 16, 8


@cuda.jit
def flash_kernel(gQ, gK, gV, gO, gLSE, scale):
    """A thread owns a query row; tiles of K and V come through shared memory."""
    sK = cuda.shared.array((TILE, D), float32)
    sV = cuda.shared.array((TILE, D), float32)
    rQ = cuda.local.array(D, float32)
    acc_o = cuda.local.array(D, float32)
    i = cuda.threadIdx.x
    row = cuda.blockIdx.x * TILE + i
    for c in range(D):
        rQ[c] = gQ[row, c] if row < gQ.shape[0] else float32(0)
        acc_o[c] = float32(0)
    m, l = float32(-math.inf), float32(0)
    for start in range(0, gK.shape[0], TILE):
        if start + i < gK.shape[0]:
            for c in range(D):
                sK[i, c] = gK[start + i, c]
                sV[i, c] = gV[start + i, c]
        cuda.syncthreads()
        for j in range(min(TILE, gK.shape[0] - start)):
            s = float32(0)
            for c in range(D):
                s += rQ[c] * sK[j, c]
            s *= scale
            m_new = max(m, s)
            alpha = math.exp(m - m_new)
            p = math.exp(s - m_new)
            l = l * alpha + p
            for c in range(D):
                acc_o[c] = acc_o[c] * alpha + p * sV[j, c]
            m = m_new
        cuda.syncthreads()
    if row < gQ.shape[0]:
        for c in range(D):
            gO[row, c] = acc_o[c] / l
        gLSE[row] = m + math.log(l)
