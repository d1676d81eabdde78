"""Other right kernels, and some more slips; most are a text with a few words changed."""

from .variants import variant

HEAD = """
import math
from numba import cuda, float32


"""

SCALE = f"""{HEAD}@cuda.jit
def scale(x, y, a):
    for turn in range(2):
        i = 64 * cuda.blockIdx.x + 2 * cuda.threadIdx.x + turn
        if cuda.threadIdx.x < 32 and i < len(x):
            y[i] = x[i] * a
"""

COPY = f"""{HEAD}@cuda.jit
def copy(x, y):
    lane, row = cuda.threadIdx.x, 8 * cuda.blockIdx.y + cuda.threadIdx.y
    col = 32 * cuda.blockIdx.x + lane
    if row >= x.shape[0] or col >= x.shape[1]:
        return
    y[row, col] = x[row, col]
"""

COPY_THROUGH_SHARED = f"""{HEAD}@cuda.jit
def copy(x, y):
    tile = cuda.shared.array((8, 32), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        tile[j, i] = x[row, col]
    cuda.syncthreads()
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = tile[j, i]
"""

TRANSPOSE = f"""{HEAD}@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array(33 * 32, float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(4):
        row, col = 32 * cuda.blockIdx.y + 4 * j + k, 32 * cuda.blockIdx.x + i
        if row < x.shape[0] and col < x.shape[1]:
            tile[33 * i + 4 * j + k] = x[row, col]
    cuda.syncthreads()
    for k in range(4):
        row, col = 32 * cuda.blockIdx.x + 4 * j + k, 32 * cuda.blockIdx.y + i
        if row < y.shape[0] and col < y.shape[1]:
            y[row, col] = tile[33 * (4 * j + k) + i]
"""

LSE = f"""{HEAD}@cuda.jit
def lse(x, y):
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    m, l = float32(-math.inf), float32(0)
    for col in range(lane, x.shape[1], 32):
        s = x[row, col]
        if s > m:
            l = l * math.exp(m - s) + float32(1)
            m = s
        else:
            l += math.exp(s - m)
    top = m
    step = 16
    while step > 0:
        top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, step))
        step //= 2
    l = l * math.exp(m - top) if l > 0 else float32(0)
    step = 16
    while step > 0:
        l += cuda.shfl_xor_sync(0xFFFFFFFF, l, step)
        step //= 2
    if lane == 0:
        y[row] = top + math.log(l)
"""

FLASH = f"""{HEAD}@cuda.jit
def flash(gQ, gK, gV, gO, gLSE, scale):
    sKV = cuda.shared.array((2, 16, 8), float32)
    q, o = cuda.local.array(8, float32), cuda.local.array(8, float32)
    t, row = cuda.threadIdx.x, cuda.grid(1)
    here = row < gQ.shape[0]
    for c in range(8):
        o[c] = 0
        q[c] = 0
        if here:
            q[c] = gQ[row, c]
    m, l = float32(-math.inf), float32(0)
    for j in range(gK.shape[0]):
        if j % 16 == 0:
            cuda.syncthreads()
            if j + t < gK.shape[0]:
                for c in range(8):
                    sKV[0, t, c] = gK[j + t, c]
                    sKV[1, t, c] = gV[j + t, c]
            cuda.syncthreads()
        s = float32(0)
        for c in range(8):
            s += q[c] * sKV[0, j % 16, c]
        s *= scale
        if s > m:
            old = math.exp(m - s)
            l *= old
            for c in range(8):
                o[c] *= old
            m = s
        p = math.exp(s - m)
        l += p
        for c in range(8):
            o[c] += p * sKV[1, j % 16, c]
    if here:
        for c in range(8):
            gO[row, c] = o[c] / l
        gLSE[row] = math.log(l) + m
"""

DKDV = f"""{HEAD}@cuda.jit
def dkdv(gQ, gK, gV, gdO, gLSE, gDelta, gdK, gdV, scale):
    sQ, sdO = cuda.shared.array((16, 8), float32), cuda.shared.array((16, 8), float32)
    k, v = cuda.local.array(8, float32), cuda.local.array(8, float32)
    dk, dv = cuda.local.array(8, float32), cuda.local.array(8, float32)
    sRow = cuda.shared.array((2, 16), float32)
    t, key = cuda.threadIdx.x, cuda.grid(1)
    inside = key < gK.shape[0]
    for c in range(8):
        k[c] = gK[key, c] if inside else float32(0)
        v[c] = gV[key, c] if inside else float32(0)
        dk[c] = 0
        dv[c] = 0
    for start in range(0, gQ.shape[0], 16):
        if start + t < gQ.shape[0]:
            sRow[0, t] = gLSE[start + t]
            sRow[1, t] = gDelta[start + t]
            for c in range(8):
                sQ[t, c] = gQ[start + t, c]
                sdO[t, c] = gdO[start + t, c]
        cuda.syncthreads()
        for i in range(16):
            if start + i < gQ.shape[0]:
                s, dp = float32(0), float32(0)
                for c in range(8):
                    s += sQ[i, c] * k[c]
                    dp += sdO[i, c] * v[c]
                p = math.exp(scale * s - sRow[0, i])
                for c in range(8):
                    dv[c] += p * sdO[i, c]
                    dk[c] += p * (dp - sRow[1, i]) * sQ[i, c]
        cuda.syncthreads()
    if inside:
        for c in range(8):
            gdK[key, c] = scale * dk[c]
            gdV[key, c] = dv[c]
"""

ANSWERS = {
    "scale_kernel": {"right": [variant("scale", SCALE)], "wrong": []},
    "copy_kernel": {
        "right": [variant("copy", COPY), variant("copy", COPY_THROUGH_SHARED)],
        "wrong": [(variant("copy", COPY, "col = 32 *", "col = 8 *"), r"too often")],
    },
    "transpose_kernel": {
        "right": [variant("transpose", TRANSPOSE)],
        "wrong": [(variant("transpose", TRANSPOSE, "33", "32"), r"bank")],
    },
    "row_lse_kernel": {"right": [variant("lse", LSE)], "wrong": []},
    "flash_kernel": {"right": [variant("flash", FLASH)], "wrong": []},
    "dkdv_kernel": {
        "right": [
            variant("dkdv", DKDV),
            variant(
                "dkdv", DKDV,
                "scale * s - sRow[0, i]", "s - sRow[0, i]",
                "s += sQ[i, c] * k[c]", "s += scale * sQ[i, c] * k[c]",
            ),
        ],
        "wrong": [
            (variant("dkdv", DKDV, "dp - sRow[1, i]", "dp"), r"gdK"),
            (variant("dkdv", DKDV, "p * sdO[i, c]\n", "dp * sdO[i, c]\n"), r"gdV"),
            (variant("dkdv", DKDV, "= scale * dk[c]", "= dk[c]"), r"gdK"),
        ],
    },
}  # fmt: skip
