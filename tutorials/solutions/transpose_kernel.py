from numba import cuda, float32


@cuda.jit
def transpose_kernel(x, y):
    """A tile of 32 x 32 turned around in shared memory; its rows are one element longer."""
    tile = cuda.shared.array((32, 33), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    col = cuda.blockIdx.x * 32 + i
    for k in range(0, 32, 8):
        row = cuda.blockIdx.y * 32 + j + k
        if row < x.shape[0] and col < x.shape[1]:
            tile[j + k, i] = x[row, col]
    cuda.syncthreads()
    col = cuda.blockIdx.y * 32 + i
    for k in range(0, 32, 8):
        row = cuda.blockIdx.x * 32 + j + k
        if row < y.shape[0] and col < y.shape[1]:
            y[row, col] = tile[i, j + k]
