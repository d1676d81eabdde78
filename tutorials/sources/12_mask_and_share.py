# %% [markdown]
# # 12 · Mask, share and divide
#
# - **You will** write a mask in one line, count what skipping saves, share keys among heads, pack
#   sequences of many lengths, and see how attention is divided over GPUs.
# - **You will learn** that a mask saves tiles, not elements, and what grouped heads really save.
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

import numpy as np

from flash_numba import masks, reference
from flash_numba.masks import Mask
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask
from simulator.course import begin, show
from simulator.course.tiles import tile_grid
from simulator.inputs import random_input
from simulator.run import simulate

begin()

# %% [markdown]
# ## Causal: half the work?
#
# A word may look at itself and earlier ones. Half of S is masked.
#
# **Predict.** With T × T tiles, which share of the tiles is left? The tiles on the diagonal are
# half masked - and computed whole.

# %%
show(*tile_grid(Problem(256, 256, 32, causal=True), 32, 32, m_block=5, n_block=2))

# %%
full = Problem(1024, 1024, 64, dtype="fp16")
causal = Problem(1024, 1024, 64, dtype="fp16", causal=True)
for tile in (256, 128, 64, 32):
    T = 1024 // tile
    share = (
        simulate("flash2", causal, tile_m=tile, tile_n=tile).counts.matmul_flops
        / simulate("flash2", full, tile_m=tile, tile_n=tile).counts.matmul_flops
    )
    print(f"tiles of {tile:3}: {share:.1%} of the FLOPs, (T + 1) / 2T = {(T + 1) / (2 * T):.1%}")

# %% [markdown]
# **Predict.** Does a GPU save as much time as FLOPs? Half of the products are counted for a causal
# mask in TFLOP/s, so a rate that stays the same means half of the time. With a GPU, both are timed.

# %%
from simulator.course.live import measured

rows, where = measured(
    "h200_fp16",
    rungs=("tensor_core",),
    directions=("forward",),
    dtypes=("fp16",),
    head_dims=(128,),
    seqlens=(512, 2048, 8192),
)
print("tensor_core, d=128, fp16:", where)
times = {(row["seqlen"], row["causal"]): row["ms"] for row in rows}
for N in (512, 2048, 8192):
    T = N // 128
    share = times[N, True] / times[N, False]
    print(f"N={N:5,}: {share:.0%} of the time; tiles of 128 would be {(T + 1) / (2 * T):.0%}")

# %% [markdown]
# ## A mask of your own
#
# A mask is a function of positions, one line that the reference, the simulator and the CUDA kernels
# all run. Nobody has to write a kernel for it. Here a word sees every third one:

# %%
every_third = Mask("every third", lambda batch, head, q_idx, k_idx, aux: (q_idx - k_idx) % 3 == 0)
problem = Problem(96, 96, 16, mask=every_third)
q, k, v = random_input(problem)
truth, _ = reference.forward(problem, q, k, v)
run = simulate("flash2", problem, q, k, v, tile_m=32, tile_n=32)
print(f"largest difference from float64: {np.abs(run.arrays['O'] - truth).max():.0e}")
plain = simulate("flash2", Problem(96, 96, 16), tile_m=32, tile_n=32).counts
print("does it save traffic?", run.counts.hbm_elements, "of", plain.hbm_elements, "\n")
rule = Problem(96, 96, 16, causal=True).range_mask  # what the package itself has for causal
print(inspect.getsource(rule.keep), inspect.getsource(rule.key_range), sep="\n")

# %% [markdown]
# It saves nothing: each tile has something to see, and from a bare function nobody knows which
# tiles are empty. Tiles are skipped through a **key range** (causal and window have one: read it
# above) or a **block list**.
#
# **Change it.** Write the causal mask yourself, `q_idx >= k_idx`. Is the result that of
# `causal=True`? And the traffic? Then give your `Mask` the key range.
#
# **Predict.** A block-sparse pattern with 30 % of the blocks: which share of the FLOPs? And 30 % of
# the *elements* at random?

# %%
rng = np.random.default_rng(0)
N, tile = 512, 64
blocks = np.kron(rng.random((8, 8)) < 0.3, np.ones((tile, tile), bool))
speckled = rng.random((N, N)) < 0.3
dense = simulate("flash2", Problem(N, N, 32), tile_m=tile, tile_n=tile).counts.matmul_flops
for name, matrix in (("blocks", blocks), ("elements", speckled)):
    mask = masks.boolean(matrix[None, None])
    listed = BlockMask.from_mask(mask, Problem(N, N, 32), tile, tile)
    counts = simulate(
        "flash2", Problem(N, N, 32, block_mask=listed), tile_m=tile, tile_n=tile
    ).counts
    print(f"{matrix.mean():.0%} of the {name}: {counts.matmul_flops / dense:.0%} of the FLOPs")

# %% [markdown]
# ## Changing scores, not hiding them
#
# ALiBi, softcap, a bias, relative positions $R_{ij} = \sum_k w_k \sin(|i-j|\theta_k)$: the same
# mechanism, a function of the score. No N × N table is stored, and no traffic is added.
#
# Nor by dropout: whether a weight is dropped is a function of its place and a seed, so that the
# backward pass draws it again. **Predict** whether other tiles drop other weights.

# %%
change = masks.relative_positions(rng.standard_normal(8), 10000.0 ** (-np.arange(8) / 8))
relative = Problem(96, 96, 16, score_mods=(change,))
truth, _ = reference.forward(relative, q, k, v)
run = simulate("flash2", relative, q, k, v, tile_m=32, tile_n=32)
print(f"off by {np.abs(run.arrays['O'] - truth).max():.0e}, traffic {run.counts.hbm_elements}")

