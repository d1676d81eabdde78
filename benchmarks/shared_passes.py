"""Passes over shared memory that a GPU needs, measured for many patterns of addresses.

Each case is one warp with one load or store of 4, 8 or 16 bytes a lane; Nsight Compute counts.
Needs a GPU, nvcc and ncu. Writes results/shared_passes.json, which the rule of the thread runner
is held against.

    python benchmarks/shared_passes.py
"""

import datetime
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from nsight import counted, numbers

RESULTS = Path(__file__).parent / "results" / "shared_passes.json"
CASES = 600
METRICS = {
    "passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_",
}
SOURCE = r"""
#include <cstdio>
struct Places { int at[32]; };
#define F "f"(x), "f"(y), "f"(z), "f"(w)
template <int OP> __global__ void access(Places places, float* out) {
  extern __shared__ float4 memory[];
  int lane = threadIdx.x, at = places.at[lane];
  unsigned to = (unsigned)__cvta_generic_to_shared(memory) + (at << (2 + OP % 3));
  float x = lane, y = 1, z = 2, w = 3;
  if (at >= 0) {
    if (OP == 0) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(to));
    if (OP == 1) asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(to));
    if (OP == 2) asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                              : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(to));
    if (OP == 3) asm volatile("st.shared.f32 [%0], %1;" :: "r"(to), F);
    if (OP == 4) asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(to), F);
    if (OP == 5) asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" :: "r"(to), F);
  }
  out[lane] = x + y + z + w;
}
int main(int, char** arguments) {
  float* out;
  cudaMalloc(&out, 128);
  FILE* file = fopen(arguments[1], "r");
  Places places;
  for (int op; fscanf(file, "%d", &op) == 1;) {
    for (int& at : places.at) fscanf(file, "%d", &at);
    void (*kernels[])(Places, float*) = {access<0>, access<1>, access<2>,
                                         access<3>, access<4>, access<5>};
    kernels[op]<<<1, 32, 40000>>>(places, out);
  }
  return cudaDeviceSynchronize();
}
"""


def patterns() -> list[list[int]]:
    """(operation, 32 places) of each case; a place is in units of the access, -1 is no access."""
    rng, lane, found = np.random.default_rng(0), np.arange(32), []
    for case in range(CASES):
        kind = case // 6 % 4
        run = int(rng.choice([1, 2, 4, 8, 16]))
        a, b, c = rng.integers(0, 20, 3)
        at = a * (lane // run) + b * (lane % run) + c % 3 * (lane >> 3)
        if kind == 0:
            at = rng.integers(0, int(rng.choice([4, 16, 64, 200])), 32)
        elif kind == 2:
            at = at[lane ^ int(rng.integers(0, 32))]
        elif kind == 3:
            at = np.where(rng.random(32) < rng.choice([0.1, 0.5, 0.9]), at, -1)
        found.append([case % 6, *at.tolist()])
    return found


def measure(cases: list[list[int]]) -> list[dict]:
    """Nsight Compute's counters of each case."""
    with tempfile.TemporaryDirectory() as folder:
        source, places = Path(folder, "access.cu"), Path(folder, "places.txt")
        source.write_text(SOURCE)
        places.write_text("\n".join(" ".join(map(str, case)) for case in cases))
        program = f"{folder}/access"
        subprocess.run(["nvcc", "-arch=native", source, "-o", program], check=True)
        names = [f"{name}{end}.sum" for name in METRICS.values() for end in ("ld", "st")]
        rows = counted([program, str(places)], names)
    found = []
    for (op, *at), row in zip(cases, rows, strict=True):
        counters, end = numbers(row, names), ("ld", "st")[op // 3]
        counts = {key: counters[f"{name}{end}.sum"] for key, name in METRICS.items()}
        found.append({"store": op > 2, "bytes": 4 << op % 3, "at": at, **counts})
    return found


def main():
    """Measure and write."""
    cases = measure(patterns())
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = subprocess.run(query, capture_output=True, text=True).stdout.strip().split(", ")
    head = {"gpu": gpu, "driver": driver, "date": datetime.date.today().isoformat()}
    rows = ",\n".join(json.dumps(case) for case in cases)
    RESULTS.write_text(json.dumps(head)[:-1] + f', "cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
