"""What device code computes, by CUDA's and Numba's rules."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

import traced_kernels as kernels
from bug_zoo import empty, vector

from simulator.threads import trace

F32 = np.float32
ROOT = Path(__file__).parents[1]


def normal(n=32, seed=0):
    return np.random.default_rng(seed).standard_normal(n, np.float32)


def test_float_literals_are_float64():
    x, y = normal(), empty(32)
    trace(kernels.float_literal)[1, 32](x, y)
    wide = x.astype(np.float64) * 0.1
    np.testing.assert_array_equal(y, (wide + wide).astype(F32))


def test_float32_with_an_integer_is_float64():
    x, y = normal(seed=1), empty(32)
    trace(kernels.float_times_int)[1, 32](x, y)
    wide, i = x.astype(np.float64), np.arange(32)
    np.testing.assert_array_equal(y, (wide * i + wide / (i + 1)).astype(F32))


def test_variable_that_starts_as_int_accumulates_in_float64():
    x, y = normal(1000, seed=2), empty(1)
    trace(kernels.accumulate_from_int)[1, 1](x, y)
    total = 0.0
    for one in x:
        total += float(one)
    assert y[0] == F32(total)


def test_float16_rounds_after_each_operation():
    x, y = normal(seed=3), np.zeros(32, np.float16)
    trace(kernels.half_arithmetic)[1, 32](x, y)
    half = x.astype(np.float16)
    np.testing.assert_array_equal(y, half * half)


def test_integers_wrap_as_their_types_do():
    x = np.random.default_rng(4).integers(0, 2**31, 32, dtype=np.int32)
    y = np.zeros((5, 32), np.int32)
    trace(kernels.wrapping)[1, 32](x, y)
    wide = x.astype(object)

    def as_int32(values):
        return [(int(v) + 2**31) % 2**32 - 2**31 for v in values]

    assert y[0].tolist() == as_int32(wide * 65537)
    assert y[1].tolist() == as_int32(wide * 2654435769)
    assert y[2].tolist() == as_int32((wide * 0xD2511F53) // 2**32)
    assert y[3].tolist() == as_int32([-v // 7 for v in wide])
    np.testing.assert_array_equal(y[4], np.trunc(-x.astype(F32) / F32(7)).astype(np.int32))


def test_a_float_beyond_an_integer_type_is_its_nearest():
    """As PTX's ``cvt.rzi`` has it, which is what casts compile to."""
    x = np.array([3e9, -3e9, 5e9, -3.7, 3.7, np.inf, -np.inf, np.nan], F32)
    signed, unsigned = np.zeros(8, np.int32), np.zeros(8, np.uint32)
    trace(kernels.clamping)[1, 8](x, signed, unsigned)
    most, least = 2**31 - 1, -(2**31)
    assert signed.tolist() == [most, least, most, -3, 3, most, least, 0]
    assert unsigned.tolist() == [3_000_000_000, 0, 2**32 - 1, 0, 3, 2**32 - 1, 0, 0]


def test_fma_rounds_once():
    x, y = normal(seed=5), empty(32)
    trace(kernels.fused)[1, 32](x, y)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y, (wide * wide - wide).astype(F32))


def test_collectives_of_a_warp():
    x, y = vector(32), np.zeros((9, 32), np.float32)
    trace(kernels.collectives)[1, 32](x, y)
    i = np.arange(32)
    expected = [
        np.full(32, 5),
        np.maximum(i - 1, 0),
        np.where(i + 3 < 32, i + 3, i),
        i ^ 9,
        np.full(32, sum(1 << n for n in range(11, 32))),
        np.ones(32),
        np.zeros(32),
        0x11111111 << (i % 4),
        np.full(32, 7),
    ]
    np.testing.assert_array_equal(y, np.array(expected, np.float64).astype(F32))


