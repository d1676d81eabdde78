"""Kernels of integers, whose numbers `test_threads_integers` derives by Numba's rules."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
from numba import cuda, float32, uint32


@cuda.jit
def indices_of_sums(x, p, q, y):
    """Two uint32 make a uint64."""
    i = cuda.threadIdx.x
    y[0, i] = x[p[i] + q[i]]
    y[1, i] = x[(p[i] * uint32(4)) >> uint32(2)]


@cuda.jit
def indices_of_64_bits(x, p, y):
    """uint64 as index of global and shared memory, of one and of two axes."""
    i = cuda.threadIdx.x
    s = cuda.shared.array((8, 4), float32)
    s[p[i] // 4, p[i] % 4] = x[p[i]]
    cuda.syncthreads()
    y[p[i] * 0, p[i]] = s[p[i] // 4, p[i] % 4]
    y[1 + p[i] * 0, p[i]] += x[p[i]]
    cuda.atomic.add(y, (1, p[i]), float32(1))


@cuda.jit
def bits_of(p, y):
    i = cuda.threadIdx.x
    y[0, i] = cuda.clz(p[i])
    y[1, i] = cuda.popc(p[i])
    y[2, i] = cuda.brev(p[i])
    y[3, i] = cuda.clz(cuda.threadIdx.x)


@cuda.jit
def mixed(p, n, y):
    """uint64 with int64 is int64."""
    i = cuda.threadIdx.x
    y[0, i] = p[i] + n[i]
    y[1, i] = n[i] * p[i]
    y[2, i] = p[i] // n[i]
    y[3, i] = n[i] % p[i]
    y[4, i] = (p[i] & n[i]) >> 1
    y[5, i] = n[i] - p[i]


def congruential(a):
    """Each step wraps."""
    h = a * 1
    for _ in range(5):
        h = h * 6364136223846793005 + 1442695040888963407
    return (h >> 33) ^ h


def square(a):
    return (a * a) >> 33


def shifted(a):
    return ((a + 1) << 62) > 0


def sums(a):
    return (a + 0x7FFFFFFFFFFFFFFF) // 3 - (a - -0x7FFFFFFFFFFFFFFF) // 5


def accumulated(a):
    total = 1
    n = 0
    while n < 70:
        total += total + a
        n += 1
    return total % 1000


def powers(a):
    return a**5 // 7


def inverted(a):
    return (~a) >> uint32(28)


def negative(a):
    return -a


def half_negative(a):
    return -a // 2


def large(a):
    return (a ^ 0xFFFFFFFFFFFFFFFF) >> 1


def absolute(a):
    return abs(a) + a


WRAPPING = (congruential, square, shifted, sums, accumulated, powers)
"""Functions of an integer of 64 bits. Of narrower ones LLVM may use that signed results which do
not fit are undefined."""
WIDTHS = (inverted, negative, half_negative, large, absolute)
"""Functions in which the width of the integer matters."""


def make_map(function):
    """A kernel that applies a function to each element."""

    @cuda.jit
    def map_all(x, y):
        i = cuda.threadIdx.x
        y[i] = function(x[i])

    return map_all


def product(a, b):
    return a * b


def quotient(a, b):
    return a / b


def reversed_quotient(a, b):
    return b / a


def power(a, b):
    return a**b


def remainder(a, b):
    return a % b


def larger_of(a, b):
    c = a
    if b > a:
        c = b
    return c


OF_BOTH = (product, quotient, reversed_quotient, power, remainder, larger_of)
"""Functions of a float and an integer."""


def make_pairs(function):
    """A kernel that applies a function to pairs of elements."""

    @cuda.jit
    def map_pairs(x, n, y):
        i = cuda.threadIdx.x
        y[i] = function(x[i], n[i])

    return map_pairs


@cuda.jit
def by_unsigned(x, n):
    i = cuda.threadIdx.x
    x[i] = x[i] * n[i] + x[i]


@cuda.jit
def by_sum_of_unsigned(x, n):
    i = cuda.threadIdx.x
    x[i] = (n[i] + n[i] * 3 + (n[i] >> 1)) / x[i]


@cuda.jit
def by_numpy(x, n):
    i = cuda.threadIdx.x
    x[i] = np.sin(x[i]) * x[i] + x[i]


@cuda.jit
def by_pow(x, n):
    i = cuda.threadIdx.x
    x[i] = pow(x[i], float32(3)) + x[i]


@cuda.jit
def by_choice(x, n):
    i = cuda.threadIdx.x
    x[i] = min(x[i], n[i]) * x[i] + np.maximum(x[i], x[0])


OPERATIONS = (
    (by_unsigned, {"add": 32, "mul": 32}),
    (by_sum_of_unsigned, {"div": 32}),
    (by_numpy, {"sin": 32, "mul": 32, "add": 32}),
    (by_pow, {"pow": 32, "add": 32}),
    (by_choice, {"mul": 32, "add": 32}),
)
"""Kernels of a float32 and a uint32 array, and the operations of 32 threads."""


def make_declared(shared_dtype, local_dtype):
    """A kernel whose arrays are declared with these dtypes."""

    @cuda.jit
    def declared(x, y):
        i = cuda.threadIdx.x
        s = cuda.shared.array(32, shared_dtype)
        r = cuda.local.array(1, dtype=local_dtype)
        s[i] = x[i]
        r[0] = s[i]
        y[i] = r[0]

    return declared


@cuda.jit
def declared_by_strings(x, y):
    i = cuda.threadIdx.x
    s = cuda.shared.array(32, "float32")
    r = cuda.local.array(1, dtype="int32")
    s[i] = x[i]
    r[0] = s[i]
    y[i] = r[0]
