"""Hardware counters of the ladder's kernels, for the thread runner to be held against.

Each case of `counter_cases` runs once under Nsight Compute, results/h200_counters.json keeps for
each launch the kernel, its launch configuration and the counters, and for the case the fingerprint
of the kernels' source. Needs a GPU of compute capability 9.0, torch (for its name), and ncu.

    python benchmarks/counters.py [--cases flash2-forward-full ...] [--output results.json]
"""

import argparse
import fcntl
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    "smsp__inst_executed_op_global_red.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    "smsp__inst_executed_op_ldgsts_pred_off_all.sum",
    "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
    "l1tex__t_set_conflicts_pipe_lsu_mem_global_op_ld.sum",
    "smsp__inst_executed_op_generic_ld.sum",
    "smsp__inst_executed_op_generic_st.sum",
    "smsp__inst_executed_op_shared_stsm.sum",
    "smsp__inst_executed_op_tma_ld.sum",
    "smsp__inst_executed_op_tma_st.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_red.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_local_ld.sum",
    "smsp__inst_executed_op_local_st.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__inst_executed_pipe_xu.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors_op_red.sum",
    "lts__t_sectors_op_atom.sum",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
WORKERS = 12
"""Cases that compile side by side; they run one after the other."""
TIMEOUT = 150
"""Seconds of a case, all its waiting for others included."""


def known_metrics() -> list[str]:
    """Those of `METRICS` that this ncu has for the GPU at hand."""
    listed = subprocess.run(
        ["ncu", "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=True
    ).stdout
    bases = set(re.findall(r"^\s*([a-z0-9_]+)\s", listed, re.MULTILINE))
    return [name for name in METRICS if name.split(".")[0] in bases]


def run_on_gpu(name: str, lock: str) -> None:
    """Run a case twice: to compile, then for ncu to look, alone on the GPU."""
    from flash_numba.arrays import DeviceArray
    from flash_numba.device.numba_cuda import cuda

    case, host, kept = case_named(name), HostMemory(), []

    def make(shape, dtype, fill):
        array = host.array(shape, dtype, fill)
        kept.append(cuda.to_device(host.owners[-1]))
        return array._replace(pointer=DeviceArray.of(kept[-1]).pointer)

    def once():
        run(case, make)
        cuda.synchronize()

    once()
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cuda.profile_start()
        once()
        cuda.profile_stop()


def counted_case(name: str, expected: list, metrics: list[str], lock: str) -> list[dict]:
    """What ncu says about each launch of a case, in order."""
    kernels = "|".join(sorted({launch.name for launch in expected}))
    options = ["--profile-from-start", "off", "--kernel-name-base", "mangled"]
    options += ["-k", f"regex:{kernels}"]
    command = [sys.executable, __file__, "--one", name, "--lock", lock]
    rows = counted(command, metrics, *options, timeout=TIMEOUT)
    return [{"kernel": row["Kernel Name"], "counters": numbers(row, metrics)} for row in rows]


def matched(name: str, expected: list, rows: list[dict]) -> list[dict]:
    """Rows of a case's kernels, held against the launches expected."""
    names, seen = [launch.name for launch in expected], [row["kernel"] for row in rows]
    if len(rows) != len(expected) or not all(a in b for a, b in zip(names, seen, strict=True)):
        raise RuntimeError(f"{name}: ncu saw {seen}, expected {names}")
    return [
        {
            "kernel": launch.name,
            "blocks": launch.blocks,
            "threads": launch.threads,
            "shared_bytes": launch.shared_bytes,
            "fingerprint": traced(launch, blocks=()).fingerprint,
            "counters": row["counters"],
        }
        for launch, row in zip(expected, rows, strict=True)
    ]


def main():
    """Count every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one")
    parser.add_argument("--lock")
    options = parser.parse_args()
    if options.one:
        run_on_gpu(options.one, options.lock)
        return
    from common import machine

    metrics, failed, here = known_metrics(), [], machine()
    found = json.loads(options.output.read_text())["cases"] if options.output.exists() else {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        lock = str(Path(folder) / "gpu")
        expected = {name: launches(case_named(name)) for name in options.cases}
        jobs = {
            name: pool.submit(counted_case, name, expected[name], metrics, lock)
            for name in options.cases
        }
        for name, job in jobs.items():
            try:
                found[name] = {
                    "problem": case_named(name).problem,
                    "launches": matched(name, expected[name], job.result()),
                }
                print(name, "counted", flush=True)
            except Exception as error:
                failed.append(name)
                print(f"{name} failed: {error}", flush=True)
            results = {"machine": here, "metrics": metrics, "cases": found}
            options.output.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        sys.exit(f"not counted: {failed}")


if __name__ == "__main__":
    main()
