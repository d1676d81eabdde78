"""Elements outside an array, and elements that nobody wrote."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false
# pyright: reportPossiblyUnboundVariable=false

import numpy as np
from numba import cuda, float32, int32, uint16

from .case import bug, empty, sound, vector

ALL = 0xFFFFFFFF


@bug(
    "out of bounds",
    "total += x[tile * 64 + i]",
    block=64,
    args=(vector(128), empty(64)),
    says="shape (128,) is indexed at 128",
)
@cuda.jit
def off_by_one_tile(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for tile in range(x.shape[0] // 64 + 1):
        total += x[tile * 64 + i]
    y[i] = total


@bug("out of bounds", "y[i] = 2 * x[i]", grid=2, block=64, args=(vector(100), empty(100)))
@cuda.jit
def no_tail_mask(x, y):
    i = cuda.grid(1)
    y[i] = 2 * x[i]


@sound(grid=2, block=64, args=(vector(100), empty(100)))
@cuda.jit
def with_tail_mask(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


@bug("out of bounds", "y[i] = x[i] - x[i - 1]", says="wrap a negative index")
@cuda.jit
def negative_index(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] - x[i - 1]


@bug("exception", "y[i, 0] = x[i]", says="1 axes")
@cuda.jit
def rank_mismatch(x, y):
    i = cuda.threadIdx.x
    y[i, 0] = x[i]


@bug("out of bounds", "r[j] = x[i]")
@cuda.jit
def local_out_of_bounds(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array(4, float32)
    for j in range(5):
        r[j] = x[i]
    y[i] = r[0]


@sound()
@cuda.jit
def local_parts(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array((3, 4), float32)
    r[:] = float32(1)
    r[1, 1:3] = x[i]
    r[2] = float32(3)
    y[i] = r[0, 3] + r[1, 1] + r[1, 2] + r[1, 3] + r[2, 0]


@bug("uninitialised read", "y[i] = s[i]", block=64, says="element 63 of shared array s")
@cuda.jit
def uninitialised_shared(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 63:
        s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[i]


@bug(
    "uninitialised read",
    "y[cuda.blockIdx.x * 64 + i] = s[0]",
    grid=2,
    block=64,
    args=(vector(), empty(128)),
    says="of block (1, 0, 0)",
)
@cuda.jit
def shared_of_the_block_before(x, y):
    s = cuda.shared.array(1, float32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0 and i == 0:
        s[0] = x[0]
    cuda.syncthreads()
    y[cuda.blockIdx.x * 64 + i] = s[0]


@bug("uninitialised read", "y[i] = words[i]", says="element 0 of shared array", shared_bytes=128)
@cuda.jit
def uninitialised_half(x, y):
    i = cuda.threadIdx.x
    halves = cuda.shared.array(0, uint16)
    words = cuda.shared.array(0, float32)
    halves[2 * i] = 1
    cuda.syncthreads()
    y[i] = words[i]


@bug(
    "uninitialised read",
    "cuda.atomic.add(words, i, 1)",
    says="element 0 of shared array",
    shared_bytes=128,
)
@cuda.jit
def uninitialised_half_updated(x, y):
    i = cuda.threadIdx.x
    halves = cuda.shared.array(0, uint16)
    words = cuda.shared.array(0, int32)
    halves[2 * i] = 1
    cuda.syncthreads()
    cuda.atomic.add(words, i, 1)
    y[i] = x[i]


@bug(
    "uninitialised read",
    "y[i] = r[0] + r[1]",
    says="r[1] of a local array is used before it is set",
)
@cuda.jit
def uninitialised_local(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array(4, float32)
    r[0] = x[i]
    y[i] = r[0] + r[1]


@bug(
    "uninitialised read",
    "y[cuda.threadIdx.x] = r[1, 2, 3] + r[1, 0, 2]",
    says="r[1, 0, 2] of a local array is used before it is set",
)
@cuda.jit
def uninitialised_local_of_three_axes(x, y):
    r = cuda.local.array((2, 3, 4), float32)
    r[1, 2, 3] = x[cuda.threadIdx.x]
    y[cuda.threadIdx.x] = r[1, 2, 3] + r[1, 0, 2]


@bug("uninitialised read", "y[i] = v", says="cannot access local variable 'v' where")
@cuda.jit
def unassigned_on_a_way(x, y):
    i = cuda.threadIdx.x
    if i > 3:
        v = x[i]
        v = v * 0.5
    y[i] = v


@bug("uninitialised read", "while y[0] != 5:")
@cuda.jit
def loop_on_what_nobody_wrote(x, y):
    """That is said, rather than that the loop does not end."""
    while y[0] != 5:
        pass
    x[0] = 1


@bug("uninitialised read", "y[i] += x[i]")
@cuda.jit
def output_read_before_written(x, y):
    i = cuda.threadIdx.x
    y[i] += x[i]


@sound(args=(vector(), np.zeros(32, np.int32)))
@cuda.jit
def count_to(x, counts):
    counts[cuda.threadIdx.x] = int32(x[cuda.threadIdx.x])
