# %% [markdown]
# # 10 · Use tensor cores
#
# - **You will** multiply small matrices with one instruction of a warp, see which lane holds what,
#   and count what a bad layout costs.
# - **You will learn** fragments, why P need not go through memory, and what a swizzle is for.
# - **You need** notebook 8. No GPU: the instructions are emulated lane by lane.

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
from numba import cuda, float32, uint16

from flash_numba.device.ptx_matrix import ldmatrix_x2, ldmatrix_x4, mma_m16n8k16_fp16
from simulator.course import begin, show
from simulator.threads import trace

begin()

# %% [markdown]
# ## Why
#
# **Predict.** How many times more multiply-adds can a GPU do on its tensor cores, in fp16, than
# outside them in fp32?

# %%
from simulator.hardware import GPUS

for gpu in GPUS:
    ratio = gpu.tensor_flops_per_s["fp16"] / gpu.fp32_flops_per_s
    share = gpu.matmul_flops_per_s("fp16") / gpu.exp_per_s
    print(f"{gpu.name:9} {ratio:4.1f} times; {share:4.0f} FLOPs for each exponential")

# %% [markdown]
# A kernel that does not use them leaves most of the GPU dark. And products become so cheap that
# exponentials, of which attention needs one a score, begin to matter: at d = 64 a score costs 4·64
# FLOPs.
#
# ## One instruction, one warp
#
# `mma.sync.m16n8k16` multiplies A (16 × 16) with B (16 × 8) and adds C (16 × 8). No lane has a
# matrix: each of the 32 lanes holds a few elements, its **fragment**, in its own registers.

# %%
from flash_numba.device.ptx_matrix import matrix_of_a, matrix_of_c
from simulator.course.cores import fragments

lane = np.arange(32)[:, None]
half = lane.astype(np.float16).view(np.uint16).astype(np.uint32)
lanes_of_a = matrix_of_a(np.tile(half | half << 16, 4), "fp16").astype(int)  # two in a register
lanes_of_c = matrix_of_c(np.tile(lane, 4)).astype(int)
show(*fragments(lanes_of_a, lanes_of_c))

# %% [markdown]
# `ldmatrix` brings fragments from shared memory: each lane says where one row of eight elements is,
# and gets the elements that it must hold. Here are 16 queries and 8 keys of 16 columns, S = QKᵀ, by
# one warp. (K is stored by rows; B = Kᵀ wants columns, which are K's rows: nothing has to be
# turned.)


