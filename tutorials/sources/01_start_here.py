# %% [markdown]
# # 1 · Start here: the pantry and the cutting board
#
# - **You will** measure how much memory a GPU has close at hand, count what attention moves, and
#   meet the three tools of this course: the simulator, the stepper and the grader.
# - **You will learn** why attention is slow although its arithmetic is not the problem.
# - **You need** Python. No GPU, and nothing to know about FlashAttention.

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
# ## The picture to keep in mind
#
# A cook who fetches one ingredient from the pantry, uses it, puts it back and goes for the next one
# spends the evening walking. A better cook brings a few things to the cutting board, does
# everything that can be done with them, and goes back rarely.
#
# On a GPU the pantry is **HBM**: large and far away. The cutting board is **SRAM**, called shared
# memory in CUDA: next to the arithmetic units, and tiny. Registers are the cook's hands.

# %%
from simulator.course.hierarchy import memory_levels
from simulator.hardware import GPUS, H100

show(*memory_levels(H100))

# %%
for gpu in GPUS:
    board = gpu.shared_bytes_per_block / 1024
    walk = gpu.matmul_flops_per_s("fp16") / gpu.hbm_bytes_per_s
    print(f"{gpu.name:9} cutting board {board:4.0f} KiB, {walk:4.0f} operations a byte from HBM")

# %% [markdown]
# **Predict.** The last column says how many operations a GPU can do in the time that one byte takes
# to come from HBM. An algorithm that does fewer for each byte leaves the GPU waiting. How many does
# attention do? Take N = 4,096 words and d = 64 numbers for each.
#
# Standard attention multiplies Q with Kᵀ, turns the N × N scores S into weights P, and multiplies
# those with V: 4N²d operations. It writes S, reads it, writes P and reads it.

# %%
from flash_numba.problem import Problem
from simulator import theory
from simulator.run import simulate

problem = Problem(4096, 4096, 64, dtype="fp16")
standard = simulate("algorithm0", problem).counts
print(f"{standard.matmul_flops:,} operations, {standard.hbm_bytes:,} bytes")
print(f"{standard.matmul_flops / standard.hbm_bytes:.0f} operations a byte")

# %% [markdown]
# Every GPU above can do more than that while it waits. It walks to the pantry.
#
# `simulate` ran the algorithm on tiles in plain Python and counted every access. `theory` has a
# formula for the same number. That they agree, to the element, is what this whole project rests on.

# %%
form = theory.counts("algorithm0", problem, 128, 64, direction="forward")
print("simulated:", standard.reads, standard.writes)
print("formula:  ", form.reads, form.writes)
print("equal:", standard == form)

# %% [markdown]
# **Read the code.** An algorithm is written as loads, products and stores on a machine, and the
# machine's ledger adds up what crosses. Find the line that counts for HBM. What would one see of an
# algorithm that loads a tile and never uses it?

# %%
from simulator.ledger import Ledger
from simulator.machine import Machine

print(inspect.getsource(Machine.load))
print(inspect.getsource(Ledger.read))

# %% [markdown]
# ## The better cook
#
# FlashAttention computes the same thing with the same number of multiplications, and never writes S
# or P. It brings a tile of Q to the board and lets tiles of K and V pass by.

# %%
flash = simulate("flash2", problem, tile_m=128, tile_n=64).counts
print(f"{flash.matmul_flops:,} operations, {flash.hbm_bytes:,} bytes")
print(f"{standard.hbm_bytes / flash.hbm_bytes:.1f} times fewer bytes")
print(f"{flash.sram_peak_bytes:,} bytes of SRAM at most")

# %% [markdown]
# **Change it.** Let `tile_m` be smaller, then larger. Which of the three lines follow, and which
# never changes?
#
# ## Watch it
#
# A small run, event by event. In a live notebook the slider moves; the frame below is what it shows
# at the third query tile and the second key tile. `flash-numba step --demo` is the same in a
# terminal, on a real transformer layer.

# %%
from simulator.inputs import random_input

small = Problem(128, 128, 32, causal=True)
run = record("flash2", small, *random_input(small), tile_m=32, tile_n=32)
stepper(run)

# %%
frame_at(run, "2,1")

# %% [markdown]
# Read the frame from the top left: which tiles are done, the line of the algorithm at hand, what
# lies in SRAM, one row's numbers, and how much has crossed HBM so far beside what standard
# attention would have moved.
#
# ## Exercise
#
# Every notebook ends with exercises that are graded - on numbers, and on what your answer moves.
# `statement` tells what to do, `hint` helps in three steps, `grade` says what is wrong and where.

# %%
from simulator.grade import grade, hint, statement

print(statement("tallest_tile"))
print("hint 1:", hint("tallest_tile", 1))


# %%
def tallest_tile(d, sram_bytes):
    return sram_bytes // (2 * d)  # change this


grade("tallest_tile", tallest_tile)

# %% [markdown]
# Solutions are in `tutorials/solutions`, a file each. Look when you have an answer of your own.
#
# ## Further reading
#
# - Dao, Fu, Ermon, Rudra, Ré: [*FlashAttention: Fast and Memory-Efficient Exact Attention with
#   IO-Awareness*](https://arxiv.org/abs/2205.14135), 2022. Sections 1 and 2.
# - `docs/counting.md` in this repository: what is counted, to the letter.
# - Next: [2 · Compute attention](02_compute_attention.ipynb)
