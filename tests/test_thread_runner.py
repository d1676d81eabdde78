"""The thread runner: what CUDA does, and that a mistake in a kernel shows."""

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from flash_numba.device.numba_cuda import cuda, kernel, room, types
from flash_numba.device.ptx import copy16_async, copy_wait_all, load4, shared_tile, store4
from simulator.threads import run


@room
def reverse_of(x, mask):
    return cuda.shfl_xor_sync(mask, x, 31)


@kernel(64)
def lanes_kernel(out, votes):
    tid = types.uint32(cuda.threadIdx.x)
    out[cuda.blockIdx.x, tid] = reverse_of(types.float32(tid), 0xFFFFFFFF)
    votes[cuda.blockIdx.x, tid] = cuda.any_sync(0xFFFFFFFF, tid == 40)


def test_threads_warps_and_blocks():
    out, votes = np.full((3, 64), np.nan, np.float32), np.zeros((3, 64), bool)
    run(lanes_kernel, 3, 64, 0, (out, votes))
    assert np.array_equal(out[2], [*range(31, -1, -1), *range(63, 31, -1)])
    assert np.array_equal(votes[0], [False] * 32 + [True] * 32)


def neighbour(with_barrier):
    @kernel(64)
    def neighbour_kernel(out):
        shared = cuda.shared.array(64, types.float32)
        tid = cuda.threadIdx.x
        shared[tid] = tid
        if with_barrier:
            cuda.syncthreads()
        out[tid] = shared[(tid + 32) % 64]

    return neighbour_kernel


def test_a_barrier_makes_what_others_wrote_visible():
    out = np.full(64, np.nan, np.float32)
    run(neighbour(True), 1, 64, 0, (out,))
    assert np.array_equal(out, (np.arange(64) + 32) % 64)


def test_without_the_barrier_memory_is_not_there_yet():
    out = np.full(64, np.nan, np.float32)
    run(neighbour(False), 1, 64, 0, (out,))
    assert np.isnan(out).any()


def copying(with_wait):
    @kernel(32)
    def copying_kernel(source, out):
        memory = cuda.shared.array(0, types.float32)
        shared = shared_tile(memory, 32, (32, 4))
        tid = cuda.threadIdx.x
        copy16_async(shared, (tid, 0), source, (tid, 0), tid < 30)
        if with_wait:
            copy_wait_all()
        cuda.syncthreads()
        a, b, c, d = load4(shared, (31 - tid, 0))
        store4(out, (tid, 0), (a, b, c, d))

    return copying_kernel


def test_a_copy_arrives_when_it_is_waited_for():
    source = np.arange(128, dtype=np.float32).reshape(32, 4)
    out = np.full((32, 4), np.nan, np.float32)
    run(copying(True), 1, 32, 1024, (source, out))
    assert np.array_equal(out[2:], source[:30][::-1])
    assert not out[:2].any()


def test_a_copy_that_nobody_waits_for_never_arrives():
    source, out = np.ones((2, 32, 4), np.float32)
    run(copying(False), 1, 32, 1024, (source, out))
    assert np.isnan(out).all()


@kernel(64)
def stuck_kernel(out):
    if cuda.threadIdx.x < 16:
        cuda.syncwarp()
    else:
        cuda.syncthreads()


def test_threads_that_wait_for_each_other_are_an_error():
    with pytest.raises(RuntimeError, match="wait for each other"):
        run(stuck_kernel, 1, 64, 0, (np.zeros(1),))


@kernel(32)
def casts_kernel(out):
    out[0] = types.uint32(-1)
    out[1] = types.uint16(65536 + 3)
    out[2] = types.int32(1 << 31)
    out[3] = types.uint64(1 << 63)


def test_casts_keep_the_low_bits():
    out = np.zeros(4, np.float64)
    run(casts_kernel, 1, 32, 0, (out,))
    assert out.tolist() == [2**32 - 1, 3, -(2**31), 2.0**63]
