"""Cases for ``flash-numba trace``: the first steps of the ladder on 64 tokens."""

from __future__ import annotations

import numpy as np

from flash_numba.kernels.steps import module_of
from flash_numba.problem import Problem

from ..inputs import random_input


def _case(step: str) -> tuple:
    problem = Problem(64, 64, 32)
    q, k, v = random_input(problem)
    O, LSE = np.full_like(q, np.nan), np.full((1, 1, 64), np.nan, np.float32)
    module = module_of(step)
    tiles = module.tiles_of(problem.head_dim)
    arguments = q, k, v, O, LSE, np.float32(problem.softmax_scale)
    blocks = -(-problem.seqlen_q // tiles.tile_m)
    return module.make_forward(tiles, False), blocks, tiles.threads, arguments, tiles.layout.bytes


def naive() -> tuple:
    """`flash_numba.kernels.steps.step1_naive`."""
    return _case("naive")


def conflict_free() -> tuple:
    """Step 2, which pads what `naive` reads."""
    return _case("conflict-free")
