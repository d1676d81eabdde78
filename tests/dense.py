"""Attention written out with whole matrices in float64 torch: what GPU tests compare with."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from flash_numba import dropout


def weights(problem, q, k):
    """Scores after all changes, masked, and the pieces that the backward pass needs."""
    kv = torch.arange(problem.num_heads, device=q.device) // problem.group
    scores = problem.softmax_scale * torch.einsum("bihd,bjhd->bhij", q, k[:, :, kv])
    grid = np.ogrid[: problem.batch, : problem.num_heads, : problem.seqlen_q, : problem.seqlen_k]
    for mod in problem.score_mods:
        function = _torch_function(mod.name)
        scores = function(scores, *grid, mod.aux)
    keep = np.ones(tuple(scores.shape), bool)
    if problem.visibility is not None and keep.size:
        keep &= problem.visibility.keep(*grid, problem.visibility.aux)
    lengths = np.array([problem.key_length(b) for b in range(problem.batch)])
    keep &= grid[3] < lengths[:, None, None, None]
    return scores.masked_fill(~torch.from_numpy(keep).to(q.device), -torch.inf)


def _torch_function(name) -> Any:
    """The built-in score changes once more, in torch: written apart from the ones under test."""

    def tensor(x, like):
        return torch.as_tensor(np.ascontiguousarray(x), device=like.device).to(like.dtype)

    def softcap(s, b, h, i, j, aux):
        return aux[0] * torch.tanh(s / aux[0])

    def alibi(s, b, h, i, j, aux):
        shift = np.broadcast_to(aux[1], s.shape[0])[:, None, None, None]
        distance = tensor(np.abs(i + shift - j), s)
        return s - tensor(aux[0], s)[:, :, None, None] * distance

    def bias(s, b, h, i, j, aux):
        return s + tensor(aux[0], s)

    def relative(s, b, h, i, j, aux):
        distance = tensor(np.abs(i - j), s)
        for w, t in zip(*aux, strict=True):
            s = s + float(w) * torch.sin(distance * float(t))
        return s

    return {"softcap": softcap, "ALiBi": alibi, "bias": bias, "relative positions": relative}[
        name.split("(")[0]
    ]


def attention(problem, q, k, v, dout=None, dlse=None):
    """O, LSE and, given dO, the gradients: float64 tensors of the inputs' shapes."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    scores = weights(problem, q, k)
    lse = torch.logsumexp(scores, -1) if problem.seqlen_k else scores.sum(-1) - torch.inf
    p = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
    if problem.dropout_p:
        heads = np.arange(problem.batch * problem.num_heads).reshape(problem.batch, -1, 1, 1)
        rows, cols = np.ogrid[: problem.seqlen_q, : problem.seqlen_k]
        keep = dropout.keep_mask(problem.seed, heads, rows, cols, problem.dropout_p)
        p = p * torch.from_numpy(keep).to(p.device) / (1 - problem.dropout_p)
    kv = torch.arange(problem.num_heads, device=q.device) // problem.group
    out = torch.einsum("bhij,bjhd->bihd", p, v[:, :, kv])
    found = SimpleNamespace(out=out.detach(), lse=lse.detach())
    if dout is not None:
        total = (out * dout.double()).sum()
        if dlse is not None:
            total = total + (torch.where(lse == -torch.inf, 0.0, lse) * dlse.double()).sum()
        found.dq, found.dk, found.dv = torch.autograd.grad(total, (q, k, v))
    return found
