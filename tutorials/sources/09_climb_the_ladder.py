# %% [markdown]
# # 9 · Climb the ladder
#
# - **You will** follow a kernel from its first, slow version upwards, an idea a file, and count
#   what each idea saves before anything is timed.
# - **You will learn** where the time of a correct kernel goes: banks, sectors, loads for each
#   product.
# - **You need** notebook 8. No GPU.

# %%
import sys

sys.path.insert(0, "..")  # the packages of this repository
try:
    from simulator.restart import announce, missing, stop_if_stale
except ModuleNotFoundError:
    why = "this notebook needs the whole repository: `git clone` it and open the one in `tutorials`"
    raise ModuleNotFoundError(why) from None

if names := missing("tutorials"):
    announce(names)
    # %pip install --quiet -e "..[tutorials]"
stop_if_stale()

import inspect

import numpy as np

from flash_numba.kernels.steps import STEPS, module_of
from flash_numba.problem import Problem
from simulator.course import begin, show
from simulator.hardware import A100, RTX_4090
from simulator.threads import trace

begin()

# %% [markdown]
# ## Six steps
#
# All compute the same: FlashAttention-2's forward pass in fp32, with the traffic of notebook 5.
# None of them moves a tile more from HBM than the first. And yet the first is many times slower
# than the last.

# %%
for step in STEPS:
    module = module_of(step)
    print(f"{module.__name__.split('.')[-1]:20} {module.__doc__.splitlines()[0]}")

# %% [markdown]
# ## Count the first three
#
# **Predict.** In step 1 each thread owns a query row, which lies in shared memory with the rest of
# its tile: 32 floats a row, so that the same column of all rows is in one bank. All lanes read that
# column at once. How many passes does such a load take?

# %%
from simulator.inputs import random_input

N, d = 128, 32
problem = Problem(N, N, d)
q, k, v = random_input(problem)


