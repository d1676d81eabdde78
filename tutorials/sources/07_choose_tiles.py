# %% [markdown]
# # 7 · Choose tiles: how little can move?
#
# - **You will** find the tile size from which FlashAttention moves less, hold Theorem 2 of the
#   paper against exact counts, draw a roofline, and see what a GPU makes of three tile sizes.
# - **You will learn** what N²d²/M means, why small tiles lose, and what bounds large ones.
# - **You need** notebook 5.

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

from simulator.course import begin, show

begin()

# %% [markdown]
# ## When FlashAttention moves more
#
# "My FlashAttention is slower than the naive one" is a question in many repositories, and often the
# answer is a tile of 32.
#
# **Predict.** Standard attention moves 4N² elements (for long sequences). FlashAttention-2 moves
# 2d/B_r · N². For d = 64, from which B_r on does it move less? And FlashAttention-1, which moves
# (3d + 4)/B_c · N²?

# %%
from simulator.course.limits import break_even, growth, roof

show(*break_even(d=64, N=4096))

# %%
from simulator.theory.asymptotics import break_even_tile, square_coefficient

for d in (32, 64, 128, 256):
    print(f"d={d:3}: flash1 from B_c={break_even_tile('flash1', d)}, ", end="")
    print(f"flash2 from B_r={break_even_tile('flash2', d)}")
print("factor of N² of flash2 at d=64, B_r=128:", square_coefficient("flash2", 128, 64))
for function in (square_coefficient, break_even_tile):
    print("\n" + inspect.getsource(function).split('"""')[2].strip("\n"))

# %% [markdown]
# Read the two functions: no factor was typed. A count is a polynomial in N where N is a multiple of
# the tile, and its second difference gives the factor of N²; the break-even is a search for the
# first tile whose factor is smaller than the other's.
#
# **Change it.** Take another of notebook 3's standard attentions as the baseline,
# `break_even_tile("flash2", d, "with_mask_and_dropout")`. Will smaller tiles do? And against
# `"fused_softmax"`?
#
# ## A tile is not a saving
#
# A popular formula has memory savings of N²/B². It divides a matrix by one tile of it - and says
# that smaller tiles save more. Counted:

# %%
from simulator.course.tiles import blocks_of_a_matrix

show(*blocks_of_a_matrix(1024, [32, 128, 256], d=64))

# %% [markdown]
# ## Theorem 2
#
# The paper proves: with an SRAM of M elements, FlashAttention makes Θ(N²d²/M) accesses, and no
# exact algorithm does better for every M. Where do the two factors d come from? A tile of rows of
# length d has M/d rows, so there are Nd/M tiles; each makes the other side pass by, Nd elements.
#
# Θ hides a constant. Here it is, from exact counts with the paper's tile sizes:

# %%
from simulator.theory.papers import theorem_2_curve

print("     M  B_r  B_c   accesses  / (N²d²/M)")
for point in theorem_2_curve(1024, 64, [1024, 4096, 16384, 65536]):
    tiles = f"{point.tile_m:4} {point.tile_n:4}"
    print(f"{point.sram:6} {tiles} {point.accesses:10,}  {point.ratio:10.2f}")
print(f"with the last constant, less than 4N² where M > {point.ratio / 4:.1f} d²")

# %% [markdown]
# The last column is the constant, and FlashAttention-1 beats standard attention only where M is
# larger than a multiple of d². Constants matter.
#
# ## What fits
#
# The paper's rule, B_c = ⌈M/4d⌉, gives a quarter of SRAM each to Q, K, V and O. Is something
# missing?

# %%
from simulator.theory.asymptotics import block_rule_needs

for M in (4096, 16384, 65536):
    forward, backward = (block_rule_needs(M, 64, way) for way in ("forward", "backward"))
    print(f"M={M:6}: the forward pass holds {forward:6} elements, the backward {backward:6}")

