"""Accesses that nothing orders: of threads of a block, and of blocks."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
from numba import cuda, float32

from .case import bug, empty, sound, vector

ALL = 0xFFFFFFFF


@bug("race", "s[i] = x[i]", "y[i] = s[63 - i]", block=64)
@cuda.jit
def missing_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    y[i] = s[63 - i]


@sound(block=64)
@cuda.jit
def with_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[63 - i]


@bug(
    "race",
    "s[i] = x[tile * 64 + i]",
    "total += s[(i + 32) % 64]",
    block=64,
    args=(vector(128), empty(64)),
)
@cuda.jit
def second_tile_without_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for tile in range(2):
        s[i] = x[tile * 64 + i]
        cuda.syncthreads()
        total += s[(i + 32) % 64]
    y[i] = total


@bug("race", "s[i] = x[i]", "y[i] = s[i ^ 1]")
@cuda.jit
def no_syncwarp(x, y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    y[i] = s[i ^ 1]


@sound()
@cuda.jit
def with_syncwarp(x, y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncwarp()
    y[i] = s[i ^ 1]


@bug(
    "race",
    "y[row] = x[cuda.threadIdx.x]",
    "y[row] = x[cuda.threadIdx.x]",
    block=64,
    args=(vector(), empty(8)),
)
@cuda.jit
def race_on_output(x, y):
    row = cuda.threadIdx.x // 8
    y[row] = x[cuda.threadIdx.x]


@bug("race", "y[0] += x[cuda.threadIdx.x]", args=(vector(), np.zeros(1, np.float32)))
@cuda.jit
def sum_without_atomic(x, y):
    y[0] += x[cuda.threadIdx.x]


@sound(grid=2, args=(vector(), np.zeros(1, np.float32)))
@cuda.jit
def sum_with_atomic(x, y):
    cuda.atomic.add(y, 0, x[cuda.threadIdx.x])


@sound(args=(vector(), empty(1)))
@sound(grid=4, args=(vector(), empty(1)))
@cuda.jit
def equal_values(x, y):
    y[0] = x[0]


@bug(
    "race",
    "s[0] = x[0]",
    "y[0] = s[0]",
    block=64,
    args=(vector(), np.zeros(1, np.int32), empty(1)),
    says="; that a flag orders them after a fence is not followed",
)
@cuda.jit
def flag_between_warps(x, flag, y):
    """Sound on a GPU: the report must say that this order is not followed."""
    s = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        s[0] = x[0]
        cuda.threadfence_block()
        cuda.atomic.exch(flag, 0, 1)
    if cuda.threadIdx.x == 32:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence_block()
        y[0] = s[0]


@bug("race", "y[i] = x[cuda.blockIdx.x * 32 + i]", grid=2, says="blocks run in no order")
@cuda.jit
def race_between_blocks(x, y):
    i = cuda.threadIdx.x
    y[i] = x[cuda.blockIdx.x * 32 + i]


@bug(
    "race",
    *("y[0] = x[0] + cuda.blockIdx.x // 2",) * 2,
    grid=4,
    args=(vector(), empty(1)),
    says="block (2, 0, 0) writes global y[0], which another block writes",
)
@cuda.jit
def other_values(x, y):
    y[0] = x[0] + cuda.blockIdx.x // 2


@bug(
    "race",
    "y[0] = x[0]",
    "cuda.atomic.add(y, 0, x[1])",
    grid=2,
    args=(vector(), empty(1)),
    says="block (1, 0, 0) updates global y[0], which another block writes",
)
@cuda.jit
def equal_values_then_added(x, y):
    y[0] = x[0]
    cuda.syncthreads()
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
        cuda.atomic.add(y, 0, x[1])


@bug(
    "race",
    "cuda.atomic.add(total, 0, x[cuda.grid(1)])",
    "y[0] = total[0]",
    grid=2,
    args=(vector(), np.zeros(1, np.float32), empty(1)),
    says="reads global total[0], which another block updates",
)
@bug(
    "exception",
    "cuda.atomic.add(total, 0, x[cuda.grid(1)])",
    grid=2,
    args=(np.float32(1), np.zeros(1, np.float32), empty(1)),
    says="the number 1.0 is indexed as if it were an array",
)
@cuda.jit
def last_block_reads_the_sum(x, total, y):
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if cuda.blockIdx.x == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        y[0] = total[0]


@bug(
    "race",
    "cuda.atomic.add(total, 0, x[cuda.grid(1)])",
    "total[0] = total[0] / 64",
    grid=2,
    args=(vector(), np.zeros(1, np.float32)),
    says="global total[0], which another block updates",
)
@cuda.jit
def last_block_divides_the_sum(x, total):
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if cuda.blockIdx.x == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        total[0] = total[0] / 64
