"""Load sectors that Nsight Compute counts for ``cp.async``, measured for patterns of addresses.

Each case is one warp with one 16-byte copy a lane from global to shared memory; a launch a case.
Needs a GPU and ncu. Writes results/copy_sectors.json, which the rule of the thread runner is held
against.

    python benchmarks/copy_sectors.py [results.json]
"""

import json
import sys
from pathlib import Path

import numpy as np
from nsight import counted, numbers

RESULTS = Path(__file__).parent / "results" / "copy_sectors.json"
CASES = 240
SPACE = 1 << 17
"""16-byte pieces of global memory that sources lie in."""
METRIC = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
OWN_SECTORS = 16
"""Sectors that the warp loads to learn its addresses."""


def patterns() -> list[tuple[list[int], list[int]]]:
    """(source, target) of each lane in pieces of 16 bytes; a source of -1 is no copy."""
    rng, lane, found = np.random.default_rng(0), np.arange(32), []
    for case in range(CASES):
        run = int(rng.choice([2, 4, 8, 8, 8, 16, 32]))
        pitch = int(rng.choice([8, 16, 32, 64, 128, 512, 24, 40, 20]))
        target_pitch = int(rng.choice([8, 16, 17, 32, 64, 33, 9]))
        source = lane // run * pitch + lane % run + 8 * int(rng.integers(0, 64))
        target = lane // run * target_pitch + lane % run
        if case % 8 == 5:
            source = rng.integers(0, 4096, 32 // run).repeat(run) * run + lane % run
        if case % 8 == 6:
            source = np.where(lane < rng.integers(1, 32), source, -1)
        if case % 8 == 7:
            source = np.where(rng.random(32) < 0.5, source, -1)
        if case % 16 == 4:
            target = lane
        found.append((source.tolist(), target.tolist()))
    return found


def run_on_gpu() -> None:
    """Launch every case, where ncu looks."""
    from flash_numba.device.numba_cuda import cuda, types
    from flash_numba.device.ptx_copies import copy16_async, copy_wait_all

    @cuda.jit
    def copies(memory, places, out):
        tile = cuda.shared.array(8192, types.float32, alignment=16)
        lane = cuda.threadIdx.x
        source, target = places[0, lane], places[1, lane]
        if source >= 0:
            copy16_async(tile, (4 * target,), memory, (4 * source,), True)
        copy_wait_all()
        cuda.syncthreads()
        out[lane] = tile[4 * target]

    memory = cuda.to_device(np.zeros(4 * SPACE, np.float32))
    out = cuda.to_device(np.zeros(32, np.float32))
    places = [cuda.to_device(np.array(case)) for case in patterns()]
    copies[1, 32](memory, places[0], out)
    cuda.synchronize()
    cuda.profile_start()
    for place in places:
        copies[1, 32](memory, place, out)
    cuda.synchronize()
    cuda.profile_stop()


def main():
    """Count every case and write the results."""
    if sys.argv[1:] == ["--run"]:
        run_on_gpu()
        return
    from common import machine

    command = [sys.executable, __file__, "--run"]
    rows = counted(command, [METRIC], "--profile-from-start", "off")
    cases = [
        {
            "source": source,
            "target": target,
            "sectors": numbers(row, [METRIC])[METRIC] - OWN_SECTORS,
        }
        for (source, target), row in zip(patterns(), rows, strict=True)
    ]
    path = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    path.write_text(json.dumps({"machine": machine(), "cases": cases}) + "\n")
    print(len(cases), "cases counted")


if __name__ == "__main__":
    main()
