# %% [markdown]
# # 14 · Measure on a GPU
#
# - **You will** read measurements of this project's kernels, hold counters of a GPU against counts
#   made without one, and - where there is a GPU - measure for yourself.
# - **You will learn** how a time is measured so that it means something, and what it is held
#   against.
# - **You need** notebooks 7 and 8. With a GPU times are measured on it; without one the committed
#   results are shown, with the GPU they come from and their date.

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

from itertools import pairwise

import numpy as np

from simulator.claims.evidence import measured_on, results
from simulator.course import begin, show
from simulator.course.live import measured
from simulator.hardware import GPUS, H200

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
# FlashAttention-2 in fp32 beside PyTorch's memory-efficient attention, in every row the same number
# of tokens and the same columns of heads. TFLOP/s are 4·N²·d a head and forward pass, half of it if
# causal.

# %%
rows, where = measured(
    "h200_fp32",
    peers=("torch_efficient",),
    rungs=("flash2",),
    dtypes=("fp32",),
    masks=("full",),
    seqlens=(1024, 2048, 4096, 8192),
)
gpu = next((one for one in GPUS if f" {one.name}" in where), H200)
print(where)
for row in rows:
    if row["direction"] == "forward":
        peer = row["peers"].get("torch_efficient", float("nan"))
        print(
            f"d={row['head_dim']:3} N={row['seqlen']:5,} of {row['batch']:2}: {row['ms']:5.2f} ms, "
            f"{row['tflops']:4.1f} TFLOP/s, torch {peer:6.2f} ms ({peer / row['ms']:.2f}x)"
        )

stored = results("h200_peer_instructions")
print(f"\n{measured_on(stored)}; multiply-adds for each that a pass needs, by instruction")
shape, width = stored["shape"], {"FFMA": 32, "HMMA.1688.F32.TF32": 16 * 8 * 8}
needed = 2 * shape["batch"] * shape["heads"] * shape["seqlen"] ** 2 * shape["head_dim"]
for row in stored["rows"]:
    shares = {name: row["instructions"].get(name, 0) * width[name] / needed for name in width}
    print(f"{row['contender']:15}", *(f"{name} {share:.2f}  " for name, share in shares.items()))

# %% [markdown]
# Nsight Compute counted the instructions (`benchmarks/peer_instructions.py`): the two do not race
# on the same units. `FFMA` is a multiply-add a thread; `HMMA.1688` multiplies 16x8 by 8x8 numbers
# on a tensor core, rounded to `TF32`, which keeps less than half of a fraction's bits. So PyTorch
# splits each x into big + small, both TF32, and adds three products: big·big, big·small and
# small·big.
#
# **Predict.** Batch times N is the same in every row. If attention's time grew as N, the times
# would all be the same. What do they do when N doubles?

# %%
forward = {
    row["seqlen"]: row["ms"]
    for row in rows
    if (row["direction"], row["head_dim"]) == ("forward", 64)
}
lengths = sorted(forward)
print(f"d=64, {where}")
for short, long in pairwise(lengths):
    a_sequence = 2 * forward[long] / forward[short]
    print(f"N = {short:5,} → {long:5,}: a sequence takes {a_sequence:.2f} times as long")

# %% [markdown]
# By the square of N. FlashAttention did not change how arithmetic grows.
#
# **Change it.** Ask for `masks=("causal",)` above. Does a sequence twice as long still take as many
# times longer, and do the rates in TFLOP/s stay? (Half of the products are counted then.)
#
# ## Under the roof
#
# Where do the measured kernels stand below the roof of notebook 7? Traffic is what the closed form
# counts for the tiles that each kernel takes (queries x keys), every tile taken from HBM.

# %%
from flash_numba.kernels.spec import flash2_tiles
from simulator.course.limits import measured_roof

print(where)
show(*measured_roof(gpu, rows, where, flash2_tiles))

# %% [markdown]
# They stand right of where the roof bends: in fp32, without tensor cores, arithmetic binds. How
# near to the peak of the data sheet do they come - and why not nearer? A multiply-add of a tile
# product needs operands from shared memory; softmax and masks are instructions, too.

# %%
peak = gpu.fp32_flops_per_s / 1e12
best = max(rows, key=lambda row: row["tflops"])
print(f"data sheet {peak:.1f} TFLOP/s in fp32; best measured {best['tflops']:.1f}")
print(f"({best['direction']}, d={best['head_dim']}, N={best['seqlen']:,}; {where})")

# %% [markdown]
# ## Counters against counts
#
# A GPU has counters: Nsight Compute shows how many passes an instruction took over shared memory.
# The tracer of notebook 8 claims to know the same number from addresses alone. Random instructions
# of 4, 8 and 16 bytes a lane were run on a GPU and counted:

# %%
from simulator.threads.passes import passes

counted = results("shared_passes")
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
# The same number, from a Python program and from silicon.
#
# ## One number, four ways
#
# Now a whole kernel, flash2's own source. **Predict.** The simulator of notebook 5, its closed form
# and a run thread by thread count bytes of Q, K and V: do three programs that share no code agree?
# And does the last one know how many sectors Nsight Compute counts?

# %%
sys.path.insert(0, "../benchmarks")
import four_ways

row = next(one for one in four_ways.ROWS if one.case == "flash2-forward-full")
reports = four_ways.traced_now(row.case)  # its blocks thread by thread: takes a while
(simulated, form), _ = four_ways.by_simulator(row)
print(f"bytes read: tile simulator {simulated:,}, closed form {form:,}, ", end="")
print(f"threads {four_ways.by_threads(reports, row.skip)[0]:,}")
hardware = four_ways.measured(row.case, reports)
told = "not counted since the kernel changed" if hardware is None else f"{hardware[0]:,}"
counted_on = measured_on(results("h200_counters"))
print(f"sectors read: threads {four_ways.sectors(reports)[0]:,}, ", end="")
print(f"Nsight Compute {told} ({counted_on})")

