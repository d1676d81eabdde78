# %% [markdown]
# # 13 · Keep precision
#
# - **You will** break a softmax in four ways, compare bits, and derive how wrong a kernel may be.
# - **You will learn** what "exact" means in floating point, and how to test without magic
#   tolerances.
# - **You need** notebook 4.

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

from flash_numba import reference
from flash_numba.budget import error_budget
from flash_numba.problem import DTYPES, Problem
from simulator.course import begin
from simulator.inputs import random_input
from simulator.run import simulate

begin()

# %% [markdown]
# ## Where a softmax breaks

# %%
with np.errstate(all="ignore"):
    print(
        "overflow: e^89 in fp32 is",
        np.exp(np.float32(89)),
        "- and e^12 in fp16",
        np.exp(np.float16(12)),
    )
    print("an empty row: -inf - -inf =", np.float32(-np.inf) - np.float32(-np.inf))
    total = np.cumsum(np.ones(4096, np.float16), dtype=np.float16)[-1]
    print("a sum in fp16: 4,096 ones add up to", total)
print("a finite '-inf': -1e4 masks, until all keys of a row are masked:", end=" ")
print(np.exp(np.full(3, -1e4) - -1e4) / 3, "- uniform instead of nothing")

# %% [markdown]
# So: subtract the maximum, keep sums in fp32, treat rows without keys apart, and use a true -∞.
#
# **Predict.** Scores are normal numbers. The largest of N is about √(2 ln N). Does e^S overflow in
# fp16 when sequences get long?

# %%
print(f"fp16 holds e^s up to s = {np.log(np.finfo(np.float16).max):.1f}")
for N in (1024, 1 << 20, 1 << 40):
    print(
        f"N = 2^{N.bit_length() - 1}: largest of N normal scores about {np.sqrt(2 * np.log(N)):.1f}"
    )

# %% [markdown]
# No: it is not N but the size of single scores that overflows; and trained models do have large
# ones. The *sum* grows with N, which is why it is kept in fp32.
#
# ## Exact, but not the same bits
#
# FlashAttention is exact: in real numbers it equals standard attention. In floating point sums
# depend on their order. **Predict** which share of the fp32 outputs has the very same bits.

# %%
problem = Problem(256, 256, 64)
q, k, v = random_input(problem)
truth, _ = reference.forward(problem, q, k, v)
runs = {
    name: simulate(name, problem, q, k, v, tile_m=64, tile_n=64).arrays["O"]
    for name in ("algorithm0", "flash1", "flash2")
}
for name, O in runs.items():
    same = (runs["algorithm0"] == O).mean()
    error = np.abs(O - truth).max()
    print(f"{name:10} error against float64 {error:.1e}, bits as standard attention {same:.0%}")

# %% [markdown]
# Neither is more right than the other. So how wrong may a kernel be?
#
# ## A budget without magic
#
# `assert allclose(rtol=1e-2)` passes wrong code and fails right code. This project holds a result
# to the **twin**: the same computation done the ordinary way in the same element type. A kernel may
# be at most twice as wrong, against float64, plus twice what one addition in that type rounds away.
#
# **Predict.** bf16 keeps eight bits of a number, fp16 eleven. What will the budget allow each?

# %%
print(inspect.getsource(error_budget).split('"""')[2].strip("\n"), "\n")
for dtype in DTYPES:
    problem = Problem(128, 128, 64, dtype=dtype)
    q, k, v = random_input(problem)
    truth, _ = reference.forward(problem, q, k, v)
    twin, _ = reference.forward(problem, q, k, v, dtype=dtype)
    allowed = error_budget(truth, twin, "bf16" if dtype == "fp8" else dtype)
    O = simulate("flash2", problem, q, k, v, tile_m=32, tile_n=32).arrays["O"]
    print(
        f"{dtype}: the twin is off by {np.abs(twin - truth).max():.0e}, allowed {allowed:.0e}; "
        f"the simulator (fp32 inside) {np.abs(O - truth).max():.0e}"
    )

# %% [markdown]
# **Change it.** Take a bug from `simulator.programs.BROKEN`. Does the budget find it? And on which
# input would it not?

# %%
problem = Problem(128, 128, 64)
q, k, v = random_input(problem)
for scale in (1.0, 0.01):
    truth, _ = reference.forward(problem, scale * q, k, v)
    twin, _ = reference.forward(problem, scale * q, k, v, dtype="fp32")
    O = simulate("flash2_without_rescale", problem, scale * q, k, v, tile_m=32, tile_n=32).arrays[
        "O"
    ]
    error, allowed = np.abs(O - truth).max(), error_budget(truth, twin, "fp32")
    print(f"queries times {scale}: off by {error:.0e}, allowed {allowed:.0e}")

# %% [markdown]
# With tiny scores a missing rescale hardly matters, and a loose tolerance lets it pass. The graders
# here use scores that rise, fall, and overflow.
#
# ## Long sequences
#
# Errors do not pile up with N: weights sum to 1, so O is a mean.

# %%
for keys in (1024, 8192, 32768):
    problem = Problem(16, keys, 64, dtype="fp16")
    q, k, v = random_input(problem)
    truth, _ = reference.forward(problem, q, k, v)
    O = simulate("flash2", problem, q, k, v, tile_m=16, tile_n=128).arrays["O"]
    error, largest = np.abs(O - truth).max(), np.abs(truth).max()
    print(f"{keys:6,} keys: off by {error:.1e} of values up to {largest:.2f}")

# %% [markdown]
# ## Rounding whole tensors
#
# int8 attention rounds Q and K with a scale. How much of a real layer's scores is lost?

# %%
from simulator.inputs import demo_input

q, k, _, _ = demo_input()
Q, K = (x[0, :, 9].astype(float) for x in (q, k))
for name, axis in (("a row", 1), ("the tensor", None)):
    scales = [np.abs(x).max(axis=axis, keepdims=True) / 127 for x in (Q, K)]
    again = [np.round(x / s) * s for x, s in zip((Q, K), scales, strict=True)]
    error = np.abs(again[0] @ again[1].T - Q @ K.T).max() / np.abs(Q @ K.T).max()
    print(f"a scale for {name}: {error:.2%} of the largest score")

# %% [markdown]
# ## Exercises
#
# Results of two parts of the keys, merged (notebook 12 needs it for a divided sequence): without
# overflow, and where a part saw nothing. The same within a warp is `row_lse_kernel` of notebook 8.

# %%
from simulator.grade import grade, statement

print(statement("merge_parts"))


def merge_parts(O_a, lse_a, O_b, lse_b):
    a, b = np.exp(lse_a), np.exp(lse_b)  # of some hundred?
    O = (a[:, None] * O_a + b[:, None] * O_b) / (a + b)[:, None]
    return O, np.log(a + b)


grade("merge_parts", merge_parts)

# %% [markdown]
# ## Further reading
#
# - Higham: *Accuracy and Stability of Numerical Algorithms*, chapters 3 and 4.
# - Golden et al.: [*Is Flash Attention Stable?*](https://arxiv.org/abs/2405.02803), 2024.
# - `flash_numba/budget.py`, `flash_numba/reference.py`: the budget and its twin.
# - Next: [14 · Measure on a GPU](14_measure_on_a_gpu.ipynb)
