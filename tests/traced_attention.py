"""Random problems for kernels that run thread by thread on a CPU, and what they are handed."""

from typing import Any

import numpy as np
import pytest

from flash_numba import dropout
from flash_numba.device.functions import chain_aux
from flash_numba.problem import DTYPES, Problem
from simulator.threads import Report, trace

REVERSED = tuple(reversed(range(32)))
SIZES: dict[str, Any] = {"seqlen_q": 21, "seqlen_k": 50, "head_dim": 20}
CASES = {
    "full": SIZES,
    "causal-gqa": SIZES | {"causal": True, "num_heads": 2, "num_kv_heads": 1},
    "causal-more-queries": {"seqlen_q": 50, "seqlen_k": 21, "head_dim": 20, "causal": True},
    "window-lengths": SIZES | {"batch": 2, "window": (9, 3), "key_lengths": np.array([0, 37])},
    "wider-v": SIZES | {"head_dim_v": 40},
    "bf16": SIZES | {"dtype": "bf16", "causal": True},
    "fp16": SIZES | {"dtype": "fp16"},
    "negative-scale": SIZES | {"softmax_scale": -0.7},
    "dropout": SIZES | {"dropout_p": 0.4, "seed": 2**33 + 5},
}


def run(kernel, blocks, threads, shared_bytes, arguments, order=None, count=False) -> Report | None:
    """Run a kernel; with `count`, races and reads of what nobody wrote are errors too."""
    if blocks:
        return trace(kernel, count=count, order=order)[blocks, threads, 0, shared_bytes](*arguments)
    return None


def random_problem(seed=0, **options) -> Any:
    """A problem, and q, k, v and do for it."""
    rng = np.random.default_rng(seed)
    problem = Problem(**options)
    return problem, *(
        rng.standard_normal(problem.shapes[name]).astype(DTYPES[problem.dtype])
        for name in ("q", "k", "v", "o")
    )


def stored(array):
    """As kernels see it: 16-bit numbers are words."""
    return array if array.dtype.itemsize != 2 else array.view(np.uint16)


def blank(shape, dtype=np.float32):
    """Memory that holds NaN."""
    return np.full(shape, np.nan, dtype)


def extra(problem):
    """What `kernels.arguments.extra_arguments` gives, on the host; a block list must fit."""
    mask, ranges, listed = problem.visibility, problem.range_mask, problem.block_mask
    numbers = ()
    if problem.dropout_p:
        limit = dropout.threshold(problem.dropout_p)
        words = problem.seed & 0xFFFFFFFF, problem.seed >> 32, limit
        numbers = (*map(np.uint64, words), np.float32(1 / (1 - problem.dropout_p)))
    heads = problem.batch, problem.num_heads
    return (
        mask.aux if mask else (),
        ranges.aux if ranges else (),
        chain_aux(mod.aux for mod in problem.score_mods),
        () if problem.key_lengths is None else (problem.key_lengths,),
        () if listed is None else (np.broadcast_to(listed.kinds, heads + listed.kinds.shape[2:]),),
        numbers,
    )


def truth(problem, q, k, v, dout=None, dlse=None):
    """Attention in float64."""
    torch = pytest.importorskip("torch")
    from dense import attention

    tensors = [
        None if x is None else torch.from_numpy(np.asarray(x, np.float64))
        for x in (q, k, v, dout, dlse)
    ]
    return attention(problem, *tensors)


def budget_of(problem) -> float:
    """Rounding of scores of head_dim terms in float32, and of the element type."""
    unit = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}[problem.dtype]
    return 64 * 2.0**-24 * problem.head_dim + 4 * unit


def check(problem, got, want):
    """Hold {"o": ..., "lse": ..., "dq": ...} against `truth`, NaN nowhere."""
    budget = budget_of(problem)
    for name, array in got.items():
        exact = getattr(want, "out" if name == "o" else name).numpy()
        array = np.asarray(array, np.float64)
        assert array.shape == exact.shape, name
        assert np.array_equal(array == -np.inf, exact == -np.inf), name
        seen = exact > -np.inf
        error = np.abs(array[seen] - exact[seen]).max(initial=0.0)
        allowed = budget * {"lse": 1, "o": 4}.get(name, 16)
        assert error <= allowed, f"{name}: error {error} over {allowed}"


def moved(reports, array: str) -> tuple[int, int]:
    """Elements of a tensor of 4-byte numbers in global memory that launches read and wrote."""
    array = "dLSE[0]" if array == "dLSE" else array  # it comes in a tuple
    counts = [
        [report.count("global", operation, array).bytes // 4 for report in reports]
        for operation in ("load", "store")
    ]
    return sum(counts[0]), sum(counts[1])
