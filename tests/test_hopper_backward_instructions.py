"""The instructions that Hopper's backward adds, against what the PTX ISA says, on NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hopper_backward_instructions as program

from flash_numba.device.hopper.mbarrier import (
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.sums import add4_global, bulk_load, store_pair_global
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.problem import DTYPES
from simulator.threads import KernelError, trace

N, FIRST = program.COLUMNS, program.FIRST


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("panel", [0, 1])
def test_product_of_columns(dtype, panel):
    rng = np.random.default_rng(panel)
    a, b = (rng.integers(-3, 4, (1, rows, 1, 128)).astype(DTYPES[dtype]) for rows in (128, 40))
    out = np.full((128, 2, N // 4), np.nan, np.float32)
    product, size = program.make_product(dtype, panel), program.PRODUCT_BYTES
    maps = TensorMap(a.view(np.uint16), 64, 64), TensorMap(b.view(np.uint16), 40, 64)
    trace(product)[1, 128, 0, size](*maps, out)
    exact = a[0, :, 0, 64 * panel :][:, :64].astype(float).T @ b[0, FIRST:, 0][:N].astype(float).T
    for thread, i, j in np.ndindex(out.shape):  # 9.7.15.5.1.1
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * i
        assert out[thread, i, j] == exact[row, thread % 4 * 2 + 8 * (j // 2) + j % 2]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_product_of_rows(dtype):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (1, 64, 1, n)).astype(DTYPES[dtype]) for n in (64, 128))
    out = np.full((128, 2, 32), np.nan, np.float32)
    maps = (TensorMap(x.view(np.uint16), 64, 64) for x in (a, b))
    trace(program.make_rows_product(dtype))[1, 128, 0, program.ROWS_BYTES](*maps, out)
    exact = a[0, :, 0].astype(float) @ b[0, :, 0].astype(float)
    for thread, i, j in np.ndindex(out.shape):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * i
        assert out[thread, i, j] == exact[row, thread % 4 * 2 + 8 * (j // 2) + j % 2]


def test_stored_matrices_are_transposed():
    """Lane l holds columns 2 (l % 4) and the next of row l // 4; 9.7.14.5.16."""

    matrices = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    words = np.empty((32, 4), np.uint32)
    for lane, i in np.ndindex(words.shape):
        low, high = matrices[i, lane // 4, lane % 4 * 2 :][:2].tolist()
        words[lane, i] = low | high << 16
    out = np.zeros((32, 8), np.uint16)
    trace(program.stored)[1, 32](words.view(np.int32), out)
    for lane in range(32):
        assert np.array_equal(out[31 - lane], matrices[lane // 8, :, lane % 8])


def make_copy(start: int):
    @kernel(32)
    def copy(source, sums, pairs):
        bars = cuda.shared.array(1, types.uint64)
        numbers = cuda.shared.array((2, 64), types.float32, alignment=16)
        lane = cuda.threadIdx.x
        if lane == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
            barrier_expect(bars, 0, 256)
            bulk_load(numbers[1], source, (1, start), 64, bars, 0)
        cuda.syncwarp()
        barrier_wait(bars, 0, 0)
        x = numbers[1, lane]
        add4_global(sums, (0, 4 * lane), (x, x, types.float32(1), types.float32(2)))
        word = types.uint32(lane) | types.uint32(lane + 7) << 16
        store_pair_global(pairs, (0, 2 * lane), word, lane != 5)

    return copy


def test_copy_sums_and_pairs():
    source = np.arange(256, dtype=np.float32).reshape(2, 128)
    sums, pairs = np.ones((1, 128), np.float32), np.zeros((1, 64), np.uint16)
    trace(make_copy(8))[1, 32](source, sums, pairs)
    x = source[1, 8:40]
    assert np.array_equal(sums[0], 1 + np.stack([x, x, 0 * x + 1, 0 * x + 2], 1).ravel())
    lane = np.arange(32)
    assert np.array_equal(pairs[0], (np.stack([lane, lane + 7], 1) * (lane != 5)[:, None]).ravel())


def test_a_copy_of_numbers_begins_on_16_bytes():
    source, sums, pairs = np.zeros((2, 128), np.float32), np.zeros((1, 128), np.float32), None
    pairs = np.zeros((1, 64), np.uint16)
    with pytest.raises(KernelError, match="16"):
        trace(make_copy(3))[1, 32](source, sums, pairs)