# %% [markdown]
# More sectors than the bytes fill: some of its warps take parts of sectors. Which line does it?
# `reports[0].lines()` says. `docs/counting.md` has such a row for every rung.
#
# ## What a cache does to a count
#
# Between HBM and the multiprocessors lies the L2 cache. A tile that several blocks load comes from
# HBM once and from L2 after that, if L2 still has it. Nsight Compute counts the bytes that HBM
# really gave (`dram__bytes_read`, by `benchmarks/counters.py`).
#
# **Predict** for N = 1,024 in fp32, with 16 heads - 32 for standard attention, whose S and P are
# then larger than L2: which of the three programs reads more from HBM than its inputs, which as
# much? Q, K and V are the least that anybody can read.

# %%
from flash_numba.problem import Problem
from simulator import theory

stored = results("h200_counters")
print(f"{measured_on(stored)}; MB read, all heads")
print("program    heads   by all tiles   by HBM   inputs")
cases = ("standard-forward-past-l2", "flash1-forward-large", "flash2-forward-large")
for case_name in cases:
    program, case = case_name.split("-")[0], stored["cases"][case_name]
    problem = Problem(**case["problem"])
    name, tile = program, flash2_tiles(H200, problem, "forward")  # flash1 takes the same
    if program == "standard":
        name, tile = "tiled", (64, 64)
    form = theory.counts(name, problem, *tile, direction="forward", all_heads=True)
    dram = sum(launch["counters"]["dram__bytes_read.sum"] for launch in case["launches"])
    inputs = 3 * 4 * problem.seqlen_q * problem.head_dim * problem.num_heads
    tiles = 4 * form.hbm_read_elements
    print(f"{program:9} {problem.num_heads:6}", end=" ")
    print(f"{tiles / 1e6:14.1f} {dram / 1e6:8.1f} {inputs / 1e6:8.1f}")

# %% [markdown]
# FlashAttention's tiles are few enough for L2, so that HBM gives each input once. S and P of
# standard attention are not. Counts of tiles say what an algorithm asks for, whatever the cache;
# and where the cache is too small, or the sequence long enough, what it pays.
#
# ## Joules
#
# Moving a byte costs energy, and so does a FLOP. Published figures differ by process and by what
# they include; the ones below have their sources in `simulator/energy.py`, and are no more than an
# estimate.
#
# **Predict.** Which share of standard attention's energy goes to HBM? Which of FlashAttention's?

# %%
from simulator.energy import BOARD_WATTS, PJ_PER_BYTE, PJ_PER_FLOP, SOURCES, at_most, energy

figures = PJ_PER_BYTE | PJ_PER_FLOP
for name in ("hbm", "sram", "fp16"):
    unit = "FLOP" if name in PJ_PER_FLOP else "byte"
    print(f"{name:5} {figures[name]:5.2f} pJ a {unit}: {SOURCES[name]}")
head = Problem(4096, 4096, 64, dtype="fp16")
for name in ("tiled", "flash1", "flash2"):
    spent = energy(theory.counts(name, head, 128, 64, direction="forward"), "fp16")
    print(
        f"{name:7} HBM {1e6 * spent.hbm_j:6.0f} µJ, SRAM {1e6 * spent.sram_j:5.0f} µJ, products "
        f"{1e6 * spent.product_j:5.0f} µJ: {spent.hbm_j / spent.total_j:.0%} in HBM"
    )

# %% [markdown]
# No more than an estimate - but one that a measurement bounds: a board takes no more power than its
# data sheet says. For the rows above (in fp32, forward), time times power is the most that the
# counted work can have cost.

# %%
print(where)
for row in rows:
    if row["direction"] == "forward" and gpu.name in BOARD_WATTS:
        problem = Problem(row["seqlen"], row["seqlen"], row["head_dim"], causal=row["causal"])
        tiles = flash2_tiles(gpu, problem, "forward")
        counts = theory.counts("flash2", problem, *tiles, direction="forward")
        spent = row["batch"] * row["heads"] * energy(counts, "fp32").total_j
        bound = at_most(gpu.name, row["ms"] / 1e3)
        print(f"d={row['head_dim']:3} N={row['seqlen']:5,}: counted {spent:4.2f} J of", end=" ")
        print(f"at most {bound:5.2f} J")

# %% [markdown]
# ## Exercises
#
# For the grader: FLOPs, without which no time becomes a rate, and joules. By yourself: from the
# closed form, how many bytes a second do the tiles of a row above move, and is that more than HBM
# can? And on a GPU: `flash-numba bench --seqlen 4096 --dtype fp32`, twice. How far apart are two
# runs?

# %%
from simulator.grade import grade, statement

print(statement("attention_flops"), "\n")
print(statement("predict_energy"))


def attention_flops(B, H, N, M, d, backward):
    return B * H * 4 * N * M * d * (1 + backward)  # is a backward pass twice a forward pass?


grade("attention_flops", attention_flops)

# %% [markdown]
# ## Further reading
#
# - Hoefler, Belli: [*Scientific Benchmarking of Parallel Computing
#   Systems*](https://doi.org/10.1145/2807591.2807644), 2015.
# - `benchmarks/`: every program whose results stand here, and `simulator/bench/measure.py`.
# - Next: [15 · Train a small GPT](15_train_small_gpt.ipynb)
