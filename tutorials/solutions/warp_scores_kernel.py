from numba import cuda, float32, uint16

from flash_numba.device.ptx_matrix import ldmatrix_x2, ldmatrix_x4, mma_m16n8k16_fp16


@cuda.jit
def warp_scores_kernel(gQ, gK, gS):
    """A fragment of Q, one of K, one instruction: 16 columns at a time."""
    sQ = cuda.shared.array(16 * 64, uint16)
    sK = cuda.shared.array(8 * 64, uint16)
    lane, d = cuda.threadIdx.x, gQ.shape[1]
    first_q, first_k = 16 * cuda.blockIdx.x, 8 * cuda.blockIdx.y
    for i in range(lane, 16 * d, 32):
        sQ[i] = gQ[first_q + i // d, i % d]
    for i in range(lane, 8 * d, 32):
        sK[i] = gK[first_k + i // d, i % d]
    cuda.syncthreads()
    part, row = lane // 8, lane % 8
    zero = float32(0)
    c = (zero, zero, zero, zero)
    for k in range(0, d, 16):
        a = ldmatrix_x4(sQ, d * (row + 8 * (part % 2)) + k + 8 * (part // 2))
        b = ldmatrix_x2(sK, d * row + k + 8 * (part % 2))
        c = mma_m16n8k16_fp16(a, b, c)
    q_idx, k_idx = first_q + lane // 4, first_k + 2 * (lane % 4)
    gS[q_idx, k_idx] = c[0]
    gS[q_idx, k_idx + 1] = c[1]
    gS[q_idx + 8, k_idx] = c[2]
    gS[q_idx + 8, k_idx + 1] = c[3]
