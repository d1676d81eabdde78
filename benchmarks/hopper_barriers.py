"""Hopper's barriers, register moves and clusters on random operands: what a GPU gives.

Three kernels: warpgroups that hand tiles over by barriers in shared memory and by number; blocks of
a cluster that read, write and add in each other's shared memory; a tile that one block loads for
all. The emulations are held against what comes out. Needs a Hopper GPU.

    python benchmarks/hopper_barriers.py benchmarks/results/hopper_barriers.npz
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import machine

from flash_numba.device.hopper.clusters import (
    barrier_arrive_at,
    cluster_arrive,
    cluster_rank,
    cluster_size,
    cluster_wait,
    shared_of,
    tensor_load_multicast,
)
from flash_numba.device.hopper.mbarrier import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import map_address
from flash_numba.device.hopper.warpgroups import (
    made_after,
    made_here,
    make_set_registers,
    named_arrive,
    named_sync,
)
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile

TILES, GROUP, CLUSTER = 6, 128, 2
ROWS, COLUMNS, FIRST_ROW = 16, 64, -3
"""The box that is loaded for all blocks, and where it begins: three rows above its tensor."""
fewer_registers, more_registers = make_set_registers(40, False), make_set_registers(232, True)


class Case(NamedTuple):
    """A kernel and what it is run on.

    Attributes
    ----------
    kernel : Numba dispatcher
    covers : str
        Names of the intrinsics in it.
    inputs, outputs : tuple of NumPy arrays
        In the order of the kernel's parameters; with `maps`, the first input goes as a `TensorMap`.
    blocks, threads, shared_bytes, cluster : int
    maps : bool
    """

    kernel: Any
    covers: str
    inputs: tuple
    outputs: tuple
    blocks: int
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    maps: bool = False


@kernel(2 * GROUP)
def pipeline(x, y, z):
    """One warpgroup fills two stages, the other one turns each tile round and adds its number."""
    stages = cuda.shared.array((2, 128), types.float32)
    last = cuda.shared.array(128, types.float32)
    full, empty = cuda.shared.array(2, types.uint64), cuda.shared.array(2, types.uint64)
    t = types.int32(cuda.threadIdx.x)
    if t == 0:
        for stage in range(2):
            barrier_init(full, stage, 128)
            barrier_init(empty, stage, 128)
    cuda.syncthreads()
    if t < 128:
        fewer_registers()
        for tile in range(TILES):
            stage, phase = tile % 2, tile // 2 % 2
            barrier_wait(empty, stage, phase ^ 1)
            stages[stage, t] = x[tile, t]
            barrier_arrive(full, stage)
        last[t] = x[0, t] + x[TILES - 1, 127 - t]
        named_arrive(1, 256)
    else:
        more_registers()
        i = made_here(t - 128)
        for tile in range(TILES):
            stage, phase = tile % 2, tile // 2 % 2
            barrier_wait(full, stage, made_after(phase, types.float32(tile)))
            y[tile, i] = stages[stage, 127 - i] + types.float32(tile)
            barrier_arrive(empty, stage)
        named_sync(1, 256)
        z[i] = last[i ^ 64]
        named_sync(2, 128)


@kernel(GROUP)
def neighbours(x, seen, written, added, who):
    """Each block reads, writes and adds to another one's shared memory."""
    sX = cuda.shared.array(128, types.float32)
    sW = cuda.shared.array(128, types.float32)
    sA = cuda.shared.array(4, types.int32)
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    rank = cluster_rank()
    other = (rank + 1) % cluster_size()
    sX[t] = x[block, t]
    if t < 4:
        sA[t] = t
    cluster_arrive()
    cluster_wait()
    seen[block, t] = shared_of(sX, other)[127 - t]
    shared_of(sW, other)[t] = 2 * x[block, t ^ 1]
    cuda.atomic.add(shared_of(sA, other), t % 4, t + rank)
    cluster_arrive()
    cluster_wait()
    written[block, t] = sW[t]
    if t < 4:
        added[block, t] = sA[t]
    if t == 0:
        who[block] = 10 * cluster_size() + rank


