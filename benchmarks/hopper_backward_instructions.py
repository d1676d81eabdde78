"""The instructions that Hopper's backward pass adds, on random operands: what a GPU gives.

Products of two tiles of which one is read by columns; fragments stored as transposed matrices;
rows of numbers by the copy engine, sums in global memory and pairs. The emulations are held against
what comes out. Needs a Hopper GPU; a case is a process of its own, stopped if it takes too long.

    python benchmarks/hopper_backward_instructions.py results/hopper_backward_instructions.npz
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from common import machine
from hopper_barriers import Case

from flash_numba.device.hopper.layouts import SwizzledTile
from flash_numba.device.hopper.matrix_stores import stmatrix_x4_trans
from flash_numba.device.hopper.mbarrier import (
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.operands import make_operands
from flash_numba.device.hopper.sums import add4_global, bulk_load, store_pair_global
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import map_address, tensor_load
from flash_numba.device.hopper.warpgroups import make_meeting
from flash_numba.device.hopper.wgmma import (
    make_multiply_columns,
    make_multiply_rows,
    make_wait,
)
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile
from flash_numba.device.unroll import unroll_full
from flash_numba.problem import DTYPES

ROWS, COLUMNS, FIRST = 40, 24, 8
"""Rows of B's tile; rows of B in the product, and the first of them."""
A, B = SwizzledTile(64, 128), SwizzledTile(ROWS, 128)
PANEL = 1
KEYS, HALF = SwizzledTile(64, 64), SwizzledTile(64, 128)
sync, arrive = make_meeting(3, 64)
PRODUCT_BYTES, ROWS_BYTES = 2 * (A.bytes + B.bytes), 2 * (KEYS.size + HALF.size)
TIMEOUT = 45
"""Seconds of a case, compiling included."""


