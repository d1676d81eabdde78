"""Hopper's instructions on random operands: what a GPU gives, to hold the emulations against.

A kernel of one warpgroup loads three matrices by the copy engine - one box hangs over the edges of
its tensor - and forms S = A @ B.T and O = S @ C, once for each element type and each width of the
swizzle, with small integers and with normal numbers. Needs a Hopper GPU.

    python benchmarks/hopper_instructions.py [results/hopper_instructions.npz]
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from common import machine

from flash_numba.device.fragments import make_pack_weights
from flash_numba.device.hopper.layouts import SwizzledTile
from flash_numba.device.hopper.mbarrier import (
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_async,
    fence_barrier_init,
)
from flash_numba.device.hopper.operands import make_operand
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import (
    bulk_commit,
    bulk_wait_read,
    map_address,
    tensor_load,
    tensor_store,
)
from flash_numba.device.hopper.wgmma import (
    make_add_product,
    make_multiply_tiles,
    make_wait,
)
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile
from flash_numba.device.unroll import unroll_full
from flash_numba.problem import DTYPES

RESULTS = Path(__file__).parent / "results" / "hopper_instructions.npz"
ROWS, KEYS, DEPTH = 64, 32, 64
FIRST_ROW, COPY_ROW = -3, 7
"""Rows at which A's box begins where it is loaded and where it is stored; both end too late."""
A_ROWS = 50
CASES = [
    (dtype, panel, numbers)
    for dtype in ("fp16", "bf16")
    for panel in (64, 32)
    for numbers in ("integers", "normal")
]


@cache
def make_products(dtype: str, panel: int):
    """The kernel; ``products(a_map, b_map, c_map, copy_map, lines, sums, out)``.

    `lines` gets A's shared memory as it lies there, `copy_map` A stored again, `sums` and `out` the
    threads' parts of S and O.
    """
    a, b = SwizzledTile(ROWS, DEPTH, panel), SwizzledTile(KEYS, DEPTH, panel)
    panels, rows, columns = a.panels, KEYS // 4, DEPTH // 4
    multiply_tiles = make_multiply_tiles(dtype, a, b)
    add_product = make_add_product(dtype, KEYS, b)
    left = make_operand(a.by_rows())
    wait_sums = make_wait(0, KEYS // 2)
    wait_out = make_wait(0, DEPTH // 2, KEYS // 4)
    steps = KEYS // 16
    pack_weights = make_pack_weights(dtype, steps)
    a_shape, b_shape, b_at, c_at = a.shape, b.shape, a.size, a.size + b.size
    size, all_bytes = a.size, 2 * (a.size + 2 * b.size)

    @kernel(128)
    def products(a_map, b_map, c_map, copy_map, lines, sums, out):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sA, sB = shared_tile(memory, 0, a_shape), shared_tile(memory, b_at, b_shape)
        sC, flat = shared_tile(memory, c_at, b_shape), shared_tile(memory, 0, (size,))
        tid = cuda.threadIdx.x
        if tid == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
            barrier_expect(bars, 0, all_bytes)
            for p in range(panels):
                tensor_load(sA[p], map_address(a_map), p * panel, FIRST_ROW, 0, 0, bars, 0)
                tensor_load(sB[p], map_address(b_map), p * panel, 0, 0, 0, bars, 0)
                tensor_load(sC[p], map_address(c_map), p * panel, 0, 0, 0, bars, 0)
        cuda.syncthreads()
        barrier_wait(bars, 0, 0)
        for i in range(tid, size, 128):
            lines[i] = flat[i]
        acc = cuda.local.array((2, rows), types.float32)
        rP = cuda.local.array((steps, 4), types.uint32)
        acc_o = cuda.local.array((2, columns), types.float32)
        for i in range(2):
            unroll_full()
            for j in range(columns):
                unroll_full()
                acc_o[i, j] = 1
        multiply_tiles(acc, left(sA), sB)
        wait_sums(acc)
        for i in range(2):
            unroll_full()
            for j in range(rows):
                unroll_full()
                sums[tid, i, j] = acc[i, j]
        pack_weights(rP, acc)
        add_product(acc_o, rP, sC)
        wait_out(acc_o, rP)
        for i in range(2):
            unroll_full()
            for j in range(columns):
                unroll_full()
                out[tid, i, j] = acc_o[i, j]
        fence_async()
        if tid == 0:
            for p in range(panels):
                tensor_store(sA[p], p * panel, COPY_ROW, 0, 0, map_address(copy_map))
            bulk_commit()
            bulk_wait_read()

    return products


def operands(dtype: str, panel: int, numbers: str) -> dict:
    """A, B, C as (1, rows, 1, columns) arrays, and results full of ones' complement."""
    rng = np.random.default_rng([len(dtype), panel, len(numbers)])
    shapes = {"a": A_ROWS, "b": KEYS, "c": KEYS}
    found: dict[str, Any] = {}
    for name, count in shapes.items():
        shape = (1, count, 1, DEPTH)
        drawn = rng.integers(-2, 3, shape) if numbers == "integers" else rng.normal(size=shape)
        found[name] = drawn.astype(DTYPES[dtype]).view(np.uint16)
    found["copy"] = np.full_like(found["a"], 0xFFFF)
    found["lines"] = np.full(ROWS * DEPTH, 0xFFFF, np.uint16)
    found["sums"] = np.full((128, 2, KEYS // 4), np.nan, np.float32)
    found["out"] = np.full((128, 2, DEPTH // 4), np.nan, np.float32)
    return found


def arguments(given: dict, panel: int, map_of: Any = TensorMap) -> tuple:
    """What the kernel is launched with; `map_of` makes a map of an array, its rows and columns."""
    rows = {"a": ROWS, "b": KEYS, "c": KEYS, "copy": ROWS}
    maps = [map_of(given[name], count, panel) for name, count in rows.items()]
    return (*maps, given["lines"], given["sums"], given["out"])


def main():
    """Run all cases on the GPU and keep what came out."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.launch import launch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=RESULTS)
    path = parser.parse_args().path
    kept = {}
    for dtype, panel, numbers in CASES:
        given = operands(dtype, panel, numbers)
        on_gpu = {name: cuda.to_device(array) for name, array in given.items()}
        views = {name: DeviceArray.of(array) for name, array in on_gpu.items()}

        def map_of(view, rows, columns, dtype=dtype):
            return TensorMap(view._replace(dtype=dtype), rows, columns)

        for name in ("a", "b", "c", "copy", "lines"):
            views[name] = views[name]._replace(dtype="fp16")
        shared_bytes = 2 * DEPTH * (ROWS + 2 * KEYS)
        launch(make_products(dtype, panel), 1, 128, shared_bytes, arguments(views, panel, map_of))
        cuda.synchronize()
        for name in ("copy", "lines", "sums", "out"):
            kept[f"{dtype} {panel} {numbers} {name}"] = on_gpu[name].copy_to_host()
    kept["machine"] = np.array(json.dumps(machine()))
    np.savez_compressed(path, allow_pickle=False, **kept)
    print(f"{len(kept)} arrays in {path}")


if __name__ == "__main__":
    main()
