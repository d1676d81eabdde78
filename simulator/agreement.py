"""How far the numbers of programs are from attention computed in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from flash_numba import reference
from flash_numba.problem import DTYPES, Problem

from .run import simulate

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def differences(
    programs: Sequence[str],
    problem: Problem,
    arrays: Arrays,
    tile_m: int,
    tile_n: int,
    *,
    backward: bool = False,
    batch: int = 0,
    head: int | None = 0,
    track: Callable[[list], Iterable] = iter,
) -> dict[str, dict[str, float]]:
    """The largest absolute difference of each output from the reference, by program and output.

    Parameters
    ----------
    programs : sequence of str
        Keys of `programs.PROGRAMS`.
    problem : Problem
    arrays : q, k and v
        q of (batch, seqlen_q, num_heads, head_dim), k of (batch, seqlen_k, num_kv_heads, head_dim),
        v of (batch, seqlen_k, num_kv_heads, head_dim_v).
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    backward : bool
        Compare dQ, dK and dV too, for a normal dO that is the same for all programs.
    batch, head : int
        The query head that runs; ``head=None`` runs all of all sequences.
    track : callable
        Wraps the list of programs, to show progress.

    Raises
    ------
    ValueError
        If one head is asked of a problem whose mask, score changes or dropout may tell heads apart.
    """
    if head is not None:
        problem, arrays = alone(problem, arrays, batch, head)
    q, k, v = arrays
    shape = problem.batch, problem.seqlen_q, problem.num_heads, problem.head_dim_v
    do = np.random.default_rng(0).standard_normal(shape).astype(DTYPES[problem.dtype])
    truth = {"O": reference.forward(problem, q, k, v)[0]}
    if backward:
        found = reference.backward(problem, q, k, v, do)
        truth |= {"dQ": found.dq, "dK": found.dk, "dV": found.dv}
    result = {}
    for program in track(list(programs)):
        run = simulate(
            program,
            problem,
            q,
            k,
            v,
            do if backward else None,
            direction="backward" if backward else "forward",
            tile_m=tile_m,
            tile_n=tile_n,
            sram_bytes=None,
            head=None,
        )
        result[program] = {
            name: float(np.abs(run.arrays[name] - exact).max(initial=0))
            for name, exact in truth.items()
        }
    return result


def alone(problem: Problem, arrays: Arrays, batch: int, head: int) -> tuple[Problem, Arrays]:
    """One query head with its K and V to itself, as a problem of its own."""
    if problem.mask or problem.block_mask or problem.score_mods or problem.dropout_p:
        raise ValueError(
            "arrays of one head go without mask, block_mask, score_mods and dropout_p, which may "
            "tell heads apart; use all_heads=True"
        )
    q, k, v = arrays
    kv = head // problem.group
    keys = slice(0, problem.key_length(batch))
    mine = (
        q[batch : batch + 1, :, head : head + 1],
        k[batch : batch + 1, keys, kv : kv + 1],
        v[batch : batch + 1, keys, kv : kv + 1],
    )
    sizes = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "seqlen_k": keys.stop}
    return replace(problem, **sizes, key_lengths=None), mine
