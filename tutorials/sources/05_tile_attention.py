# %% [markdown]
# # 5 · Tile it: FlashAttention-1 and -2
#
# - **You will** predict what two orders of the same loops move, watch tiles come and go, and write
#   the forward pass.
# - **You will learn** why K and V are *not* read once, and what FlashAttention-2 changed.
# - **You need** notebooks 3 and 4.

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

from simulator.course import begin, frame_at, record, show, stepper

begin()

# %% [markdown]
# ## One block, one query tile
#
# Cut Q into tiles of B_r rows, K and V into tiles of B_c. A thread block takes one query tile and
# lets the key tiles pass by, with m, l and O of its rows in registers. S and P exist for one pair
# of tiles at a time.

# %%
from flash_numba.problem import Problem
from simulator.course.tiles import residency, tile_grid

problem = Problem(128, 128, 32, dtype="fp16", causal=True)
show(*tile_grid(problem, 32, 16, m_block=2, n_block=3))

# %%
from simulator.programs import flash1, flash2

print(inspect.getsource(flash2.forward).split('"""')[2])

# %% [markdown]
# **Predict.** Full attention, N = 1,024, d = 64, B_r = 128. How many elements of Q, of K, of V are
# read? Which of B_r and B_c matters?

# %%
from simulator import theory
from simulator.run import simulate

N, d = 1024, 64
full = Problem(N, N, d, dtype="fp16")
for B_r, B_c in ((128, 64), (128, 32), (64, 64)):
    counts = simulate("flash2", full, tile_m=B_r, tile_n=B_c).counts
    form = theory.counts("flash2", full, B_r, B_c, direction="forward")
    print(f"B_r={B_r:3} B_c={B_c:2} reads {counts.reads} equal to the form: {counts == form}")

# %% [markdown]
# Q once. K and V once **for every query tile**, T_r = ⌈N / B_r⌉ times. "Every block is loaded only
# once" is the most repeated wrong sentence about FlashAttention.
#
# **Change it.** Take a B_r that does not divide N: is the form still right? Then let `full` be
# `causal=True`. Which share of the reads is left, and why not half?
#
# ## Watch the board
#
# Which tiles lie in SRAM, event after event, from the log of a run:

# %%
show(*residency("flash2", problem, 32, 16, events=90))

# %% [markdown]
# Step through a real layer. Find an event where a row's maximum rises, and read its factor off the
# panel.

# %%
from simulator.inputs import demo_input

q, k, v, tokens = demo_input()
layer = Problem.of(q, k, v, causal=True)
run = record("flash2", layer, q, k, v, head=9, tile_m=64, tile_n=32)
stepper(run)

# %%
frame_at(run, "2,4")

# %% [markdown]
# ## The other order
#
# FlashAttention-1 has the key tiles outside: K and V are read once - and O, m and l, which do not
# fit, are read and written for every key tile.
#
# **Predict** which of the two moves less, with the same tiles.

# %%
for program in ("flash1", "flash2"):
    counts = simulate(program, full, tile_m=128, tile_n=64).counts
    print(f"{program} reads {counts.reads}\n       writes {counts.writes}")
    print(f"       {counts.hbm_elements:,} elements, {counts.sram_peak_bytes:,} bytes of SRAM\n")

# %%
print(inspect.getsource(flash1.forward).split('"""')[2])

# %% [markdown]
# ## One kernel instead of many
#
# Beside the traffic, fusing saves what lies between kernels. Each colour below is a kernel.

# %%
from simulator.course.hierarchy import kernels_apart_and_fused, level_flow

show(*kernels_apart_and_fused(N, d))

# %% [markdown]
# HBM is not all: within the chip, tiles move between SRAM and registers. `flash2` keeps S, P and O
# in registers, `flash1` in SRAM.

# %%
show(*level_flow(N, d))

# %% [markdown]
# ## Exercises
#
# The two halves first, then the whole, in either order. `simulator.programs.flash2.forward` is one
# right answer: write yours before you read it again, and let the grader find out what it moves.

# %%
from simulator.grade import grade, statement

for name in ("weighted_values", "fused_lse", "flash_forward", "flash1_forward"):
    print(statement(name), "\n")


# %%
def flash_forward(gpu):
    Q, K, S = gpu.tensor("Q"), gpu.tensor("K"), gpu.tensor("S")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        for _, cols in gpu.all_key_tiles():
            sK = gpu.load("load K_j", K[cols])
            rS = gpu.in_registers("S", (sQ.shape[0], sK.shape[0]))
            gpu.product("S", rS, sQ, sK.T, scale=gpu.scale)
            gpu.store("store S_ij", S[head, rows, cols], rS)  # it must not leave the chip
            gpu.free(sK)
        gpu.free(sQ)


grade("flash_forward", flash_forward)

# %% [markdown]
# ## Further reading
#
# - [Dao et al. 2022](https://arxiv.org/abs/2205.14135), Algorithm 1; Dao:
#   [*FlashAttention-2*](https://arxiv.org/abs/2307.08691), 2023, Algorithm 1 and section 3.
# - `flash-numba step --demo --compare-with flash2_without_rescale`: a bug beside the real thing.
# - Next: [6 · Recompute backward](06_recompute_backward.ipynb)
