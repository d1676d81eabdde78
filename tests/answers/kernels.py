"""Answers to the puzzles that want a CUDA kernel."""

from . import Answers

scale = Answers("scale_kernel")
scale.right(
    "index by hand",
    "i = cuda.grid(1)",
    "i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x",
)
scale.right(
    "returns early",
    "    if i < x.shape[0]:\n        y[i] = a * x[i]",
    "    if i >= y.size:\n        return\n    y[i] = x[i] * a",
)
scale.wrong("no guard", "out of bounds", "    if i < x.shape[0]:\n        y", "    y")
scale.wrong("guard off by one", "out of bounds", "i < x", "i <= x")
scale.wrong("guard one short", "never written", "i < x.shape[0]", "i < x.shape[0] - 1")
scale.wrong("thread index alone", "", "cuda.grid(1)", "cuda.threadIdx.x")
scale.wrong("not scaled", "not a x", "a * x[i]", "x[i]")
scale.wrong("parameters", "3 are handed in", "(x, y, a)", "(x, y)", "a *", "2.5 *")
scale.wrong("block size wrong", "", "cuda.grid(1)", "cuda.blockIdx.x * 32 + cuda.threadIdx.x")

copy = Answers("copy_kernel")
copy.right(
    "index by hand",
    "    col, row = cuda.grid(2)\n",
    "    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x\n    row = cuda.blockIdx.y "
    "* 8 + cuda.threadIdx.y\n",
)
copy.right(
    "other names",
    "(x, y)",
    "(source, target)",
    "x.shape",
    "source.shape",
    "y[row, col] = x[row, col]",
    "target[row, col] = source[row, col]",
)
copy.wrong(
    "no guard", "out of bounds", "    if row < x.shape[0] and col < x.shape[1]:\n        y", "    y"
)
copy.wrong("rows guarded only", "out of bounds", " and col < x.shape[1]", "")
copy.wrong("exchanged", "", "col, row = cuda.grid(2)", "row, col = cuda.grid(2)")
copy.wrong(
    "lanes down the rows",
    "sectors",
    "    col, row = cuda.grid(2)\n",
    "    flat = cuda.threadIdx.y * 32 + cuda.threadIdx.x\n"
    "    col = cuda.blockIdx.x * 32 + flat // 8\n    row = cuda.blockIdx.y * 8 + flat % 8\n",
)
copy.wrong(
    "copied twice",
    "too often",
    "y[row, col] = x[row, col]",
    "y[row, col] = x[row, col]\n        y[row, col] = x[row, col]",
)
copy.wrong("backwards", "is right", "x[row, col]", "x[row, x.shape[1] - 1 - col]")

transpose = Answers("transpose_kernel")
transpose.right("a row of 35", "(32, 33)", "(32, 35)")
transpose.right(
    "swizzled",
    "(32, 33)",
    "(32, 32)",
    "tile[j + k, i] =",
    "tile[j + k, i ^ (j + k)] =",
    "tile[i, j + k]",
    "tile[i, (j + k) ^ i]",
)
transpose.wrong("not padded", "bank", "(32, 33)", "(32, 32)")
transpose.wrong("padded by two", "bank", "(32, 33)", "(32, 34)")
transpose.wrong("no barrier", "race", "    cuda.syncthreads()\n", "")
transpose.wrong(
    "without shared memory",
    "sectors",
    """
from numba import cuda


@cuda.jit
def transpose_kernel(x, y):
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    for k in range(0, 32, 8):
        row = cuda.blockIdx.y * 32 + cuda.threadIdx.y + k
        if row < x.shape[0] and col < x.shape[1]:
            y[col, row] = x[row, col]
""",
)
transpose.wrong(
    "blocks not turned",
    "",
    "    col = cuda.blockIdx.y * 32 + i\n",
    "    col = cuda.blockIdx.x * 32 + i\n",
)
transpose.wrong("first rows only", "", "range(0, 32, 8)", "range(0, 8, 8)")
transpose.wrong("not transposed", "", "tile[i, j + k]", "tile[j + k, i]")

