"""The Hopper backward pass for who does not mind other bits each time: whichever form is faster.

With many key tiles blocks that add to dQ as they come are: nobody waits for a turn. But dQ's sums
are then zeroed before and rounded after, in passes of their own, which few key tiles do not repay.
"""

from ..tiling import ceil_div
from . import hopper_backward
from .hopper_backward import counted_as, workspace
from .hopper_backward_tiles import HopperBackwardTiles

__all__ = ["backward", "counted_as", "workspace"]

FEW = 16
"""Key tiles that are better added in turn."""


def backward(problem, *given, **options) -> None:
    """As `hopper_backward.backward`."""
    ordered = ceil_div(problem.seqlen_k, HopperBackwardTiles.tile_n) <= FEW
    hopper_backward.backward(problem, *given, **options, ordered=ordered)