# %% [markdown]
# S, m and l need room too. (FlashAttention-2 puts S into registers, another small board.) And SRAM
# differs from GPU to GPU:

# %%
from simulator.grading.formula_puzzles import tallest_tile
from simulator.hardware import A100, GPUS

for gpu in GPUS:
    rows = [tallest_tile(d, gpu.shared_bytes_per_block) for d in (64, 128)]
    print(f"{gpu.name:9} B_r up to {rows[0]:4} at d=64, {rows[1]:4} at d=128 (fp16, B_c=16)")
S_and_O = [4 * 128 * (64 + d) / 1024 for d in (64, 128)]  # fp32, B_r=128, B_c=64
print(f"registers: {A100.register_bytes_per_sm // 1024} KiB a multiprocessor of an A100;", end=" ")
print(f"S and O of a tile of 128 take {S_and_O[0]:.0f} KiB at d=64, {S_and_O[1]:.0f} at d=128")

# %% [markdown]
# ## Growth
#
# Traffic, arithmetic and the least time against N. All grow as N²: FlashAttention does not make
# attention linear. What is linear is the memory it holds.

# %%
show(*growth(A100, 64, [256, 512, 1024, 2048, 4096, 8192, 16384]))

# %% [markdown]
# ## The roof
#
# Multiply the traffic away until arithmetic binds. Right of the dotted line, more savings change
# nothing.

# %%
show(*roof(A100, 4096, 64, [64, 128, 256]))

# %% [markdown]
# ## Measured
#
# One kernel for tensor cores was timed on a GPU with query tiles of three sizes and key tiles of
# one (`benchmarks/tile_sizes.py`). A taller tile moves less, as you counted. **Predict** which is
# fastest, and by how much, at d = 64 and at d = 128.
#
# A tile is shared by the warps of its block, so that the same tile comes in two shapes: few warps
# with many rows each, which need more registers, or more warps with fewer rows, which read K and V
# from shared memory more often. What is `local` did not fit into registers.

# %%
from simulator.claims.evidence import measured_on, results
from simulator.course.limits import measured_tiles

stored = results("h200_tiles")
print(f"fp16, measured on {measured_on(stored)}, driver {stored['machine']['driver']}")
show(*measured_tiles(stored))
for row in stored["rows"]:
    if row["seqlen"] == 8192:
        print(
            f"d={row['head_dim']:3} B_r={row['tile_m']:3} {row['warps']:2} warps: "
            f"{row['tflops']:3.0f} TFLOP/s, {row['registers']:3} registers and "
            f"{row['local_bytes']:2} bytes local a thread"
        )

# %% [markdown]
# The tile that moves least is not the fastest, and of two shapes that move exactly as much one is
# much slower: traffic does not decide alone. (A cache serves part of it, see notebook 14; what is
# left is how well a shape feeds the tensor cores, notebooks 10 and 11.) Claim C55 of notebook 16 is
# judged by these numbers.
#
# ## Exercises

# %%
from simulator.grade import grade, hint, statement

print(statement("predict_flash2"), "\n")
print(statement("break_even"))
print("hint 1:", hint("break_even", 1))


# %%
def predict_flash2(N, M, d, B_r, B_c):
    T_r = N // B_r
    return N * d + T_r * 2 * M * d + N * d + N


grade("predict_flash2", predict_flash2)


# %%
def break_even(d):
    return d // 2


grade("break_even", break_even)

# %% [markdown]
# ## Further reading
#
# - Hong, Kung: [*I/O complexity: The red-blue pebble
#   game*](https://doi.org/10.1145/800076.802486), 1981: where such bounds come from.
# - [Dao et al. 2022](https://arxiv.org/abs/2205.14135), section 3.2; `docs/papers.md` here
#   recounts its Figure 2.
# - `flash-numba compare --seqlen 4096 --tile-m 16`: the losing case, with the reason in words.
# - Next: [8 · Write a CUDA kernel](08_write_cuda_kernel.ipynb)
