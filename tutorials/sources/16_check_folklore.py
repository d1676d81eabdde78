# %% [markdown]
# # 16 · Check the folklore
#
# - **You will** go through what popular texts say about FlashAttention, claims and
#   misconceptions, and see each counted or measured.
# - **You will learn** how to tell a number that was measured from one that was repeated.
# - **You need** whatever you read so far; a claim names the idea it needs.

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
from collections import Counter

from simulator.claims import CLAIMS, TOPICS, ledger
from simulator.course import begin
from simulator.course.ledger import display_ledger

begin()


def tell(*names):
    for name in names:
        claim = CLAIMS[name]
        found = claim.check()
        print(
            f"{name}  {claim.text}\n  {found.verdict.upper()}: {found.exact}\n  {found.measured}\n"
        )


# %% [markdown]
# ## Ten sentences that everybody has heard
#
# **Predict.** Which of these are true?
#
# 1. Q, K and V are each loaded once.
# 2. Traffic becomes O(N).
# 3. Smaller tiles save more.
# 4. FlashAttention always moves less.
# 5. Two nested loops mean N²d²/M² accesses.
# 6. The forward pass recomputes.
# 7. The result is bit-identical.
# 8. SRAM is 20 MB.
# 9. B_c = M/4d fills SRAM exactly.
# 10. A causal mask halves the work.

# %%
tell(*(name for name in sorted(CLAIMS) if name.startswith("M")))

# %% [markdown]
# ## A tutorial, taken apart
#
# The other claims come from two documents about FlashAttention, one long and one short, of the kind
# that a search finds first. Each is judged by code: closed forms, the simulator, finite
# differences, data sheets, and measurements that are committed with their GPU and date.

# %%
rows = list(ledger())
for topic in TOPICS:
    verdicts = Counter(found.verdict for claim, found in rows if claim.topic == topic)
    print(f"{topic:15}", ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common()))

# %% [markdown]
# ### What holds

# %%
tell("C06", "C17", "C35")

# %% [markdown]
# ### Gradients that are not
#
# Formulas for ∂L/∂Q circulate, and most do not even have its shape. **Predict** which of these do,
# for N queries, M keys and d columns. Finite differences settle the rest.

# %%
tell("C18", "C22", "C43", "C56")

# %% [markdown]
# ### Far off
#
# **Predict** each before you look: does one forward pass at N = 2,048, d = 1,024 move 42 GB? May a
# batch have ⌊(G - P) / 4T(d + h)⌋ samples? Does attention dominate the training of GPT-3?

# %%
tell("C07", "C53", "C81")

# %% [markdown]
# ### Right under conditions
#
# The most useful ones: true, if one says of what.

# %%
tell("C12", "C29", "C44", "C88")

# %% [markdown]
# ### What cannot be checked here
#
# Some numbers need a machine, a model or a log that nobody else has. For those the ledger gives a
# bound that says whether they are plausible, and what would decide.

# %%
tell("C67", "C85", "C91")

# %% [markdown]
# ## All of it
#
# Every claim with the exact statement, the numbers and the verdict: open a topic. What was measured
# on a GPU says on which, and when.

# %%
display_ledger(rows)

# %% [markdown]
# `flash-numba claims --topic memory` prints a topic, `flash-numba claims C20` one claim in full,
# and `simulator/claims` is the code. Read one: the docstring is the claim, and the verdict follows
# from the number.

# %%
print(inspect.getsource(CLAIMS["M01"].check))

# %% [markdown]
# ## Exercises
#
# Two claims of the ledger, put right: how many tiles a causal mask leaves (M10), and what padding
# wastes (C61).

# %%
from simulator.grade import grade, statement

print(statement("causal_tiles"), "\n")
print(statement("padding_waste"))


def causal_tiles(N, B):
    return (N // B) ** 2 // 2  # "half of the work"


grade("causal_tiles", causal_tiles)

# %% [markdown]
# **Change it.** Then one of your own. Take a claim about FlashAttention from a text that you like,
# and enter it: a function with the claim as its docstring that returns `Found(verdict, exact,
# measured)`, like the one that you read above. Can your function come to the other verdict, if the
# numbers were different?
#
# ## Further reading
#
# - `docs/papers.md`: the numbers of the FlashAttention paper itself, recounted. Not all of them
#   come out.
# - Bailey: *Twelve Ways to Fool the Masses When Giving Performance Results on Parallel Computers*,
#   1991.