total = Answers("row_sum_kernel")
total.right(
    "one thread adds up",
    """
from numba import cuda, float32


@cuda.jit
def row_sum_kernel(x, y):
    parts = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    parts[i] = 0
    for col in range(i, x.shape[1], 64):
        parts[i] += x[cuda.blockIdx.x, col]
    cuda.syncthreads()
    if i == 0:
        total = float32(0)
        for j in range(64):
            total += parts[j]
        y[cuda.blockIdx.x] = total
""",
)
total.right(
    "shuffles",
    """
from numba import cuda, float32


@cuda.jit
def row_sum_kernel(x, y):
    parts = cuda.shared.array(2, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for col in range(i, x.shape[1], 64):
        total += x[cuda.blockIdx.x, col]
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
    if i % 32 == 0:
        parts[i // 32] = total
    cuda.syncthreads()
    if i == 0:
        y[cuda.blockIdx.x] = parts[0] + parts[1]
""",
)
total.wrong(
    "no barrier before halving",
    "race",
    "    parts[i] = total\n    cuda.syncthreads()\n",
    "    parts[i] = total\n",
)
total.wrong(
    "no barrier while halving",
    "race",
    "            parts[i] += parts[i + step]\n        cuda.syncthreads()\n",
    "            parts[i] += parts[i + step]\n",
)
total.wrong(
    "barrier inside the if",
    "barrier",
    "            parts[i] += parts[i + step]\n        cuda.syncthreads()\n",
    "            parts[i] += parts[i + step]\n            cuda.syncthreads()\n",
)
total.wrong("starts at 16", "first 32 elements", "step = 32", "step = 16")
total.wrong(
    "first 64 columns", "is right", "range(i, x.shape[1], 64)", "range(i, min(64, x.shape[1]), 64)"
)
total.wrong("out of the row", "", "range(i, x.shape[1], 64)", "range(i, x.shape[1] + 64, 64)")
total.wrong(
    "each thread the whole row", "is right", "range(i, x.shape[1], 64)", "range(x.shape[1])"
)
total.wrong(
    "one thread alone",
    "neighbouring elements",
    """
from numba import cuda, float32


@cuda.jit
def row_sum_kernel(x, y):
    row = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        total = float32(0)
        for col in range(x.shape[1]):
            total += x[row, col]
        y[row] = total
""",
)
total.wrong(
    "a piece of the row a thread",
    "neighbouring elements",
    "range(i, x.shape[1], 64)",
    "range((x.shape[1] + 63) // 64 * i, min((x.shape[1] + 63) // 64 * (i + 1), x.shape[1]))",
)
total.wrong("mean", "is right", "= parts[0]\n", "= parts[0] / x.shape[1]\n")

lse = Answers("row_lse_kernel")
lse.wrong(
    "one lane alone",
    "neighbouring elements",
    """
import math

from numba import cuda, float32


@cuda.jit
def row_lse_kernel(x, y):
    row, m, l = cuda.blockIdx.x, float32(-1e30), float32(0)
    if cuda.threadIdx.x == 0:
        for col in range(x.shape[1]):
            s = x[row, col]
            m_new = max(m, s)
            l = l * math.exp(m - m_new) + math.exp(s - m_new)
            m = m_new
        y[row] = m + math.log(l)
""",
)
lse.right(
    "pairs merge",
    """
import math

from numba import cuda, float32


@cuda.jit
def row_lse_kernel(x, y):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m, l = float32(-1e30), float32(0)
    for col in range(lane, x.shape[1], 32):
        s = x[row, col]
        if s > m:
            l = l * math.exp(m - s)
            m = s
        l += math.exp(s - m)
    for step in (1, 2, 4, 8, 16):
        m_b = cuda.shfl_xor_sync(0xFFFFFFFF, m, step)
        l_b = cuda.shfl_xor_sync(0xFFFFFFFF, l, step)
        m_new = max(m, m_b)
        l = l * math.exp(m - m_new) + l_b * math.exp(m_b - m_new)
        m = m_new
    if lane == 0:
        y[row] = m + math.log(l)
""",
)
lse.right(
    "shared memory",
    """
import math

from numba import cuda, float32


@cuda.jit
def row_lse_kernel(x, y):
    maxima = cuda.shared.array(32, float32)
    sums = cuda.shared.array(32, float32)
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m, l = float32(-math.inf), float32(0)
    for col in range(lane, x.shape[1], 32):
        m_new = max(m, x[row, col]) if False else m
        s = x[row, col] if False else float32(0)
        break
    col = lane
    while col < x.shape[1]:
        s = x[row, col]
        m_new = max(m, s)
        l = l * math.exp(m - m_new) + math.exp(s - m_new)
        m = m_new
        col += 32
    maxima[lane], sums[lane] = m, l
    cuda.syncthreads()
    if lane == 0:
        for j in range(1, 32):
            if sums[j] > 0:
                m_new = max(m, maxima[j])
                l = l * math.exp(m - m_new) + sums[j] * math.exp(maxima[j] - m_new)
                m = m_new
        y[row] = m + math.log(l)
""".replace(
        """    for col in range(lane, x.shape[1], 32):
        m_new = max(m, x[row, col]) if False else m
        s = x[row, col] if False else float32(0)
        break
""",
        "",
    ),
)
lse.wrong(
    "no maximum across lanes",
    "",
    "    for step in (16, 8, 4, 2, 1):\n"
    "        warp_max = max(warp_max, cuda.shfl_xor_sync(0xFFFFFFFF, warp_max, step))\n",
    "",
)
lse.wrong("no rescale of lanes", "", "    l = l * math.exp(m - warp_max)\n", "")
lse.wrong("no rescale within a lane", "", "l * math.exp(m - m_new) + math", "l + math")
lse.wrong("log l", "LSE = m + log(l)", "warp_max + math.log(l)", "math.log(l)")
lse.wrong(
    "first 32 columns", "", "range(lane, x.shape[1], 32)", "range(lane, min(32, x.shape[1]), 32)"
)
lse.wrong("half the lanes", "", "(16, 8, 4, 2, 1)", "(8, 4, 2, 1)")
lse.wrong("every lane loads all", "is right", "range(lane, x.shape[1], 32)", "range(x.shape[1])")
lse.wrong(
    "maximum starts at 0 and sums 1",
    "is right",
    "float32(-math.inf), float32(0)",
    "float32(0), float32(1)",
)

