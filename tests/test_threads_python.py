"""Python as learners write it in kernels: the runner gives what CPython gives, or names the line.

Each form is a function of an array and a thread's number that Numba can compile.
"""

# pyright: reportOptionalSubscript=false

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

import io
import runpy
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("numba", reason="kernels need numba")

from numba import cuda, float32, types
from numba.core.errors import NumbaError

from flash_numba.device.numba_cuda import NUMBA_CUDA
from simulator.threads import KernelError, advice, trace, warp

TABLE = np.array([3, 1, 4, 1, 5, 9], np.float32)


class Pair(NamedTuple):
    first: int
    second: int


def over_elements(x, i):
    total = float32(0)
    for row in x:
        for one in row:
            total += one
    return total


def over_a_row(x, i):
    total = float32(0)
    for one in x[i]:
        total += one
    return total


def over_a_column_backwards(x, i):
    total = float32(0)
    for one in x[::-1, 1]:
        total = total * float32(0.5) + one
    return total


def as_many_as_the_thread_says(x, i):
    total = float32(0)
    for one in x[0, : i + 1]:
        total += one
    return total


def over_a_table(x, i):
    total = float32(0)
    for one in TABLE:
        total += one * x[i, 0]
    return total


def over_what_it_keeps(x, i):
    kept = cuda.local.array(3, float32)
    for j in range(3):
        kept[j] = x[i, j]
    total = float32(0)
    for one in kept:  # pyright: ignore[reportGeneralTypeIssues]
        total += one
    return total


def enumerated(x, i):
    total = float32(0)
    for j, one in enumerate(x[i]):
        total += one * float32(j)
    return total


def enumerated_from_two(x, i):
    total = float32(0)
    for j, one in enumerate(x[i], 2):
        total += one * float32(j)
    return total


def side_by_side(x, i):
    total = float32(0)
    for a, b in zip(x[i], x[0, 1:]):  # noqa: B905 - Numba knows no strict=
        total += a * b
    return total


def side_by_side_with_a_range(x, i):
    total = float32(0)
    for a, j in zip(x[i], range(2)):  # noqa: B905
        total += a * float32(j)
    return total


def numbered_pairs(x, i):
    total = float32(0)
    for j, (a, b) in enumerate(zip(x[i], x[0])):  # noqa: B905
        total += a * b * float32(j)
    return total


def constants_in_a_list(x, i):
    total = float32(0)
    for j in [2, 0]:
        total += x[i, j] if i in [0, 3] else x[0, j]
    return total


def pairs_of_constants(x, i):
    total = float32(0)
    for a, b in ((0, 1), (2, 0)):
        total += x[a, i % 3] * x[b, 1]
    return total


def until_found(x, i):
    last = float32(-1)
    for one in x[i]:
        if one > float32(0.5):
            break
        last = one
    return last


def unpacked(x, i):
    a, b = x[i, 0], x[i, 1]
    (c, d), e = (b, a), x[i, 2]
    a, c = c, a
    return a - b + c * d + e


def unpacked_row(x, i):
    a, b, c = x[i]
    return a - b * c


def named(x, i):
    pair = Pair(1, 2)
    first, second = pair
    return x[i, first] - x[i, pair.second] * float32(second)


def views(x, i):
    row, column = x[i, :], x[:, 1]
    return row[-1] - column[-2] + x[..., 0][i] + x.T[1, i] + x[:2][0, 1]


def extremes(x, i):
    return max(x[i, 0], x[i, 1], x[i, 2]) - min((x[i, 0], x[0, 0]))


def chained(x, i):
    return x[i, 1] if 0 < i <= 2 else x[0, 0]


def counted_down(x, i):
    left, total = 3, float32(0)
    while left:
        left -= 1
        total += x[i, left]
    else:
        total = -total
    return total


FORMS = [
    over_elements,
    over_a_row,
    over_a_column_backwards,
    as_many_as_the_thread_says,
    over_a_table,
    over_what_it_keeps,
    enumerated,
    enumerated_from_two,
    side_by_side,
    side_by_side_with_a_range,
    numbered_pairs,
    constants_in_a_list,
    pairs_of_constants,
    until_found,
    unpacked,
    unpacked_row,
    named,
    views,
    extremes,
    chained,
    counted_down,
]


def kernel_of(form):
    device = cuda.jit(device=True)(form)

    @cuda.jit
    def run(x, y):
        i = cuda.threadIdx.x
        y[i] = device(x, i)  # pyright: ignore[reportOptionalCall]

    return run


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_form_gives_what_python_gives(form, monkeypatch):
    x = np.random.default_rng(3).standard_normal((5, 3), np.float32)
    y = np.full(5, np.nan, np.float32)
    trace(kernel_of(form))[1, 5](x, y)
    local = type("Local", (), {"array": staticmethod(lambda n, dtype: np.empty(n, np.float32))})
    monkeypatch.setattr(cuda, "local", local, raising=False)
    monkeypatch.setitem(globals(), "float32", np.float32)
    np.testing.assert_array_equal(y, [form(x, i) for i in range(5)])


