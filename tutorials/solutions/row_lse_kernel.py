import math

from numba import cuda, float32


@cuda.jit
def row_lse_kernel(x, y):
    """Each lane's own maximum and sum, then those of the warp."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m, l = float32(-math.inf), float32(0)
    for col in range(lane, x.shape[1], 32):
        s = x[row, col]
        m_new = max(m, s)
        l = l * math.exp(m - m_new) + math.exp(s - m_new)
        m = m_new
    warp_max = m
    for step in (16, 8, 4, 2, 1):
        warp_max = max(warp_max, cuda.shfl_xor_sync(0xFFFFFFFF, warp_max, step))
    l = l * math.exp(m - warp_max)
    for step in (16, 8, 4, 2, 1):
        l += cuda.shfl_xor_sync(0xFFFFFFFF, l, step)
    if lane == 0:
        y[row] = warp_max + math.log(l)
