"""Variables that hold numbers of several types: everywhere of the type that Numba gives them."""

# numba's stubs are taken at their word: they lack cuda.compile and what njit gives.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportPrivateImportUsage=false, reportIndexIssue=false, reportOptionalCall=false
# pyright: reportOperatorIssue=false

import ast
import warnings

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

import versioned_variables as functions
from numba import cuda, njit, types

from simulator.threads import trace
from simulator.threads.translate.versions import versioned


def traced(function, x, y, dtype):
    """What `function` gives for each pair of numbers in a kernel."""
    device = cuda.jit(device=True)(function)

    @cuda.jit
    def kernel(x, y, o):
        i = cuda.threadIdx.x
        o[i] = device(x[i], y[i])

    o = np.zeros(len(x), dtype)
    trace(kernel)[1, len(x)](x, y, o)
    return o


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int32"])
@pytest.mark.parametrize("function", functions.FUNCTIONS, ids=lambda one: one.__name__)
def test_numbers_are_those_that_numba_compiles(function, dtype):
    """`numba.njit` types variables as numba-cuda does, and the arithmetic is the same."""
    x, y = np.array([[3, 200, 1, 9, 40], [5, 7, 9, 2, 200]]).astype(dtype)
    compiled = njit(function)
    expected = np.array([compiled(*pair) for pair in zip(x, y, strict=True)])
    given = str(compiled.nopython_signatures[0].return_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signature = (getattr(types, dtype),) * 2
        assert str(cuda.compile(function, signature, device=True, cc=(9, 0))[1]) == given
    np.testing.assert_array_equal(traced(function, x, y, given), expected.astype(given))


def test_what_a_device_function_gives_has_one_type():
    x, y = np.array([3, 200, 9], np.uint8), np.array([5, 7, 9], np.uint8)
    assert traced(functions.of_a_function, x, y, np.int64).tolist() == [-3, 199, -1]


def test_a_variable_of_one_type_is_left_alone():
    """And so is its text, which the fingerprints of kernels are made of."""
    body = ast.parse("a = 1\nb = a\nif a:\n    a = b").body
    assert ast.unparse(versioned(body, {"c"}, [])) == ast.unparse(body)


def test_ways_that_meet_bring_a_version_that_is_read():
    body = ast.parse("if x:\n    x = 1\n    y = 2\nelse:\n    y = 3\nx = x + 1").body
    assert ast.unparse(versioned(body, {"x", "y"}, ["x"])).splitlines() == [
        "if x:",
        "    x·1 = 1",
        "    y·1 = 2",
        "    x·2 = x·1",
        "else:",
        "    y·2 = 3",
        "    x·2 = x",
        "x·3 = x·2 + 1",
    ]


@cuda.jit
def coordinate(a, o):
    x = cuda.threadIdx.x
    v = a[x]
    x = x / 32
    o[cuda.threadIdx.x] = v * x


@pytest.mark.parametrize("blocks", [None, "representative"])
def test_an_index_that_becomes_a_coordinate(blocks):
    a, o = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    report = trace(coordinate, blocks=blocks)[1, 32](a, o)
    np.testing.assert_array_equal(o, (a * np.arange(32) / 32).astype(np.float32))
    assert report.count("global", "load").instructions == 1
