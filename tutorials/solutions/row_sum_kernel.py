from numba import cuda, float32


@cuda.jit
def row_sum_kernel(x, y):
    """64 parts of a row, halved six times."""
    parts = cuda.shared.array(64, float32)
    row, i = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0)
    for col in range(i, x.shape[1], 64):
        total += x[row, col]
    parts[i] = total
    cuda.syncthreads()
    step = 32
    while step > 0:
        if i < step:
            parts[i] += parts[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        y[row] = parts[0]
