"""Packed batches for tests: problems, arrays whose unused rows hold NaN, and the right answers."""

from typing import Any

import numpy as np

from flash_numba.problem import DTYPES, Problem
from flash_numba.sequences import Packed, Sequences, Side


def packed_problem(rows_q, rows_k, used_q=None, used_k=None, slack=(0, 0), **options) -> Any:
    """A problem of sequences with so many rows, and its `Packed`; `slack` rows follow the last."""
    starts = [np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]) for rows in (rows_q, rows_k)]
    totals = [int(first[-1]) + more for first, more in zip(starts, slack, strict=True)]
    used = used_q, used_k
    sides = [Side.of(*side) for side in zip(totals, starts, used, strict=True)]
    problem = Problem(
        *totals, batch=len(rows_q), sequences=Sequences(*totals, *sides), **options
    )  # fmt: skip
    cu_q, cu_k, used_q, used_k = (
        None if x is None else np.asarray(x, np.int32) for x in (*starts, *used)
    )
    return problem, Packed(cu_q, cu_k, used_q, used_k)


def packed_arrays(problem: Problem, seed=0) -> dict[str, Any]:
    """q, k, v and do; NaN in rows that count in no sequence."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in ("q", "k", "v", "do"):
        array = rng.standard_normal(problem.shapes[name]).astype(DTYPES[problem.dtype])
        array[problem.side_of(name).outside] = np.nan
        found[name] = array
    return found


def one_by_one(problem: Problem, answer, **arrays) -> dict[str, Any]:
    """What `answer(problem, batch, **arrays)` says of each sequence alone, put together again.

    `answer` gets dense problems of one sequence, whose number is `batch`, and gives outputs by
    name. Rows outside of the sequences are 0, of lse -inf.
    """
    names = "o", "lse", "dq", "dk", "dv"
    found = {n: np.zeros(problem.shapes[n]) for n in names}
    found["lse"][:] = -np.inf
    for batch in range(problem.batch):
        alone = problem.sequence(batch)
        parts = {n: problem.of_sequence(n, x, batch)[None] for n, x in arrays.items()}
        for name, part in answer(alone, batch, **parts).items():
            problem.of_sequence(name, found[name], batch)[...] = part[0]
    return found


def packed_cases():
    """Inputs on which variable-length kernels have failed, from public reports: see `cases`.

    Each is an id, ``(problem, packed)``, arrays, and right answers by name.
    """
    problem, packed = packed_problem(
        [76, 34, 146], [1, 1, 1], head_dim=32, dtype="fp16", causal=True
    )
    arrays = packed_arrays(problem, 2)
    arrays["do"][:] = 1
    o = np.zeros(problem.shapes["o"])
    o[[75, 109, 255]] = arrays["v"]  # only a sequence's last query sees its one key
    zero = {"dq": np.zeros(problem.shapes["q"]), "dk": np.zeros(problem.shapes["k"])}
    yield "K02", (problem, packed), arrays, zero | {"o": o, "dv": np.ones(problem.shapes["v"])}

    heads = {"num_heads": 4, "num_kv_heads": 1, "head_dim": 16, "dtype": "fp16"}
    problem, packed = packed_problem([0, 20, 20], [41, 22, 60], **heads)
    arrays = packed_arrays(problem, 29)
    yield "K29", (problem, packed), arrays, {}

    problem, packed = packed_problem(
        [3, 4, 2], [3, 4, 2], [2, 3, 1], [2, 3, 1], head_dim=16, dtype="fp16"
    )
    yield "K34", (problem, packed), packed_arrays(problem, 34), {}

    problem, packed = packed_problem([16] * 20, [16] * 20, head_dim=16, dtype="fp16")
    yield "K54", (problem, packed), packed_arrays(problem, 54), {}
