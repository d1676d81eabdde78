"""Floating-point operations that the thread runner counts, against closed forms."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet", reason="the thread runner needs greenlet")

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from counter_cases import case_named, launches, traced
from numba import cuda, float32, int32

from flash_numba import fn
from flash_numba.device.hopper.sums import add4_global
from flash_numba.device.ptx import exp2, float_from_half, larger
from flash_numba.device.ptx_matrix import mma_m16n8k8_fp16, mma_m16n8k16_bf16
from simulator.threads import trace


@cuda.jit
def atomics(x, n):
    i = cuda.threadIdx.x
    cuda.atomic.add(x, 0, float32(1))
    cuda.atomic.sub(x, i, float32(1))
    cuda.atomic.max(x, i, float32(1))
    cuda.atomic.add(n, 0, 1)
    add4_global(x, (0,), (float32(1), float32(1), float32(1), float32(1)))


@cuda.jit
def choices(x, n):
    i = cuda.threadIdx.x
    n[i] = fn.minimum(n[i], i) + fn.maximum(n[i], i) + fn.where(i > 3, i, n[i]) + fn.abs(n[i])
    x[i] = fn.where(fn.minimum(x[i], x[0]) > float32(0), fn.abs(x[i]), larger(x[i], x[1]))


@cuda.jit
def conversions(x, n):
    i = cuda.threadIdx.x
    n[i] = math.floor(x[i]) + math.isnan(x[i])
    x[i] = float_from_half(n[i])


@cuda.jit
def functions(x, n):
    i = cuda.threadIdx.x
    x[i] = exp2(x[i]) + fn.exp(x[i])


@cuda.jit
def products(x, n):
    zero = float32(0)
    a, b = (int32(0), int32(0), int32(0), int32(0)), (int32(0), int32(0))
    c = mma_m16n8k16_bf16(a, b, (zero, zero, zero, zero))
    d = mma_m16n8k8_fp16((a[0], a[1]), (b[0],), c)
    x[cuda.threadIdx.x] = d[0]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (atomics, {"add": 32 * (2 + 4)}),
        (choices, {}),
        (conversions, {}),
        (functions, {"exp2": 32, "exp": 32, "add": 32}),
        (products, {"matmul": 2 * 16 * 8 * (16 + 8)}),
    ],
    ids=lambda one: getattr(getattr(one, "py_func", None), "__name__", ""),
)
def test_what_is_an_operation(kernel, expected):
    report = trace(kernel, check=False)[1, 32](np.zeros(32, np.float32), np.zeros(32, np.int32))
    assert dict(report.total_flops) == expected


def area(problem: dict, rows: int, columns: int) -> int:
    """Scores in those (rows, columns) parts of a head's matrix in which any pair is visible."""
    N, M = problem["seqlen_q"], problem["seqlen_k"]
    q, k = np.arange(N)[:, None], np.arange(M)
    seen = k <= q + M - N if problem.get("causal") else np.ones((N, M), bool)
    padded = np.pad(seen, ((0, -N % rows), (0, -M % columns)))
    tiles = padded.reshape(-(-N // rows), rows, -(-M // columns), columns)
    return int(tiles.any(axis=(1, 3)).sum()) * rows * columns


@pytest.mark.parametrize(
    ("name", "number", "multiplied", "rows", "columns"),
    [
        ("tensor_core-forward-full", 0, 2, 128, 128),
        ("tensor_core-forward-tails-gqa", 0, 2, 128, 64),
        ("tensor_core-backward-two-kernels", 1, 3, 64, 64),
        ("tensor_core-backward-two-kernels", 2, 4, 32, 32),
        ("hopper-forward-short", 0, 2, 128, 128),
        ("hopper-backward-even", 1, 5, 128, 128),
    ],
)
def test_products_of_tensor_cores_have_a_closed_form(name, number, multiplied, rows, columns):
    """2 operations a score, channel and product, in whole tiles of a warp or a block."""
    case = case_named(name)
    found = traced(launches(case)[number]).total_flops
    scores = case.problem["num_heads"] * area(case.problem, rows, columns)
    assert found["matmul"] == 2 * multiplied * case.problem["head_dim"] * scores
    if case.direction == "backward":
        assert found["exp2"] == scores
