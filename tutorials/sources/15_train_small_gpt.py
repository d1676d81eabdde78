# %% [markdown]
# # 15 · Train a small GPT with it
#
# - **You will** put `flash_attention` into a PyTorch model, train it on Shakespeare, and train the
#   same model with PyTorch's own attention beside it.
# - **You will learn** what a drop-in replacement has to promise, and what it saves when a model
#   trains.
# - **You need** notebook 6 and PyTorch. On a GPU the same cells run the kernels; without one the
#   simulator answers, which is right but slow, so the model is tiny.

# %%
import sys

sys.path.insert(0, "..")  # the packages of this repository
try:
    from simulator.restart import announce, missing, stop_if_stale
except ModuleNotFoundError:
    why = "this notebook needs the whole repository: `git clone` it and open the one in `tutorials`"
    raise ModuleNotFoundError(why) from None

if names := missing("tutorials", "torch"):
    announce(names)
    # %pip install --quiet -e "..[tutorials,torch]"
stop_if_stale()

import inspect
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from flash_numba import explain, flash_attention
from flash_numba.interop import pytorch
from simulator.course import begin, show

begin()
torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## The text
#
# Some sonnets. The model reads letters and guesses the next one.

# %%
text = Path("data/sonnets.txt").read_text(encoding="utf-8")
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text], device=device)
print(f"{len(text):,} letters, {len(letters)} different")
print(text[:87])

# %% [markdown]
# ## The model
#
# Two blocks of attention and a small network, 32 columns, two heads. Which attention it calls is an
# argument: that is the drop-in. Mind the layout: `flash_attention` takes (batch, seqlen, heads,
# head_dim) as the FlashAttention library does, PyTorch's function (batch, heads, seqlen, head_dim).

# %%
T, WIDTH, HEADS = 32, 32, 2


def ours(q, k, v):
    return flash_attention(q, k, v, causal=True)


def torchs(q, k, v):
    heads_first = (one.transpose(1, 2) for one in (q, k, v))
    return scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        B, N, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(B, N, 3, HEADS, WIDTH // HEADS).unbind(2)
        x = x + self.out(self.attention(q, k, v).reshape(B, N, WIDTH))
        return x + self.network(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(letters), WIDTH), nn.Embedding(T, WIDTH)
        self.blocks = nn.Sequential(Block(attention), Block(attention))
        self.guess = nn.Linear(WIDTH, len(letters))

    def forward(self, codes):
        x = self.letters(codes) + self.places(torch.arange(codes.shape[1], device=codes.device))
        return self.guess(self.blocks(x))


# %% [markdown]
# **Predict.** Who answers the call here, and why not the others? `explain` says.

# %%
q = torch.zeros(1, T, HEADS, WIDTH // HEADS, device=device)
for line in str(explain(q, q, q, causal=True)).splitlines()[: None if device == "cuda" else 1]:
    print(line.split(" (")[0])

# %% [markdown]
# ## Train both
#
# The same first weights, the same batches. If the replacement is right, gradients and all, the two
# curves of the loss lie on each other.


# %%
def train(attention, steps=25):
    torch.manual_seed(1)
    model = GPT(attention).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chooser = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(codes) - T - 1, (4,), generator=chooser).tolist()
        batch = torch.stack([codes[one : one + T + 1] for one in starts])
        guesses = model(batch[:, :-1])
        loss = cross_entropy(guesses.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model, losses


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that the simulator answers, said once
    model, flash_losses = train(ours)
    _, torch_losses = train(torchs)
apart = max(abs(a - b) for a, b in zip(flash_losses, torch_losses, strict=True))
print(f"loss {flash_losses[0]:.2f} → {flash_losses[-1]:.2f}, with PyTorch's {torch_losses[-1]:.2f}")
print("the curves are the same to 0.01:", apart < 0.01)

# %%
from simulator.course.style import BLUE, ORANGE, axes

figure, ax = axes(7, 2.6)
ax.plot(torch_losses, color=ORANGE, linewidth=4, alpha=0.5, label="PyTorch's attention")
ax.plot(flash_losses, color=BLUE, label="flash_attention")
ax.set_xlabel("step")
ax.set_ylabel("loss")
ax.legend()
show(
    figure,
    f"Loss over {len(flash_losses)} steps: both curves fall from {flash_losses[0]:.1f} to "
    f"{flash_losses[-1]:.1f} and lie on each other.",
)

# %% [markdown]
# **Change it.** Give `ours` a window, `flash_attention(q, k, v, window=(8, 0))`: each letter sees
# 8 before it. Do the curves part? Does the loss suffer?
#
# ## What would it save?
#
# At 32 letters: nothing, S is tiny. The same model with a long context keeps, for its backward
# pass, P of every layer and head - or lse.

# %%
for N in (32, 1024, 16384):
    stored, kept = 2 * HEADS * N * N * 2, 2 * HEADS * N * 4
    print(
        f"N={N:6,}: P of 2 layers {stored / 2**20:10,.2f} MiB, lse {kept / 2**20:6.3f} MiB a sample"
    )

# %% [markdown]
# So much for counting. What did kernels really take, beyond inputs and outputs, for the backward
# pass of one head? (`benchmarks/host_time.py`.)

# %%
from simulator.claims.evidence import measured_on, results

stored = results("h200_host_time")
print(measured_on(stored))
for row in stored["rows"]:
    if (row["what"], row.get("direction"), row.get("seqlen")) == ("memory", "backward", 16384):
        print(f"{row['kernel']:9} {row['extra_bytes'] / 2**20:9,.2f} MiB at N={row['seqlen']:,}")

# %% [markdown]
# ## Gradients to trust
#
# A loss that falls proves little: wrong gradients often train, a little worse. Hold them against
# PyTorch's. Before that, read what autograd is told: two ops with a schema each, one the gradient
# of the other, and what is kept between them.

# %%
q, k, v = torch.randn(3, 2, 40, HEADS, 16, dtype=torch.float32, device=device)
q, k, v = (one.detach().requires_grad_() for one in (q, k, v))
weight = torch.randn(2, 40, HEADS, 16, device=device)
gradients = [torch.autograd.grad((f(q, k, v) * weight).sum(), (q, k, v)) for f in (ours, torchs)]
print(inspect.getsource(pytorch).rpartition("\n\n")[2])
print(inspect.getsource(pytorch._keep_for_backward))
for name, mine, theirs in zip("qkv", *gradients, strict=True):
    print(f"d{name}: largest difference below 1e-5: {(mine - theirs).abs().max().item() < 1e-5}")

# %% [markdown]
# ## Exercises
#
# For the grader: what all layers keep. By yourself:
#
# 1. Let the model write: feed it its own guesses. (So few steps make no poet.)
# 2. On a GPU: a much longer context, and more steps. Compare
#    `torch.cuda.max_memory_allocated()` of both, with
#    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` for PyTorch's.

# %%
from simulator.grade import grade, statement

print(statement("predict_kept"))


def predict_kept(layers, B, H, N, d):
    return layers * B * H * 2 * 4 * N * d  # something small is missing


grade("predict_kept", predict_kept)

# %% [markdown]
# ## Further reading
#
# - Karpathy: [*nanoGPT*](https://github.com/karpathy/nanoGPT); Radford et al.: *Language Models are
#   Unsupervised Multitask Learners*, 2019.
# - `flash_numba/interop/pytorch.py`: the two ops and what autograd is told.
# - Next: [16 · Check the folklore](16_check_folklore.ipynb)
