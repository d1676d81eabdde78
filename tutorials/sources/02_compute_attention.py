# %% [markdown]
# # 2 · Compute attention, with one head and with many
#
# - **You will** compute attention by hand on three words, then on a layer of a real transformer.
# - **You will learn** what Q, K, V, S, P and O are, why scores are divided by √d, and what heads
#   are.
# - **You need** notebook 1, and matrix multiplication.

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

from simulator.course import begin, show

begin()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## Three words
#
# Each word has a **query** (what it looks for), a **key** (what it offers) and a **value** (what it
# says). A score is the product of a query and a key; a row of scores becomes weights that sum to 1;
# the output is the weighted mean of the values.
#
# $$S = \frac{QK^T}{\sqrt d}, \qquad P_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}, \qquad O = PV$$

# %%
Q = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
V = np.array([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])

S = Q @ K.T / np.sqrt(2)
P = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
print("S\n", S, "\nP\n", P, "\nO\n", P @ V)

# %% [markdown]
# **Predict.** The second word's query is (0, 2). Which words does it attend to, and which not?
# Check the second row of P.
#
# **Change it.** Make that query ten times as long, in the same direction. What becomes of its row,
# and of a gradient that must pass through it?
#
# ## Why √d
#
# The product of two vectors of d independent numbers has variance d. Without the root, scores grow
# with d, one weight of each row comes near 1, and the gradient of all others near 0.

# %%
rng = np.random.default_rng(0)
for d in (16, 64, 256):
    q, k = rng.standard_normal((2, 200, d))
    raw = q @ k.T
    for name, scores in (("QKᵀ/√d", raw / np.sqrt(d)), ("QKᵀ", raw)):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        print(
            f"d={d:3} {name:7} deviation {scores.std():5.2f}, "
            f"largest weight {weights.max(axis=1).mean():.2f}"
        )

# %% [markdown]
# ## A real layer
#
# The package carries what one layer of a small language model was given for a paragraph of text:
# 206 tokens, 12 heads of 32 columns. **Multi-head** attention is attention 12 times, each on its
# own columns, and the results beside each other, multiplied with a matrix W_O.

# %%
from simulator.inputs import demo_input

q, k, v, tokens = demo_input()
print("layout (batch, seqlen, heads, head_dim):", q.shape)
print(" ".join(tokens[:24]))

# %%
from simulator.course.flow import attention_flow

show(*attention_flow(q, k, v, head=9, words=tokens))

# %% [markdown]
# `flash_numba.reference` computes this in float64, as the formulas say it: the truth that
# everything else in this project is held against. `flash_attention` is what you would call in a
# program; with no GPU it answers through the simulator.

# %%
from flash_numba import reference
from flash_numba.problem import Problem
from simulator.run import simulate

problem = Problem.of(q, k, v)
o, lse = reference.forward(problem, q, k, v)
print("O", o.shape, " LSE", lse.shape)

head = 9
S = q[0, :, head].astype(float) @ k[0, :, head].astype(float).T / np.sqrt(32)
P = np.exp(S - S.max(axis=1, keepdims=True))
P /= P.sum(axis=1, keepdims=True)
print("by hand and by the reference:", np.abs(P @ v[0, :, head] - o[0, :, head]).max())

# %% [markdown]
# **Read the code.** These are the lines of the reference that a head comes down to. Where is √d?
# And why is the row's maximum subtracted, which changes no weight? (`arith` rounds, when asked, as
# a framework in fp16 would: notebook 13.)

# %%
head_code = inspect.getsource(reference._Head)
print(head_code[head_code.index("        scores = arith") :])
print(inspect.getsource(reference._softmax))

# %% [markdown]
# `lse` is one number a row, the logarithm of the sum of e^S. It looks like a by-product; keep an
# eye on it. From lse and S anybody can make P again, and notebook 6 lives on that.
#
# ## What is hard about it
#
# **Predict.** The layer has 206 tokens. S has 206 × 206 numbers a head. A model reads 32,768 tokens
# with 16 heads of 64 columns: how many bytes does S take in fp16, and how many Q, K, V and O?

# %%
N, heads, d = 32_768, 16, 64
S_bytes, others = N * N * heads * 2, 4 * N * heads * d * 2
print(f"S: {S_bytes / 2**30:.0f} GiB a layer; Q, K, V, O: {others / 2**20:.0f} MiB, ", end="")
print(f"{S_bytes / others:.0f} times less")

counted = simulate("algorithm0", Problem(N, N, d, dtype="fp16")).counts
print("standard attention, counted, writes this S:", heads * 2 * counted.writes["S"] == S_bytes)

# %% [markdown]
# The matrix that nobody asked for is so much larger than everything that goes in and comes out. It
# has to be written and read again. Notebook 3 counts that.
#
# ## Exercise
#
# You computed one head by hand. Write multi-head attention for all heads of the layer at once with
# `np.einsum`, and compare with `o`.
#
# Then the first graded program. `gpu` is a machine with HBM and SRAM, and these are all its
# operations; each but `free` and the making of a tile begins with words of yours that say what it
# does:
#
# - `gpu.load("load Q_i", Q[head, rows])`: from HBM into SRAM, counted; gives a tile;
# - `gpu.in_registers("O", shape, fill)`, `gpu.in_sram(...)`: a new tile;
# - `gpu.product("S", into, a, b.T, scale=..., add=...)`: a product of two tiles;
# - `gpu.compute("O = 2 Q", (into,), (of,), function)`: anything else, a function of arrays;
# - `gpu.store("store O_i", O[head, rows], tile)`: back to HBM, counted;
# - `gpu.free(tile)`: SRAM is small. Tiles in registers free themselves.

# %%
from simulator.grade import grade, statement

print(statement("double_q"))


# %%
def double_q(gpu):
    Q, O = gpu.tensor("Q"), gpu.tensor("O")
    for head, _, rows in gpu.query_tile_grid():
        sQ = gpu.load("load Q_i", Q[head, rows])
        rO = gpu.in_registers("O", sQ.shape)
        gpu.compute("O = 2 Q", (rO,), (sQ,), lambda Q: Q)  # one thing is missing here
        gpu.store("store O_i", O[head, rows], rO)
        gpu.free(sQ)


grade("double_q", double_q)

# %% [markdown]
# ## Further reading
#
# - Vaswani et al.: [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762), 2017.
#   Section 3.2.
# - `flash_numba/reference.py`: attention and its gradients, as the formulas say them.
# - Next: [3 · Count standard attention](03_count_standard_attention.ipynb)
