# %% [markdown]
# # 14 · Measure on a GPU
#
# - **You will** read measurements of this project's kernels, hold counters of a GPU against counts
#   made without one, and - where there is a GPU - measure for yourself.
# - **You will learn** how a time is measured so that it means something, and what it is held
#   against.
# - **You need** notebooks 7 and 8. Without a GPU the committed results are shown, with the GPU they
#   come from and their date.

# %%
import sys

sys.path.insert(0, "..")  # the packages of this repository
from simulator.restart import missing, stop_if_stale

if missing("tutorials"):
    # %pip install --quiet "..[tutorials]"
    pass
stop_if_stale()

import json
from itertools import pairwise

import numpy as np

from simulator.claims.evidence import RESULTS, measured_on
from simulator.course import begin, show
from simulator.hardware import get

begin()

# %% [markdown]
# ## What a time is worth
#
# A GPU warms up, throttles at its power limit, and shares its memory. A time means something if
#
# - results were checked first: a wrong kernel is often fast;
# - the first runs are thrown away, and the median of many is taken;
# - contenders take turns in one run, on the same clocks, and are only compared within it;
# - GPU, driver, versions and date stand beside it.
#
# `flash-numba bench` does that. Its heart, in which contenders take turns:

# %%
import inspect

from simulator.bench import measure

print(inspect.getsource(measure.times))

# %% [markdown]
# ## Results
#
# FlashAttention-2 in fp32, 16,384 tokens and 2,048 columns of heads, beside PyTorch's
# memory-efficient attention. TFLOP/s are 4·N²·d a head and forward pass, half of it if causal.

# %%
results = json.loads((RESULTS / "h200_fp32.json").read_text(encoding="utf-8"))
print(measured_on(results), "driver", results["machine"]["driver"])
rows = [row for row in results["rows"] if row["rung"] == "flash2" and not row["causal"]]
for row in rows:
    if row["direction"] == "forward":
        peer = row["peers"]["torch_efficient"]
        print(
            f"d={row['head_dim']:3} N={row['seqlen']:5,}: {row['ms']:6.2f} ms, "
            f"{row['tflops']:4.1f} TFLOP/s, torch {peer:6.2f} ms ({peer / row['ms']:.2f}x)"
        )

# %% [markdown]
# **Predict.** Batch times N is 16,384 in every row. If attention's time grew as N, the times would
# all be the same. What do they do when N doubles?

# %%
forward = {
    row["seqlen"]: row["ms"]
    for row in rows
    if (row["direction"], row["head_dim"]) == ("forward", 64)
}
lengths = sorted(forward)
for short, long in pairwise(lengths):
    a_sequence = 2 * forward[long] / forward[short]
    print(f"N = {short:5,} → {long:5,}: a sequence takes {a_sequence:.2f} times as long")

# %% [markdown]
# Four times: N². FlashAttention did not change how arithmetic grows.
#
# ## Under the roof
#
# Where do the measured kernels stand below the roof of notebook 7? Traffic is what the closed form
# counts, every tile taken from HBM.

# %%
from simulator.course.limits import measured_roof

show(*measured_roof(get("H200"), rows, measured_on(results)))

# %% [markdown]
# They stand right of where the roof bends: in fp32, without tensor cores, arithmetic binds. How
# near to the peak of the data sheet do they come - and why not nearer? A multiply-add of a tile
# product needs operands from shared memory; softmax and masks are instructions, too.

# %%
peak = get("H200").fp32_flops_per_s / 1e12
best = max(rows, key=lambda row: row["tflops"])
print(f"data sheet {peak:.1f} TFLOP/s in fp32; best measured {best['tflops']:.1f}")
print(f"({best['direction']}, d={best['head_dim']}, N={best['seqlen']:,})")

# %% [markdown]
# ## Counters against counts
#
# A GPU has counters: Nsight Compute shows how many passes an instruction took over shared memory.
# The tracer of notebook 8 claims to know the same number from addresses alone. 600 random
# instructions of 4, 8 and 16 bytes a lane were run on a GPU and counted:

# %%
from simulator.threads.passes import passes

counted = json.loads((RESULTS / "shared_passes.json").read_text(encoding="utf-8"))
print(counted["gpu"], counted["date"])
for size in (4, 8, 16):
    cases = [case for case in counted["cases"] if case["bytes"] == size]
    equal = 0
    for case in cases:
        at = np.array(case["at"])
        predicted, _ = passes(np.where(at < 0, -1, at * size)[None], size, case["store"])
        equal += int(predicted[0]) == case["passes"]
    print(f"{size:2} bytes a lane: {equal} of {len(cases)} equal to the counter")

# %% [markdown]
# The same number, from a Python program and from silicon. That is what "one number, four ways"
# means here: tile simulator, closed form, thread-by-thread run, hardware counter.
#
# ## Your own GPU
#
# With a GPU the next cell measures; without one it says so, and the results above are what there
# is.

# %%
from flash_numba.ladder import Gpu, find_gpu

gpu = find_gpu()
if isinstance(gpu, Gpu):
    import subprocess

    command = [sys.executable, "-m", "simulator.cli", "bench", "--quick"]
    print(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
else:
    print("no GPU here: the numbers above were measured on an", measured_on(results))

# %% [markdown]
# ## Exercises
#
# 1. Take one row of the results. From `ms`, `batch`, `heads`, `seqlen` and `head_dim` compute its
#    TFLOP/s yourself; which factor do you need for the backward pass, and why is it 2.5?
# 2. From the closed form: how many bytes a second do the tiles of that row move, and is that more
#    than HBM can? What serves them?
# 3. On a GPU: `flash-numba bench --seqlen 4096 --dtype fp32`, twice. How far apart are two runs?
#
# ## Further reading
#
# - Hoefler, Belli: *Scientific Benchmarking of Parallel Computing Systems*, 2015.
# - `benchmarks/`: every program whose results stand here, and `simulator/bench/measure.py`.
# - Next: [15 · Train a small GPT](15_train_small_gpt.ipynb)
