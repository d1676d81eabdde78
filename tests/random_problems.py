"""Random small problems with every feature, for tests that hold programs against something else."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from harness import inputs, normal

from flash_numba import masks
from flash_numba.masks import Mask
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask


@dataclass(frozen=True)
class Random:
    """A problem, tile sizes, and whether lse has a gradient."""

    problem: Problem
    tile_m: int
    tile_n: int
    dlse: bool

    @property
    def tiles(self) -> dict[str, Any]:
        return {"tile_m": self.tile_m, "tile_n": self.tile_n}

    def arrays(self, seed: int, draw: int = 0) -> dict[str, Any]:
        """q, k, v, do of the problem's type, and dlse if lse has a gradient."""
        rng = np.random.default_rng((seed, 1 + draw))
        given = inputs(rng, self.problem)
        if self.dlse:
            given["dlse"] = normal(rng, self.problem.shapes["dlse"])
        return given


def seeds(count: int) -> range:
    """Numbers of the first `count` random problems; MOST_RANDOM_PROBLEMS caps them.

    The mutation check sets the cap: a suite that fails on few problems fails on more.
    """
    return range(min(count, int(os.environ.get("MOST_RANDOM_PROBLEMS", count))))


@cache
def random_problem(seed: int) -> Random:
    """Problem number `seed`: half of the features off, so that each is often seen alone."""
    rng = np.random.default_rng((seed, 0))

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    def size(low, high):
        return int(rng.integers(low, high + 1))

    seqlen_q = pick(0, 1, size(1, 24), size(1, 24), size(1, 24))
    seqlen_k = pick(seqlen_q, seqlen_q, size(0, 24), size(1, 24), size(1, 24))
    kv_heads, batch = pick(1, 1, 2), pick(0, 1, 1, 2, 3)
    head_dim = size(1, 6)
    problem = Problem(
        seqlen_q,
        seqlen_k,
        head_dim,
        pick(head_dim, size(1, 6)),
        batch=batch,
        num_heads=kv_heads * pick(1, 1, 2, 3),
        num_kv_heads=kv_heads,
        dtype=pick("fp32", "fp16", "bf16", "fp8"),
        softmax_scale=pick(None, None, 1.0, 0.0, -0.7),
        causal=pick(True, False),
        window=pick((None, None), (None, None), (size(0, 9), size(0, 9)), (size(0, 5), None)),
        key_lengths=pick(None, None, rng.integers(0, seqlen_k + 1, batch)),
        dropout_p=pick(0.0, 0.0, 0.3),
        seed=size(0, 1 << 40),
    )
    tile_m, tile_n = size(1, 9), size(1, 9)
    mods = [mod for mod in score_mods(problem, rng) if rng.random() < 0.2]
    problem = replace(problem, score_mods=tuple(mods), **random_mask(problem, tile_m, tile_n, rng))
    return Random(problem, tile_m, tile_n, bool(rng.random() < 0.3))


def score_mods(problem: Problem, rng) -> list[masks.ScoreMod]:
    batch, heads = problem.batch, problem.num_heads
    square = batch, heads, problem.seqlen_q, problem.seqlen_k
    slopes = 2.0 ** -rng.integers(0, 4, (batch, heads))
    return [
        masks.softcap(2.0),
        masks.alibi(slopes, problem.shift),
        masks.bias(rng.standard_normal(square).astype(np.float32)),
        masks.relative_positions(*rng.standard_normal((2, 3))),
    ]


def random_mask(problem: Problem, tile_m: int, tile_n: int, rng) -> dict:
    """Nothing, a tensor of booleans, documents with a key range, or a list of tiles."""
    shape = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
    kind = rng.integers(6)
    if kind == 0:
        return {"mask": masks.boolean(rng.random(shape) < 0.6)}
    if kind == 1:
        return {"mask": documents(problem, rng)}
    if kind == 2:
        scattered = masks.boolean(np.repeat(rng.random(shape) < 0.2, 4, axis=3)[..., : shape[3]])
        listed = BlockMask.from_mask(
            scattered, problem, tile_m, tile_n, batches=problem.batch, heads=problem.num_heads
        )
        return {"block_mask": listed}
    return {}


def documents(problem: Problem, rng) -> Mask:
    """Each head cuts its sequence into documents at places of its own; a query sees its own."""
    length = max(problem.seqlen_q, problem.seqlen_k) + 1
    cuts = rng.random((problem.batch, problem.num_heads, length)) < 0.2
    number = np.cumsum(cuts, axis=-1)

    def keep(batch, head, q_idx, k_idx, aux):
        return number[batch, head, q_idx] == number[batch, head, k_idx]

    def key_range(batch, head, q_idx, aux):
        own = number[batch, head]
        lo, hi = (np.searchsorted(own, own[q_idx], side) for side in ("left", "right"))
        return lo, hi

    return Mask("documents", keep, (), key_range, exact=True)
