"""What the thread runner says of kernels that Numba refuses, or that it cannot run."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

from bug_zoo import empty, vector
from numba import cuda, float32

from simulator.threads import KernelError, trace


@cuda.jit
def half_way(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i / 2]


@cuda.jit
def stored_half_way(x, y):
    j = cuda.threadIdx.x / 2
    y[j] = x[0]


@cuda.jit
def half_way_for_some(x, y):
    j = cuda.threadIdx.x
    if x[j] > 0:
        j = j / 2
    y[j] = x[0]


@cuda.jit
def at_a_given_place(x, y, at):
    place = at[0]
    y[cuda.threadIdx.x] = x[place]


@cuda.jit
def one_operand_too_few(x, y):
    y[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, x[0])


@cuda.jit
def no_dimensions(x, y):
    y[cuda.grid()] = x[0]


@cuda.jit(device=True)
def scaled(x, *, by=1):
    return x * by


@cuda.jit
def by_keyword_only(x, y):
    y[cuda.threadIdx.x] = scaled(x[0], by=2)


@cuda.jit
def calls_a_lambda(x, y):
    i = cuda.threadIdx.x
    y[i] = (lambda v: v + 1)(x[i])


@cuda.jit
def names_a_lambda(x, y):
    i = cuda.threadIdx.x
    plus = lambda v: v + x[i]  # noqa: E731
    y[i] = plus(1)


@cuda.jit
def defines_a_function(x, y):
    i = cuda.threadIdx.x

    def plus(v):
        return v + x[i]

    y[i] = plus(1)


@cuda.jit
def logarithm_of_halves(x, y):
    y[0] = cuda.fp16.hlog(x[0])


TESTS = Path(__file__).parent
NESTED = "a function that is made within another one ({}) is not emulated: write it outside"


@pytest.mark.parametrize(
    ("kernel", "kind", "says", "line"),
    [
        (half_way, "exception", "i / 2 is a float64: write i // 2", "y[i] = x[i / 2]"),
        (stored_half_way, "exception", "must be an integer, j is a float64", "y[j] = x[0]"),
        (half_way_for_some, "exception", "must be an integer, j is a float64", "y[j] = x[0]"),
        (one_operand_too_few, "exception", "cuda.shfl_sync: missing a", "cuda.shfl_sync("),
        (no_dimensions, "exception", "cuda.grid: missing a", "y[cuda.grid()] = x[0]"),
        (by_keyword_only, "unsupported", "keyword-only parameter by of scaled", "scaled(x[0]"),
        (calls_a_lambda, "unsupported", NESTED.format("lambda"), "(lambda v: v + 1)(x[i])"),
        (names_a_lambda, "unsupported", NESTED.format("lambda"), "plus = lambda v"),
        (defines_a_function, "unsupported", NESTED.format("plus"), "def plus(v):"),
        (logarithm_of_halves, "unsupported", "cuda.fp16.hlog is not emulated", "hlog(x[0])"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(kernel, kind, says, line):
    with pytest.raises(KernelError) as caught:
        trace(kernel)[1, 32](vector(64), empty(64))
    finding = caught.value.finding
    assert finding.kind == kind
    assert says in finding.message
    assert line in finding.places[0].text


def test_an_index_that_is_a_float_only_at_run_time():
    at = np.array([1.5], np.float32)
    with pytest.raises(KernelError, match="an index must be an integer") as caught:
        trace(at_a_given_place)[1, 32](vector(64), empty(64), at)
    assert caught.value.finding.places[0].text == "y[cuda.threadIdx.x] = x[place]"


def test_functions_of_halves_are_the_same_once_something_was_compiled():
    """Numba binds ``cuda.fp16`` only then."""
    program = (
        "import numpy as np; from numba import cuda, types; import test_threads_messages as these\n"
        "from simulator.threads import trace\n"
        "cuda.compile(lambda x: x, (types.float32,), device=True, cc=(9, 0))\n"
        "assert cuda.fp16.__name__ == 'numba.cuda.fp16'\n"
        "these.test_halves_are_rounded_once()\n"
        "named = these.test_what_is_wrong_is_named_with_its_line\n"
        "says = 'cuda.fp16.hlog is not emulated'\n"
        "named(these.logarithm_of_halves, 'unsupported', says, 'hlog(x[0])')"
    )
    pytest.importorskip("numba_cuda", reason="compiles with numba-cuda")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr.decode()


@cuda.jit
def halves(x, y, z, out, truths):
    i = cuda.threadIdx.x
    a, b, c = x[i], y[i], z[i]
    out[0, i] = cuda.fp16.hadd(a, b)
    out[1, i] = cuda.fp16.hsub(a, b)
    out[2, i] = cuda.fp16.hmul(a, b)
    out[3, i] = cuda.fp16.hdiv(a, b)
    out[4, i] = cuda.fp16.hfma(a, b, c)
    out[5, i] = cuda.fp16.hneg(a)
    out[6, i] = cuda.fp16.habs(a)
    out[7, i] = cuda.fp16.hmax(a, b)
    out[8, i] = cuda.fp16.hmin(a, b)
    truths[0, i] = cuda.fp16.heq(a, b)
    truths[1, i] = cuda.fp16.hne(a, b)
    truths[2, i] = cuda.fp16.hlt(a, b)
    truths[3, i] = cuda.fp16.hle(a, b)
    truths[4, i] = cuda.fp16.hgt(a, b)
    truths[5, i] = cuda.fp16.hge(a, b)


def test_halves_are_rounded_once():
    """Against sums and products that are exact in float64, for numbers of like size."""
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(3, 128)).astype(np.float16)
    x[:4], y[:4] = (np.nan, 1, np.nan, 2), (1, np.nan, np.nan, 2)
    out, truths = np.zeros((9, 128), np.float16), np.zeros((6, 128), np.bool_)
    trace(halves)[1, 128](x, y, z, out, truths)
    a, b, c = (one.astype(np.float64) for one in (x, y, z))
    found = [a + b, a - b, a * b, a / b, a * b + c, -a, abs(a), np.fmax(a, b), np.fmin(a, b)]
    np.testing.assert_array_equal(out, np.array(found).astype(np.float16))
    assert np.any(out[4] != (x * y + z))
    numbers = ~(np.isnan(x) | np.isnan(y))
    expected = [a == b, (a != b) & numbers, a < b, a <= b, a > b, a >= b]
    np.testing.assert_array_equal(truths, expected)


@cuda.jit
def truncations(x, y):
    y[cuda.threadIdx.x] = math.trunc(x[cuda.threadIdx.x])


def test_floats_of_32_bits_are_truncated():
    x, y = np.array([1.7, -1.7, 3, 0.2], np.float32), np.zeros(4, np.int64)
    trace(truncations)[1, 4](x, y)
    assert y.tolist() == [1, -1, 3, 0]


@cuda.jit
def one_too_far(x, y):
    kept = cuda.local.array(8, float32)
    for k in range(9):
        kept[k] = x[k]
    y[0] = kept[0]


@cuda.jit
def one_row_too_far(x, y):
    kept = cuda.local.array((2, 3), float32)
    for i in range(2):
        for k in range(3):
            kept[i, k] = x[k]
    y[0] = kept[cuda.blockDim.x, 0] + kept[0, 0]


@cuda.jit
def one_row_too_far_by_name(x, y):
    kept = cuda.local.array((2, 3), float32)
    for i in range(3):
        kept[i, 1] = x[0]
    y[0] = kept[0, 1]


@pytest.mark.parametrize(
    ("kernel", "says", "line"),
    [
        (one_too_far, "local array kept of shape (8,) is indexed at 8", "kept[k] = x[k]"),
        (one_row_too_far, "local array kept of shape (2, 3) is indexed outside", "y[0] = kept"),
        (one_row_too_far_by_name, "kept of shape (2, 3) is indexed at (2, 1)", "kept[i, 1] = x"),
    ],
)
def test_a_local_array_out_of_bounds_has_a_name_and_an_index(kernel, says, line):
    with pytest.raises(KernelError) as caught:
        trace(kernel)[1, 32](vector(64), empty(64))
    finding = caught.value.finding
    assert finding.kind == "out of bounds"
    assert says in finding.message
    assert line in finding.places[0].text
