"""Kernels in which numbers from memory decide what is accessed, each in a way of its own.

Every kernel takes ``(x, y, h, b)``: float32 numbers, an output, int16 and int8 indices. Blocks get
different data, so that one of them cannot stand for all (`test_threads_alike`).
"""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math
from typing import Any, NamedTuple

from numba import cuda, float32, int32

ALL = 0xFFFFFFFF
T = float32(0.5)
KERNELS = {}


def deciding(function):
    """Decorator: one of `KERNELS`."""
    KERNELS[function.__name__] = cuda.jit(function)
    return function


@deciding
def ballot_of_floats(x, y, h, b):
    i = cuda.grid(1)
    y[i * cuda.popc(cuda.ballot_sync(ALL, x[i] > T))] = 1


@deciding
def conditional_expression(x, y, h, b):
    i = cuda.grid(1)
    y[i * 8 if x[i] > T else i] = 1


@deciding
def selected(x, y, h, b):
    i = cuda.grid(1)
    y[cuda.selp(x[i] > T, i * 8, i)] = 1


@deciding
def counted_by_barrier(x, y, h, b):
    i = cuda.grid(1)
    y[i * cuda.syncthreads_count(x[i] > T)] = 1


@deciding
def asked_by_barrier(x, y, h, b):
    i = cuda.grid(1)
    if cuda.syncthreads_and(x[i] > T) or cuda.syncthreads_or(x[i] > 4 * T):
        y[i] = 1


@deciding
def truth_as_integer(x, y, h, b):
    i = cuda.grid(1)
    y[i * (1 + 7 * int(x[i] > T))] = 1


@deciding
def float_as_integer(x, y, h, b):
    i = cuda.grid(1)
    y[i * int(x[i] * 8)] = 1


@deciding
def float_cast(x, y, h, b):
    i = cuda.grid(1)
    y[i * int32(x[i] * float32(8))] = 1


@deciding
def rounded_float(x, y, h, b):
    i = cuda.grid(1)
    y[i * math.floor(x[i] * 8)] = 1


@deciding
def loop_on_a_float(x, y, h, b):
    i = cuda.grid(1)
    total = x[i]
    while total < float32(2):
        total += x[i] + float32(0.25)
        y[i] = total


@deciding
def turns_of_a_loop(x, y, h, b):
    i = cuda.grid(1)
    for turn in range(int(x[i] * 4)):
        y[i + turn] = 1


@deciding
def turns_counted(x, y, h, b):
    i = cuda.grid(1)
    total, turns = x[i], 1
    while total < float32(2):
        total += x[i] + float32(0.25)
        turns += 1
    y[i * turns] = 1


@deciding
def left_by_break(x, y, h, b):
    i = cuda.grid(1)
    place = 0
    for turn in range(8):
        if x[i] * turn > T:
            break
        place = turn
    y[i * (place + 1)] = 1


@deciding
def left_early(x, y, h, b):
    i = cuda.grid(1)
    if x[i] > T:
        return
    y[i] = 1


@deciding
def assigned_in_a_branch(x, y, h, b):
    i = cuda.grid(1)
    step = 1
    if x[i] > T:
        step = 8
    y[i * step] = 1


@deciding
def barrier_in_a_branch(x, y, h, b):
    if x[cuda.blockIdx.x * 32] > T:
        cuda.syncthreads()


@deciding
def matched(x, y, h, b):
    i = cuda.grid(1)
    y[i * cuda.popc(cuda.match_any_sync(ALL, float32(int(x[i] * 4))))] = 1


@deciding
def voted(x, y, h, b):
    i = cuda.grid(1)
    y[i * (1 + 7 * cuda.any_sync(ALL, x[i] > 2 * T))] = 1


@deciding
def shuffled(x, y, h, b):
    i = cuda.grid(1)
    y[i * int(cuda.shfl_xor_sync(ALL, x[i], 1) * 8)] = 1


@deciding
def negated(x, y, h, b):
    i = cuda.grid(1)
    if not x[i] > T:
        y[i] = 1


@deciding
def both_conditions(x, y, h, b):
    i = cuda.grid(1)
    if x[i] > T and i < x.size:
        y[i] = 1


@deciding
def chained_comparison(x, y, h, b):
    i = cuda.grid(1)
    if T < x[i] < i + 100:
        y[i] = 1


@deciding
def index_of_16_bits(x, y, h, b):
    i = cuda.grid(1)
    y[i * h[i]] = 1


@deciding
def unsigned_of_16_bits(x, y, h, b):
    i = cuda.grid(1)
    y[i * h.reshape(h.size)[i]] = 1


@deciding
def by_local_array(x, y, h, b):
    i = cuda.grid(1)
    r = cuda.local.array(2, int32)
    r[0] = 1
    r[1] = int(x[i] * 8)
    y[i * r[1]] = 1


@deciding
def by_shared_array(x, y, h, b):
    s = cuda.shared.array(32, int32)
    i = cuda.grid(1)
    s[cuda.threadIdx.x] = int(x[i] * 8)
    cuda.syncthreads()
    y[i * s[cuda.threadIdx.x]] = 1


@cuda.jit(device=True)
def step_of(x):
    return 8 if x > T else 1


@cuda.jit(device=True)
def put(r, x):
    r[0] = int(x * 8)


@deciding
def by_device_function(x, y, h, b):
    i = cuda.grid(1)
    y[i * step_of(x[i])] = 1


@deciding
def by_argument(x, y, h, b):
    i = cuda.grid(1)
    r = cuda.local.array(1, int32)
    r[0] = 1
    put(r, x[i])
    y[i * r[0]] = 1


@deciding
def by_tuple(x, y, h, b):
    i = cuda.grid(1)
    pair = (i, int(x[i] * 8))
    a, step = pair
    y[a * step] = 1


@deciding
def part_of_an_array(x, y, h, b):
    i = cuda.grid(1)
    y[int(x[cuda.blockIdx.x * 32] * 8) :][i] = 1


@deciding
def where_atomics_go(x, y, h, b):
    i = cuda.grid(1)
    cuda.atomic.add(y, i * int(x[i] * 8), float32(1))


@deciding
def tuple_by_block(x, y, h, b):
    steps = (1, 8, 3, 1)
    i = cuda.grid(1)
    y[i * steps[cuda.blockIdx.x % 4]] = 1


@deciding
def local_by_block(x, y, h, b):
    r = cuda.local.array(4, int32)
    r[0], r[1], r[2], r[3] = 1, 8, 3, 1
    i = cuda.grid(1)
    y[i * r[cuda.blockIdx.x % 4]] = 1


@deciding
def float_of_block(x, y, h, b):
    i = cuda.grid(1)
    y[i * int(float32(cuda.blockIdx.x) * T + 1)] = 1


@deciding
def written_and_read(x, y, h, b):
    i = cuda.grid(1)
    b[i] = 8 - b[i]
    y[i * b[max(i - 32, 0)]] = 1


class Pair(NamedTuple):
    steps: Any
    first: Any


@deciding
def row_of_a_named_array(x, y, h, b):
    i = cuda.grid(1)
    r = cuda.local.array((1, 1), int32)
    r[0, 0] = 1
    pair = Pair(r, i)
    row = pair.steps[0]
    row[0] = int(x[i] * 8)
    y[pair.first * r[0, 0]] = 1
