"""Shuffles and barriers that not all reach, and loops that do not end."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
from numba import cuda, float32

from flash_numba.device.hopper.warpgroups import make_meeting, named_sync

from .case import bug, vector

ALL = 0xFFFFFFFF


@bug(
    "shuffle",
    "v += cuda.shfl_xor_sync(0x0000FFFF, v, 1)",
    says="lane 16 calls shfl_xor_sync with mask 0x0000ffff",
)
@cuda.jit
def wrong_shuffle_mask(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    v += cuda.shfl_xor_sync(0x0000FFFF, v, 1)
    y[i] = v


@bug("shuffle", "v += cuda.shfl_down_sync(0xFFFF, v, 8)", says="lane 8 reads from lane 16")
@cuda.jit
def shuffle_from_absent_lane(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    if i < 16:
        v += cuda.shfl_down_sync(0xFFFF, v, 8)
    y[i] = v


@bug("shuffle", "v += cuda.shfl_xor_sync(ALL, v, 8)", block=64, says="lanes 16-31")
@cuda.jit
def shuffle_with_half_a_warp(x, y):
    i = cuda.threadIdx.x
    v = x[i]
    if i < 16:
        v += cuda.shfl_xor_sync(ALL, v, 8)
    y[i] = v


@bug("barrier", "cuda.syncthreads()", block=64, says="threads 0-47 wait in syncthreads")
@cuda.jit
def divergent_barrier(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 48:
        s[i] = x[i]
        cuda.syncthreads()
        y[i] = s[47 - i]


@bug("barrier", "cuda.syncthreads()", block=64, says="threads 48-63 have returned")
@cuda.jit
def early_return(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i >= 48:
        return
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = s[47 - i]


@bug("barrier", "cuda.syncthreads()", "cuda.syncthreads()", block=64, says="different barriers")
@cuda.jit
def two_barriers(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        cuda.syncthreads()
        y[i] = x[i]
    else:
        cuda.syncthreads()
        y[i] = 2 * x[i]


@bug("deadlock", "cuda.syncthreads()", "cuda.syncwarp()", says="threads 16-31 wait in syncwarp")
@cuda.jit
def deadlock(x, y):
    i = cuda.threadIdx.x
    if i < 16:
        cuda.syncthreads()
    else:
        cuda.syncwarp()
    y[i] = x[i]


@bug("barrier", "named_sync(16, 64)", block=64, says="a barrier's number must be in 0..15, got 16")
@cuda.jit
def barrier_16(x, y):
    named_sync(16, 64)
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@bug("barrier", "named_sync(1, 48)", block=64, says="a multiple of 32 threads, up to 1024, got 48")
@cuda.jit
def barrier_of_48(x, y):
    named_sync(1, 48)
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]


pair_sync, _ = make_meeting(1, 64)


@bug(
    "deadlock",
    "pair_sync()",
    block=64,
    says="threads 0-31 wait in pair_sync(barrier 1: 32 of 64 threads came)",
)
@cuda.jit
def half_a_meeting(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        pair_sync()
    y[i] = x[i]


@bug("runaway loop", "while step > 0:")
@cuda.jit
def runaway_loop(x, y):
    i = cuda.threadIdx.x
    step = 64
    while step > 0:
        y[i] = x[i]
        step = max(step // 2, 1)


@bug("runaway loop", "while flag[0] == 0:", args=(vector(), np.zeros(1, np.int32)))
@cuda.jit
def waits_for_nobody(x, flag):
    while flag[0] == 0:
        pass
    x[cuda.threadIdx.x] = 0
