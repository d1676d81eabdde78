"""Kernels of a warp with tensor-core instructions."""

from .variants import variant

SCORES = """
from numba import cuda, float32, uint16, uint32

from flash_numba.device.ptx_matrix import (
    ldmatrix_x1,
    ldmatrix_x2,
    ldmatrix_x4,
    mma_m16n8k16_fp16,
)


@cuda.jit
def scores(gQ, gK, gS):
    q = cuda.shared.array(16 * 72, uint16)
    k = cuda.shared.array(8 * 72, uint16)
    t = cuda.threadIdx.x
    d = gQ.shape[1]
    i0 = cuda.blockIdx.x * 16
    j0 = cuda.blockIdx.y * 8
    for e in range(t, 16 * d, 32):
        q[e // d * 72 + e % d] = gQ[i0 + e // d, e % d]
    for e in range(t, 8 * d, 32):
        k[e // d * 72 + e % d] = gK[j0 + e // d, e % d]
    cuda.syncwarp()
    acc = (float32(0), float32(0), float32(0), float32(0))
    for s in range(d // 16):
        a = ldmatrix_x4(q, 72 * (t % 16) + 16 * s + 8 * (t // 16))
        b = ldmatrix_x2(k, 72 * (t % 8) + 16 * s + 8 * (t // 8 % 2))
        acc = mma_m16n8k16_fp16(a, b, acc)
    for e in range(4):
        gS[i0 + t // 4 + 8 * (e // 2), j0 + 2 * (t % 4) + e % 2] = acc[e]
"""

FROM_GLOBAL = """
from numba import cuda, float32, uint32

from flash_numba.device.ptx_matrix import mma_m16n8k16_fp16


@cuda.jit
def pair(x, row, col):
    return uint32(x[row, col]) | (uint32(x[row, col + 1]) << 16)


@cuda.jit
def scores(gQ, gK, gS):
    lane = cuda.threadIdx.x
    g, t = lane // 4, 2 * (lane % 4)
    row, key = 16 * cuda.blockIdx.x + g, 8 * cuda.blockIdx.y + g
    c = (float32(0), float32(0), float32(0), float32(0))
    for k in range(t, gQ.shape[1], 16):
        a = (
            pair(gQ, row, k),
            pair(gQ, row + 8, k),
            pair(gQ, row, k + 8),
            pair(gQ, row + 8, k + 8),
        )
        c = mma_m16n8k16_fp16(a, (pair(gK, key, k), pair(gK, key, k + 8)), c)
    col = 8 * cuda.blockIdx.y + t
    gS[row, col], gS[row, col + 1] = c[0], c[1]
    gS[row + 8, col], gS[row + 8, col + 1] = c[2], c[3]
"""

BY_HAND = """
from numba import cuda, float32, uint16

from flash_numba.device.ptx import float_from_half


@cuda.jit
def scores(gQ, gK, gS):
    q = cuda.shared.array((16, 64), uint16)
    k = cuda.shared.array((8, 64), uint16)
    t, d = cuda.threadIdx.x, gQ.shape[1]
    i0, j0 = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8
    for e in range(t, 16 * d, 32):
        q[e // d, e % d] = gQ[i0 + e // d, e % d]
    for e in range(t, 8 * d, 32):
        k[e // d, e % d] = gK[j0 + e // d, e % d]
    cuda.syncthreads()
    for e in range(t, 128, 32):
        total = float32(0)
        for c in range(d):
            total += float_from_half(q[e // 8, c]) * float_from_half(k[e % 8, c])
        gS[i0 + e // 8, j0 + e % 8] = total
"""

SWIZZLE = """
from numba import cuda, uint16

from flash_numba.device.ptx_matrix import ldmatrix_x1, ldmatrix_x4


@cuda.jit
def place(row, col):
    return 64 * row + (col + 8 * row) % 64


@cuda.jit
def swizzle(gX, gY):
    s = cuda.shared.array(1024, uint16)
    t = cuda.threadIdx.x
    for row in range(16):
        for half in range(2):
            s[place(row, 32 * half + t)] = gX[row, 32 * half + t]
    cuda.syncwarp()
    for k in range(4):
        frag = ldmatrix_x4(s, place(t % 16, 16 * k + 8 * (t // 16)))
        gY[k, t, 0] = frag[0]
        gY[k, t, 1] = frag[1]
        gY[k, t, 2] = frag[2]
        gY[k, t, 3] = frag[3]
"""

