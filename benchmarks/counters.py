"""Hardware counters of the ladder's kernels, for the thread runner to be held against.

Each case of `counter_cases` runs once under Nsight Compute, the cases of a rung in one process and,
if that fails, each in its own; results/h200_counters.json keeps for each launch the kernel, the
fingerprint of its source, its launch configuration and the counters. Needs a GPU of compute
capability 9.0, torch (for its name), and ncu.

    python benchmarks/counters.py [--cases flash2-forward-full ...] [--output results.json]
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from counter_cases import CASES, HostMemory, case_named, launches, run, traced
from nsight import counted, numbers

RESULTS = Path(__file__).parent / "results" / "h200_counters.json"
METRICS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_type_arbitration.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_stsm.sum",
    "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    "smsp__inst_executed_op_global_red.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    "smsp__inst_executed_op_generic_ld.sum",
    "smsp__inst_executed_op_generic_st.sum",
    "smsp__inst_executed_op_shared_stsm.sum",
    "smsp__inst_executed_op_tma_ld.sum",
    "smsp__inst_executed_op_tma_st.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_local_ld.sum",
    "smsp__inst_executed_op_local_st.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__inst_executed_pipe_xu.sum",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
WORKERS = 3
"""Processes that compile side by side."""
TIMEOUT = 120
"""Seconds that the cases of a rung may take under ncu."""


def known_metrics() -> list[str]:
    """Those of `METRICS` that this ncu has for the GPU at hand."""
    listed = subprocess.run(
        ["ncu", "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=True
    ).stdout
    bases = set(re.findall(r"^\s*([a-z0-9_]+)\s", listed, re.MULTILINE))
    return [name for name in METRICS if name.split(".")[0] in bases]


def run_on_gpu(names: list[str]) -> None:
    """Run cases one after the other."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.numba_cuda import cuda

    for name in names:
        host, kept = HostMemory(), []

        def copy(array, kept=kept):
            kept.append(cuda.to_device(array))
            return DeviceArray.of(kept[-1])

        def make(shape, dtype, fill, host=host, copy=copy):
            array = host.array(shape, dtype, fill)
            return array._replace(pointer=copy(host.owners[-1]).pointer)

        run(case_named(name), make, copy)
        cuda.synchronize()


def command_of(names: list[str]) -> list[str]:
    """A process that runs cases."""
    return [sys.executable, __file__, "--run", *names]


def compile_kernels(name: str) -> None:
    """Run a case by itself, so that its kernels are compiled and kept on disk."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command_of([name]), timeout=TIMEOUT)


def counted_cases(names: list[str], metrics: list[str]) -> dict[str, list[dict]]:
    """What ncu says about each launch of some cases, in order."""
    expected = {name: launches(case_named(name)) for name in names}
    kernels = {launch.name for group in expected.values() for launch in group}
    chosen = "--kernel-name-base", "mangled", "-k", f"regex:{'|'.join(sorted(kernels))}"
    rows = counted(command_of(names), metrics, *chosen, timeout=TIMEOUT)
    if len(rows) != sum(map(len, expected.values())):
        raise RuntimeError(f"ncu saw {[row['Kernel Name'] for row in rows]}")
    following = iter(rows)
    return {
        name: matched(name, group, [next(following) for _ in group], metrics)
        for name, group in expected.items()
    }


def matched(name: str, expected: list, rows: list[dict], metrics: list[str]) -> list[dict]:
    """Rows of a case's kernels, held against the launches expected."""
    names, seen = [launch.name for launch in expected], [row["Kernel Name"] for row in rows]
    if not all(a in b for a, b in zip(names, seen, strict=True)):
        raise RuntimeError(f"{name}: ncu saw {seen}, expected {names}")
    return [
        {
            "kernel": launch.name,
            "blocks": launch.blocks,
            "threads": launch.threads,
            "shared_bytes": launch.shared_bytes,
            "fingerprint": traced(launch, blocks=()).fingerprint,
            "counters": numbers(row, metrics),
        }
        for launch, row in zip(expected, rows, strict=True)
    ]


def main():
    """Compile every case, count them rung by rung and write the results as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--run", nargs="*")
    options = parser.parse_args()
    if options.run:
        run_on_gpu(options.run)
        return
    from common import machine

    metrics, here = known_metrics(), machine()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(compile_kernels, options.cases))
    by_rung = groupby(options.cases, lambda name: case_named(name).rung)
    waiting, missing = [list(group) for _, group in by_rung], set(options.cases)
    found = json.loads(options.output.read_text())["cases"] if options.output.exists() else {}
    while waiting:
        group = waiting.pop(0)
        try:
            for name, rows in counted_cases(group, metrics).items():
                found[name] = {"problem": case_named(name).problem, "launches": rows}
                missing.remove(name)
                print(name, "counted", flush=True)
        except Exception as error:
            print(f"{group} failed: {error}", flush=True)
            if len(group) > 1:
                waiting += [[name] for name in group]
        results = {"machine": here, "metrics": metrics, "cases": found}
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    if missing:
        sys.exit(f"not counted: {sorted(missing)}")


if __name__ == "__main__":
    main()