def traced(step):
    module = module_of(step)
    tiles = module.tiles_of(d)
    O, LSE = np.full_like(q, np.nan), np.full((1, 1, N), np.nan, np.float32)
    kernel = module.make_forward(tiles, False)
    launched = trace(kernel)[-(-N // tiles.tile_m), tiles.threads, 0, tiles.layout.bytes]
    return launched(q, k, v, O, LSE, np.float32(problem.softmax_scale)), O


reports, results = {}, {}
print(f"{'':14} shared loads  passes  conflicts   global sectors  ideal")
for step in ("naive", "conflict-free", "registers"):
    reports[step], results[step] = traced(step)
    shared, moved = reports[step].count("shared", "load"), reports[step].count("global")
    print(
        f"{step:14} {shared.instructions:12,} {shared.passes:7,} {shared.conflicts:10,} "
        f"{moved.sectors:16,} {moved.ideal_sectors:6,}"
    )
same = max(np.abs(one - results["naive"]).max() for one in results.values())
print(f"largest difference between their O: {same:.0e}")

# %% [markdown]
# ## Step 2: one float more a row
#
# This is the whole of step 2:

# %%
print(inspect.getsource(module_of("conflict-free")).split('"""', 2)[2].strip())

# %% [markdown]
# A padded row, and the conflicts are gone. Nobody would find that by reading the mathematics.
#
# **Change it.** In `traced`, let `tiles` be `module.tiles_of(d)._replace(pad_q=2)`, then other
# numbers. Which paddings are as good as step 2's, and what does a padding of 2 cost?
#
# ## Step 3: keep what you use
#
# A key costs two multiply-adds for each column: one of QKᵀ, one of PV. In steps 1 and 2 they take
# three numbers from shared memory, of Q, K and V. In step 3 a thread's query row lies in its
# registers: two numbers are left. And O leaves through shared memory, so that neighbours write
# neighbours: look at the sectors above.
#
# **Predict** how many multiply-adds a lane does for each pass over shared memory, in the three
# steps.

# %%
products = 2 * N * N * d  # multiply-adds of QKᵀ and PV
for step, report in reports.items():
    passes = report.count("shared").passes
    print(f"{step:14} {products / (32 * passes):5.2f} multiply-adds a lane and pass")

for gpu in (A100, RTX_4090):
    lanes = gpu.fp32_flops_per_s / (2 * gpu.sm_count * gpu.boost_clock_hz)
    print(f"{gpu.name:14} {lanes / 32:5.2f} that it can do in a clock, the time of a pass")

# %%
from simulator.course.style import BLUE, ORANGE, axes

figure, (left, right) = axes(8, 2.6, columns=2)
names = list(reports)
passes = [reports[step].count("shared").passes for step in names]
sectors = [reports[step].count("global").sectors for step in names]
left.bar(names, passes, color=BLUE)
left.set_yscale("log")
left.set_title("passes over shared memory", fontsize=9)
right.bar(names, sectors, color=ORANGE)
right.set_title("sectors of global memory", fontsize=9)
show(
    figure,
    "Cost of three steps on the same problem: passes over shared memory "
    + ", ".join(f"{name} {n:,}" for name, n in zip(names, passes, strict=True))
    + "; sectors of global memory "
    + ", ".join(f"{name} {n:,}" for name, n in zip(names, sectors, strict=True))
    + ".",
)

# %% [markdown]
# One multiply-add for one number from shared memory is too few: see above what the arithmetic units
# could do in the time of a pass. Steps 4 to 6 let a thread own a small *rectangle* of S: with r
# rows and c columns it loads r + c numbers for r·c products. Then they load several numbers at
# once, copy the next tile while this one is used, and read operands a step ahead.
#
# **Predict** from which square on a lane does four multiply-adds for each number that it loads.

# %%
for side in (1, 2, 4, 8, 16):
    print(
        f"{side:2} x {side:2}: {side * side / (2 * side):4.1f} multiply-adds for each number loaded"
    )

# %% [markdown]
# Registers set the end: the rectangle, its operands and its part of O must fit into a thread's.
#
# ## Measured
#
# **Predict.** Counted without a GPU, steps 1 to 3 save passes and sectors. Which of the steps gains
# most time? With a GPU the next cell times all of them on it.

# %%
from simulator.bench.cells import Cell
from simulator.course.live import measured_steps

steps = {step: module_of(step) for step in STEPS}
rows, where = measured_steps(steps, Cell("forward", "fp32", 64, 4096, False, 4, 32))
print("fp32, d=64, N=4,096:", where)
print(f"{'':14} TFLOP/s  times as fast as the one before, as the first")
for before, row in zip([rows[0], *rows], rows, strict=False):
    gains = before["ms"] / row["ms"], rows[0]["ms"] / row["ms"]
    print(f"{row['step']:14} {row['tflops']:7.1f}  {gains[0]:28.1f}  {gains[1]:12.1f}")

# %% [markdown]
# ## Read on
#
# The difference between two files is one idea. Compare `step3_registers.py` with `step4_tiles.py`,
# and `step4_tiles.py` with `step5_async.py` in `flash_numba/kernels/steps`. Where a GPU is at hand,
# `flash-numba bench --rung flash2` times the last.

# %%
for step in STEPS:
    module = module_of(step)
    lines = [line for line in inspect.getsource(module).splitlines() if line.strip()]
    print(f"{step:14} {len(lines):3} lines")

# %% [markdown]
# ## Exercises
#
# The two ideas of this notebook that one can practise alone: neighbours take neighbours, and
# padding.

# %%
from numba import cuda, float32

from simulator.grade import grade, statement

print(statement("copy_kernel"), "\n")
print(statement("transpose_kernel"))


# %%
@cuda.jit
def transpose_kernel(x, y):
    tile = cuda.shared.array((32, 32), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(0, 32, 8):
        row, col = cuda.blockIdx.y * 32 + j + k, cuda.blockIdx.x * 32 + i
        if row < x.shape[0] and col < x.shape[1]:
            tile[j + k, i] = x[row, col]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        row, col = cuda.blockIdx.x * 32 + j + k, cuda.blockIdx.y * 32 + i
        if row < y.shape[0] and col < y.shape[1]:
            y[row, col] = tile[i, j + k]


grade("transpose_kernel", transpose_kernel)

# %% [markdown]
# ## Further reading
#
# - Boehm: [*How to Optimize a CUDA Matmul Kernel for cuBLAS-like
#   Performance*](https://siboehm.com/articles/22/CUDA-MMM), 2022: the same ladder for a matrix
#   product.
# - Volkov: *Better Performance at Lower Occupancy*, 2010: why registers beat more threads.
# - Next: [10 · Use tensor cores](10_use_tensor_cores.ipynb)
