"""How the gradient of a tensor in the scores is cut into blocks (see `aux_gradient`)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..arrays import DeviceArray
from ..launch import compute_capability, shared_limit
from ..masks import AUX_AXES
from ..problem import Problem
from ..scores import aux_shape
from ..tiling import ceil_div
from .standard_tiles import SquareTiles, square_tiles

ENOUGH_BLOCKS = 1024
"""A gradient with fewer tiles is shared by so many blocks, if there is work for them.

A fixed number: the order of a sum must not depend on the GPU.
"""


class AuxRule(NamedTuple):
    """The part of a score change's gradient rule that the kernel is compiled for.

    Attributes
    ----------
    number : int
        Which score change.
    derivative : callable
        Its `masks.ScoreMod.aux_derivative`.
    own_keys, own_queries : bool
        Whether each key and each query has elements of its own.
    """

    number: int
    derivative: Callable
    own_keys: bool
    own_queries: bool


class AuxPlan(NamedTuple):
    """How the gradient of one tensor is computed.

    Attributes
    ----------
    rule : AuxRule
    shape : tuple of int
        The gradient's, with all of `masks.AUX_AXES`; axes that the tensor lacks have length 1.
    tiles : int
        Tiles of the gradient.
    shares : int
        Blocks that share a tile.
    steps : int
        Tiles of scores that a tile of the gradient sums up; 0 in a problem without scores.
    """

    rule: AuxRule
    shape: tuple[int, ...]
    tiles: int
    shares: int
    steps: int

    @classmethod
    def of(cls, problem: Problem, number: int, tile: int) -> "AuxPlan":
        """The plan for score change `number` with tiles of `tile` queries and keys."""
        mod = problem.score_mods[number]
        own = dict(zip(mod.aux_axes, aux_shape(problem, mod), strict=True))
        batches, heads, queries, keys, terms = shape = tuple(own.get(axis, 1) for axis in AUX_AXES)
        rule = AuxRule(number, mod.aux_derivative, keys > 1, queries > 1)  # type: ignore[arg-type]
        at_once = SquareTiles(tile).terms_at_once(rule.own_keys, rule.own_queries)
        tiles = batches * heads * ceil_div(queries, tile) * ceil_div(keys, tile)
        tiles *= ceil_div(terms, at_once)
        whole = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
        steps = 1
        for size, length, side in zip(shape[:4], whole, (1, 1, tile, tile), strict=True):
            steps *= ceil_div(length, side) if size == 1 else 1
        shares = max(1, min(steps, ENOUGH_BLOCKS // max(tiles, 1)))
        return cls(rule, shape, tiles, shares, steps)

    @property
    def shared_bytes(self) -> int:
        """Global memory for the sums of the blocks that share a tile."""
        return 4 * self.shares * math.prod(self.shape) if self.shares > 1 else 0


def chosen_tiles(problem: Problem, cc: tuple[int, int]) -> SquareTiles:
    """The tiles on a GPU of compute capability `cc`: room for the sums and two rows is left."""
    largest = SquareTiles(64)
    left = shared_limit(cc) - largest.sums_bytes - 8 * largest.tile
    return square_tiles(problem.head_dim, problem.head_dim_v, left)


def workspace(problem: Problem, wanted: Sequence[int]) -> int:
    """Bytes that `launch_aux_gradients` needs for the score changes with these numbers."""
    if not wanted:
        return 0
    tile = chosen_tiles(problem, compute_capability()).tile
    return max(AuxPlan.of(problem, number, tile).shared_bytes for number in wanted)


def with_all_axes(gradient: DeviceArray, axes: Sequence[str]) -> DeviceArray:
    """The gradient of a tensor with `axes`, seen with all of `masks.AUX_AXES`."""
    at = {axis: n for n, axis in enumerate(axes)}
    shape = tuple(gradient.shape[at[axis]] if axis in at else 1 for axis in AUX_AXES)
    strides = tuple(gradient.strides[at[axis]] if axis in at else 0 for axis in AUX_AXES)
    return gradient._replace(shape=shape, strides=strides)