flash = Answers("flash_kernel")
flash.right(
    "online per tile",
    "            s *= scale\n            m_new = max(m, s)\n",
    "            s = scale * s\n            m_new = max(s, m)\n",
    "sK = cuda.shared.array((TILE, D), float32)",
    "sK = cuda.shared.array((TILE, D + 1), float32)",
)
flash.right(
    "two passes over a tile",
    "            s *= scale\n",
    "            s *= scale\n            rS[j] = s\n",
    "            m_new = max(m, s)\n            alpha = math.exp(m - m_new)\n"
    "            p = math.exp(s - m_new)\n            l = l * alpha + p\n"
    "            for c in range(D):\n"
    "                acc_o[c] = acc_o[c] * alpha + p * sV[j, c]\n            m = m_new\n",
    "            tile_max = max(tile_max, s)\n"
    "        alpha = math.exp(m - tile_max)\n        l *= alpha\n"
    "        for c in range(D):\n            acc_o[c] *= alpha\n"
    "        for j in range(keys):\n            p = math.exp(rS[j] - tile_max)\n"
    "            l += p\n"
    "            for c in range(D):\n                acc_o[c] += p * sV[j, c]\n"
    "        m = tile_max\n",
    "        for j in range(min(TILE, gK.shape[0] - start)):\n",
    "        keys = min(TILE, gK.shape[0] - start)\n        tile_max = m\n"
    "        for j in range(keys):\n",
    "    rQ = cuda",
    "    rS = cuda.local.array(TILE, float32)\n    rQ = cuda",
)
flash.wrong(
    "no first barrier",
    "race",
    "sV[i, c] = gV[start + i, c]\n        cuda.syncthreads()\n",
    "sV[i, c] = gV[start + i, c]\n",
)
flash.wrong(
    "no second barrier",
    "race",
    "            m = m_new\n        cuda.syncthreads()\n",
    "            m = m_new\n",
)
flash.wrong("tail of keys", "", "range(min(TILE, gK.shape[0] - start))", "range(TILE)")
flash.wrong("not divided", "never divided", "acc_o[c] / l", "acc_o[c]")
flash.wrong("O not rescaled", "", "acc_o[c] * alpha", "acc_o[c]")
flash.wrong(
    "no guard of rows",
    "out of bounds",
    "    if row < gQ.shape[0]:\n        for c in range(D):\n            gO[row, "
    "c] = acc_o[c] / l\n        gLSE[row] = m + math.log(l)\n",
    "    for c in range(D):\n        gO[row, c] = acc_o[c] / l\n    gLSE[row] = m + math.log(l)\n",
)
flash.wrong(
    "no shared memory",
    "loads gK too often",
    "s += rQ[c] * sK[j, c]",
    "s += rQ[c] * gK[start + j, c]",
)
flash.wrong(
    "returns early",
    "",
    "    for c in range(D):\n        rQ[c] =",
    "    if row >= gQ.shape[0]:\n        return\n    for c in range(D):\n        rQ[c] =",
)
flash.wrong("no scale", "is right", "            s *= scale\n", "")

dkdv = Answers("dkdv_kernel")
dkdv.right("padded", "(TILE, D)", "(TILE, D + 1)")
dkdv.right(
    "scale at the end",
    "ds = scale * p *",
    "ds = p *",
    "gdK[key, c] = acc_dk[c]",
    "gdK[key, c] = scale * acc_dk[c]",
)
dkdv.wrong(
    "no delta",
    "forgets delta",
    "(dp - sDelta[j])",
    "dp",
    "            sDelta[i] = gDelta[start + i]\n",
    "",
)
dkdv.wrong(
    "no first barrier",
    "race",
    "sDelta[i] = gDelta[start + i]\n        cuda.syncthreads()\n",
    "sDelta[i] = gDelta[start + i]\n",
)
dkdv.wrong(
    "no second barrier",
    "race",
    "acc_dk[c] += ds * sQ[j, c]\n        cuda.syncthreads()\n",
    "acc_dk[c] += ds * sQ[j, c]\n",
)
dkdv.wrong("tail of queries", "", "range(min(TILE, gQ.shape[0] - start))", "range(TILE)")
dkdv.wrong("no scale in dS", "is right", "scale * p *", "p *")
dkdv.wrong("dO from HBM", "loads gdO too often", "p * sdO[j, c]", "p * gdO[start + j, c]")
dkdv.wrong("dK from dO", "is right", "ds * sQ[j, c]", "ds * sdO[j, c]")
dkdv.wrong(
    "keys not guarded",
    "out of bounds",
    "    if key < gK.shape[0]:\n        for c in range(D):\n            gdK[key, "
    "c] = acc_dk[c]\n            gdV[key, c] = acc_dv[c]\n",
    "    for c in range(D):\n        gdK[key, c] = acc_dk[c]\n        gdV[key, c] = acc_dv[c]\n",
)

ANSWERS = (scale, copy, transpose, total, lse, flash, dkdv)
