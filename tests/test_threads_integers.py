"""Integers of the thread runner: types and wrapping as Numba has them for CUDA."""

# numba's stubs are taken at their word: they lack cuda.compile and what njit gives.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportPrivateImportUsage=false

import warnings

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

import traced_numbers as kernels
from numba import cuda, njit, types

from simulator.threads import KernelError, trace

F32 = np.float32


def type_of(function, *arguments) -> str:
    """Type that numba-cuda gives the result of a device function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(cuda.compile(function, arguments, device=True, cc=(9, 0))[1])


def sum_of(a, b):
    return a + b


def test_unsigned_integers_are_indices():
    x, p = np.arange(32, dtype=F32) + 100, np.arange(16, dtype=np.uint32)
    y = np.zeros((2, 16), F32)
    trace(kernels.indices_of_sums)[1, 16](x, p, p[::-1].copy(), y)
    assert y.tolist() == [[115] * 16, (p + 100).tolist()]


@pytest.mark.parametrize("blocks", [None, "representative"])
def test_uint64_is_an_index(blocks):
    x, p, y = np.arange(32, dtype=F32), np.arange(32, dtype=np.uint64), np.zeros((2, 32), F32)
    report = trace(kernels.indices_of_64_bits, blocks=blocks)[1, 32](x, p, y)
    assert y.tolist() == [x.tolist(), (x + 1).tolist()]
    assert report.count("shared", "load").instructions == 1


def test_bits_are_those_of_the_operand():
    """PTX: clz.b32, popc.b32 and brev.b32 of int32."""
    p, y = np.array([1, 6, -1, -8], np.int32), np.zeros((4, 4), np.int64)
    trace(kernels.bits_of)[1, 4](p, y)
    texts = [f"{one & 0xFFFFFFFF:032b}" for one in p.tolist()]
    assert y[0].tolist() == [32 - len(one.lstrip("0")) for one in texts]
    assert y[1].tolist() == [one.count("1") for one in texts]
    assert y[2].tolist() == [int(one[::-1], 2) for one in texts]
    assert y[3].tolist() == [32, 31, 30, 30]


def test_uint64_with_int64_is_int64():
    assert type_of(sum_of, types.uint64, types.int64) == "int64"
    assert type_of(sum_of, types.uint32, types.uint8) == "uint64"
    p = np.array([7, 2**62, 2**64 - 5, 1], np.uint64)
    n = np.array([-3, 5, 2, -1], np.int64)
    y, expected = np.zeros((6, 4), np.int64), np.zeros((6, 4), np.int64)
    trace(kernels.mixed)[1, 4](p, n, y)

    @njit
    def compiled(p, n, y):
        for i in range(4):
            y[0, i] = p[i] + n[i]
            y[1, i] = n[i] * p[i]
            y[2, i] = p[i] // n[i]
            y[3, i] = n[i] % p[i]
            y[4, i] = (p[i] & n[i]) >> 1
            y[5, i] = n[i] - p[i]

    compiled(p, n, expected)
    np.testing.assert_array_equal(y, expected)


DTYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
CASES = [(function, dtype) for function in kernels.WRAPPING for dtype in DTYPES[-2:]]
CASES += [(function, dtype) for function in kernels.WIDTHS for dtype in DTYPES]


@pytest.mark.parametrize(("function", "dtype"), CASES, ids=lambda a: getattr(a, "__name__", a))
def test_integers_are_what_numba_compiles(function, dtype):
    """`numba.njit` types integers as numba-cuda does, and the arithmetic is the same."""
    limits = np.iinfo(dtype)
    x = np.array([68, 3, limits.max, limits.min, 9000000057 % limits.max, 1], dtype)
    compiled = njit(function)
    expected = [compiled(one) for one in x]
    given = compiled.nopython_signatures[0].return_type
    assert type_of(function, getattr(types, dtype)) == str(given)
    y = np.zeros(len(x), "bool" if str(given) == "bool" else str(given))
    trace(kernels.make_map(function))[1, len(x)](x, y)
    assert y.tolist() == [int(one) for one in expected]


@pytest.mark.parametrize("function", kernels.OF_BOTH, ids=lambda one: one.__name__)
@pytest.mark.parametrize("dtype", [*DTYPES, "uint16"])
def test_a_float_with_an_integer_has_the_type_that_numba_gives_it(function, dtype):
    """Seen in the rounding: float32 stays so beside integers of 8 bits and beside int16."""
    x = np.array([0.1, 1.3, 7.7, -2.2], F32)
    n = np.array([3, 7, 113, 2], dtype)
    name = type_of(function, types.float32, getattr(types, dtype))
    y = np.zeros(4)
    trace(kernels.make_pairs(function))[1, 4](x, n, y)
    compiled = njit(function)
    expected = [compiled(*pair) for pair in zip(x, n, strict=True)]
    assert str(compiled.nopython_signatures[0].return_type) == name
    if name == "float32":
        np.testing.assert_array_equal(y, y.astype(F32))
    np.testing.assert_allclose(y, expected, rtol=2e-7 if name == "float32" else 2e-16)


@pytest.mark.parametrize(
    ("kernel", "expected"), kernels.OPERATIONS, ids=lambda one: getattr(one, "__name__", "")
)
def test_operations_on_floats_are_not_lost(kernel, expected):
    x, n = np.ones(32, F32), np.arange(32, dtype=np.uint32)
    report = trace(kernel, check=False)[1, 32](x, n)
    assert dict(report.total_flops) == expected


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.declared_by_strings,
        kernels.make_declared("f4", "i4"),
        kernels.make_declared(np.dtype("float32"), np.dtype("int32")),
    ],
)
def test_a_dtype_may_be_a_string_or_of_numpy(kernel):
    array = types.float64[::1]
    cuda.compile(kernel.py_func, (array, array), device=False, abi="numba", cc=(9, 0))
    x, y = np.arange(32) + 0.1, np.zeros(32)
    report = trace(kernel)[1, 32](x, y)
    assert y.tolist() == list(range(32))
    assert report.shared_bytes == 128


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (np.dtype([("a", "f4"), ("b", "i4")]), "an array of records is not emulated"),
        ("complex64", "an array of complex64 is not emulated"),
        ("no such type", "an array of no such type is not emulated"),
    ],
)
def test_a_dtype_that_is_not_emulated_is_named(dtype, message):
    x = np.zeros(32)
    with pytest.raises(KernelError, match=message):
        trace(kernels.make_declared(dtype, "f4"))[1, 32](x, x.copy())
