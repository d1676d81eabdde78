"""Visits that one thread looks up for its block, traced, against every pair of positions."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOptionalSubscript=false

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from numba import cuda, types
from test_tensor_core_threads import stripes
from traced_attention import extra, run

from flash_numba import masks, tiling
from flash_numba.device.schedule import make_query_walk
from flash_numba.device.visits import SLOTS, make_note_visit, make_visit_of, walked
from flash_numba.kernels.spec import Spec
from flash_numba.problem import Problem
from flash_numba.tiling import ceil_div

TILE_M, TILE_N, FIRST = 8, 16, 5
"""Sizes of tiles, and the number of a head's first visit: not the first slot's."""

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (21, 6)},
    "lengths": {"key_lengths": np.array([30])},
    "no-keys": {"key_lengths": np.array([0])},
    "causal-lengths": {"causal": True, "key_lengths": np.array([30])},
    "list": {},
}


def problem_of(name: str, n: int, m: int) -> Problem:
    if name != "list":
        return Problem(n, m, 8, **CASES[name])
    listed = tiling.BlockMask.from_mask(
        masks.Mask("stripes", stripes), Problem(n, m, 8), TILE_M, TILE_N
    )
    return Problem(n, m, 8, block_mask=listed)


def make_walks(spec: Spec, noted: bool, last_first: bool):
    """A kernel of one thread that walks as `tensor_core_gradients` does, two visits ahead."""
    walk = spec.key_range, spec.exact, spec.has_list, TILE_M, TILE_N
    span, *_ = make_query_walk(*walk)
    note_visit, visit_of = make_note_visit(*walk), make_visit_of(noted, TILE_N)

    @cuda.jit
    def walks(Found, seqlen_q, seqlen_k, aux, listed):
        sVisits = cuda.shared.array((SLOTS, 4), types.int32)
        n_block = types.int32(cuda.blockIdx.x)
        where = n_block, 0, 0, seqlen_q, seqlen_k, aux
        start, stop = span(*where)
        walk = types.int32(start), types.int32(stop), last_first
        known = types.int32(FIRST), walk, n_block, seqlen_k
        number = types.int32(FIRST)
        if noted:
            note_visit(sVisits, number, 0, *walk, *where, listed)
            note_visit(sVisits, number + 1, walked(sVisits, number), *walk, *where, listed)
        while visit_of(sVisits, number, *known).exists:
            if noted:
                index = walked(sVisits, number + 1)
                note_visit(sVisits, number + 2, index, *walk, *where, listed)
            visit = visit_of(sVisits, number, *known)
            row = number - FIRST
            Found[n_block, row, 0], Found[n_block, row, 1] = visit.m_block, visit.turn
            Found[n_block, row, 2], Found[n_block, row, 3] = visit.is_last, visit.is_partial
            number = types.int32(number + 1)

    return walks


def visits_of(problem: Problem, n_block: int, last_first: bool) -> list[list[int]]:
    """Query tile, turn, whether it is the last, whether some score is masked, by pairs alone."""
    n, m = problem.seqlen_q, problem.key_length(0)
    rows, keys = ceil_div(n, TILE_M), ceil_div(problem.seqlen_k, TILE_N)
    sees = np.zeros((rows * TILE_M, keys * TILE_N), bool)
    q_idx, k_idx = np.ogrid[:n, :m]
    mask = problem.visibility
    sees[:n, :m] = True if mask is None else mask.keep(0, 0, q_idx, k_idx, mask.aux)
    exists = np.zeros_like(sees)
    exists[:n] = True  # a key beyond the end is a masked one
    tiles = sees.reshape(rows, TILE_M, keys, TILE_N)
    some = tiles.any((1, 3))
    whole = (tiles | ~exists.reshape(tiles.shape)).all((1, 3))
    found = []
    for m_block in range(rows) if last_first else reversed(range(rows)):
        if some[m_block, n_block]:
            before = some[m_block, n_block + 1 :] if last_first else some[m_block, :n_block]
            after = some[m_block, :n_block] if last_first else some[m_block, n_block + 1 :]
            turn = int(before.sum())
            found.append([m_block, turn, not after.any(), not whole[m_block, n_block]])
    return found


ORDERS = [(name, last_first) for name in CASES for last_first in (False, True)]
ORDERS.remove(("list", True))  # of a block list the first key tile comes first


@pytest.mark.parametrize(("name", "last_first"), ORDERS)
def test_visits(name, last_first):
    for n, m in ((70, 75), (100, 33), (9, 64)):
        problem = problem_of(name, n, m)
        spec, (_, aux, _, _, listed, _) = Spec.of(problem, True), extra(problem)
        for noted in (True, False) if name in ("full", "lengths", "no-keys") else (True,):
            rows = ceil_div(n, TILE_M)
            found = np.full((ceil_div(m, TILE_N), rows + 1, 4), -1, np.int64)
            kernel = make_walks(spec, noted, last_first)
            sizes = np.int32(n), np.int32(problem.key_length(0))
            run(kernel, len(found), 1, 0, (found, *sizes, aux, listed))
            for n_block, visits in enumerate(found):
                expected = visits_of(problem, n_block, last_first)
                assert visits[: len(expected)].tolist() == expected, (n, m, noted, n_block)
                assert (visits[len(expected) :] == -1).all()
