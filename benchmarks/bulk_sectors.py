"""What Nsight Compute counts for bulk copies of boxes of a tensor (TMA), by box.

A launch a case: each block loads its box, or stores it, once. Boxes lie within their tensor or hang
over its end; several blocks load one box, or each its own. Needs a Hopper GPU and ncu. Writes
results/bulk_sectors.json, which the runner's bytes are held against.

    python benchmarks/bulk_sectors.py [--output results.json] [--metrics name ...]
"""

import argparse
import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results" / "bulk_sectors.json"
METRICS = [
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "smsp__inst_executed_op_tma_ld.sum",
    "smsp__inst_executed_op_tma_st.sum",
]
SEQLEN, HEADS, COLUMNS = 1000, 4, 128
BLOCKS, STORE_STEP = 8, -100
"""Boxes that hang over the end are stored further up by the next blocks: none begins before it."""


class Case(NamedTuple):
    """One launch.

    Attributes
    ----------
    direction : "load" or "store"
    rows, columns : int
        The box.
    first_row : int
        Of the first block's box.
    step : int
        Rows from one block's box to the next; 0 = all the same.
    """

    direction: str
    rows: int
    columns: int
    first_row: int
    step: int


def cases() -> list[Case]:
    """Boxes of several sizes, each within the tensor, over its end, and beside it."""
    found = []
    for rows in (8, 64, 128):
        for columns in (64, 32):
            for first, step in ((0, rows), (40, 0), (SEQLEN - rows // 2, 0), (SEQLEN, 0)):
                found.append(Case("load", rows, columns, first, step))
                if step or (first < SEQLEN and first != 40):
                    found.append(Case("store", rows, columns, first, step or STORE_STEP))
    return found


def make_boxes(direction: str, rows: int, columns: int):
    """Kernel ``boxes(tensor_map, first_row, step, out)``: one warp a block, one box."""
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
    def boxes(tensor_map, first_row, step):
        bars = cuda.shared.array(1, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        tile = shared_tile(memory, 0, (rows, columns))
        lane, row = cuda.threadIdx.x, first_row + cuda.blockIdx.x * step
        for i in range(lane, rows * columns, 32):
            memory[i] = i
        fence_async()
        if lane == 0:
            barrier_init(bars, 0, 1)
            fence_barrier_init()
        cuda.syncwarp()
        if lane == 0:
            if loads:
                barrier_expect(bars, 0, size)
                tensor_load(tile, map_address(tensor_map), 0, row, 1, 0, bars, 0)
                barrier_wait(bars, 0, 0)
            else:
                tensor_store(tile, 0, row, 1, 0, map_address(tensor_map))
                bulk_commit()
                bulk_wait_read()

    return boxes


def arguments(case: Case, tensor):
    """What a case's kernel is launched with."""
    from flash_numba.device.hopper.tensor_map import TensorMap

    return TensorMap(tensor, case.rows, case.columns), case.first_row, case.step


def run_on_gpu() -> None:
    """Launch every case, where ncu looks."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.numba_cuda import cuda
    from flash_numba.launch import launch

    memory = cuda.to_device(np.zeros((1, SEQLEN, HEADS, COLUMNS), np.float16))
    tensor, built = DeviceArray.of(memory), {}

    def once(case):
        key = case.direction, case.rows, case.columns
        if key not in built:
            built[key] = make_boxes(*key)
        shared_bytes = 2 * case.rows * case.columns
        launch(built[key], BLOCKS, 32, shared_bytes, arguments(case, tensor))

    for case in cases():
        once(case)
    cuda.synchronize()
    cuda.profile_start()
    for case in cases():
        once(case)
    cuda.synchronize()
    cuda.profile_stop()


def main():
    """Count every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    if options.run:
        run_on_gpu()
        return
    from common import machine

    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--metrics", ",".join(options.metrics)]
    command += ["-k", "regex:boxes"]
    result = subprocess.run(
        [*command, sys.executable, __file__, "--run"], capture_output=True, text=True
    )
    lines = result.stdout.splitlines()
    first = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not first:
        raise RuntimeError(result.stdout[-2000:] + result.stderr[-2000:])
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[first[0] :]))))[1:]
    counted = [
        {
            **case._asdict(),
            "counters": {
                name: round(float(row[name].replace(",", "") or 0))
                for name in options.metrics
                if name in row
            },
        }
        for case, row in zip(cases(), rows, strict=True)
    ]
    sizes = {"seqlen": SEQLEN, "heads": HEADS, "columns": COLUMNS, "blocks": BLOCKS}
    found = {"machine": machine(), "tensor": sizes, "cases": counted}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(len(counted), "cases counted")


if __name__ == "__main__":
    main()
