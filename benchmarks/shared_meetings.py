"""Passes over shared memory that warps need while another warpgroup is at work there.

Four warps read or write conflict-free, again and again. The other four do nothing, do the same,
have the copy engine bring boxes or take them away, multiply with wgmma, arrive at an mbarrier or
wait at one. Nsight Compute counts passes ("wavefronts"), a few launches each, because what meets
depends on time. Needs a Hopper GPU and ncu. Writes results/shared_meetings.json, which the
allowance of tests/test_counters.py is held against.

    python benchmarks/shared_meetings.py [results.json]
"""

import argparse
import itertools
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
from nsight import counted, numbers

RESULTS = Path(__file__).parent / "results" / "shared_meetings.json"
ACCESSES = ("store", "matrices", "load")
"""4-byte stores, ``stmatrix``, 16-byte loads."""
NEIGHBOURS = (
    "nothing",
    "copies in",
    "copies out",
    "products",
    "arrivals",
    "waits",
    "loads",
    "stores",
)
LAUNCHES, BLOCKS, TURNS = 3, 8, 4096
TIMEOUT = 60
"""Seconds of all, compiling included."""
BOX, BOXES = 64, 8
"""Rows and columns of a box; how many are brought at a time, over one another."""
SHARED_BYTES = 2 * (3 * BOX * BOX + 1024)
METRICS = [
    f"{name}{end}.sum"
    for name in (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_",
        "smsp__inst_executed_op_shared_",
    )
    for end in ("ld", "st")
]
METRICS += ["smsp__inst_executed_op_shared_stsm.sum", "smsp__inst_executed_op_shared_atom.sum"]


@cache
def make_meeting(access: str, neighbour: str):
    """Kernel ``meeting(tensor_map, out)``: 256 threads, the second half are the neighbours."""
    from flash_numba.device.hopper.layouts import SwizzledTile
    from flash_numba.device.hopper.matrix_stores import stmatrix_x4_trans
    from flash_numba.device.hopper.mbarrier import (
        barrier_arrive,
        barrier_expect,
        barrier_init,
        barrier_wait,
        fence_async,
        fence_barrier_init,
    )
    from flash_numba.device.hopper.tma import (
        bulk_commit,
        bulk_wait_read,
        map_address,
        tensor_load,
        tensor_store,
    )
    from flash_numba.device.hopper.wgmma import make_multiply_tiles, make_wait
    from flash_numba.device.numba_cuda import cuda, kernel, types
    from flash_numba.device.ptx import shared_tile
    from flash_numba.device.ptx_words import load_words4, store_word

    tile = SwizzledTile(BOX, BOX)
    multiply, wait = make_multiply_tiles("fp16", tile, tile), make_wait(0, BOX // 2)
    stores, loads, matrices = (access == one for one in ("store", "load", "matrices"))
    others = [neighbour == one for one in NEIGHBOURS]
    _, copies_in, copies_out, products, arrivals, waits, also_loads, also_stores = others
    size, columns = tile.size, BOX // 4
    shape, own_at, own_shape = tile.shape, 3 * size, (1024,)

    @kernel(256)
    def meeting(tensor_map, out):
        bars = cuda.shared.array(3, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sA, sB = shared_tile(memory, 0, shape), shared_tile(memory, size, shape)
        sC, own = shared_tile(memory, 2 * size, shape), shared_tile(memory, own_at, own_shape)
        other = shared_tile(memory, 0, own_shape)
        tid = cuda.threadIdx.x
        for i in range(tid, own_at + 1024, 256):
            memory[i] = 0
        if tid == 0:
            barrier_init(bars, 0, 1)
            barrier_init(bars, 1, 128)
            barrier_init(bars, 2, 128)
            fence_barrier_init()
        fence_async()
        cuda.syncthreads()
        role = cuda.shfl_sync(0xFFFFFFFF, tid // 128, 0)
        if role == 0:
            total = types.uint32(0)
            for turn in range(TURNS):
                word = types.uint32(turn)
                if stores:
                    store_word(own, 2 * tid, word)
                if matrices:
                    stmatrix_x4_trans(own, 8 * tid, (word, word, word, word))
                if loads:
                    total ^= load_words4(own, 8 * tid)[0]
            out[tid] = total
            if waits:
                barrier_arrive(bars, 1)
        else:
            if waits:
                barrier_wait(bars, 1, 0)
            if arrivals:
                for _ in range(TURNS):
                    barrier_arrive(bars, 2)
            if also_stores:
                for turn in range(TURNS):
                    store_word(other, 2 * (tid - 128), types.uint32(turn))
            if also_loads:
                total = types.uint32(0)
                for _ in range(TURNS):
                    total ^= load_words4(other, 8 * (tid - 128))[0]
                out[tid] = total
            if copies_out and tid == 128:
                for _ in range(TURNS // 64):
                    for _ in range(BOXES):
                        tensor_store(sC[0], 0, 0, 0, 0, map_address(tensor_map))
                    bulk_commit()
                    bulk_wait_read()
            if copies_in and tid == 128:
                for turn in range(TURNS // 64):
                    barrier_expect(bars, 0, BOXES * size * 2)
                    for _ in range(BOXES):
                        tensor_load(sC[0], map_address(tensor_map), 0, 0, 0, 0, bars, 0)
                    barrier_wait(bars, 0, turn & 1)
            if products:
                acc = cuda.local.array((2, columns), types.float32)
                for _ in range(TURNS // 16):
                    multiply(acc, sA, sB)
                    wait(acc)
                out[tid] = types.uint32(acc[0, 0])

    return meeting


def run_on_gpu() -> None:
    """Launch each pair of access and neighbour, where ncu looks."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.hopper.tensor_map import TensorMap
    from flash_numba.device.numba_cuda import cuda
    from flash_numba.launch import launch

    tensor = cuda.to_device(np.zeros((1, BOX, 1, BOX), np.float16))
    out = cuda.to_device(np.zeros(256, np.int32))
    given = TensorMap(DeviceArray.of(tensor), BOX, BOX), DeviceArray.of(out)
    for pair in itertools.product(ACCESSES, NEIGHBOURS):
        for _ in range(LAUNCHES):
            launch(make_meeting(*pair), BLOCKS, 256, SHARED_BYTES, given)
        cuda.synchronize()


def main():
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    if options.run:
        run_on_gpu()
        return
    from common import machine

    command = [sys.executable, __file__, str(options.path), "--run"]
    chosen = "--kernel-name-base", "mangled", "-k", "regex:meeting"
    rows = iter(counted(command, METRICS, *chosen, timeout=TIMEOUT))
    cases = [
        {
            "access": access,
            "neighbour": neighbour,
            "launches": [numbers(next(rows), METRICS) for _ in range(LAUNCHES)],
        }
        for access, neighbour in itertools.product(ACCESSES, NEIGHBOURS)
    ]
    options.path.write_text(json.dumps({"machine": machine(), "cases": cases}, indent=1) + "\n")
    print(len(cases), "cases counted")


if __name__ == "__main__":
    main()
