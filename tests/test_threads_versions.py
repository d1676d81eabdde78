"""Variables that hold numbers of several types: everywhere of the type that Numba gives them."""

# numba's stubs are taken at their word: they lack cuda.compile and what njit gives.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportPrivateImportUsage=false, reportIndexIssue=false, reportOptionalCall=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import ast
import warnings

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

import versioned_variables as functions
from numba import cuda, float32, float64, njit, types

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
    assert ast.unparse(versioned(body, {"c"}, [])[0]) == ast.unparse(body)


def test_ways_that_meet_bring_a_version_that_is_read():
    body = ast.parse("if x:\n    x = 1\n    y = 2\nelse:\n    y = 3\nx = x + 1").body
    found, copies = versioned(body, {"x", "y"}, ["x"])
    assert len(copies & {*ast.walk(ast.Module(found, []))}) == 2
    assert ast.unparse(found).splitlines() == [
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


@cuda.jit
def arrays_of_one_name(a, y):
    """Two local arrays, two shared ones, and an array that becomes its element."""
    i = cuda.threadIdx.x
    r = cuda.local.array(2, float32)
    r[0], r[1] = a[i], float32(2)
    p = r[0] * r[1]
    r = cuda.local.array((2, 3), float64)
    r[1, 2] = p
    s = cuda.shared.array(32, float32)
    s[i] = a[i]
    p = s[i]
    s = cuda.shared.array(32, float64)
    s[i] = p
    a = a[i]
    y[i] = r[1, 2] + s[i] + a * a


def test_arrays_may_share_a_name():
    a, y = np.arange(32, dtype=np.float32), np.zeros(32)
    report = trace(arrays_of_one_name)[1, 32](a, y)
    assert y.tolist() == [2 * one + one + one * one for one in range(32)]
    shapes = sorted(report.local_arrays.values())
    assert shapes == [((2,), "float32"), ((2, 3), "float64")]
    assert dict(report.total_flops) == {"add": 64, "mul": 64}


@cuda.jit
def of_functions(a, n, y):
    """float32 beside int32 is float64."""
    i = cuda.threadIdx.x
    y[0, i] = cuda.popc(n[i]) * a[i]
    y[1, i] = cuda.atomic.add(n, i, 1) * a[i]


def test_results_of_cuda_functions_have_types():
    a, n, y = np.full(4, 0.1, np.float32), np.array([7, 3, 11, 0], np.int32), np.zeros((2, 4))
    report = trace(of_functions)[1, 4](a, n, y)
    assert y.tolist() == [
        [count * float(a[0]) for count in row] for row in ([3, 2, 3, 0], [7, 3, 11, 0])
    ]
    assert dict(report.total_flops) == {"mul": 8}