@cache
def make_product(dtype: str, panel: int):
    """``C = A.T @ B.T``: 64 columns, panel `panel`, of a (128, 128) A; rows of the second B."""
    multiply_columns = make_multiply_columns(dtype, A, 2, B, COLUMNS)
    wait = make_wait(0, COLUMNS // 2)
    first_a, by_columns = make_operands(A.by_columns())
    first_b, by_rows = make_operands(B.by_rows(), B.bytes)
    a_shape, b_shape, b_at = (2, *A.shape), (2, *B.shape), 2 * A.size
    size, columns = 2 * A.bytes + B.bytes, COLUMNS // 4

    @kernel(128)
    def product(a_map, b_map, out):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        tid = cuda.threadIdx.x
        if tid == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
            barrier_expect(bars, 0, size)
            for p in range(2):
                tensor_load(sB[1, p], map_address(b_map), 64 * p, 0, 0, 0, bars, 0)
                for part in range(2):
                    place = sA[part, p]
                    tensor_load(place, map_address(a_map), 64 * p, 64 * part, 0, 0, bars, 0)
        cuda.syncthreads()
        barrier_wait(bars, 0, 0)
        acc = cuda.local.array((2, columns), types.float32)
        a, b = by_columns(first_a(sA[:, panel]), 0), by_rows(first_b(sB[:, :, FIRST:]), 1)
        multiply_columns(acc, a, b)
        wait(acc)
        for i in range(2):
            unroll_full()
            for j in range(columns):
                unroll_full()
                out[tid, i, j] = acc[i, j]

    return product


@cache
def make_rows_product(dtype: str):
    """``C = A @ B`` of a (64, 64) A and a (64, 128) B."""
    multiply_rows, wait = make_multiply_rows(dtype, KEYS, HALF), make_wait(0, HALF.columns // 2)
    a_shape, b_shape, b_at = KEYS.shape, HALF.shape, KEYS.size
    size, columns = ROWS_BYTES, HALF.columns // 4

    @kernel(128)
    def rows_product(a_map, b_map, out):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        tid = cuda.threadIdx.x
        if tid == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
            barrier_expect(bars, 0, size)
            tensor_load(sA[0], map_address(a_map), 0, 0, 0, 0, bars, 0)
            for p in range(2):
                tensor_load(sB[p], map_address(b_map), 64 * p, 0, 0, 0, bars, 0)
        cuda.syncthreads()
        barrier_wait(bars, 0, 0)
        acc = cuda.local.array((2, columns), types.float32)
        multiply_rows(acc, sA, sB)
        wait(acc)
        for i in range(2):
            unroll_full()
            for j in range(columns):
                unroll_full()
                out[tid, i, j] = acc[i, j]

    return rows_product


@kernel(32)
def stored(words, out):
    """A warp's four matrices, transposed, rows in reverse order."""
    memory = cuda.shared.array((32, 8), types.uint16, alignment=16)
    lane = cuda.threadIdx.x
    a, b = types.uint32(words[lane, 0]), types.uint32(words[lane, 1])
    c, d = types.uint32(words[lane, 2]), types.uint32(words[lane, 3])
    stmatrix_x4_trans(memory, (31 - lane, 0), (a, b, c, d))
    cuda.syncthreads()
    for column in range(8):
        out[lane, column] = memory[lane, column]


@kernel(32)
def sums(source, totals, pairs):
    """Half a row comes in, is added to what is there, in fours; pairs go out."""
    bars = cuda.shared.array(1, types.uint64)
    numbers = cuda.shared.array((2, 64), types.float32, alignment=16)
    lane = cuda.threadIdx.x
    if lane == 0:
        barrier_init(bars, 0, 1)
        fence_barrier_init()
        barrier_expect(bars, 0, 256)
        bulk_load(numbers[1], source, (1, 8), 64, bars, 0)
    cuda.syncwarp()
    barrier_wait(bars, 0, 0)
    x, y = numbers[1, lane], numbers[1, 63 - lane]
    add4_global(totals, (0, 4 * lane), (x, y, types.float32(1), types.float32(2)))
    low, high = types.uint32(lane), types.uint32(lane + 7)
    store_pair_global(pairs, (0, 2 * lane), low | high << types.uint32(16), lane != 5)


@kernel(64)
def met(x, y):
    """One warp writes and goes on, the other one waits for it and reads."""
    shared = cuda.shared.array(32, types.float32)
    tid = cuda.threadIdx.x
    if tid < 32:
        shared[tid] = x[tid]
        arrive()
    else:
        sync()
        y[tid - 32] = shared[63 - tid]


def cases() -> dict[str, Case]:
    """All cases by name; the same numbers each time."""
    rng = np.random.default_rng(22)
    found = {}
    for dtype in ("fp16", "bf16"):
        for kind in ("integers", "normal"):
            a, b = (
                (rng.integers(-3, 4, shape) if kind == "integers" else rng.normal(size=shape))
                .astype(DTYPES[dtype])
                .view(np.uint16)
                for shape in ((1, 128, 1, 128), (1, ROWS, 1, 128))
            )
            out = np.full((128, 2, COLUMNS // 4), np.nan, np.float32)
            covers = "make_multiply_columns make_operands make_wait"
            found[f"product {dtype} {kind}"] = Case(
                make_product(dtype, PANEL), covers, (a, b), (out,), 1, 128, PRODUCT_BYTES, maps=True
            )
    words = rng.integers(0, 2**32, (32, 4)).astype(np.uint32).view(np.int32)
    blank = np.zeros((32, 8), np.uint16)
    found["stored"] = Case(stored, "stmatrix_x4_trans", (words,), (blank,), 1, 32)
    x, y = rng.standard_normal(32).astype(np.float32), np.full(32, np.nan, np.float32)
    found["met"] = Case(met, "make_meeting", (x,), (y,), 1, 64)
    source = rng.standard_normal((2, 128)).astype(np.float32)
    totals = rng.standard_normal((1, 128)).astype(np.float32)
    outputs = totals, np.zeros((1, 64), np.uint16)
    covers = "bulk_load add4_global store_pair_global"
    found["sums"] = Case(sums, covers, (source,), outputs, 1, 32)
    for dtype in ("fp16", "bf16"):
        a, b = (
            rng.integers(-3, 4, (1, 64, 1, columns)).astype(DTYPES[dtype]).view(np.uint16)
            for columns in (64, 128)
        )
        out = np.full((128, 2, HALF.columns // 4), np.nan, np.float32)
        launched = make_rows_product(dtype), "make_multiply_rows", (a, b), (out,), 1, 128
        found[f"rows {dtype} integers"] = Case(*launched, ROWS_BYTES, maps=True)
    return found


def arguments(case: Case, arrays: tuple, map_of: Any = TensorMap) -> tuple:
    """What a case's kernel is launched with, of `arrays` for its inputs and outputs."""
    if not case.maps:
        return arrays
    maps = [map_of(array, min(64, array.shape[1]), 64) for array in arrays[:2]]
    return (*maps, *arrays[2:])


def run_on_gpu(name: str) -> dict[str, np.ndarray]:
    """What a case's outputs are afterwards, by name and number."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.launch import launch

    case = cases()[name]
    on_gpu = [cuda.to_device(array) for array in (*case.inputs, *case.outputs)]
    dtype = "bf16" if "bf16" in name else "fp16"
    views = tuple(DeviceArray.of(array) for array in on_gpu)
    views = tuple(v._replace(dtype=dtype) if v.dtype == "uint16" else v for v in views)
    launch(case.kernel, case.blocks, case.threads, case.shared_bytes, arguments(case, views))
    cuda.synchronize()
    outputs = enumerate(on_gpu[len(case.inputs) :])
    return {f"{name}/{i}": output.copy_to_host() for i, output in outputs}


def main():
    """Run each case in a process of its own, write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        np.savez(options.path, allow_pickle=False, **run_on_gpu(options.one))
        return
    found, failed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder, "part.npz")
        for name in cases():
            command = [sys.executable, __file__, str(part), "--one", name]
            try:
                subprocess.run(command, check=True, timeout=TIMEOUT)
            except subprocess.SubprocessError as error:
                failed.append(name)
                print(f"{name} failed: {error}", flush=True)
                continue
            with np.load(part) as arrays:
                found |= dict(arrays)
            print(name, "ran", flush=True)
    found["machine"] = np.array(json.dumps(machine()))
    np.savez_compressed(options.path, allow_pickle=False, **found)
    print(f"{len(found)} arrays in {options.path}")
    if failed:
        sys.exit(f"did not run: {failed}")


if __name__ == "__main__":
    main()
