"""What Nsight Compute counts for bulk copies (TMA): boxes of a tensor, and rows of numbers.

A launch a case: eight blocks copy something each, once. Boxes lie within their tensor or hang over
its end or beside it; blocks copy one box or each its own; tensors begin within a 32-byte sector or
have rows that are no whole sectors. Needs a Hopper GPU and ncu. Each kind of case is a process of
its own, stopped if it takes too long. Writes results/bulk_sectors.json, which the runner's sectors
are held against.

    python benchmarks/bulk_sectors.py [--output results.json] [--metrics name ...]
"""

import argparse
import json
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from nsight import counted, numbers

RESULTS = Path(__file__).parent / "results" / "bulk_sectors.json"
METRICS = [
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_requests_srcunit_tex_op_read.sum",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "smsp__inst_executed_op_tma_ld.sum",
    "smsp__inst_executed_op_tma_st.sum",
    "dram__bytes_read.sum",
]
BLOCKS = 8
HEAD, STORE_STEP = 1, -100
"""The head that boxes are of; boxes that hang over the end are stored further up by the next
blocks, since none may begin before its tensor."""
TIMEOUT = 60
"""Seconds of a process."""


class Tensor(NamedTuple):
    """Sizes of (1, seqlen, heads, columns) 16-bit elements, and how many lie before the first."""

    seqlen: int
    heads: int
    columns: int
    skipped: int = 0


TENSORS = {
    "whole sectors": Tensor(1000, 4, 128),
    "rows of 2.5 sectors": Tensor(1000, 4, 40),
    "rows of 1.5 sectors": Tensor(1000, 2, 24),
    "half a sector late": Tensor(1000, 4, 128, 8),
}
NUMBERS = 16384
"""float32 that rows of numbers are copied of."""


class Case(NamedTuple):
    """One launch.

    Attributes
    ----------
    direction : "load", "store" or "numbers"
    tensor : str
        Of `TENSORS`; "" for numbers.
    rows, columns : int
        The box; numbers are one row.
    first : int
        Row of the first block's box, or its first number.
    step : int
        From one block's to the next; 0 = all the same.
    column : int
        First column of the box.
    """

    direction: str
    tensor: str
    rows: int
    columns: int
    first: int
    step: int
    column: int = 0

    @property
    def kind(self) -> str:
        """Cases of one kind run in one process."""
        beside = self.tensor and (self.first == TENSORS[self.tensor].seqlen or self.column)
        return "beside" if beside else self.direction


