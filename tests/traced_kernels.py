"""Kernels whose counts and numbers the tests of the thread runner derive by hand."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math
from typing import NamedTuple

from numba import cuda, float32, float64, int32, types, uint32, uint64

ALL = 0xFFFFFFFF
SCALE = 0.1
TILE, DEPTH = 32, 64
PADDED = DEPTH + 1


@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@cuda.jit
def copy_column(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i, 3]


def make_shared_stride(stride, size=2048):
    @cuda.jit
    def shared_stride(y):
        s = cuda.shared.array(size, float32)
        i = cuda.threadIdx.x
        for j in range(i, size, 32):
            s[j] = j
        cuda.syncthreads()
        y[i] = s[i * stride]

    return shared_stride


@cuda.jit
def alternating(x, y):
    """Four turns; half the lanes load in even ones, the others in odd ones."""
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(4):
        if (i + t) % 2 == 0:
            total += x[32 * t + i]
    y[i] = total


@cuda.jit
def uneven_inner_loops(x, y):
    """Lane i loads 1 + i % 2 times in turn 0 and 2 - i % 2 times in turn 1: 2 + 2 instructions."""
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(2):
        for j in range(1 + (i + t) % 2):
            total += x[64 * t + 32 * j + i]
    y[i] = total


@cuda.jit
def leaves_loop(x, y):
    """Lane i leaves after i // 16 turns of the inner loop, in each of two outer turns."""
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(2):
        for j in range(4):
            if j > i // 16:
                break
            total += x[32 * j + i + t]
    y[i] = total


@cuda.jit
def skips_turns(x, y):
    """Odd lanes skip turn 0, even ones turn 1; both load in turn 2: three instructions."""
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(3):
        if t == (i + 1) % 2:
            continue
        total += x[32 * t + i]
    y[i] = total


@cuda.jit(device=True)
def even_or_later(x, i, t):
    if (i + t) % 2 == 0:
        return float32(0)
    return x[32 * t + i]