# %%
@cuda.jit
def scores_of_a_warp(gQ, gK, gS):
    sQ = cuda.shared.array(16 * 16, uint16)
    sK = cuda.shared.array(8 * 16, uint16)
    lane = cuda.threadIdx.x
    for i in range(lane, 256, 32):
        sQ[i] = gQ[i // 16, i % 16]
    for i in range(lane, 128, 32):
        sK[i] = gK[i // 16, i % 16]
    cuda.syncthreads()
    part, row = lane // 8, lane % 8
    a = ldmatrix_x4(sQ, 16 * (row + 8 * (part % 2)) + 8 * (part // 2))
    b = ldmatrix_x2(sK, 16 * row + 8 * (part % 2))
    zero = float32(0)
    c = mma_m16n8k16_fp16(a, b, (zero, zero, zero, zero))
    g, t = lane // 4, lane % 4
    gS[g, 2 * t] = c[0]
    gS[g, 2 * t + 1] = c[1]
    gS[g + 8, 2 * t] = c[2]
    gS[g + 8, 2 * t + 1] = c[3]


rng = np.random.default_rng(0)
Q, K = rng.standard_normal((16, 16)), rng.standard_normal((8, 16))
Q, K = Q.astype(np.float16), K.astype(np.float16)
S = np.full((16, 8), np.nan, np.float32)
trace(scores_of_a_warp)[1, 32](Q.view(np.uint16), K.view(np.uint16), S)
print(f"off by {np.abs(S - Q.astype(float) @ K.astype(float).T).max():.0e}")

# %% [markdown]
# Products of two fp16 numbers are exact in fp32, and sums are kept in fp32: the error is that of
# rounding sums, not of fp16.
#
# ## The trick that FlashAttention lives on
#
# S of one product becomes P, the left operand of the next. In registers: each lane has some
# elements of C, and must hold some of A. **Predict** whether it has to fetch them from other lanes.

# %%
two_tiles = np.hstack([lanes_of_c, lanes_of_c])
print("two C fragments side by side are an A fragment:", np.array_equal(two_tiles, lanes_of_a))

# %% [markdown]
# It does not. Round S to 16 bits where it stands, and it *is* the operand: P never leaves
# registers. The row maximum needs the four lanes that share a row, two shuffles.

# %%
row_of_lane = {lane: sorted(set(np.nonzero(lanes_of_c == lane)[0].tolist())) for lane in range(8)}
for lane, rows in row_of_lane.items():
    print(f"lane {lane} holds parts of rows {rows}")

# %% [markdown]
# ## What a layout costs
#
# Rows of 64 fp16 numbers are 128 bytes: all 32 banks, exactly. So the same column of different rows
# lies in the same bank. `ldmatrix` wants eight rows at once.
#
# **Predict** how many passes a load takes: without care; with rows padded by 8 elements; and with a
# **swizzle**, which stores column c of row r at c xor 8·(r mod 8).


# %%
def reader(stride, swizzled):
    @cuda.jit
    def read(gX, gY):
        sX = cuda.shared.array(16 * stride, uint16)
        lane = cuda.threadIdx.x
        for i in range(lane, 16 * 64, 32):
            row, col = i // 64, i % 64
            at = col ^ 8 * (row % 8) if swizzled else col
            sX[row * stride + at] = gX[row, col]
        cuda.syncthreads()
        part, row = lane // 8, lane % 8 + 8 * (lane // 8 % 2)
        for k in range(4):
            col = 16 * k + 8 * (part // 2)
            at = col ^ 8 * (row % 8) if swizzled else col
            gY[k, lane] = ldmatrix_x4(sX, row * stride + at)[0]

    return read


X = rng.standard_normal((16, 64)).astype(np.float16).view(np.uint16)
found = []
for name, stride, swizzled in (("plain", 64, False), ("padded", 72, False), ("swizzled", 64, True)):
    Y = np.zeros((4, 32), np.uint32)
    report = trace(reader(stride, swizzled))[1, 32](X, Y)
    count = report.count("shared", "load")
    found.append(Y)
    print(
        f"{name:8}: {count.instructions} loads of four matrices in {count.passes} passes, "
        f"{report.shared_bytes:,} bytes"
    )
print("all read the same:", all(np.array_equal(found[0], one) for one in found))

# %% [markdown]
# The swizzle is as fast as padding and takes no byte more. Every fast kernel has one; Hopper's copy
# engine does it by itself.
#
# **Change it.** Let the swizzle be `8 * (row % 4)`, in both places. Predict the passes first, and
# whether the numbers stay right.
#
# ## The rung
#
# `flash_numba/kernels/tensor_core.py` is `flash2` with both products done like this. Its rooms have
# the ideas of this notebook, each under its name. Below them the room that lets P stay where it
# is: find the two neighbours in a row that become one register.

# %%
from flash_numba.device import fragment_products, fragment_softmax, swizzled_copies

for module in (fragment_products, fragment_softmax, swizzled_copies):
    print(module.__name__.split(".")[-1], "-", module.__doc__.strip().splitlines()[0])
source = inspect.getsource(fragment_products.make_pack_weights)
print(f"\n{source[source.index('    def pack_weights') :]}")

# %% [markdown]
# **Predict** how much faster than fp32's `flash2` it is at d = 128. With a GPU, both are timed
# here.

# %%
from simulator.course.live import measured

cell = {"directions": ("forward",), "masks": ("full",), "head_dims": (64, 128), "seqlens": (2048,)}
rates = {}
for name, rung, dtype in (("h200_fp32", "flash2", "fp32"), ("h200_fp16", "tensor_core", "fp16")):
    rows, where = measured(name, rungs=(rung,), dtypes=(dtype,), **cell)
    print(f"{rung} in {dtype}: {where}")
    for row in rows:
        rates[rung, row["head_dim"]] = row["tflops"]
        print(f"  d={row['head_dim']:3} N={row['seqlen']:,}: {row['tflops']:5.1f} TFLOP/s")
for d in (64, 128):
    print(f"d={d:3}: {rates['tensor_core', d] / rates['flash2', d]:.1f} times as fast")

# %% [markdown]
# ## Exercises
#
# Three kernels for the grader: the product, the swizzle, and the step that FlashAttention lives on.
# And by yourself: in `scores_of_a_warp` leave out the barrier. What does the tracer say, and of
# which lines?

# %%
from simulator.grade import grade, hint, statement

for name in ("warp_scores_kernel", "swizzle_kernel", "warp_attention_kernel"):
    print(statement(name), "\n")
print("hint 1:", hint("swizzle_kernel", 1))


# %%
@cuda.jit
def swizzle_kernel(gX, gY):
    sX = cuda.shared.array(16 * 64, uint16)
    lane = cuda.threadIdx.x
    for i in range(lane, 16 * 64, 32):
        sX[i] = gX[i // 64, i % 64]  # where should it lie?
    cuda.syncthreads()
    part, row = lane // 8, lane % 8 + 8 * (lane // 8 % 2)
    for k in range(4):
        a = ldmatrix_x4(sX, 64 * row + 16 * k + 8 * (part // 2))
        for i in range(4):
            gY[k, lane, i] = a[i]


grade("swizzle_kernel", swizzle_kernel)

# %% [markdown]
# ## Further reading
#
# - NVIDIA: [*PTX ISA*](https://docs.nvidia.com/cuda/parallel-thread-execution/), sections on
#   `mma.sync` and `ldmatrix`.
# - [Dao 2023](https://arxiv.org/abs/2307.08691), section 3.3: how FlashAttention-2 divides a
#   block's work among warps.
# - `flash_numba/device/ptx_matrix.py`: the instructions and their emulation.
# - Next: [11 · Read the Hopper kernel](11_read_hopper_kernel.ipynb)
