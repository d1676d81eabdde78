# %% [markdown]
# # 11 · Read the Hopper kernel
#
# - **You will** start copies that no thread waits for, announce too many bytes to a barrier, and
#   count a whole kernel whose warps do different things at the same time.
# - **You will learn** why the fastest kernels have a producer and consumers, and how one reads code
#   whose lines do not run in their order.
# - **You need** notebooks 8 and 10. No GPU: Hopper's instructions are emulated.

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

from flash_numba.problem import Problem
from simulator.course import begin, show
from simulator.hardware import H100
from simulator.threads import KernelError, trace

begin()

# %% [markdown]
# ## What there is to gain
#
# A multiprocessor has tensor cores for products, and other units for exponentials. In notebook 10 a
# warp waited for its product before it began its softmax, and the other way round.
#
# **Predict.** For 64 queries and 128 keys: how many clock cycles do the two products take, how many
# the exponentials? Which unit waits for the other at d = 64, which at d = 128?

# %%
per_cycle = H100.tensor_flops_per_s["fp16"] / (H100.sm_count * H100.boost_clock_hz)
rows, keys = 64, 128
cycles = {}
for d in (64, 128):
    products = 4 * rows * keys * d / per_cycle
    exponentials = rows * keys / H100.exp_per_clock_per_sm
    cycles[d] = products, exponentials
    print(f"d={d:3}: products {products:5.0f} cycles, exponentials {exponentials:4.0f}")

from simulator.course.style import BLUE, ORANGE, axes

figure, ax = axes(7, 2.2)
told = []
for place, (d, (products, exponentials)) in enumerate(cycles.items()):
    ax.barh(3 * place, products, color=BLUE)
    ax.barh(3 * place, exponentials, left=products, color=ORANGE)
    ax.barh(3 * place + 1, products, height=0.4, align="edge", color=BLUE)
    ax.barh(3 * place + 1, exponentials, height=-0.4, align="edge", color=ORANGE)
    both, longest = products + exponentials, max(products, exponentials)
    told.append(
        f"at d={d} {both:,.0f} cycles one after the other, {longest:,.0f} side by side, "
        f"{both / longest:.1f} times less"
    )
ax.set_yticks([0, 1, 3, 4])
ax.set_yticklabels([f"d={d}, {how}" for d in cycles for how in ("in turn", "side by side")])
ax.set_xlabel("cycles of a multiprocessor: products blue, exponentials orange")
text = "A step of 64 queries and 128 keys on an H100: " + "; ".join(told) + "."
show(figure, text)

# %% [markdown]
# Nothing about the traffic of HBM changes any more. What is left is to keep both units busy, and
# that is a question of who waits for whom.
#
# ## The cast
#
# A block has one **producer**, a thread that starts all copies, and two or three **consumers**,
# warpgroups of 128 threads with 64 query rows each. The producer's warpgroup needs few registers
# and gives the rest away.

# %%
from flash_numba.kernels.hopper_tiles import hopper_tiles

for d in (64, 128):
    tiles = hopper_tiles(Problem(4096, 4096, d, dtype="fp16"))
    few, many = tiles.registers
    registers = 128 * (few + tiles.warpgroups * many)
    print(
        f"d={d:3}: {tiles.warpgroups} consumers, tile {tiles.tile_m}x{tiles.tile_n}, "
        f"{tiles.stages} stages of K and V; registers {few} and {many} a thread, {registers:,} of "
        f"{H100.register_bytes_per_sm // 4:,}; "
        f"SRAM {tiles.shared_bytes / 1024:.0f} of {H100.shared_bytes_per_block // 1024} KiB"
    )

# %% [markdown]
# ## A copy that nobody waits for
#
# The copy engine, **TMA**, is told a tile by its coordinates and brings all of it; no thread loads
# an element. An **mbarrier** says when it is here: its phase is complete when the announced bytes
# have come. Who waits names the parity of the phase: 0 the first time, 1 the second.
#
# Thread 128 below is a producer of two tiles into the same place, the first 128 threads are the
# consumer. **Predict** what the second barrier is for.

# %%
from flash_numba.device.hopper.layouts import SwizzledTile
from flash_numba.device.hopper.mbarrier import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import map_address, tensor_load
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile

tile = SwizzledTile(64, 64)
shape, tile_bytes = tile.shape, 2 * tile.size


