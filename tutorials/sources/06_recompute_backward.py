# %% [markdown]
# # 6 · Go back by making P again
#
# - **You will** derive the gradients of attention, check them against finite differences, and count
#   what recomputation costs.
# - **You will learn** why nothing of size N × N is kept, and the trade between FLOPs and traffic.
# - **You need** notebook 5, and the chain rule.

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

# %% [markdown]
# ## Four formulas
#
# Given dO, the gradient of the loss with respect to O = PV with P = softmax(S), S = scale QKᵀ:
#
# $$dV = P^T dO \qquad dP = dO\,V^T \qquad dS = P \circ (dP - \delta) \qquad dQ = scale\; dS\,K,\;
# dK = scale\; dS^T Q$$
#
# Three of them are products. The fourth is the softmax's: its weights sum to 1, so raising one
# score lowers all other weights, and δ is what that costs. δ_i = Σ_j P_ij dP_ij looks as if it
# needed the whole row. But
#
# $$\sum_j P_{ij}\, dP_{ij} = \sum_j P_{ij} \sum_c dO_{ic} V_{jc} = \sum_c dO_{ic} O_{ic}$$
#
# a product of two rows that are there anyway.

# %%
rng = np.random.default_rng(0)
Q, K, V, dO = rng.standard_normal((4, 6, 4))
scale = 0.5


def attention(Q):
    S = scale * Q @ K.T
    P = np.exp(S - S.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


P = attention(Q)
dP = dO @ V.T
delta = (dO * (P @ V)).sum(axis=1, keepdims=True)
dQ = scale * (P * (dP - delta)) @ K

numeric = np.empty_like(Q)
for where in np.ndindex(Q.shape):
    step = np.zeros_like(Q)
    step[where] = 1e-6
    up, down = (attention(Q + sign * step) @ V for sign in (1, -1))
    numeric[where] = ((up - down) * dO).sum() / 2e-6
print(
    f"largest difference {np.abs(dQ - numeric).max():.0e} (of values up to {np.abs(dQ).max():.1f})"
)
without = scale * (P * dP) @ K
print(f"without δ:         {np.abs(without - numeric).max():.0e}")

# %% [markdown]
# ## What must be kept?
#
# Everything above needs P, which FlashAttention never wrote. But P_ij = e^(S_ij - lse_i): from Q, K
# and one number a row it can be made again, a tile at a time.
#
# **Predict.** The backward pass with P stored has four products. How many has it when P is made
# again? How much more arithmetic is that, for the backward pass alone, and for both passes
# together?

# %%
from flash_numba.problem import Problem
from simulator.run import simulate

N, d = 1024, 64
problem = Problem(N, N, d, dtype="fp16")
product = 2 * N * N * d
products = {}
print(f"{'':18} forward  backward   (products of 2N²d FLOPs)")
for name in ("algorithm0", "flash2", "flash2_two_kernel"):
    flops = [
        simulate(name, problem, direction=way, tile_m=64, tile_n=64).counts.matmul_flops
        for way in ("forward", "backward")
    ]
    products[name] = [one // product for one in flops]
    print(f"{name:18} {products[name][0]:7} {products[name][1]:9}")
stored, again = products["algorithm0"], products["flash2"]
print(f"backward {again[1] / stored[1] - 1:+.0%}, both passes {sum(again) / sum(stored) - 1:+.0%}")

# %% [markdown]
# One product more, S - and less traffic:

# %%
for name in ("algorithm0", "flash1", "flash2", "flash2_two_kernel"):
    counts = simulate(name, problem, direction="backward", tile_m=64, tile_n=64).counts
    print(f"{name:18} {counts.hbm_elements:10,} elements, writes {counts.writes}")

# %%
from simulator.course.tiles import forward_and_backward

show(*forward_and_backward(problem, 64, 64))

# %% [markdown]
# **Change it.** Double both tiles. Which of the four programs moves less, and which moves exactly
# what it moved before? Which count of `flash2` is that of a tensor that all its blocks write?
#
# ## Who owns dQ?
#
# A block that owns a key tile can keep dK_j and dV_j in registers. But dQ_i gets a part from
# *every* key tile, so blocks add into the same place in HBM: `accumulate`, an atomic addition. Its
# order differs from run to run, and so do the last bits. The two-kernel form gives dQ a kernel of
# its own: each bit is the same every time, for two more products. (The CUDA kernels here take a
# third way: blocks add their parts of dQ in turns, in a fixed order.) Read how the parts of dQ
# leave:

# %%
from simulator.programs import flash2

print(inspect.getsource(flash2.key_tile_blocks).split('"""')[2])

# %% [markdown]
# ## What happens without the rule for rows that see nothing?
#
# A row whose every key is masked has lse = -∞. e^(S - lse) would be e^(-∞ + ∞). The project's
# contract is O = 0, lse = -∞, and gradients of 0. Check it:

# %%
from flash_numba import reference
from simulator.inputs import random_input

empty = Problem(6, 3, 4, causal=True)  # more queries than keys: the first three see nothing
q, k, v = random_input(empty)
o, lse = reference.forward(empty, q, k, v)
found = reference.backward(empty, q, k, v, np.ones_like(o))
print("lse", lse[0, 0].round(2), "\n|dQ| by row", np.abs(found.dq[0, :, 0]).sum(axis=1).round(2))

# %% [markdown]
# ## Exercises
#
# Three steps to the backward pass. The last accepts either form.

# %%
from simulator.grade import grade, hint, statement

for name in ("delta", "recompute_dv", "backward"):
    print(statement(name), "\n")


# %%
def delta(gpu):
    O, dO, out = gpu.tensor("O"), gpu.tensor("dO"), gpu.tensor("delta")
    for head, _, rows in gpu.query_tile_grid():
        sO = gpu.load("load O_i", O[head, rows])
        sdO = gpu.load("load dO_i", dO[head, rows])
        rDelta = gpu.in_registers("delta", sO.shape[:1])
        gpu.compute("rowsum", (rDelta,), (sdO,), lambda dO: dO.sum(axis=1))  # and O?
        gpu.store("store delta_i", out[head, rows], rDelta)
        gpu.free(sO, sdO)


print(hint("delta", 3))
grade("delta", delta)

# %% [markdown]
# ## Further reading
#
# - [Dao et al. 2022](https://arxiv.org/abs/2205.14135), appendix B.2 to B.4: the derivation, and
#   Algorithm 4.
# - [Dao 2023](https://arxiv.org/abs/2307.08691), Algorithm 2: the backward of FlashAttention-2.
# - Chen et al.: [*Training Deep Nets with Sublinear Memory
#   Cost*](https://arxiv.org/abs/1604.06174), 2016: recomputation as a general idea.
# - Next: [7 · Choose tiles](07_choose_tiles.ipynb)
