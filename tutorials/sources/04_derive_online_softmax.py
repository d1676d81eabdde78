# %% [markdown]
# # 4 · Derive the online softmax
#
# - **You will** take the softmax of a row that you are shown piece by piece, and never again.
# - **You will learn** the one idea that makes FlashAttention possible, and why it is exact.
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

import numpy as np

from simulator.course import begin, show

begin()

# %% [markdown]
# ## The problem
#
# The weight of a score is $e^{s_j} / \sum_k e^{s_k}$: it needs the sum over the *whole* row. If the
# row is larger than SRAM, one must see it twice - or be clever.
#
# And there is a second problem. The exponential of a score that is not even large is larger than
# any fp32 number, so the maximum of the row is subtracted first. Which one also knows only after
# seeing the whole row.

# %%
print(f"fp32 holds e^s up to s = {np.log(np.finfo(np.float32).max):.1f}")
row = np.array([1.0, 3.0, 2.0, 100.0, 4.0, 99.0], np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    print("without the maximum:", np.exp(row) / np.exp(row).sum())
shifted = np.exp(row - row.max())
print("with it:            ", shifted / shifted.sum())

# %% [markdown]
# ## Two pieces
#
# Say you saw the first piece of the row and keep its maximum m and its sum l = Σ e^(s - m). Now
# comes a piece with a larger maximum m'. Every term of your sum should have been e^(s - m'). But
#
# $$e^{s - m'} = e^{s - m}\, e^{m - m'}$$
#
# so one factor repairs the whole sum: **l·e^(m - m')**. Nothing has to be seen again.


# %%
def merged(m, l, piece):
    """Maximum and sum with one piece more."""
    m_new = max(m, piece.max())
    return m_new, l * np.exp(m - m_new) + np.exp(piece - m_new).sum()


m, l = -np.inf, 0.0
for start in range(0, len(row), 2):
    m, l = merged(m, l, row[start : start + 2])
    print(f"after {start + 2} scores: m = {m:5.1f}, l = {l:.6f}")
print("lse:", m + np.log(l), " all at once:", 100 + np.log(np.exp(row - 100).sum()))

# %% [markdown]
# **Predict.** What happens at the first piece, where m is -∞? And what if the pieces come in
# another order - will l be the same, exactly? Try `row[::-1]`.
#
# ## The output, too
#
# O is a sum like l, only with a value behind each term: Σ e^(s - m)·v. The same factor repairs it.
# So a row of the output can be computed from tiles of keys and values that come once and go, with
# three things kept: m, l and O.


# %%
def attention_by_tiles(S, V, tile, rescale=True):
    m = np.full(len(S), -np.inf)
    l, O = np.zeros(len(S)), np.zeros((len(S), V.shape[1]))
    rises = 0
    for start in range(0, S.shape[1], tile):
        piece = S[:, start : start + tile]
        m_new = np.maximum(m, piece.max(axis=1))
        alpha = np.exp(m - m_new)  # 1 where the maximum stayed
        P = np.exp(piece - m_new[:, None])
        l = alpha * l + P.sum(axis=1)
        O = (alpha[:, None] * O if rescale else O) + P @ V[start : start + tile]
        rises += int((alpha < 1).sum())
        m = m_new
    return O / l[:, None], rises


rng = np.random.default_rng(0)
S, V = 3 * rng.standard_normal((64, 256)), rng.standard_normal((256, 8))
truth = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True) @ V
for tile in (1, 16, 256):
    O, rises = attention_by_tiles(S, V, tile)
    print(f"tiles of {tile:3}: off by {np.abs(O - truth).max():.0e}; {rises} rises of a maximum")

# %% [markdown]
# Exact: what remains is rounding. Leave out the factor for O, the most common bug of all, and it is
# not:

# %%
O, _ = attention_by_tiles(S, V, 16, rescale=False)
print(f"without rescaling: off by {np.abs(O - truth).max():.2f}")

# %%
from simulator.course.flow import running_softmax

show(*running_softmax(seed=1))

# %% [markdown]
# **Change it.** FlashAttention-1 keeps O divided by l after every tile. Write that into
# `attention_by_tiles`: what is the old O multiplied with then?
#
# The maximum rises often at first and seldom later: of N scores in random order the maximum is
# expected to rise about ln N times. FlashAttention-4 skips the rescaling where it rises by little.
#
# ## In the program
#
# `simulator/programs/softmax.py` has these lines, and one case more: a row in which every score so
# far is masked has m = -∞, and -∞ - (-∞) is not a number.

# %%
import inspect

from simulator.programs import softmax

for function in (softmax.running_max, softmax.exponentials, softmax.running_sum, softmax.finite):
    print(inspect.getsource(function))

# %% [markdown]
# ## Exercises
#
# Three steps on scores that lie in HBM; in notebook 5 the same idea on scores that never do.

# %%
from simulator.grade import grade, hint, statement

print(statement("row_max"), "\n")
print(statement("online_lse"), "\n")
print(statement("softmax_rows"), "\n")
print("hint 2:", hint("online_lse", 2))


# %%
def online_lse(gpu):
    S, LSE = gpu.tensor("S"), gpu.tensor("LSE")
    for head, _, rows in gpu.query_tile_grid():
        row_max = gpu.in_registers("m", (rows.stop - rows.start,), -np.inf)
        row_sum = gpu.in_registers("l", (rows.stop - rows.start,), 0.0)
        for _, cols in gpu.all_key_tiles():
            sS = gpu.load("load S_ij", S[head, rows, cols])
            gpu.compute("m, l", (row_max, row_sum), (row_max, row_sum, sS), more)
            gpu.free(sS)
        lse = gpu.in_registers("lse", row_max.shape)
        gpu.compute("lse", (lse,), (row_max, row_sum), lambda m, l: m + np.log(l))
        gpu.store("store lse", LSE[head, rows], lse)


def more(m, l, S):
    m_new = np.maximum(m, S.max(axis=1))
    return m_new, l + np.exp(S - m_new[:, None]).sum(axis=1)  # something is missing


grade("online_lse", online_lse)

# %% [markdown]
# ## Further reading
#
# - Milakov, Gimelshein: [*Online normalizer calculation for
#   softmax*](https://arxiv.org/abs/1805.02867), 2018.
# - Rabe, Staats: [*Self-attention Does Not Need O(n²)
#   Memory*](https://arxiv.org/abs/2112.05682), 2021.
# - Next: [5 · Tile it](05_tile_attention.ipynb)
