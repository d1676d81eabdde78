"""`counts`: the closed form of a program on a problem."""

from __future__ import annotations

import numpy as np

from flash_numba.checks import LARGEST, index, one_of, whole
from flash_numba.problem import Problem, check_problem

from ..counts import Counts
from . import flash, standard
from .tally import Sizes
from .visits import Visits, listed_visits, range_visits

_FORMS = {
    "algorithm0": (standard.algorithm0_forward, standard.algorithm0_backward),
    "fused_softmax": (standard.fused_softmax_forward, standard.fused_softmax_backward),
    "with_mask_and_dropout": (
        standard.with_mask_and_dropout_forward,
        standard.with_mask_and_dropout_backward,
    ),
    "tiled": (standard.tiled_forward, standard.tiled_backward),
    "flash1": (flash.flash1_forward, flash.flash1_backward),
    "flash2": (flash.flash2_forward, flash.flash2_backward),
    "flash2_two_kernel": (flash.flash2_forward, flash.flash2_two_kernel_backward),
}

PROGRAMS = tuple(_FORMS)
"""Names of all programs, standard attention first."""

_FORMS["aux_gradient"] = flash.flash2_forward, flash.aux_gradient  # a pass by itself

BASELINES = PROGRAMS[:3]
"""The idealised ones: no tiles, no SRAM capacity."""

_WHOLE_MATRIX = PROGRAMS[:4]


def counts(
    program: str,
    problem: Problem,
    tile_m: int,
    tile_n: int,
    *,
    direction: str,
    batch: int = 0,
    head: int = 0,
    all_heads: bool = False,
    visited: np.ndarray | None = None,
    dlse: bool = False,
) -> Counts:
    """Exact counts of one pass of a program, without running it.

    Parameters
    ----------
    program : str
        A name in `PROGRAMS`, or "aux_gradient" for the pass of `simulator.programs.AUX_GRADIENT`.
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile; the baselines have none and ignore them.
    direction : str
        "forward" or "backward".
    batch, head : int
        The query head that is counted, as if it had its K and V to itself.
    all_heads : bool
        Count the schedule of all sequences and heads instead: a backward block that owns a key
        tile serves all query heads that share its kv head.
    visited : bool array of shape (query tiles, key tiles) or (batch or 1, heads or 1, ...)
        The tiles that are visited, needed by flash programs where the problem has a mask other
        than causal, window and key lengths. Key tiles beyond a sequence's own keys are ignored.
    dlse : bool
        A gradient through lse is given (backward).

    Returns
    -------
    Counts

    Raises
    ------
    ValueError
        Naming the argument, what is allowed and what was received.
    """
    check_problem(problem)
    one_of("program", program, _FORMS)
    one_of("direction", direction, ("forward", "backward"))
    tile_m, tile_n = whole("tile_m", tile_m, 1, LARGEST), whole("tile_n", tile_n, 1, LARGEST)
    if not all_heads:
        index("batch", batch, problem.batch)
        index("head", head, problem.num_heads)
    backward = direction == "backward"
    if backward and dlse and program in BASELINES:
        raise ValueError(f"dlse must be False for {program}, which writes no lse; got {dlse!r}")
    group = problem.group if backward and all_heads else 1
    chosen = None if all_heads else (batch, head)
    if program in _WHOLE_MATRIX:
        visits = _by_length(problem, tile_m, tile_n, chosen, group, masked=False)
    elif visited is not None:
        visits = _by_list(problem, tile_m, tile_n, chosen, group, np.asarray(visited))
    elif problem.mask is None and problem.block_mask is None:
        visits = _by_length(problem, tile_m, tile_n, chosen, group, masked=True)
    else:
        raise ValueError(
            "visited must be given for a problem with mask or block_mask: there is a closed form "
            "for full, causal, window and key lengths only; got None"
        )
    form, sizes = _FORMS[program][backward], Sizes.of(problem)
    if backward and program not in BASELINES:
        found = form(visits, sizes, bool(dlse))
    else:
        found = form(visits, sizes)
    if all_heads and problem.sequences is not None:
        found += _outside(problem, backward, program in BASELINES)
    return found


def _outside(problem: Problem, backward: bool, idealised: bool) -> Counts:
    """Zeros, and lse of -inf, in the rows of a packed batch that count in no sequence."""
    assert problem.sequences is not None
    q_rows, k_rows = problem.sequences.total_q, problem.sequences.total_k
    for (queries, keys), (_, sequences) in problem.alike().items():
        q_rows, k_rows = q_rows - sequences * queries, k_rows - sequences * keys
    rows, kv_rows = q_rows * problem.num_heads, k_rows * problem.num_kv_heads
    d, v = problem.head_dim, problem.head_dim_v
    lse = 0 if backward or idealised else rows
    writes = {"dQ": rows * d, "dK": kv_rows * d, "dV": kv_rows * v} if backward else {"O": rows * v}
    size = problem.itemsize * sum(writes.values()) + 4 * lse
    peak = None if idealised else 0
    return Counts(writes=writes | {"LSE": lse}, hbm_bytes=size, sram_peak_bytes=peak)


def _by_length(
    problem: Problem, tile_m: int, tile_n: int, chosen, group: int, *, masked: bool
) -> Visits:
    """Visits of one head (`chosen`) or of all: sequences of one length are alike."""
    lengths = problem.alike()
    if chosen:
        own = problem.sequence(chosen[0])
        lengths = {(own.seqlen_q, own.key_length(chosen[0])): (chosen[0], 1)}
    total = Visits()
    for (queries, keys), (_, sequences) in lengths.items():
        heads = sequences * (1 if chosen else problem.num_heads)
        total += range_visits(
            problem,
            tile_m,
            tile_n,
            queries=queries,
            keys=keys,
            heads=heads,
            kv_heads=heads // group,
            masked=masked,
        )
    return total


def _by_list(
    problem: Problem, tile_m: int, tile_n: int, chosen, group: int, visited: np.ndarray
) -> Visits:
    """Visits of one head (`chosen`) or of all, group by group, from the visited tiles."""
    visited = _checked_visited(problem, tile_m, tile_n, visited)
    if chosen:
        groups = [(chosen[0], slice(chosen[1], chosen[1] + 1))]
    else:
        starts = range(0, problem.num_heads, group)
        groups = [(b, slice(h, h + group)) for b in range(problem.batch) for h in starts]
    total = Visits()
    for batch, heads in groups:
        keys = problem.key_length(batch)
        total += listed_visits(problem, tile_m, tile_n, keys=keys, visited=visited[batch, heads])
    return total


def _checked_visited(problem: Problem, tile_m: int, tile_n: int, visited) -> np.ndarray:
    """`visited` as (batch, heads, query tiles, key tiles)."""
    tiles = -(-problem.seqlen_q // tile_m), -(-problem.seqlen_k // tile_n)
    outer = problem.batch, problem.num_heads
    given = visited.reshape(1, 1, *visited.shape) if visited.ndim == 2 else visited
    fits = given.ndim == 4 and all(
        size in (1, most) for size, most in zip(given.shape, outer, strict=False)
    )
    if visited.dtype != bool or not fits or given.shape[2:] != tiles:
        raise ValueError(
            f"visited must be bool of shape {tiles} or (1 or {outer[0]}, 1 or {outer[1]}, "
            f"{tiles[0]}, {tiles[1]}), got {visited.dtype} of shape {visited.shape}"
        )
    return np.broadcast_to(given, (*outer, *tiles))