ATTENTION = """
import math

from numba import cuda, float32, uint16

from flash_numba.device.ptx_matrix import (
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    mma_m16n8k16_fp16,
    pack_fp16,
)


@cuda.jit
def quad_sum(x):
    x += cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)
    return x + cuda.shfl_xor_sync(0xFFFFFFFF, x, 2)


@cuda.jit
def quad_max(x):
    x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 1))
    return max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 2))


@cuda.jit
def attention(gQ, gK, gV, gO, scale):
    q = cuda.shared.array(16 * 24, uint16)
    k = cuda.shared.array(16 * 24, uint16)
    v = cuda.shared.array(16 * 24, uint16)
    t = cuda.threadIdx.x
    i0 = 16 * cuda.blockIdx.x
    for e in range(t, 256, 32):
        r, c = e // 16, e % 16
        q[24 * r + c] = gQ[i0 + r, c]
        k[24 * r + c] = gK[r, c]
        v[24 * r + c] = gV[r, c]
    cuda.syncthreads()
    none = (float32(0), float32(0), float32(0), float32(0))
    a = ldmatrix_x4(q, 24 * (t % 16) + 8 * (t // 16))
    s0 = mma_m16n8k16_fp16(a, ldmatrix_x2(k, 24 * (t % 8) + 8 * (t // 8 % 2)), none)
    s1 = mma_m16n8k16_fp16(a, ldmatrix_x2(k, 24 * (8 + t % 8) + 8 * (t // 8 % 2)), none)
    m_up = quad_max(max(max(s0[0], s0[1]), max(s1[0], s1[1])))
    m_down = quad_max(max(max(s0[2], s0[3]), max(s1[2], s1[3])))
    up0, up1 = math.exp(scale * (s0[0] - m_up)), math.exp(scale * (s0[1] - m_up))
    up2, up3 = math.exp(scale * (s1[0] - m_up)), math.exp(scale * (s1[1] - m_up))
    down0, down1 = math.exp(scale * (s0[2] - m_down)), math.exp(scale * (s0[3] - m_down))
    down2, down3 = math.exp(scale * (s1[2] - m_down)), math.exp(scale * (s1[3] - m_down))
    l_up = quad_sum(up0 + up1 + up2 + up3)
    l_down = quad_sum(down0 + down1 + down2 + down3)
    p = (pack_fp16(up0, up1), pack_fp16(down0, down1), pack_fp16(up2, up3), pack_fp16(down2, down3))
    for part in range(2):
        o = mma_m16n8k16_fp16(p, ldmatrix_x2_trans(v, 24 * (t % 16) + 8 * part), none)
        col = 8 * part + 2 * (t % 4)
        gO[i0 + t // 4, col] = o[0] / l_up
        gO[i0 + t // 4, col + 1] = o[1] / l_up
        gO[i0 + t // 4 + 8, col] = o[2] / l_down
        gO[i0 + t // 4 + 8, col + 1] = o[3] / l_down
"""

P_IN_SHARED = (
    "    v = cuda.shared.array(16 * 24, uint16)\n",
    "    v = cuda.shared.array(16 * 24, uint16)\n    w = cuda.shared.array((16, 17), float32)\n",
    "    p = (pack",
    "    w[t // 4, 2 * (t % 4)], w[t // 4, 2 * (t % 4) + 1] = up0, up1\n"
    "    cuda.syncthreads()\n"
    "    up0, up1 = w[t // 4, 2 * (t % 4)], w[t // 4, 2 * (t % 4) + 1]\n"
    "    p = (pack",
)

NORMALISED_FIRST = (
    "pack_fp16(up0, up1), pack_fp16(down0, down1), pack_fp16(up2, up3), pack_fp16(down2, down3)",
    "pack_fp16(up0 / l_up, up1 / l_up), pack_fp16(down0 / l_down, down1 / l_down), "
    "pack_fp16(up2 / l_up, up3 / l_up), pack_fp16(down2 / l_down, down3 / l_down)",
    "] / l_up",
    "]",
    "] / l_down",
    "]",
)

BASE_TWO = (
    "    none = (",
    "    scale = scale * float32(1.4426950408889634)\n    none = (",
    "math.exp(",
    "exp2(",
    "from numba import cuda, float32, uint16\n",
    "from numba import cuda, float32, uint16\n\nfrom flash_numba.device.ptx import exp2\n",
)


def scores(*changes, text=SCORES):
    return variant("scores", text, *changes)


def swizzle(*changes):
    return variant("swizzle", SWIZZLE, *changes)


