"""The problems that `sanitize.py` runs: every form of tiles that a rung chooses among.

`tests/test_sanitized_forms.py` holds them against what the rungs choose on a grid of problems.
"""

from typing import Any, NamedTuple

import numpy as np

from flash_numba import (
    flash_attention,
    flash_attention_backward,
    flash_attention_varlen,
    flash_attention_varlen_backward,
    masks,
    tiling,
)
from flash_numba.kernels.hopper_backward_fast import FEW, FEW_MASKED, FEW_WIDE
from flash_numba.kernels.hopper_backward_tiles import BACKWARDS_FROM, HopperBackwardTiles
from flash_numba.ladder import RUNGS
from flash_numba.problem import DTYPES, Problem

TYPES = {rung.name: rung.dtypes for rung in RUNGS if rung.modules}
"""Element types of the rungs that have kernels."""


class Attention(NamedTuple):
    """A problem to run, forward and, if `gradients` are asked for, backward.

    Attributes
    ----------
    kind : str
        A key of `options_of`, or "packed".
    depth, depth_v : int
        head_dim and head_dim_v.
    gradients : tuple of str
        As `needs` of `flash_attention_backward`.
    more_keys : int
        Keys besides those that all problems have.
    deterministic : bool or None
        As for `flash_attention`.
    """

    kind: str
    depth: int = 40
    depth_v: int = 24
    gradients: tuple[str, ...] = ("q", "k", "v")
    more_keys: int = 0
    deterministic: bool | None = None


def _not_few(key_tiles: int) -> int:
    """Keys besides which the backward pass is not added up in turn if it need not."""
    return key_tiles * HopperBackwardTiles.tile_n


_OF_ALL = {
    "changes": [Attention("changes", gradients=("q", "k", "v", "bias", "score_mod"))],
    "masks": [Attention("masks")],
}
PROBLEMS: dict[str, dict[str, list[Attention]]] = {name: dict(_OF_ALL) for name in TYPES}
PROBLEMS["hopper"] |= {
    "fast": [
        Attention("masks", more_keys=_not_few(FEW_MASKED), deterministic=False),
        Attention("plain", 104, 104, more_keys=_not_few(FEW), deterministic=False),
        Attention("plain", 136, 136, more_keys=_not_few(FEW_WIDE), deterministic=False),
    ],
    "narrow": [
        Attention("plain", gradients=()),
        Attention("causal", gradients=()),
        Attention("plain", 104, 104),
        Attention("plain", 104, gradients=()),
        Attention("masks", 72, 104),
        Attention("changes", depth_v=104),
    ],
    "wide": [
        Attention("masks", 136),
        Attention("causal", 136, 104, more_keys=BACKWARDS_FROM),
    ],
}
PROBLEMS["tensor_core"] |= {
    "packed": [Attention("packed"), Attention("packed", 104, 104)],
    "deep": [Attention("plain", 104, 104), Attention("masks", 72, 104)],
    "wide": [Attention("masks", 136), Attention("changes", 136)],
}
"""What is run, by rung and part."""


def stripes(batch, head, q_idx, k_idx, aux):
    """A mask without a key range, for a block list."""
    return (q_idx // aux[0] + k_idx // aux[0]) % 3 != 0


def tempered(score, batch, head, q_idx, k_idx, aux):
    """A score change with a learned number a head."""
    return score * aux[0][head]


def tempered_derivative(score, batch, head, q_idx, k_idx, aux):
    """d tempered / d score."""
    return aux[0][head]


def tempered_aux_derivative(score, batch, head, q_idx, k_idx, term, aux):
    """d tempered / d aux[0][head]."""
    return score


def lengths(scale: int) -> tuple[int, int]:
    """Queries and keys of a problem, less its `more_keys`: tails in every tile."""
    return 64 * scale + 7, 64 * scale + 21


def normal(*shape, dtype="fp32") -> np.ndarray:
    """Random numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(DTYPES[dtype])


def options_of(kind: str, n: int, m: int) -> dict[str, Any]:
    """The options of two sequences of `n` queries and `m` keys."""
    if kind == "changes":
        rule = tempered_derivative, 0, ("head",), tempered_aux_derivative
        learned = masks.ScoreMod("tempered", tempered, (normal(2),), *rule)
        own = {"dropout_p": 0.2, "seed": 5, "softcap": 2.0, "bias": normal(2, 1, m)}
        return {"causal": True, "score_mod": learned} | own
    if kind == "masks":
        listed = masks.Mask("stripes", stripes, (32,))
        blocks = tiling.BlockMask.from_mask(listed, Problem(n, m, 8), 32, 64)
        return {"window": (60, 3), "key_lengths": np.array([0, m - 5]), "block_mask": blocks}
    return {"plain": {}, "causal": {"causal": True}}[kind]


def tensors(rung: str, one: Attention, n: int, m: int):
    """q, k, v and do of two sequences, two heads over one."""
    dtype = TYPES[rung][one.kind == "masks"]
    q, do = normal(2, n, 2, one.depth, dtype=dtype), normal(2, n, 2, one.depth_v, dtype=dtype)
    k, v = normal(2, m, 1, one.depth, dtype=dtype), normal(2, m, 1, one.depth_v, dtype=dtype)
    return q, k, v, do


def run(rung: str, one: Attention, n: int, m: int):
    """O, lse and gradients of a problem."""
    return (packed if one.kind == "packed" else padded)(rung, one, n, m)


def padded(rung: str, one: Attention, n: int, m: int):
    """Of two sequences of `n` queries and `m` keys."""
    options = options_of(one.kind, n, m) | {"kernel": rung, "deterministic": one.deterministic}
    q, k, v, do = tensors(rung, one, n, m)
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    found = o, np.maximum(lse, -1e30)
    if one.gradients:
        options |= {"dlse": normal(2, 2, n), "needs": one.gradients}
        found += tuple(flash_attention_backward(do, q, k, v, o, lse, **options))
    return found


def packed(rung: str, one: Attention, n: int, m: int):
    """Of three sequences behind each other, one of them without a key."""
    q, k, v, do = (x[0] for x in tensors(rung, one, n, m))
    options = {"cu_seqlens_q": [0, 5, 40, n], "cu_seqlens_k": [0, 3, 3, m], "causal": True}
    options |= {"seqused_k": [3, 0, m - 9], "kernel": rung}
    o, lse = flash_attention_varlen(q, k, v, return_lse=True, **options)
    dlse = normal(2, n)
    found = flash_attention_varlen_backward(do, q, k, v, o, lse, dlse=dlse, **options)
    return o, np.maximum(lse, -1e30), *found
