"""What the same bits each time cost, and whether a call that does not say gets them.

A rung may have two forms of its backward pass. In one, blocks add to dQ in turn, so that its sum
has the same bits each time; in the other as they come. The first is the default unless it takes
more than `MOST` times as long on an H200, as `benchmarks/results` has it, and is so in any case
where the arrays' library asks for it (`arrays.Place.wished`).
"""

from .problem import Problem

MOST = 1.2
"""Time in turn over time as blocks come: what costs more is not in turn unless a call asks."""
WIDE, LONG = 128, 8192
"""Where it is more: heads wider than this under a mask, with at least so many keys."""


def costs_much(problem: Problem) -> bool:
    """Whether the same bits each time cost a backward pass more than `MOST`.

    Blocks of wide heads have 64 keys in place of 128, so that twice as many add to a query's dQ,
    and under a mask each one begins just when the one before it wants to add.
    """
    masked = problem.visibility is not None or problem.block_mask is not None
    wide = max(problem.head_dim, problem.head_dim_v) > WIDE
    return wide and masked and problem.seqlen_k >= LONG
