# %% [markdown]
# # 8 · Write a CUDA kernel, and trace it without a GPU
#
# - **You will** write kernels in Numba, run them thread by thread on this computer, and see every
#   access.
# - **You will learn** threads, warps, coalescing, bank conflicts and races; then you write
#   FlashAttention.
# - **You need** notebook 5. No GPU: the tracer runs the kernel's own source.

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

import warnings

import numpy as np
from numba import cuda, float32

from simulator.claims.evidence import results
from simulator.course import begin
from simulator.threads import KernelError, trace

begin()

# %% [markdown]
# ## Threads
#
# A kernel is one function that very many threads run at once. Each asks who it is and takes its
# own element. The same object can be launched on a GPU; `trace` launches it here.


# %%
@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


x = np.arange(100, dtype=np.float32)
y = np.full_like(x, np.nan)
report = trace(double)[2, 64](x, y)  # 2 blocks of 64 threads
print("right:", np.array_equal(y, 2 * x))
print(report)

# %% [markdown]
# A **warp** is 32 threads that go together. Memory comes in **sectors** of 32 bytes. When a warp
# takes 32 neighbouring floats, it touches four sectors: that is called coalesced, and `ideal` in
# the table.
#
# **Predict.** What if each thread takes every 32nd element instead?


# %%
@cuda.jit
def strided(x, y):
    i = cuda.threadIdx.x
    y[i] = x[32 * i]


big = np.zeros(32 * 32, np.float32)
report = trace(strided)[1, 32](big, np.zeros(32, np.float32))
count = report.count("global", "load")
print(f"{count.sectors} sectors for {count.bytes} bytes, {count.ideal_sectors} would do")

# %% [markdown]
# ## Shared memory, and its banks
#
# SRAM has 32 banks of 4 bytes each. Lanes that want different words of one bank wait for each
# other. Reading down a column of a 32 × 32 tile, all lanes meet in one bank:


# %%
def turn_a_tile(columns):
    @cuda.jit
    def turn(x, y):
        tile = cuda.shared.array((32, columns), float32)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        for k in range(0, 32, 8):
            tile[j + k, i] = x[j + k, i]
        cuda.syncthreads()
        for k in range(0, 32, 8):
            y[j + k, i] = tile[i, j + k]

    return turn


matrix = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
for columns in (32, 33):
    turned = np.empty_like(matrix)
    report = trace(turn_a_tile(columns))[1, (32, 8)](matrix, turned)
    print(
        f"rows of {columns}: right {np.array_equal(turned, matrix.T)}, "
        f"{report.count('shared').conflicts} passes too many"
    )

# %% [markdown]
# One unused column, and the conflicts are gone.
#
# **Change it.** Try more numbers of columns. Which are free of conflicts, what have they in common,
# and how many passes too many do the others take?
#
# Is the tracer right about such numbers? With a GPU the next cell launches the same two objects
# there; without one it says who counted for you.

# %%
if cuda.is_available():
    for columns in (32, 33):
        turned = np.empty_like(matrix)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one block leaves most of the GPU idle
            turn_a_tile(columns)[1, (32, 8)](matrix, turned)
        print(f"rows of {columns}, on this GPU: right {np.array_equal(turned, matrix.T)}")
else:
    counted = results("shared_passes")
    print(f"no GPU here; {counted['gpu']} counted {len(counted['cases'])} patterns,", end=" ")
    print(f"{counted['date']}: notebook 14 holds them against the tracer")

# %% [markdown]
# ## Races
#
# The loudest error of CUDA is the one that says nothing. Leave out the barrier, and a thread may
# read what its neighbour has not written yet. On a GPU this often works - until it does not.


# %%
@cuda.jit
def no_barrier(x, y):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    y[i] = tile[63 - i]


try:
    trace(no_barrier)[1, 64](x[:64], y[:64])
except KernelError as error:
    print(error.finding.kind + ":", error.finding.message)
    for place in error.finding.places:
        print("   ", place.text)

# %% [markdown]
# ## Read a real kernel
#
# The simple rungs of `flash_numba/kernels` are written to be read; their traces agree with the tile
# simulator and, where a GPU was at hand, with its counters. Begin with something smaller, on this
# problem:

# %%
from flash_numba.problem import Problem
from simulator.inputs import random_input
from simulator.run import simulate

problem = Problem(64, 64, 8)
q, k, v = random_input(problem)

# %% [markdown]
# The smallest FlashAttention kernel there is solves this notebook's exercise `flash_kernel`: a
# thread owns a query row, tiles of K and V come through shared memory. Here is how they come; what
# is done with them is yours to write. Predict what it loads: N = M = 64, d = 8, tiles of 16.

# %%
sys.path.insert(0, "solutions")
import inspect

import flash_kernel as solution
from flash_kernel import flash_kernel

source = inspect.getsource(solution)
print(source[source.index("    for start in") : source.index("        for j in")])
Q, K, V = (np.ascontiguousarray(one[0, :, 0]) for one in (q, k, v))
O, LSE = np.full_like(Q, np.nan), np.full(64, np.nan, np.float32)
report = trace(flash_kernel)[4, 16](Q, K, V, O, LSE, np.float32(8**-0.5))
tiles = simulate("flash2", problem, q, k, v, tile_m=16, tile_n=16)
print(
    "loaded by threads:", {a: report.count("global", "load", a).lanes for a in ("gQ", "gK", "gV")}
)
print("loaded by tiles:  ", tiles.counts.reads)
print("largest difference of O:", f"{np.abs(O - tiles.arrays['O'][0, :, 0]).max():.0e}")

# %% [markdown]
# The threads load, element by element, what the tiles of notebook 5 load. But look at sectors: each
# thread takes a row of its own, so a warp's accesses are far apart.

# %%
moved = report.count("global", "load")
print(f"{moved.sectors} sectors, {moved.ideal_sectors} would do")
print("dearest lines:")
for place, count in list(report.lines().items())[:4]:
    print(f"{count.sectors + count.passes:6}  {place.text}")

# %% [markdown]
# The ladder from here to a kernel as fast as a library's is: let neighbours take neighbours, let
# each thread own more than one row, feed tensor cores. `flash-numba trace` does all of this in a
# terminal.
#
# ## Exercises
#
# Kernels to write, from a guarded tail to half of the backward pass.

# %%
from simulator.grade import grade, statement

for name in (
    *("scale_kernel", "copy_kernel", "transpose_kernel", "row_sum_kernel", "row_lse_kernel"),
    *("flash_kernel", "dkdv_kernel"),
):
    print(statement(name).splitlines()[0])
print()
print(statement("row_sum_kernel"))


# %%
@cuda.jit
def row_sum_kernel(x, y):
    parts = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for col in range(i, x.shape[1], 64):
        total += x[cuda.blockIdx.x, col]
    parts[i] = total
    if i == 0:  # are all parts there?
        for j in range(1, 64):
            total += parts[j]
        y[cuda.blockIdx.x] = total


grade("row_sum_kernel", row_sum_kernel)

# %% [markdown]
# ## Further reading
#
# - Harris: *Optimizing Parallel Reduction in CUDA*; *An Efficient Matrix Transpose in CUDA C/C++*.
# - srush: [*GPU Puzzles*](https://github.com/srush/GPU-Puzzles), which taught many their first
#   Numba kernel.
# - `simulator/threads/__init__.py`: what the tracer counts, and how to emulate an instruction.
# - Next: [9 · Climb the ladder](09_climb_the_ladder.ipynb)
