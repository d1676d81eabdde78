"""What a kernel is handed besides Q, K, V and its results."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import dropout
from ..device.functions import chain_aux
from ..device.numba_cuda import cuda
from ..launch import upload
from ..packing import SeedWord
from ..problem import Problem
from ..tiling import PARTIAL


def extra_values(problem: Problem, tile_m: int, tile_n: int) -> tuple:
    """What `extra_arguments` puts into GPU memory, still on the host."""
    mask, ranges = problem.visibility, problem.range_mask
    return (
        mask.aux if mask else (),
        ranges.aux if ranges else (),
        chain_aux(mod.aux for mod in problem.score_mods),
        () if problem.key_lengths is None else (problem.key_lengths,),
        () if problem.block_mask is None else (tile_kinds(problem, tile_m, tile_n),),
        _dropout_numbers(problem),
    )


_uploaded: WeakKeyDictionary[Problem, dict] = WeakKeyDictionary()
"""By problem and tile sizes: the arguments, and what keeps them alive as long as the problem is."""


def tile_kinds(problem: Problem, tile_m: int, tile_n: int) -> np.ndarray:
    """The block list of a problem for other tile sizes than its own.

    A tile that overlaps tiles of several classes is partial: the mask decides there.

    Returns
    -------
    int8 array of shape (batch, num_heads, query tiles, key tiles)
        Axes may have stride 0.
    """
    listed: Any = problem.block_mask
    low, high = listed.kinds, listed.kinds
    for axis, own, size, length in (
        (2, listed.tile_m, tile_m, problem.seqlen_q),
        (3, listed.tile_n, tile_n, problem.seqlen_k),
    ):
        first = np.arange(0, length, size)
        last = np.minimum(first + size, length) - 1
        low = _over_ranges(np.minimum, low, axis, first // own, last // own)
        high = _over_ranges(np.maximum, high, axis, first // own, last // own)
    kinds = np.where(low == high, low, PARTIAL).astype(np.int8)
    return np.broadcast_to(kinds, (problem.batch, problem.num_heads, *kinds.shape[2:]))


def _over_ranges(reduce, values, axis, first, last):
    parts = [
        reduce.reduce(values.take(range(a, b + 1), axis), axis, keepdims=True)
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]
    return np.concatenate(parts, axis) if parts else values.take([], axis)


def _dropout_numbers(problem: Problem) -> tuple:
    if problem.dropout_p == 0:
        return ()
    return (
        *SeedWord.pair(problem.seed),
        np.uint64(dropout.threshold(problem.dropout_p)),
        1 / (1 - problem.dropout_p),
    )


def extra_arguments(problem: Problem, tile_m: int, tile_n: int, tiles: tuple = ()) -> tuple:
    """``(mask_aux, range_aux, score_aux, lengths, listed, dropout)`` of a problem, in GPU memory.

    `tiles` is what `packed_tiles.list_tiles` gives of a packed batch, in place of lengths.

    Uploaded once a problem and, if it has a block list, once a pair of tile sizes; they stay as
    long as the problem does.
    """
    if problem.block_mask is None:
        tile_m = tile_n = 0
    known = _uploaded.setdefault(problem, {})
    if (tile_m, tile_n) not in known:
        arguments, owners = upload(extra_values(problem, tile_m, tile_n))
        if owners:
            cuda.default_stream().synchronize()  # other streams read the copies
        known[tile_m, tile_n] = arguments, owners
    found = known[tile_m, tile_n][0]
    return (*found[:3], tiles, *found[4:]) if tiles else found
