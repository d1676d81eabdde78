"""CUDA kernels that move elements: scale, copy, transpose."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

from numba import cuda, float32


@cuda.jit
def scale_right(x, y, a):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = x[i] * a


@cuda.jit
def scale_by_hand(x, y, a):
    e = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if e >= x.shape[0]:
        return
    y[e] = a * x[e]


@cuda.jit
def scale_no_guard(x, y, a):
    e = cuda.grid(1)
    y[e] = a * x[e]


@cuda.jit
def scale_guard_too_wide(x, y, a):
    e = cuda.grid(1)
    if e <= x.shape[0]:
        y[e] = a * x[e]


@cuda.jit
def scale_thread_only(x, y, a):
    e = cuda.threadIdx.x
    if e < x.shape[0]:
        y[e] = a * x[e]


@cuda.jit
def scale_reads_everything(x, y, a):
    e = cuda.grid(1)
    for i in range(x.shape[0]):
        v = a * x[i]
        if i == e:
            y[i] = v


@cuda.jit
def scale_guard_block(x, y, a):
    e = cuda.grid(1)
    if e < x.shape[0] - 1:
        y[e] = a * x[e]


@cuda.jit
def copy_right(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_swapped(x, y):
    row, col = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_uncoalesced(x, y):
    t = cuda.threadIdx.x + 32 * cuda.threadIdx.y
    row = cuda.blockIdx.y * 8 + t % 8
    col = cuda.blockIdx.x * 32 + t // 8
    if row < x.shape[0] and col < x.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_no_column_guard(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[0]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_row_guard_on_columns(x, y):
    col, row = cuda.grid(2)
    if row < x.shape[1] and col < x.shape[0]:
        y[row, col] = x[row, col]


@cuda.jit
def transpose_padded(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[a, b + 8 * up] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[b + 8 * up, a]


@cuda.jit
def transpose_swizzled(x, y):
    t = cuda.shared.array((32, 32), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        i = b + 8 * up
        r = 32 * cuda.blockIdx.y + i
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[i, a ^ i] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        i = b + 8 * up
        r = 32 * cuda.blockIdx.x + i
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, i ^ a]


@cuda.jit
def transpose_conflicts(x, y):
    t = cuda.shared.array((32, 32), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


@cuda.jit
def transpose_no_barrier(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    for up in range(4):
        r = 32 * cuda.blockIdx.x + b + 8 * up
        c = 32 * cuda.blockIdx.y + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


@cuda.jit
def transpose_direct(x, y):
    for up in range(4):
        r = 32 * cuda.blockIdx.y + cuda.threadIdx.y + 8 * up
        c = 32 * cuda.blockIdx.x + cuda.threadIdx.x
        if r < x.shape[0] and c < x.shape[1]:
            y[c, r] = x[r, c]


@cuda.jit
def transpose_blocks_not_swapped(x, y):
    t = cuda.shared.array((32, 33), float32)
    a, b = cuda.threadIdx.x, cuda.threadIdx.y
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[0] and c < x.shape[1]:
            t[b + 8 * up, a] = x[r, c]
    cuda.syncthreads()
    for up in range(4):
        r = 32 * cuda.blockIdx.y + b + 8 * up
        c = 32 * cuda.blockIdx.x + a
        if r < x.shape[1] and c < x.shape[0]:
            y[r, c] = t[a, b + 8 * up]


ANSWERS = {
    "scale_kernel": {
        "right": [scale_right, scale_by_hand],
        "wrong": [
            (scale_no_guard, r"out|bound|past|range|beyond|outside"),
            (scale_guard_too_wide, r"out|bound|past|range|beyond|outside"),
            (scale_thread_only, r"never|NaN|block|written|same"),
            (scale_reads_everything, r"\bx\b|read|load"),
            (scale_guard_block, r"never|NaN|written"),
        ],
    },
    "copy_kernel": {
        "right": [copy_right],
        "wrong": [
            (copy_swapped, r"sector|coalesc|never|written"),
            (copy_uncoalesced, r"sector|coalesc"),
            (copy_no_column_guard, r"out|bound|past|range|beyond|outside"),
            (copy_row_guard_on_columns, r"out|bound|never|NaN|written"),
        ],
    },
    "transpose_kernel": {
        "right": [transpose_padded, transpose_swizzled],
        "wrong": [
            (transpose_conflicts, r"bank|conflict"),
            (transpose_no_barrier, r"race|barrier|sync|wait"),
            (transpose_direct, r"sector|coalesc|shared"),
            (transpose_blocks_not_swapped, r"\by\b|out|never|written"),
        ],
    },
}