@cuda.jit
def device_function_returns_early(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(4):
        total += even_or_later(x, i, t)
    y[i] = total


@cuda.jit
def conditional_expression(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for t in range(4):
        total += x[32 * t + i] if (i + t) % 2 else float32(0)
    y[i] = total


@cuda.jit
def short_circuit(x, y):
    i = cuda.threadIdx.x
    count = 0
    for t in range(4):
        if (i + t) % 2 == 0 and x[32 * t + i] > 0:
            count += 1
    y[i] = count


def make_naive(tile=TILE, depth=DEPTH, padded=PADDED):
    """FlashAttention-2 forward as one first writes it: one thread a query, columns read in step."""

    @cuda.jit
    def naive(Q, K, V, O, scale):
        sQ = cuda.shared.array((tile, depth), float32)
        sK = cuda.shared.array((tile, padded), float32)
        sV = cuda.shared.array((tile, depth), float32)
        row = cuda.threadIdx.x
        first = cuda.blockIdx.x * tile
        for r in range(tile):
            for c in range(row, depth, tile):
                sQ[r, c] = Q[first + r, c]
        acc = cuda.local.array(depth, float32)
        rS = cuda.local.array(tile, float32)
        for c in range(depth):
            acc[c] = 0
        row_max = float32(-math.inf)
        row_sum = float32(0)
        for block in range(K.shape[0] // tile):
            cuda.syncthreads()
            for r in range(tile):
                for c in range(row, depth, tile):
                    sK[r, c] = K[block * tile + r, c]
                    sV[r, c] = V[block * tile + r, c]
            cuda.syncthreads()
            new_max = row_max
            for r in range(tile):
                dot = float32(0)
                for c in range(depth):
                    dot += sQ[row, c] * sK[r, c]
                rS[r] = dot * scale
                new_max = max(new_max, rS[r])
            rescale = math.exp(row_max - new_max)
            row_sum *= rescale
            for c in range(depth):
                acc[c] *= rescale
            for r in range(tile):
                p = math.exp(rS[r] - new_max)
                row_sum += p
                for c in range(depth):
                    acc[c] += p * sV[r, c]
            row_max = new_max
        for c in range(depth):
            O[first + row, c] = acc[c] / row_sum

    return naive


@cuda.jit
def local_memory(x, y):
    r = cuda.local.array(8, float32)
    i = cuda.threadIdx.x
    for j in range(8):
        k = j - 1 if j % 2 else j + 1
        r[k] = x[i + k]
    r[0] += r[1]
    y[i] = r[i % 8]


@cuda.jit
def float_literal(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] * 0.1 + x[i] * SCALE


@cuda.jit
def float_times_int(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] * i + x[i] / (i + 1)


@cuda.jit
def accumulate_from_int(x, y):
    total = 0
    for j in range(x.shape[0]):
        total += x[j]
    y[0] = total


@cuda.jit
def half_arithmetic(x, y):
    i = cuda.threadIdx.x
    y[i] = types.float16(x[i]) * types.float16(x[i])


@cuda.jit
def wrapping(x, y):
    i = cuda.threadIdx.x
    y[0, i] = int32(x[i] * 65537)
    y[1, i] = int32(uint32(x[i]) * uint32(2654435769))
    y[2, i] = int32((uint64(x[i]) * uint64(0xD2511F53)) >> uint64(32))
    y[3, i] = int32(-x[i] // 7)
    y[4, i] = int32(-float32(x[i]) / float32(7))


@cuda.jit
def clamping(x, signed, unsigned):
    i = cuda.threadIdx.x
    signed[i] = int32(x[i])
    unsigned[i] = uint32(x[i])


@cuda.jit
def fused(x, y):
    i = cuda.threadIdx.x
    y[i] = cuda.fma(x[i], x[i], -x[i])


@cuda.jit
def collectives(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    y[0, i] = cuda.shfl_sync(ALL, v, 5)
    y[1, i] = cuda.shfl_up_sync(ALL, v, 1)
    y[2, i] = cuda.shfl_down_sync(ALL, v, 3)
    y[3, i] = cuda.shfl_xor_sync(ALL, v, 9)
    y[4, i] = cuda.ballot_sync(ALL, v > 10)
    y[5, i] = cuda.any_sync(ALL, v > 30)
    y[6, i] = cuda.all_sync(ALL, v > 30)
    y[7, i] = cuda.match_any_sync(ALL, i % 4)
    y[8, i] = cuda.popc(cuda.ballot_sync(ALL, i < 7))


@cuda.jit
def barriers_that_count(x, y):
    i = cuda.threadIdx.x
    y[0, i] = cuda.syncthreads_count(x[i] > 10)
    y[1, i] = cuda.syncthreads_and(x[i] >= 0)
    y[2, i] = cuda.syncthreads_or(x[i] > 1000)


@cuda.jit
def atomics(x, y, n):
    i = cuda.threadIdx.x
    cuda.atomic.add(y, 0, x[i])
    cuda.atomic.max(y, 1, x[i])
    cuda.atomic.min(y, 2, x[i])
    cuda.atomic.exch(n, 0, 7)
    cuda.atomic.cas(n, 1, 0, 1)


@cuda.jit
def indices(y):
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    bx, by, bz = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    i, j, k = cuda.grid(3)
    y[i, j, k] = tx + 10 * ty + 100 * tz + 1000 * bx + 10000 * by + 100000 * bz
    if cuda.gridDim.x == 1 and cuda.blockDim.y == 1:
        y[i, j, k] = -1


@cuda.jit
def views(x, y):
    i = cuda.threadIdx.x
    row, part = x[1], y[0, 2:]
    part[i] = row[i] + x[0][-1]


@cuda.jit
def dynamic_shared(x, y):
    s = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[cuda.blockDim.x - 1 - i]


@cuda.jit
def waits_for_the_other_warp(flag, y):
    i = cuda.threadIdx.x
    if i == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        y[0] = 1
    if i == 32:
        cuda.atomic.add(flag, 0, 1)


class Scale(NamedTuple):
    factor: float
    shift: int


def make_scaled(scale, function=None, table=None):
    @cuda.jit
    def scaled(x, y):
        i = cuda.threadIdx.x
        value = x[i] * float32(scale.factor) + float32(scale.shift)
        if function is None:
            y[i] = value
        else:
            y[i] = function(value)
        if table is not None:
            y[i] += table[i % 2]

    return scaled


@cuda.jit
def unsupported(x):
    x[0] = cuda.float32x2(1, 2).x


@cuda.jit
def with_try(x):
    try:
        x[0] = 1
    except Exception:
        x[0] = 2


@cuda.jit(launch_bounds=64)
def bounded(x):
    x[cuda.threadIdx.x] = 0


@cuda.jit
def doubles(x, y):
    y[cuda.threadIdx.x] = float64(x[cuda.threadIdx.x]) * 2


@cuda.jit
def active(y, z):
    i = cuda.threadIdx.x
    y[i] = cuda.activemask()
    if i % 3 == 0:
        z[i] = cuda.activemask()
    else:
        z[i] = cuda.activemask()