dropped = Problem(96, 96, 16, dropout_p=0.5, seed=7)
two = [simulate("flash2", dropped, q, k, v, tile_m=tile, tile_n=tile) for tile in (16, 32)]
apart = np.abs(two[0].arrays["O"] - two[1].arrays["O"]).max()
print(f"dropout: two tilings are {apart:.0e} apart, traffic {two[1].counts.hbm_elements}")

# %% [markdown]
# ## Heads that share keys
#
# In grouped-query attention 8 query heads share one K and V. The cache of a chatbot shrinks 8
# times.
#
# **Predict.** Does the forward pass of FlashAttention-2 read K and V 8 times less?

# %%
for kv_heads in (8, 1):
    shared = Problem(1024, 1024, 64, num_heads=8, num_kv_heads=kv_heads, dtype="fp16")
    for way in ("forward", "backward"):
        counts = simulate("flash2", shared, direction=way, head=None, tile_m=128).counts
        print(f"{kv_heads} kv heads, {way:8}: K read {counts.reads['K']:9,}, ", end="")
        print(f"dK written {counts.writes.get('dK', 0):,}")

# %% [markdown]
# Not in the forward pass: a block owns a query tile of *one* head, and loads K_j for it. What is
# saved is memory, and the backward pass, whose blocks own key tiles and let all heads of the group
# pass by. (A cache between HBM and SRAM serves some of the repeated loads; and one exercise below
# does better.)
#
# ## Sequences of many lengths
#
# Padded, each sequence has as many rows of Q and O as the longest. Packed, one follows the other:
# `cu_seqlens` says where each begins and the last one ends.
#
# **Predict** how many elements of O are written, padded and packed, for three sequences of 30, 64
# and 7 rows with 16 columns. And does it matter what lies in the padding?

# %%
from simulator.course.sharing import padding_and_packing, parallel_partitions

show(*padding_and_packing([128, 256, 512, 1024], tile=64, d=64))

# %%
lengths = np.array([30, 64, 7])
padded = Problem(64, 64, 16, batch=3, dtype="fp16", key_lengths=lengths)
q, k, v = random_input(padded)
k[0, 30:] = v[0, 30:] = np.nan  # what lies in the padding must not matter
found = simulate("flash2", padded, q, k, v, head=None, tile_m=16, tile_n=16)
print("finite although the padding is NaN:", np.isfinite(found.arrays["O"]).all())
print("elements of K read:", found.counts.reads["K"])

import warnings

from flash_numba import flash_attention_varlen
from flash_numba.sequences import Sequences, Side

ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def behind_each_other(x):
    return np.concatenate([x[i, :n] for i, n in enumerate(lengths)])


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # without a GPU: that the simulator answers
    o = flash_attention_varlen(*map(behind_each_other, (q, k, v)), ends, ends)
same = behind_each_other(found.arrays["O"])
print("packed and padded answer alike:", np.allclose(o, same, atol=2e-3))  # o is fp16

side = Side.of(ends[-1], ends)
sequences = Sequences(len(o), len(o), side, side)
packed = Problem(len(o), len(o), 16, batch=3, dtype="fp16", sequences=sequences)
counts = simulate("flash2", packed, head=None, tile_m=16, tile_n=16).counts
print("elements of O written, packed:", counts.writes["O"], "padded:", found.counts.writes["O"])

# %% [markdown]
# ## Many GPUs
#
# FlashAttention itself has no communication. What is divided decides what must be sent. **Predict**
# which of the four ways sends most for long sequences, and which the same for any length:

# %%
show(*parallel_partitions())

# %% [markdown]
# When the *sequence* is divided, each GPU has part of the keys, and a popular formula adds up their
# softmaxes: O = Σ_j softmax(QK_jᵀ)V_j. **Predict** to what the weights of a row then add up.

# %%
S, V = rng.standard_normal((8, 64)), rng.standard_normal((64, 4))
parts = []
for j in range(0, 64, 16):
    weights = np.exp(S[:, j : j + 16])
    parts.append((np.log(weights.sum(axis=1)), weights @ V[j : j + 16] / weights.sum(1)[:, None]))
right = np.exp(S) @ V / np.exp(S).sum(axis=1, keepdims=True)
summed = sum(O for _, O in parts)
lse = np.logaddexp.reduce([one for one, _ in parts])
merged = sum(np.exp(one - lse)[:, None] * O for one, O in parts)
print(f"added up: off by {np.abs(summed - right).max():.2f}; ", end="")
print(f"merged with lse: {np.abs(merged - right).max():.0e}")

# %% [markdown]
# ## Exercises

# %%
from simulator.grade import grade, statement
from simulator.programs import flash2

print(statement("flash_causal"), "\n")
print(statement("gqa_forward"))
grade("gqa_forward", flash2.forward)  # the ordinary program: what does it cost?

# %% [markdown]
# ## Further reading
#
# - Ainslie et al.: [*GQA*](https://arxiv.org/abs/2305.13245), 2023; Shaw et al.: [*Self-Attention
#   with Relative Position Representations*](https://arxiv.org/abs/1803.02155), 2018.
# - Liu, Zaharia, Abbeel: [*Ring Attention with Blockwise
#   Transformers*](https://arxiv.org/abs/2310.01889), 2023.
# - `flash_numba/masks.py` and `flash_numba/tiling.py`.
# - Next: [13 · Keep precision](13_keep_precision.ipynb)
