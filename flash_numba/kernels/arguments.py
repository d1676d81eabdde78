"""What a kernel is handed besides Q, K, V and its results."""

from functools import lru_cache

import numpy as np

from .. import dropout
from ..device.functions import chain_aux
from ..launch import upload
from ..problem import Problem


@lru_cache(maxsize=16)
def _uploaded(problem: Problem):
    mask, ranges = problem.visibility, problem.range_mask
    values = (
        mask.aux if mask else (),
        ranges.aux if ranges else (),
        chain_aux(mod.aux for mod in problem.score_mods),
        () if problem.key_lengths is None else (problem.key_lengths,),
        () if problem.block_mask is None else (_kinds(problem),),
        _dropout_numbers(problem),
    )
    return upload(values)


def _kinds(problem: Problem) -> np.ndarray:
    kinds = problem.block_mask.kinds
    return np.broadcast_to(kinds, (problem.batch, problem.num_heads, *kinds.shape[2:]))


def _dropout_numbers(problem: Problem) -> tuple:
    if problem.dropout_p == 0:
        return ()
    seed = problem.seed
    return (
        np.uint64(seed & 0xFFFFFFFF),
        np.uint64(seed >> 32),
        np.uint64(dropout.threshold(problem.dropout_p)),
        1 / (1 - problem.dropout_p),
    )


def extra_arguments(problem: Problem, tile_m: int, tile_n: int) -> tuple:
    """``(mask_aux, range_aux, score_aux, lengths, listed, dropout)`` of a problem, in GPU memory.

    Uploaded once a problem. With a block mask the tiles must be the list's own.
    """
    if problem.block_mask is not None:
        problem.block_mask.check_tiles(tile_m, tile_n)
    arguments, _ = _uploaded(problem)
    return arguments