@pytest.mark.skipif(not NUMBA_CUDA, reason="compiles with numba-cuda")
def test_forms_compile_with_numba():
    from flash_numba.kernels.offline import compile_ptx

    signature = types.Array(types.float32, 2, "C"), types.Array(types.float32, 1, "C")
    for form in FORMS:
        assert ".entry" in compile_ptx(kernel_of(form), signature, (9, 0, "a")), form.__name__


def test_elements_are_loaded_at_the_line_of_the_loop():
    """A broadcast of 3 elements, one sector each turn; then lanes run through rows of their own."""
    x, y = np.ones((32, 3), np.float32), np.full(32, np.nan, np.float32)
    report = trace(kernel_of(over_a_row))[1, 32](x, y)
    count = report.count("global", "load", "x")
    assert (count.instructions, count.lanes, count.sectors) == (3, 96, 36)
    (place,) = (e.site.place for e in report.entries if e.memory.name == "x")
    assert place.text == "for one in x[i]:"


def test_loops_of_unlike_length_part_the_lanes():
    x, y = np.ones((1, 32), np.float32), np.full(32, np.nan, np.float32)
    count = trace(kernel_of(as_many_as_the_thread_says))[1, 32](x, y).count("global", "load", "x")
    assert (count.instructions, count.lanes, count.partial) == (32, 32 * 33 // 2, 31)


@cuda.jit
def filled(x, y):
    i = cuda.threadIdx.x
    y[2 * i : 2 * i + 2] = x[i]


def test_slices_are_filled_element_by_element():
    x, y = np.arange(4, dtype=np.float32), np.full(8, np.nan, np.float32)
    report = trace(filled)[1, 4](x, y)
    np.testing.assert_array_equal(y, np.repeat(x, 2))
    assert report.count("global", "store", "y").lanes == 8


@cuda.jit
def constants(x, y):
    table = cuda.const.array_like(TABLE)
    y[cuda.threadIdx.x] = table[cuda.threadIdx.x] + x[0]


def test_constant_arrays():
    x, y = np.ones(1, np.float32), np.full(6, np.nan, np.float32)
    report = trace(constants)[1, 6](x, y)
    np.testing.assert_array_equal(y, TABLE + 1)
    load = report.count("constant", "load", "TABLE")
    assert (load.instructions, load.lanes, load.sectors, load.passes, load.conflicts) == (
        (1, 6, 0, 6, 5)
    )
    assert report.count("global", "load").lanes == 6
    assert report.hardware()["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 1
    assert "constant TABLE load" in str(report)
    (remark,) = advice(report)
    assert remark.startswith("constant memory: line ")
    assert remark.endswith("asks TABLE for 6.0 addresses an instruction, one after another")
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(warp(report, report.entries[0].site.place.line, "TABLE"))
    assert "6 lanes, 6 addresses" in shown.export_text()


@cuda.jit
def captured(x, y):
    y[cuda.threadIdx.x] = TABLE[2]


def test_captured_arrays_are_constants_and_one_address_is_no_conflict():
    report = trace(captured)[1, 32](np.ones(1, np.float32), np.zeros(32, np.float32))
    load = report.count("constant")
    assert (load.instructions, load.passes, load.conflicts) == (1, 1, 0)
    assert report.count("global", "load").lanes == 0
    assert advice(report) == []


def a_sum(x, i):
    return x[i].sum()


def a_sum_of_numpy(x, i):
    return np.sum(x)


def a_function_within(x, i):
    double = lambda a: a + a  # noqa: E731
    return double(x[i, 0])


def through_flat(x, i):
    total = float32(0)
    for one in x.flat:
        total += one
    return total


def through_indices(x, i):
    total = float32(0)
    for j, k in np.ndindex(x.shape):
        total += x[j, k]
    return total


def a_match(x, i):
    match i:
        case 0:
            return x[0, 0]
    return x[1, 1]


def a_dict(x, i):
    weights = {0: 1, 1: 2}
    return x[weights[0], 0]


def a_set(x, i):
    return x[0, 0] if i in {0, 1} else x[1, 1]


def a_list(x, i):
    order = [2, 0, 1]
    return x[i, order[0]]


def a_comprehension(x, i):
    squares = [j * j for j in range(2)]
    return x[i, squares[1]]


def a_generator(x, i):
    return x[i, sum(j for j in range(2))]


def a_formatted_string(x, i):
    return x[i, len(f"{i}")]


def zeros(x, i):
    row = np.zeros(2, np.float32)
    return row[0]


def a_numpy_range(x, i):
    total = float32(0)
    for j in np.arange(2):
        total += x[i, j]
    return total


def in_order(x, i):
    return sorted(x[i])[0]


def from_the_end(x, i):
    for j in reversed(range(2)):
        if x[i, j] > 0:
            return x[i, j]
    return x[i, 0]


REFUSED = [
    (zeros, "np.zeros, which makes or needs whole arrays, is not", "row = np.zeros(2, np.float32)"),
    (a_numpy_range, "np.arange, which makes or", "for j in np.arange(2):"),
    (
        in_order,
        "sorted, which Numba does not compile for CUDA, is not",
        "return sorted(x[i])[0]",
    ),
    (from_the_end, "reversed, which Numba does not", "for j in reversed(range(2)):"),
    (a_dict, "a dict is nothing that Numba compiles for CUDA", "weights = {0: 1, 1: 2}"),
    (a_set, "a set is nothing", "return x[0, 0] if i in {0, 1} else x[1, 1]"),
    (a_list, "a list is nothing", "order = [2, 0, 1]"),
    (a_comprehension, "a comprehension is nothing", "squares = [j * j for j in range(2)]"),
    (a_generator, "a generator is nothing", "return x[i, sum(j for j in range(2))]"),
    (a_formatted_string, "a formatted string is nothing", 'return x[i, len(f"{i}")]'),
]
UNSUPPORTED = [
    (a_sum, "sum of an array", "return x[i].sum()"),
    (a_sum_of_numpy, "np.sum, which makes or needs whole arrays", "return np.sum(x)"),
    (a_function_within, "made within another one", "double = lambda a: a + a  # noqa: E731"),
    (through_flat, "flat of an array", "for one in x.flat:"),
    (through_indices, "np.ndindex", "for j, k in np.ndindex(x.shape):"),
    (a_match, "the statement match", "match i:"),
    *REFUSED,
]


@pytest.mark.parametrize(
    ("form", "says", "line"), UNSUPPORTED, ids=[one[0].__name__ for one in UNSUPPORTED]
)
def test_form_that_is_not_emulated_is_named_with_its_line(form, says, line):
    with pytest.raises(KernelError) as caught:
        trace(kernel_of(form))[1, 2](np.ones((3, 3), np.float32), np.zeros(2, np.float32))
    finding = caught.value.finding
    assert finding.kind == "unsupported"
    assert says in finding.message
    assert [place.text for place in finding.places] == [line]


@pytest.mark.skipif(not NUMBA_CUDA, reason="compiles with numba-cuda")
@pytest.mark.parametrize("form", [one[0] for one in REFUSED], ids=lambda form: form.__name__)
def test_numba_refuses_what_the_runner_says_it_refuses(form):
    from flash_numba.kernels.offline import compile_ptx

    signature = types.Array(types.float32, 2, "C"), types.Array(types.float32, 1, "C")
    with pytest.raises((NumbaError, AttributeError)):
        compile_ptx(kernel_of(form), signature, (9, 0, "a"))


@cuda.jit
def returning(x):
    i = cuda.threadIdx.x
    if i > 3:
        return i
    x[i] = 1


def test_kernel_that_returns_a_value_is_refused():
    with pytest.raises(KernelError, match="a kernel returns nothing: Numba refuses a value") as one:
        trace(returning)[1, 8](np.zeros(8, np.float32))
    assert [place.text for place in one.value.finding.places] == ["return i"]


ATOMICS = ("add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "inc", "dec")
ATOMICS += ("exch",)
ELEMENTS = ("int8", "int16", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64")


@pytest.mark.skipif(not NUMBA_CUDA, reason="compiles with numba-cuda")
@pytest.mark.parametrize("name", ATOMICS)
def test_atomic_operations_exist_for_the_types_that_numba_has_them_for(name, tmp_path):
    from flash_numba.kernels.offline import compile_ptx

    lines = ["from numba import cuda", "@cuda.jit", "def kernel(x, value):"]
    path = tmp_path / f"atomic_{name}.py"
    path.write_text("\n".join([*lines, f"    cuda.atomic.{name}(x, 0, value)", ""]))
    kernel = runpy.run_path(str(path))["kernel"]
    for dtype in ELEMENTS:
        x, element = np.ones(1, dtype), getattr(types, dtype)
        try:
            compile_ptx(kernel, (types.Array(element, 1, "C"), element), (9, 0, "a"))
        except (NumbaError, AttributeError):
            with pytest.raises(KernelError, match=f"Numba has this atomic .*, not for {dtype}"):
                trace(kernel)[1, 1](x, x[0])
        else:
            trace(kernel)[1, 1](x, x[0])