@kernel(GROUP)
def one_load_for_all(tensor_map, lines, order):
    """The first block of each cluster loads a box into both, and hears when both have read it."""
    bars = cuda.shared.array(2, types.uint64)
    memory = cuda.shared.array(0, types.uint16, alignment=1024)
    tile = shared_tile(memory, 0, (ROWS, COLUMNS))
    t, block, rank = cuda.threadIdx.x, cuda.blockIdx.x, cluster_rank()
    if t == 0:
        barrier_init(bars, 0, 1)
        barrier_init(bars, 1, 256)
        fence_barrier_init()
        barrier_expect(bars, 0, 2 * ROWS * COLUMNS)
    cluster_arrive()
    cluster_wait()
    if rank == 0 and t == 0:
        head = block // 2
        tensor_load_multicast(tile, map_address(tensor_map), 0, FIRST_ROW, head, 0, bars, 0, 3)
    barrier_wait(bars, 0, 0)
    for i in range(t, ROWS * COLUMNS, 128):
        lines[block, i] = memory[i]
    barrier_arrive_at(bars, 1, 0)
    if rank == 0:
        barrier_wait(bars, 1, 0)
        order[block // 2, t] = t
    cluster_arrive()
    cluster_wait()


def cases() -> dict[str, Case]:
    """All cases by name; the same numbers each time."""
    rng = np.random.default_rng(21)
    f32, i32 = np.float32, np.int32

    def blank(*shape, dtype: Any = f32):
        return np.full(shape, np.nan if dtype is f32 else 0xAB, dtype)

    tiles = rng.standard_normal((TILES, GROUP)).astype(f32)
    tensor = rng.integers(0, 2**16, (1, 40, 2, COLUMNS)).astype(np.uint16)
    return {
        "pipeline": Case(
            pipeline,
            "barrier_init barrier_arrive barrier_wait named_sync named_arrive made_after made_here "
            "make_set_registers",
            (tiles,),
            (blank(TILES, GROUP), blank(GROUP)),
            1,
            2 * GROUP,
        ),
        "neighbours": Case(
            neighbours,
            "cluster_rank cluster_size cluster_arrive cluster_wait shared_of",
            (tiles[:4].copy(),),
            (blank(4, GROUP), blank(4, GROUP), blank(4, 4, dtype=i32), blank(4, dtype=i32)),
            4,
            GROUP,
            cluster=CLUSTER,
        ),
        "one load for all": Case(
            one_load_for_all,
            "tensor_load_multicast barrier_arrive_at",
            (tensor,),
            (blank(4, ROWS * COLUMNS, dtype=np.uint16), blank(2, GROUP, dtype=i32)),
            4,
            GROUP,
            shared_bytes=2 * ROWS * COLUMNS,
            cluster=CLUSTER,
            maps=True,
        ),
    }


def arguments(case: Case, arrays: tuple, map_of: Any = TensorMap) -> tuple:
    """What a case's kernel is launched with, of `arrays` for its inputs and outputs."""
    return (map_of(arrays[0], ROWS, COLUMNS), *arrays[1:]) if case.maps else arrays


def main():
    """Run all, write what came out."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.launch import launch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    found = {}
    for name, case in cases().items():
        on_gpu = [cuda.to_device(array) for array in (*case.inputs, *case.outputs)]
        views = tuple(DeviceArray.of(array) for array in on_gpu)
        views = tuple(
            view._replace(dtype="fp16") if view.dtype == "uint16" else view for view in views
        )
        sizes = case.blocks, case.threads, case.shared_bytes
        launch(case.kernel, *sizes, arguments(case, views), cluster=case.cluster)
        cuda.synchronize()
        for i, output in enumerate(on_gpu[len(case.inputs) :]):
            found[f"{name}/{i}"] = output.copy_to_host()
        print(name, "ran", flush=True)
    found["machine"] = np.array(json.dumps(machine()))
    np.savez_compressed(path, allow_pickle=False, **found)
    print(f"{len(found)} arrays in {path}")


if __name__ == "__main__":
    main()