def test_active_lanes_are_those_that_come_the_same_way():
    y, z = np.zeros(40, np.uint32), np.zeros(40, np.uint32)
    trace(kernels.active)[1, 40](y, z)
    lanes = np.arange(40)
    full = np.where(lanes < 32, 0xFFFFFFFF, 0xFF)
    np.testing.assert_array_equal(y, full)
    thirds = [sum(1 << (j % 32) for j in lanes if j // 32 == w and j % 3 == 0) for w in (0, 1)]
    mine = np.array(thirds)[lanes // 32]
    np.testing.assert_array_equal(z, np.where(lanes % 3 == 0, mine, full - mine))


def test_barriers_that_count():
    x, y = vector(64), np.zeros((3, 64), np.int32)
    trace(kernels.barriers_that_count)[1, 64](x, y)
    np.testing.assert_array_equal(y, np.array([[53], [1], [0]]) * np.ones((1, 64), np.int32))


def test_atomics():
    x, y, n = vector(64) - 20, np.zeros(3, np.float32), np.zeros(2, np.int32)
    report = trace(kernels.atomics)[2, 64](x, y, n)
    assert y.tolist() == [2 * float(x.sum()), 43, -20]
    assert n.tolist() == [7, 1]
    assert report.count("global", "atomic").instructions == 5 * 4


def test_indices_in_three_dimensions():
    y = np.zeros((4, 6, 2), np.int32)
    trace(kernels.indices)[(2, 3, 1), (2, 2, 2)](y)
    i, j, k = np.ogrid[:4, :6, :2]
    expected = i % 2 + 10 * (j % 2) + 100 * k + 1000 * (i // 2) + 10000 * (j // 2)
    np.testing.assert_array_equal(y, expected)


def test_views_of_arrays():
    x, y = np.arange(64, dtype=F32).reshape(2, 32), np.zeros((1, 34), F32)
    trace(kernels.views)[1, 32](x, y)
    np.testing.assert_array_equal(y[0, 2:], x[1] + 31)
    assert y[0, :2].tolist() == [0, 0]


def test_dynamic_shared_memory():
    x, y = vector(), empty(64)
    report = trace(kernels.dynamic_shared)[1, 64, 0, 256](x, y)
    np.testing.assert_array_equal(y, x[::-1])
    assert report.shared_bytes == 256


def test_spinning_thread_lets_the_others_run():
    y = np.zeros(1, np.float32)
    trace(kernels.waits_for_the_other_warp)[1, 64](np.zeros(1, np.int32), y)
    assert y[0] == 1


def test_captured_values_functions_and_tables():
    x = normal(seed=6)
    for function, table in ((None, None), (lambda v: abs(v) + v, np.array([1.0, 2.0], F32))):
        y = empty(32)
        kernel = kernels.make_scaled(kernels.Scale(0.5, 3), function, table)
        trace(kernel)[1, 32](x, y)
        expected = x * F32(0.5) + F32(3)
        if function and table is not None:
            expected = abs(expected) + expected + np.tile(table, 16)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "uint16", "int64", "float16", "float64", "bool"]
)
def test_every_element_type_goes_through(dtype):
    x = np.random.default_rng(7).integers(0, 2, 32).astype(dtype)
    y = np.zeros(32, dtype)
    report = trace(kernels.copy)[1, 32](x, y)
    np.testing.assert_array_equal(y, x)
    assert report.count("global", "load").bytes == x.nbytes


def test_arguments_that_share_memory_are_one_memory():
    both = np.stack([vector(32), np.zeros(32, F32)])
    report = trace(kernels.copy)[1, 32](both[0], both[1])
    np.testing.assert_array_equal(both[0], both[1])
    assert len({id(entry.memory) for entry in report.entries}) == 1


def test_one_memory_seen_as_several_types():
    workspace = np.zeros(64, np.uint8)
    x, y = workspace[:32].view(np.float32), workspace[32:48].view(np.uint16)
    x[:] = np.arange(8)
    report = trace(kernels.copy)[1, 8](x, y)
    np.testing.assert_array_equal(y, np.arange(8))
    assert report.count("global", "load").bytes == 32
    assert report.count("global", "store").bytes == 16
    assert len({id(entry.memory) for entry in report.entries}) == 1


def test_uncounted_run_computes_the_same():
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal((64, 64), F32) for _ in range(3)]
    outs = [empty(64, 64), empty(64, 64)]
    for out, count in zip(outs, (True, False), strict=True):
        trace(kernels.make_naive(), count=count)[2, 32](*arrays, out, F32(0.125))
    np.testing.assert_array_equal(outs[0], outs[1])


LEARNER = """
from numba import cuda, float32
import math

def helper(v):
    return math.sqrt(v)

@cuda.jit(device=True)
def twice(v):
    return helper(v) + helper(v)

@cuda.jit
def mine(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = twice(x[i])

def plain(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = twice(x[i])
"""
TRACE_IT = """
import sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "plain numba":
    sys.meta_path[:] = [one for one in sys.meta_path if "redirector" not in type(one).__module__]
import numpy as np
import learner
from simulator.threads import trace
assert ("numba_cuda" in learner.cuda.__file__) == (sys.argv[2] != "plain numba")
for kernel in (learner.mine, learner.plain):
    x, y = np.arange(100, dtype=np.float32), np.full(100, np.nan, np.float32)
    report = trace(kernel)[4, 32](x, y)
    assert np.array_equal(y, 2 * np.sqrt(x))
    assert report.count("global", "load").sectors == 13
"""


@pytest.mark.parametrize("target", ["installed", "plain numba"])
def test_a_learners_own_kernel(tmp_path, target):
    if target == "installed":
        target = (
            "numba_cuda"
            if pytest.importorskip("numba.cuda").__file__.count("numba_cuda")
            else "plain numba"
        )
    (tmp_path / "learner.py").write_text(LEARNER)
    command = [sys.executable, "-c", TRACE_IT, str(tmp_path), target]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