def cases() -> list[Case]:
    """All cases, kind by kind."""
    found = [
        Case("numbers", "", 1, count, first, step)
        for count in (4, 8, 64, 128, 1024)
        for first in (0, 4, 8, 20)
        for step in (0, count)
    ]
    for direction in ("load", "store"):
        for rows in (8, 64, 128):
            for columns in (64, 32):
                for tensor, sizes in TENSORS.items():
                    end = sizes.seqlen - rows // 2
                    places = [(0, rows), (40, rows), (end, STORE_STEP)]
                    if direction == "load":  # what is stored twice would race
                        places += [(40, 0), (end, 0), (sizes.seqlen, 0)]
                    found += [Case(direction, tensor, rows, columns, *place) for place in places]
    for tensor, sizes in TENSORS.items():
        beside = -(-sizes.columns // 64) * 64
        found += [Case("load", tensor, 64, 64, first, 64, beside) for first in (0, 40)]
    return sorted(found, key=lambda case: case.kind)


@cache
def make_boxes(direction: str, rows: int, columns: int):
    """Kernel ``boxes(tensor_map, first, step, column)``: one warp a block, one box."""
    from flash_numba.device.hopper.mbarrier import (
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
    from flash_numba.device.numba_cuda import cuda, kernel, types
    from flash_numba.device.ptx import shared_tile

    loads, size = direction == "load", 2 * rows * columns

    @kernel(32)
    def boxes(tensor_map, first, step, column):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        tile = shared_tile(memory, 0, (rows, columns))
        lane, row = cuda.threadIdx.x, first + cuda.blockIdx.x * step
        for i in range(lane, rows * columns, 32):
            memory[i] = i
        if lane == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
        fence_async()
        cuda.syncthreads()
        if lane == 0:
            if loads:
                barrier_expect(bars, 0, size)
                tensor_load(tile, map_address(tensor_map), column, row, HEAD, 0, bars, 0)
                barrier_wait(bars, 0, 0)
            else:
                tensor_store(tile, column, row, HEAD, 0, map_address(tensor_map))
                bulk_commit()
                bulk_wait_read()

    return boxes


@cache
def make_numbers():
    """Kernel ``boxes(source, count, first, step)``: one warp a block, `count` float32 of a row."""
    from flash_numba.device.hopper.mbarrier import (
        barrier_expect,
        barrier_init,
        barrier_wait,
        fence_barrier_init,
    )
    from flash_numba.device.hopper.sums import bulk_load
    from flash_numba.device.numba_cuda import cuda, kernel, types

    @kernel(32)
    def boxes(source, count, first, step):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(1024, types.float32, alignment=16)
        if cuda.threadIdx.x == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
            barrier_expect(bars, 0, 4 * count)
            bulk_load(memory, source, (0, first + cuda.blockIdx.x * step), count, bars, 0)
            barrier_wait(bars, 0, 0)

    return boxes


def kernel_of(case: Case) -> tuple[Any, int]:
    """A case's kernel, and the bytes of dynamic shared memory that it needs."""
    if not case.tensor:
        return make_numbers(), 0
    return make_boxes(case.direction, case.rows, case.columns), 2 * case.rows * case.columns


def arguments(case: Case, array) -> tuple:
    """What a case's kernel is launched with: `array` is its tensor, or (1, NUMBERS) numbers."""
    from flash_numba.device.hopper.tensor_map import TensorMap

    if not case.tensor:
        return array, case.columns, case.first, case.step
    return TensorMap(array, case.rows, case.columns), case.first, case.step, case.column


def run_on_gpu(kind: str) -> None:
    """Launch every case of a kind, where ncu looks."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.numba_cuda import cuda
    from flash_numba.launch import launch

    kept = []

    def array_of(case):
        if not case.tensor:
            kept.append(cuda.to_device(np.zeros((1, NUMBERS), np.float32)))
            return DeviceArray.of(kept[-1])
        seqlen, heads, columns, skipped = TENSORS[case.tensor]
        kept.append(cuda.to_device(np.zeros((1, seqlen + 1, heads, columns), np.float16)))
        whole = DeviceArray.of(kept[-1])
        return whole._replace(
            pointer=whole.pointer + 2 * skipped, shape=(1, seqlen, heads, columns)
        )

    for case in cases():
        if case.kind == kind:
            kernel, shared_bytes = kernel_of(case)
            launch(kernel, BLOCKS, 32, shared_bytes, arguments(case, array_of(case)))
            cuda.synchronize()


def counters_of(kind: str, members: list[Case], metrics: list[str]) -> list[dict]:
    """The cases of a kind with their counters."""
    command = [sys.executable, __file__, "--kind", kind]
    chosen = "--kernel-name-base", "mangled", "-k", "regex:boxes"
    rows = counted(command, metrics, *chosen, timeout=TIMEOUT)
    return [
        case._asdict() | {"counters": numbers(row, metrics)}
        for case, row in zip(members, rows, strict=True)
    ]


def main():
    """Count every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--kind")
    options = parser.parse_args()
    if options.kind:
        run_on_gpu(options.kind)
        return
    from common import machine

    found, failed, here = [], [], machine()
    for kind, members in groupby(cases(), lambda case: case.kind):
        try:
            found += counters_of(kind, list(members), options.metrics)
            print(kind, "counted", flush=True)
        except Exception as error:
            failed.append(kind)
            print(f"{kind} failed: {error}", flush=True)
        options.output.write_text(json.dumps({"machine": here, "cases": found}) + "\n")
    if failed:
        sys.exit(f"not counted: {failed}")


if __name__ == "__main__":
    main()
