from numba import cuda, uint16

from flash_numba.device.ptx_matrix import ldmatrix_x4


@cuda.jit
def swizzle_kernel(gX, gY):
    """Chunk c of row r lies at place c xor r mod 8: eight rows of a chunk are in eight banks."""
    sX = cuda.shared.array(16 * 64, uint16)
    lane = cuda.threadIdx.x
    for i in range(lane, 16 * 64, 32):
        row, col = i // 64, i % 64
        sX[64 * row + (col ^ 8 * (row % 8))] = gX[row, col]
    cuda.syncthreads()
    part, row = lane // 8, lane % 8 + 8 * (lane // 8 % 2)
    for k in range(4):
        col = 16 * k + 8 * (part // 2)
        a = ldmatrix_x4(sX, 64 * row + (col ^ 8 * (row % 8)))
        for i in range(4):
            gY[k, lane, i] = a[i]
