"""Asynchronous copies: what must be committed, awaited and fenced."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
from numba import cuda, float32, uint16, uint64

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
from flash_numba.device.ptx_copies import copy16_async, copy_wait_group

from .case import bug, empty, sound, vector

ALL = 0xFFFFFFFF


def tensor():
    return TensorMap(np.zeros((1, 64, 1, 64), np.uint16), 64, 64)


@bug(
    "asynchronous copy",
    "y[i] = s[127 - i]",
    "copy16_async(s, 4 * i, x, 4 * i, True)",
    "copy_wait_group(0)",
    args=(vector(128), empty(32)),
    says="never committed",
)
@cuda.jit
def wait_without_commit(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16_async(s, 4 * i, x, 4 * i, True)
    copy_wait_group(0)
    cuda.syncthreads()
    y[i] = s[127 - i]


@bug(
    "race",
    "barrier_arrive(bars, 0)",
    "barrier_init(bars, 0, 64)",
    block=64,
    says="thread 0 initialises bars[0] and thread 1 uses it, with no barrier in between",
)
@cuda.jit
def barrier_seen_too_early(x, y):
    bars = cuda.shared.array(1, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        barrier_init(bars, 0, 64)
    barrier_arrive(bars, 0)
    barrier_wait(bars, 0, 0)
    y[i] = x[i]


@sound(block=64)
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


@bug(
    "missing fence",
    "bulk_load(s, x, (0,), 64, bars, 0)",
    "barrier_init(bars, 0, 1)",
    block=64,
    says="call fence_barrier_init()",
)
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


@sound(block=64)
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


@bug(
    "missing fence",
    "s[row, i] = i",
    "tensor_store(s, 0, 0, 0, 0, map_address(target))",
    block=64,
    args=(vector(), tensor()),
    says="call fence_async()",
)
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


@sound(block=64, args=(vector(), tensor()))
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
