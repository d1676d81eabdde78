# %% [markdown]
# # 3 · Count what standard attention moves
#
# - **You will** predict, count and check the traffic of standard attention, in four versions.
# - **You will learn** why it is bound by memory, and that "standard attention" means several
#   things.
# - **You need** notebook 2.

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

from simulator.course import begin, show

begin()

# %% [markdown]
# ## Three operations
#
# One after the other, each a kernel that reads its operands from HBM and writes its result back:
# S = scale QKᵀ, P = softmax(S), O = PV.
#
# **Predict.** For N queries, N keys and d columns, fill in:
#
# | operation | reads | writes |
# |---|---|---|
# | S | Q, K: 2Nd | S: N² |
# | softmax | ? | ? |
# | O | ? | ? |
#
# Add it up before you go on.

# %%
from flash_numba.problem import Problem
from simulator.run import simulate

N, d = 1024, 64
problem = Problem(N, N, d, dtype="fp16")
found = simulate("algorithm0", problem).counts
print("reads ", found.reads)
print("writes", found.writes)
print(f"in all {found.hbm_elements:,}; 4N² + 4Nd = {4 * N * N + 4 * N * d:,}")

# %%
from simulator.course.hierarchy import traffic_by_operation

show(*traffic_by_operation(N, d))

# %% [markdown]
# Nearly everything that moves is S and P, which nobody asked for. This is Algorithm 0 of the
# FlashAttention paper: each operand moved once, as if SRAM had no limit.
#
# ## Read the program
#
# The simulator's programs are short. `algorithm0` is three lines over three little functions.

# %%
import inspect

from simulator.programs import baselines, standard

print(inspect.getsource(baselines.algorithm0))
print(inspect.getsource(baselines.product))

# %% [markdown]
# ## Four things called standard attention
#
# A product of large matrices does not fit into SRAM: K must be read in tiles, again and again. A
# clever library fuses the softmax with the first product. A training run adds a mask and dropout.
# Which baseline somebody compares with decides how good their result looks, so this project names
# it.

# %%
for name in ("fused_softmax", "algorithm0", "tiled", "with_mask_and_dropout"):
    moved = simulate(name, problem, tile_m=128, tile_n=128).counts.hbm_bytes
    print(f"{name:22} {moved / 1e6:6.1f} MB, {moved / (2 * N * N):.1f} passes over N x N in fp16")

# %% [markdown]
# ## How long does it take at least?
#
# A GPU can be bound by memory, by products or by exponentials. Dividing each count by a data
# sheet's peak gives three times that no program beats; the longest is the bound. (Every tile is
# taken to come from HBM; a cache serves some of them, and can only help.)

# %%
from simulator.hardware import A100, roofline

for name in ("algorithm0", "flash2"):
    counts = simulate(name, problem, tile_m=128, tile_n=64).counts
    times = roofline(
        A100,
        hbm_bytes=counts.hbm_bytes,
        matmul_flops=counts.matmul_flops,
        exp_count=counts.exp_count,
        dtype="fp16",
    )
    print(
        f"{name:10} memory {1e6 * times.memory_s:5.2f} µs, "
        f"products {1e6 * times.matmul_s:5.2f} µs, "
        f"exponentials {1e6 * times.exp_s:5.2f} µs: bound by {times.bound}"
    )

# %% [markdown]
# ## Read the tiled version
#
# `tiled` is what the CUDA kernels of `flash_numba/kernels/standard.py` do. Its softmax reads each
# row of S twice: a row does not fit on chip, and a weight needs the sum of its whole row.

# %%
print(inspect.getsource(standard.softmax_rows))

# %% [markdown]
# **Change it.** How does the traffic of `tiled` depend on the tile? Try `tile_m=tile_n=32`, 64,
# 128, 256. Which term shrinks, and which does not?

# %%
for tile in (32, 64, 128, 256):
    counts = simulate("tiled", problem, tile_m=tile, tile_n=tile, sram_bytes=None).counts
    print(f"tiles of {tile:3}: {counts.hbm_elements:10,} elements, of them S {counts.reads['S']:,}")

# %% [markdown]
# ## Exercises
#
# The formula first; then the program of the first operation. `hint("scores", 1)` helps.

# %%
from simulator.grade import grade, statement

print(statement("predict_standard"))


# %%
def predict_standard(N, M, d):
    return 2 * (N + M) * d  # S and P are missing


grade("predict_standard", predict_standard)

# %%
print(statement("scores"))


def scores(gpu):
    Q, K, S = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("S")
    for head, _, rows in gpu.query_tile_grid():
        for _, cols in gpu.all_key_tiles():
            sQ = gpu.load("load Q_i", Q[head, rows])  # how often does this happen?
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S = scale Q K^T", rS, sQ, sK.T, scale=gpu.scale)
            gpu.store("store S_ij", S[head, rows, cols], rS)
            gpu.free(sQ, sK)


grade("scores", scores)

# %% [markdown]
# ## Further reading
#
# - Williams, Waterman, Patterson: [*Roofline: An Insightful Visual Performance
#   Model*](https://doi.org/10.1145/1498765.1498785), 2009.
# - Ivanov et al.: [*Data Movement Is All You Need*](https://arxiv.org/abs/2007.00072), 2021: how
#   much of a transformer is memory.
# - `flash-numba compare --seqlen 1024 --baseline all`: the same numbers in a terminal.
# - Next: [4 · Derive the online softmax](04_derive_online_softmax.ipynb)