def make_relay(announced, waits):
    @kernel(256)
    def relay(source, out):
        bars = cuda.shared.array(2, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sX = shared_tile(memory, 0, shape)
        tid = cuda.threadIdx.x
        if tid == 0:
            barrier_init(bars, 0, 1)  # "is here"
            barrier_init(bars, 1, 128)  # "may go"
            fence_barrier_init()  # the copy engine sees them, too
        cuda.syncthreads()
        if tid == 128:
            for n in range(2):
                if waits:
                    barrier_wait(bars, 1, (n & 1) ^ 1)
                barrier_expect(bars, 0, announced)
                tensor_load(sX[0], map_address(source), 0, 64 * n, 0, 0, bars, 0)
        if tid < 128:
            for n in range(2):
                barrier_wait(bars, 0, n & 1)
                for i in range(tid, 64 * 64, 128):
                    out[n, i // 64, i % 64] = sX[0, i // 64, i % 64]
                barrier_arrive(bars, 1)

    return relay


def relayed(announced=tile_bytes, waits=True):
    X = np.arange(128 * 64, dtype=np.uint16).reshape(1, 128, 1, 64)
    out = np.zeros((2, 64, 64), np.uint16)
    report = trace(make_relay(announced, waits))[1, 256, 0, tile_bytes](TensorMap(X, 64, 64), out)
    return X.reshape(2, 64, 64), out, report


X, out, report = relayed()
print("loads of threads from HBM:", report.count("global", "load", traffic="").bytes, "bytes")
print("loads of the copy engine: ", report.count("global", "load", traffic="bulk").bytes, "bytes")

# %% [markdown]
# The consumer read its tile in the order of memory. Is it the order of the matrix?

# %%
for row in range(4):
    print(f"row {row}: its chunks of eight lie in the order", out[0, row, ::8] % 64 // 8)
r, c = np.indices((64, 64))
unswizzled = out[0].reshape(-1)[tile.place(r, c)]
print("read through SwizzledTile.place, it is the matrix:", np.array_equal(unswizzled, X[0]))

# %% [markdown]
# The engine swizzles as it copies: notebook 10's trick, for nothing.
#
# **Change it.** Announce 16 bytes too many; then let the producer not wait until the consumer is
# done. On a GPU the first hangs. The second is wrong if the consumer is slow, and hangs if it is so
# slow that it misses a whole phase: it then waits for the next one of that parity.

# %%
for fault in ({"announced": tile_bytes + 16}, {"waits": False}):
    try:
        relayed(**fault)
    except KernelError as error:
        print(fault, "→", str(error).splitlines()[0], "\n")

# %% [markdown]
# ## The whole kernel
#
# `flash_numba/kernels/hopper.py`, its own source, thread by thread: a block for each of two query
# tiles, a causal mask, tiles of 128 queries and 64 keys.
#
# **Predict.** 256 queries and keys, 64 columns: how many elements of Q, K and V are read? Query
# tile 0 sees two key tiles, query tile 1 four.

# %%
from flash_numba import reference
from flash_numba.kernels import hopper
from flash_numba.kernels.arguments import extra_values
from flash_numba.kernels.hopper_tiles import HopperTiles
from simulator import theory
from simulator.inputs import random_input

N, d = 256, 64
problem = Problem(N, N, d, dtype="fp16", causal=True)
q, k, v = random_input(problem)
O, LSE = np.full_like(q, np.nan), np.full((1, 1, N), np.nan, np.float32)

tiles = HopperTiles(d, d, tile_n=64)
boxes = zip((q, k, v, O), (64, tiles.tile_n, tiles.tile_n, 64), strict=True)
maps = [TensorMap(array.view(np.uint16), rows, tiles.panel) for array, rows in boxes]
scale_first, scale, factor = hopper.factors(problem)
numbers = (N, problem.group), np.float32(scale), np.float32(factor)
more = extra_values(problem, tiles.tile_m, tiles.tile_n)
forward = hopper.make_forward(hopper.forward_spec(problem), tiles, scale_first)
report = trace(forward)[2, tiles.threads, 0, tiles.shared_bytes](*maps, LSE, *numbers, *more)
truth, _ = reference.forward(problem, q, k, v)
print(f"off by {np.abs(O - truth).max():.0e}")

form = theory.counts("flash2", problem, tiles.tile_m, tiles.tile_n, direction="forward")
for name, count in form.reads.items():
    loaded = report.count("global", "load", f"{name.lower()}_map[0]", traffic="bulk").bytes // 2
    print(f"{name}: {loaded:6,} elements read by the copy engine, closed form {count:6,}")
stored = report.count("global", "store", "o_map[0]", traffic="bulk").bytes // 2
print(f"O: {stored:6,} elements written by the copy engine, closed form {form.writes['O']:6,}")

# %% [markdown]
# FlashAttention-2, to the element. All that is new is when things happen.
#
# **Predict.** Which share of the bytes of shared memory still goes through the threads' own loads
# and stores? P never does (notebook 10); the operands of **wgmma**, a product of a warpgroup, are
# read from shared memory by the tensor cores themselves.

# %%
for traffic, who in (("bulk", "copy engine"), ("wgmma", "tensor cores"), ("", "threads")):
    moved = report.count("shared", traffic=traffic).bytes
    print(f"{who:12} {moved:8,} bytes, {moved / report.count('shared').bytes:4.0%}")

# %% [markdown]
# What threads store is O, on its way out; what they load are the producer's notes, below.
#
# ## Read the producer
#
# It waits only for room. K runs a tile ahead of V, because the consumers need it so. It alone walks
# over the tiles, and leaves a note of each query tile for them.

# %%
from flash_numba.kernels import hopper_producer, hopper_steps

source = inspect.getsource(hopper_producer.make_producer)
print(source[source.index("        while step.turn") : source.index("    return produce")])

# %% [markdown]
# ## Read a consumer's step
#
# Two products are started, and neither is waited for at once: S of the *next* key tile, and O += PV
# of *this* one. Find the softmax (`weigh`): it stands between the two waits, so it runs while PV
# does. Between the two products stands what is `leaving`: O of the query tile before this one,
# whose last PV was computed a step ago. Where there are turns, the lines with `turn` let consumers
# start their products one after the other: one's softmax then runs under the other's products.

# %%
for maker in (hopper_steps.make_start, hopper_steps.make_conclude):
    source = inspect.getsource(maker)
    print(source[source.index("    @room") : source.rindex("    return")])

# %% [markdown]
# Registers of a product that runs belong to the tensor cores. `wait_scores(rS)` hands them back;
# the tracer raises an error if anything touches them before.
#
# ## Measured
#
# **Predict.** The first picture says what no order of products and exponentials beats. How near do
# the rungs `tensor_core` (notebook 10) and `hopper` come, and at which d is it harder?
# (On a Hopper GPU, they are timed here.)

# %%
from simulator.course.live import measured
from simulator.hardware import GPUS, H200

rows, where = measured(
    "h200_fp16",
    peers=("torch_cudnn",),
    rungs=("tensor_core", "hopper"),
    directions=("forward",),
    dtypes=("fp16",),
    masks=("full",),
    seqlens=(512, 2048, 8192),
)
gpu = next((one for one in GPUS if f" {one.name}" in where), H200)
print(f"{where}; the bound is that of an {gpu.name}")
for row in rows:
    N, d = row["seqlen"], row["head_dim"]
    scores = row["batch"] * row["heads"] * N * N
    product_s = 4 * scores * d / gpu.tensor_flops_per_s["fp16"]
    bound_s = max(product_s, scores / gpu.exp_per_s)
    peer = row["ratios"].get("torch_cudnn", float("nan"))
    print(
        f"d={d:3} N={N:5,} {row['rung']:11} {row['tflops']:4.0f} TFLOP/s, "
        f"{1e3 * bound_s / row['ms']:3.0%} of the bound, cuDNN's time over ours {peer:.2f}"
    )

# %% [markdown]
# ## Exercises
#
# For the grader: when the parity changes, how many stages fit, and `relay` with two places instead
# of one. By yourself: trace the kernel with three consumers (`HopperTiles(d, d, 64, 3)`), and
# predict what is read of K and V first.

# %%
from simulator.grade import grade, statement

for name in ("wait_parity", "ring_stages", "ring_kernel"):
    print(statement(name), "\n")


def wait_parity(n, stages):
    return n % 2  # right for one place; and for two?


grade("wait_parity", wait_parity)

# %% [markdown]
# ## Further reading
#
# - `docs/hopper.md`: the schedule derived, the roofline of a step, and what was tried and left.
# - Shah et al.: [*FlashAttention-3: Fast and Accurate Attention with Asynchrony and
#   Low-precision*](https://arxiv.org/abs/2407.08608), 2024.
# - NVIDIA: [*PTX ISA*](https://docs.nvidia.com/cuda/parallel-thread-execution/), sections on
#   `mbarrier`, `cp.async.bulk.tensor` and `wgmma`.
# - `flash_numba/device/hopper/wgmma.py`: the product of a warpgroup, and beside it its emulation.
# - Next: [12 · Mask and share](12_mask_and_share.ipynb)
