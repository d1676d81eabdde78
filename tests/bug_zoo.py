"""Broken kernels, each with one bug that a GPU would not report, and their repaired twins.

An entry of `ZOO` names the kernel, its launch, its arguments, the kind of finding and the text of
the lines it must point at.
"""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint16, uint64

from flash_numba.device.hopper.mbarrier import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_async,
    fence_barrier_init,
)
from flash_numba.device.hopper.sums import bulk_load
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import bulk_commit, bulk_wait_read, map_address, tensor_store
from flash_numba.device.hopper.warpgroups import make_meeting, named_sync
from flash_numba.device.ptx_copies import copy16_async, copy_wait_group

ALL = 0xFFFFFFFF
N = 64


def vector(n=N):
    return np.arange(n, dtype=np.float32)


def empty(*shape):
    return np.full(shape, np.nan, np.float32)


@cuda.jit
def missing_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    y[i] = s[63 - i]


@cuda.jit
def with_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[63 - i]


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


@cuda.jit
def no_syncwarp(x, y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    y[i] = s[i ^ 1]


@cuda.jit
def with_syncwarp(x, y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncwarp()
    y[i] = s[i ^ 1]


@cuda.jit
def wrong_shuffle_mask(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    v += cuda.shfl_xor_sync(0x0000FFFF, v, 1)
    y[i] = v


@cuda.jit
def shuffle_from_absent_lane(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    if i < 16:
        v += cuda.shfl_down_sync(0xFFFF, v, 8)
    y[i] = v


@cuda.jit
def shuffle_with_half_a_warp(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    if i < 16:
        v += cuda.shfl_xor_sync(ALL, v, 8)
    y[i] = v


@cuda.jit
def off_by_one_tile(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for tile in range(x.shape[0] // 64 + 1):
        total += x[tile * 64 + i]
    y[i] = total


@cuda.jit
def no_tail_mask(x, y):
    i = cuda.grid(1)
    y[i] = 2 * x[i]


@cuda.jit
def with_tail_mask(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


@cuda.jit
def negative_index(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] - x[i - 1]


@cuda.jit
def local_out_of_bounds(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array(4, float32)
    for j in range(5):
        r[j] = x[i]
    y[i] = r[0]


@cuda.jit
def uninitialised_shared(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 63:
        s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[i]


@cuda.jit
def shared_of_the_block_before(x, y):
    s = cuda.shared.array(1, float32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0 and i == 0:
        s[0] = x[0]
    cuda.syncthreads()
    y[cuda.blockIdx.x * 64 + i] = s[0]


@cuda.jit
def uninitialised_local(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array(4, float32)
    r[0] = x[i]
    y[i] = r[0] + r[1]


@cuda.jit
def uninitialised_half(x, y):
    i = cuda.threadIdx.x
    halves = cuda.shared.array(0, uint16)
    words = cuda.shared.array(0, float32)
    halves[2 * i] = 1
    cuda.syncthreads()
    y[i] = words[i]


@cuda.jit
def uninitialised_half_updated(x, y):
    i = cuda.threadIdx.x
    halves = cuda.shared.array(0, uint16)
    words = cuda.shared.array(0, int32)
    halves[2 * i] = 1
    cuda.syncthreads()
    cuda.atomic.add(words, i, 1)
    y[i] = x[i]


@cuda.jit
def uninitialised_local_of_three_axes(x, y):
    r = cuda.local.array((2, 3, 4), float32)
    r[1, 2, 3] = x[cuda.threadIdx.x]
    y[cuda.threadIdx.x] = r[1, 2, 3] + r[1, 0, 2]


@cuda.jit
def output_read_before_written(x, y):
    i = cuda.threadIdx.x
    y[i] += x[i]


@cuda.jit
def divergent_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 48:
        s[i] = x[i]
        cuda.syncthreads()
        y[i] = s[47 - i]


@cuda.jit
def early_return(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i >= 48:
        return
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[47 - i]


@cuda.jit
def two_barriers(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        cuda.syncthreads()
        y[i] = x[i]
    else:
        cuda.syncthreads()
        y[i] = 2 * x[i]


@cuda.jit
def deadlock(x, y):
    i = cuda.threadIdx.x
    if i < 16:
        cuda.syncthreads()
    else:
        cuda.syncwarp()
    y[i] = x[i]


@cuda.jit
def race_on_output(x, y):
    row = cuda.threadIdx.x // 8
    y[row] = x[cuda.threadIdx.x]


@cuda.jit
def race_between_blocks(x, y):
    i = cuda.threadIdx.x
    y[i] = x[cuda.blockIdx.x * 32 + i]


@cuda.jit
def sum_without_atomic(x, y):
    y[0] += x[cuda.threadIdx.x]


@cuda.jit
def sum_with_atomic(x, y):
    cuda.atomic.add(y, 0, x[cuda.threadIdx.x])


@cuda.jit
def runaway_loop(x, y):
    i = cuda.threadIdx.x
    step = 64
    while step > 0:
        y[i] = x[i]
        step = max(step // 2, 1)


@cuda.jit
def waits_for_nobody(x, flag):
    while flag[0] == 0:
        pass
    x[cuda.threadIdx.x] = 0


@cuda.jit
def equal_values(x, y):
    y[0] = x[0]


@cuda.jit
def rank_mismatch(x, y):
    i = cuda.threadIdx.x
    y[i, 0] = x[i]


@cuda.jit
def count_to(x, counts):
    counts[cuda.threadIdx.x] = int32(x[cuda.threadIdx.x])


@cuda.jit
def wait_without_commit(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16_async(s, 4 * i, x, 4 * i, True)
    copy_wait_group(0)
    cuda.syncthreads()
    y[i] = s[127 - i]


@cuda.jit
def bulk_store_without_fence(x, target):
    s = cuda.shared.array((64, 64), uint16, alignment=1024)
    i = cuda.threadIdx.x
    for row in range(64):
        s[row, i] = i
    cuda.syncthreads()
    if i == 0:
        tensor_store(s, 0, 0, 0, 0, map_address(target))
        bulk_commit()
        bulk_wait_read()


@cuda.jit
def bulk_store_with_fence(x, target):
    s = cuda.shared.array((64, 64), uint16, alignment=1024)
    i = cuda.threadIdx.x
    for row in range(64):
        s[row, i] = i
    fence_async()
    cuda.syncthreads()
    if i == 0:
        tensor_store(s, 0, 0, 0, 0, map_address(target))
        bulk_commit()
        bulk_wait_read()


@cuda.jit
def barrier_seen_too_early(x, y):
    bars = cuda.shared.array(1, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        barrier_init(bars, 0, 64)
    barrier_arrive(bars, 0)
    barrier_wait(bars, 0, 0)
    y[i] = x[i]


@cuda.jit
def barrier_seen_in_time(x, y):
    bars = cuda.shared.array(1, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        barrier_init(bars, 0, 64)
    cuda.syncthreads()
    barrier_arrive(bars, 0)
    barrier_wait(bars, 0, 0)
    y[i] = x[i]


@cuda.jit
def bulk_load_without_fence(x, y):
    bars = cuda.shared.array(1, uint64)
    s = cuda.shared.array(64, float32, alignment=16)
    i = cuda.threadIdx.x
    if i == 0:
        barrier_init(bars, 0, 1)
        barrier_expect(bars, 0, 256)
        bulk_load(s, x, (0,), 64, bars, 0)
    cuda.syncthreads()
    barrier_wait(bars, 0, 0)
    y[i] = s[i]


@cuda.jit
def bulk_load_with_fence(x, y):
    bars = cuda.shared.array(1, uint64)
    s = cuda.shared.array(64, float32, alignment=16)
    i = cuda.threadIdx.x
    if i == 0:
        barrier_init(bars, 0, 1)
        fence_barrier_init()
        barrier_expect(bars, 0, 256)
        bulk_load(s, x, (0,), 64, bars, 0)
    cuda.syncthreads()
    barrier_wait(bars, 0, 0)
    y[i] = s[i]


def tensor():
    return TensorMap(np.zeros((1, 64, 1, 64), np.uint16), 64, 64)


@cuda.jit
def last_block_reads_the_sum(x, total, y):
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if cuda.blockIdx.x == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        y[0] = total[0]


@cuda.jit
def last_block_divides_the_sum(x, total):
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if cuda.blockIdx.x == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        total[0] = total[0] / 64


@cuda.jit
def barrier_16(x, y):
    named_sync(16, 64)
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@cuda.jit
def barrier_of_48(x, y):
    named_sync(1, 48)
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]


pair_sync, _ = make_meeting(1, 64)


@cuda.jit
def half_a_meeting(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        pair_sync()
    y[i] = x[i]


@cuda.jit
def local_parts(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array((3, 4), float32)
    r[:] = float32(1)
    r[1, 1:3] = x[i]
    r[2] = float32(3)
    y[i] = r[0, 3] + r[1, 1] + r[1, 2] + r[1, 3] + r[2, 0]


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


@cuda.jit
def other_values(x, y):
    y[0] = x[0] + cuda.blockIdx.x // 2


@cuda.jit
def equal_values_then_added(x, y):
    y[0] = x[0]
    cuda.syncthreads()
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
        cuda.atomic.add(y, 0, x[1])


class Case(NamedTuple):
    kernel: Any
    grid: int
    block: int
    args: tuple
    kind: str = ""
    lines: tuple = ()
    says: str = ""
    shared_bytes: int = 0


ZOO = [
    Case(
        missing_barrier, 1, 64, (vector(), empty(64)), "race", ("s[i] = x[i]", "y[i] = s[63 - i]")
    ),
    Case(
        second_tile_without_barrier,
        1,
        64,
        (vector(128), empty(64)),
        "race",
        ("s[i] = x[tile * 64 + i]", "total += s[(i + 32) % 64]"),
    ),
    Case(no_syncwarp, 1, 32, (vector(), empty(32)), "race", ("s[i] = x[i]", "y[i] = s[i ^ 1]")),
    Case(
        wrong_shuffle_mask,
        1,
        32,
        (vector(), empty(32)),
        "shuffle",
        ("v += cuda.shfl_xor_sync(0x0000FFFF, v, 1)",),
        "lane 16 calls shfl_xor_sync with mask 0x0000ffff",
    ),
    Case(
        shuffle_from_absent_lane,
        1,
        32,
        (vector(), empty(32)),
        "shuffle",
        ("v += cuda.shfl_down_sync(0xFFFF, v, 8)",),
        "lane 8 reads from lane 16",
    ),
    Case(
        shuffle_with_half_a_warp,
        1,
        64,
        (vector(), empty(64)),
        "shuffle",
        ("v += cuda.shfl_xor_sync(ALL, v, 8)",),
        "lanes 16-31",
    ),
    Case(
        off_by_one_tile,
        1,
        64,
        (vector(128), empty(64)),
        "out of bounds",
        ("total += x[tile * 64 + i]",),
        "shape (128,) is indexed at 128",
    ),
    Case(no_tail_mask, 2, 64, (vector(100), empty(100)), "out of bounds", ("y[i] = 2 * x[i]",)),
    Case(
        negative_index,
        1,
        32,
        (vector(), empty(32)),
        "out of bounds",
        ("y[i] = x[i] - x[i - 1]",),
        "wrap a negative index",
    ),
    Case(local_out_of_bounds, 1, 32, (vector(), empty(32)), "out of bounds", ("r[j] = x[i]",)),
    Case(
        uninitialised_shared,
        1,
        64,
        (vector(), empty(64)),
        "uninitialised read",
        ("y[i] = s[i]",),
        "element 63 of shared array s",
    ),
    Case(
        shared_of_the_block_before,
        2,
        64,
        (vector(), empty(128)),
        "uninitialised read",
        ("y[cuda.blockIdx.x * 64 + i] = s[0]",),
        "of block (1, 0, 0)",
    ),
    Case(
        uninitialised_local,
        1,
        32,
        (vector(), empty(32)),
        "uninitialised read",
        ("y[i] = r[0] + r[1]",),
        "r[1] of a local array is used before it is set",
    ),
    Case(
        uninitialised_local_of_three_axes,
        1,
        32,
        (vector(), empty(32)),
        "uninitialised read",
        ("y[cuda.threadIdx.x] = r[1, 2, 3] + r[1, 0, 2]",),
        "r[1, 0, 2] of a local array is used before it is set",
    ),
    Case(
        uninitialised_half,
        1,
        32,
        (vector(), empty(32)),
        "uninitialised read",
        ("y[i] = words[i]",),
        "element 0 of shared array",
        128,
    ),
    Case(
        uninitialised_half_updated,
        1,
        32,
        (vector(), empty(32)),
        "uninitialised read",
        ("cuda.atomic.add(words, i, 1)",),
        "element 0 of shared array",
        128,
    ),
    Case(
        output_read_before_written,
        1,
        32,
        (vector(), empty(32)),
        "uninitialised read",
        ("y[i] += x[i]",),
    ),
    Case(
        divergent_barrier,
        1,
        64,
        (vector(), empty(64)),
        "barrier",
        ("cuda.syncthreads()",),
        "threads 0-47 wait in syncthreads",
    ),
    Case(
        early_return,
        1,
        64,
        (vector(), empty(64)),
        "barrier",
        ("cuda.syncthreads()",),
        "threads 48-63 have returned",
    ),
    Case(
        two_barriers,
        1,
        64,
        (vector(), empty(64)),
        "barrier",
        ("cuda.syncthreads()", "cuda.syncthreads()"),
        "different barriers",
    ),
    Case(
        deadlock,
        1,
        32,
        (vector(), empty(32)),
        "deadlock",
        ("cuda.syncthreads()", "cuda.syncwarp()"),
        "threads 16-31 wait in syncwarp",
    ),
    Case(
        race_on_output,
        1,
        64,
        (vector(), empty(8)),
        "race",
        ("y[row] = x[cuda.threadIdx.x]", "y[row] = x[cuda.threadIdx.x]"),
    ),
    Case(
        race_between_blocks,
        2,
        32,
        (vector(), empty(32)),
        "race",
        ("y[i] = x[cuda.blockIdx.x * 32 + i]",),
        "blocks run in no order",
    ),
    Case(
        sum_without_atomic,
        1,
        32,
        (vector(), np.zeros(1, np.float32)),
        "race",
        ("y[0] += x[cuda.threadIdx.x]",),
    ),
    Case(runaway_loop, 1, 32, (vector(), empty(32)), "runaway loop", ("while step > 0:",)),
    Case(
        waits_for_nobody,
        1,
        32,
        (vector(), np.zeros(1, np.int32)),
        "runaway loop",
        ("while flag[0] == 0:",),
    ),
    Case(
        wait_without_commit,
        1,
        32,
        (vector(128), empty(32)),
        "asynchronous copy",
        (
            "y[i] = s[127 - i]",
            "copy16_async(s, 4 * i, x, 4 * i, True)",
            "copy_wait_group(0)",
        ),
        "never committed",
    ),
    Case(
        bulk_store_without_fence,
        1,
        64,
        (vector(), tensor()),
        "missing fence",
        ("s[row, i] = i", "tensor_store(s, 0, 0, 0, 0, map_address(target))"),
        "call fence_async()",
    ),
    Case(
        barrier_seen_too_early,
        1,
        64,
        (vector(), empty(64)),
        "race",
        ("barrier_arrive(bars, 0)", "barrier_init(bars, 0, 64)"),
        "thread 0 initialises bars[0] and thread 1 uses it, with no barrier in between",
    ),
    Case(
        bulk_load_without_fence,
        1,
        64,
        (vector(), empty(64)),
        "missing fence",
        ("bulk_load(s, x, (0,), 64, bars, 0)", "barrier_init(bars, 0, 1)"),
        "call fence_barrier_init()",
    ),
    Case(
        last_block_reads_the_sum,
        2,
        32,
        (vector(), np.zeros(1, np.float32), empty(1)),
        "race",
        ("cuda.atomic.add(total, 0, x[cuda.grid(1)])", "y[0] = total[0]"),
        "reads global total[0], which another block updates",
    ),
    Case(
        last_block_divides_the_sum,
        2,
        32,
        (vector(), np.zeros(1, np.float32)),
        "race",
        ("cuda.atomic.add(total, 0, x[cuda.grid(1)])", "total[0] = total[0] / 64"),
        "global total[0], which another block updates",
    ),
    Case(
        barrier_16,
        1,
        64,
        (vector(), empty(64)),
        "barrier",
        ("named_sync(16, 64)",),
        "a barrier's number must be in 0..15, got 16",
    ),
    Case(
        barrier_of_48,
        1,
        64,
        (vector(), empty(64)),
        "barrier",
        ("named_sync(1, 48)",),
        "a multiple of 32 threads, up to 1024, got 48",
    ),
    Case(
        half_a_meeting,
        1,
        64,
        (vector(), empty(64)),
        "deadlock",
        ("pair_sync()",),
        "threads 0-31 wait in pair_sync(barrier 1: 32 of 64 threads came)",
    ),
    Case(
        last_block_reads_the_sum,
        2,
        32,
        (np.float32(1), np.zeros(1, np.float32), empty(1)),
        "exception",
        ("cuda.atomic.add(total, 0, x[cuda.grid(1)])",),
        "the number 1.0 is indexed as if it were an array",
    ),
    Case(
        flag_between_warps,
        1,
        64,
        (vector(), np.zeros(1, np.int32), empty(1)),
        "race",
        ("s[0] = x[0]", "y[0] = s[0]"),
        "; that a flag orders them after a fence is not followed",
    ),
    Case(
        other_values,
        4,
        32,
        (vector(), empty(1)),
        "race",
        ("y[0] = x[0] + cuda.blockIdx.x // 2",) * 2,
        "block (2, 0, 0) writes global y[0], which another block writes",
    ),
    Case(
        equal_values_then_added,
        2,
        32,
        (vector(), empty(1)),
        "race",
        ("y[0] = x[0]", "cuda.atomic.add(y, 0, x[1])"),
        "block (1, 0, 0) updates global y[0], which another block writes",
    ),
    Case(rank_mismatch, 1, 32, (vector(), empty(32)), "exception", ("y[i, 0] = x[i]",), "1 axes"),
]

SOUND = [
    Case(with_barrier, 1, 64, (vector(), empty(64))),
    Case(with_syncwarp, 1, 32, (vector(), empty(32))),
    Case(with_tail_mask, 2, 64, (vector(100), empty(100))),
    Case(sum_with_atomic, 2, 32, (vector(), np.zeros(1, np.float32))),
    Case(bulk_store_with_fence, 1, 64, (vector(), tensor())),
    Case(barrier_seen_in_time, 1, 64, (vector(), empty(64))),
    Case(bulk_load_with_fence, 1, 64, (vector(), empty(64))),
    Case(local_parts, 1, 32, (vector(), empty(32))),
    Case(equal_values, 1, 32, (vector(), empty(1))),
    Case(equal_values, 4, 32, (vector(), empty(1))),
    Case(count_to, 1, 32, (vector(), np.zeros(32, np.int32))),
]
