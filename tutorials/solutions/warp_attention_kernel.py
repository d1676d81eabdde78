import math

from numba import cuda, float32, uint16

from flash_numba.device.ptx_matrix import (
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_m16n8k16_fp16,
    pack_fp16,
)


@cuda.jit
def warp_attention_kernel(gQ, gK, gV, gO, scale):
    """S stays where the first product leaves it, and is an operand of the second."""
    sQ = cuda.shared.array(256, uint16)
    sK = cuda.shared.array(256, uint16)
    sV = cuda.shared.array(256, uint16)
    lane, first_q = cuda.threadIdx.x, 16 * cuda.blockIdx.x
    for i in range(lane, 256, 32):
        row, col = i // 16, i % 16
        sQ[i] = gQ[first_q + row, col]
        sK[i] = gK[row, col]
        sV[i] = gV[row, col]
    cuda.syncthreads()
    part, row = lane // 8, lane % 8
    zero = float32(0)
    nothing = (zero, zero, zero, zero)
    by_rows = 16 * (row + 8 * (part % 2)) + 8 * (part // 2)
    by_columns = 16 * (row + 8 * (part // 2)) + 8 * (part % 2)
    a = ldmatrix_x4(sQ, by_rows)
    b = ldmatrix_x4(sK, by_columns)
    left = mma_m16n8k16_fp16(a, (b[0], b[1]), nothing)
    right = mma_m16n8k16_fp16(a, (b[2], b[3]), nothing)
    rS = cuda.local.array((2, 4), float32)
    for i in range(2):
        for j in range(2):
            rS[i, j] = scale * left[2 * i + j]
            rS[i, 2 + j] = scale * right[2 * i + j]
    rL = cuda.local.array(2, float32)
    for i in range(2):
        m = max(max(rS[i, 0], rS[i, 1]), max(rS[i, 2], rS[i, 3]))
        m = max(m, cuda.shfl_xor_sync(0xFFFFFFFF, m, 1))
        m = max(m, cuda.shfl_xor_sync(0xFFFFFFFF, m, 2))
        total = zero
        for j in range(4):
            rS[i, j] = math.exp(rS[i, j] - m)
            total += rS[i, j]
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
        rL[i] = total
    p = (
        pack_fp16(rS[0, 0], rS[0, 1]),
        pack_fp16(rS[1, 0], rS[1, 1]),
        pack_fp16(rS[0, 2], rS[0, 3]),
        pack_fp16(rS[1, 2], rS[1, 3]),
    )
    v = ldmatrix_x4_trans(sV, by_rows)
    left = mma_m16n8k16_fp16(p, (v[0], v[1]), nothing)
    right = mma_m16n8k16_fp16(p, (v[2], v[3]), nothing)
    for i in range(2):
        for j in range(2):
            gO[first_q + lane // 4 + 8 * i, 2 * (lane % 4) + j] = left[2 * i + j] / rL[i]
            gO[first_q + lane // 4 + 8 * i, 8 + 2 * (lane % 4) + j] = right[2 * i + j] / rL[i]
