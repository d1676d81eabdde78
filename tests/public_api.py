"""The public functions as an implementation that `harness.check` can hold against a case."""

from typing import Any

from harness import tiled_rounding

import flash_numba
from flash_numba.problem import Problem

OWN_OPTION = {"boolean mask": "mask", "bias": "bias", "ALiBi": "alibi_slopes"}
"""Masks and score changes that are options of their own, by name; their tensor is ``aux[0]``."""


def rounding(case_id: str):
    """What `harness.check` may allow a tiled backward; products of K01's fp16 ones are exact."""
    return None if case_id == "K01" else tiled_rounding


def options_of(problem: Problem) -> dict[str, Any]:
    """The keyword arguments that pose `problem`."""
    found: dict[str, Any] = {
        "scale": problem.softmax_scale,
        "causal": problem.causal,
        "window": problem.window,
        "key_lengths": problem.key_lengths,
        "block_mask": problem.block_mask,
        "dropout_p": problem.dropout_p,
        "seed": problem.seed,
    }
    if problem.mask is not None:
        own = OWN_OPTION.get(problem.mask.name)
        found[own or "mask_mod"] = problem.mask.aux[0] if own else problem.mask
    for mod in problem.score_mods:
        if mod.name.startswith("softcap"):
            found["softcap"] = mod.aux[0]
        else:
            own = OWN_OPTION.get(mod.name)
            found[own or "score_mod"] = mod.aux[0] if own else mod
    return found


class PublicApi:
    """`flash_attention` and `flash_attention_backward` with one rung."""

    def __init__(self, kernel: str = "auto"):
        self.kernel = kernel

    def forward(self, problem: Problem, q, k, v):
        options = options_of(problem)
        return flash_numba.flash_attention(q, k, v, return_lse=True, kernel=self.kernel, **options)

    def backward(self, problem: Problem, q, k, v, do, dlse=None):
        options = options_of(problem) | {"kernel": self.kernel}
        o, lse = self.forward(problem, q, k, v)
        return flash_numba.flash_attention_backward(do, q, k, v, o, lse, dlse=dlse, **options)