def attention(*changes):
    return variant("attention", ATTENTION, *changes)


ANSWERS = {
    "warp_scores_kernel": {
        "right": [
            scores(),
            scores(text=FROM_GLOBAL),
            scores(
                "b = ldmatrix_x2(k, 72 * (t % 8) + 16 * s + 8 * (t // 8 % 2))",
                "b0 = ldmatrix_x1(k, 72 * (t % 8) + 16 * s)\n"
                "        b1 = ldmatrix_x1(k, 72 * (t % 8) + 16 * s + 8)\n"
                "        b = (b0[0], b1[0])",
            ),
        ],
        "wrong": [
            (scores("    cuda.syncwarp()\n", ""), r"race|barrier|wait|sync"),
            (scores(text=BY_HAND), r"shared|mma|tensor|once|often"),
            (scores("_fp16(a, b,", "_fp16((a[0], a[2], a[1], a[3]), b,"), r"gS"),
            (
                scores(
                    "acc = mma_m16n8k16_fp16(a, b, acc)",
                    "acc = mma_m16n8k16_fp16(a, b, (float32(0), float32(0), float32(0), "
                    "float32(0)))",
                ),
                r"gS|last|columns",
            ),
            (scores("range(4)", "range(2)"), r"never|NaN|written"),
            (scores("8 * (t // 8 % 2)", "8 * (t // 16)"), r"gS"),
            (
                scores("cuda.blockIdx.x * 16", "cuda.blockIdx.y * 16"),
                r"gS|out|never|written|race",
            ),
            (
                scores(
                    "    cuda.syncwarp()\n",
                    "    for e in range(t, 8 * d, 32):\n"
                    "        k[e // d * 72 + e % d] = gK[j0 + e // d, e % d]\n"
                    "    cuda.syncwarp()\n",
                ),
                r"gK|often|once",
            ),
        ],
    },
    "swizzle_kernel": {
        "right": [
            swizzle(),
            swizzle("(col + 8 * row) % 64", "(col ^ 8 * (row % 8))"),
            swizzle("(col + 8 * row) % 64", "(col ^ 8 * (7 - row % 8))"),
        ],
        "wrong": [
            (swizzle("(col + 8 * row) % 64", "col"), r"bank|conflict|pass"),
            (
                swizzle("1024", "16 * 72", "64 * row + (col + 8 * row) % 64", "72 * row + col"),
                r"bytes|2,048|shared",
            ),
            (swizzle("(col + 8 * row) % 64", "(col ^ 8 * (row % 4))"), r"bank|conflict|pass"),
            (
                swizzle(
                    "place(t % 16, 16 * k + 8 * (t // 16))",
                    "64 * (t % 16) + 16 * k + 8 * (t // 16)",
                ),
                r"gY|bank|conflict",
            ),
            (swizzle("    cuda.syncwarp()\n", ""), r"race|barrier|wait|sync"),
            (swizzle("t % 16, 16 * k + 8 * (t // 16)", "t // 2, 16 * k + 8 * (t % 2)"), r"gY"),
            (swizzle("(col + 8 * row) % 64", "(col ^ (row % 8))"), r"gY|align|16|bound"),
            (swizzle("gY[k, t, 1] = frag[1]", "gY[k, t, 1] = frag[2]"), r"gY"),
            (swizzle("range(16)", "range(8)"), r"gY|never|written|unset|init"),
        ],
    },
    "warp_attention_kernel": {
        "right": [attention(), attention(*NORMALISED_FIRST), attention(*BASE_TWO)],
        "wrong": [
            (attention("scale * (s", "(s"), r"scale|gO"),
            (
                attention("- m_up", "- 0", "- m_down", "- 0"),
                r"gO|overflow|maximum|NaN|inf",
            ),
            (attention("l_up = quad_sum(", "l_up = ("), r"gO|sum|lane|quad"),
            (attention("ldmatrix_x2_trans", "ldmatrix_x2"), r"gO"),
            (
                attention(
                    "pack_fp16(down0, down1), pack_fp16(up2, up3)",
                    "pack_fp16(up2, up3), pack_fp16(down0, down1)",
                ),
                r"gO",
            ),
            (attention(*P_IN_SHARED), r"shared|bytes|\bP\b"),
            (attention("o[2] / l_down", "o[2] / l_up"), r"gO"),
            (attention("    cuda.syncthreads()\n", ""), r"race|barrier|wait|sync"),
            (attention(" / l_up", "", " / l_down", ""), r"gO|divide|sum"),
        ],
    },
}
