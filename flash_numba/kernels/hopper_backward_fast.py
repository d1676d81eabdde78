"""The Hopper backward pass for who does not mind other bits each time: whichever form is faster.

With many key tiles blocks that add to dQ as they come are: nobody waits for a turn. But dQ's sums
are then zeroed before and rounded after, in passes of their own, which few key tiles do not repay.
A mask halves what there is to repay with: causal, a query sees half of the key tiles.
"""

from ..tiling import ceil_div
from . import hopper_backward
from .hopper_backward import counted_as, workspace
from .hopper_backward_tiles import NARROW, HopperBackwardTiles, is_masked

__all__ = ["backward", "counted_as", "workspace"]

FEW, FEW_MASKED, FEW_WIDE = 4, 8, 16
"""Tiles of 128 keys that are better added in turn: without and with a mask, and of wide heads."""


def backward(problem, *given, **options) -> None:
    """As `hopper_backward.backward`."""
    few = FEW_MASKED if is_masked(problem) else FEW
    if max(problem.head_dim, problem.head_dim_v) > NARROW:
        few = FEW_WIDE
    ordered = ceil_div(problem.seqlen_k, HopperBackwardTiles.tile_n) <= few
    hopper_backward.backward(problem, *given, **options, ordered=ordered)
