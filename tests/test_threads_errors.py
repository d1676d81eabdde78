"""The errors that a GPU hides, each found and named; none found where there is none."""

import copy
import re

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

import traced_kernels as kernels
from bug_zoo import SOUND, ZOO, Case, empty, vector
from bug_zoo.memory import local_parts
from numba import cuda

from simulator.threads import KernelError, trace


def run(case: Case, **options):
    return trace(case.kernel, **options)[case.grid, case.block, 0, case.shared_bytes](*copies(case))


def copies(case: Case) -> list:
    return copy.deepcopy(list(case.args))


def name(case: Case) -> str:
    return case.kernel.py_func.__name__


@pytest.mark.parametrize("case", ZOO, ids=name)
def test_bug_is_diagnosed_at_its_lines(case):
    with pytest.raises(KernelError) as caught:
        run(case, turns=20_000)
    finding = caught.value.finding
    assert finding.kind == case.kind
    assert case.says in finding.message
    found = [place.text for place in finding.places]
    for line in case.lines:
        assert line in found
        found.remove(line)
    assert name(case) in str(caught.value)


@pytest.mark.parametrize("case", SOUND, ids=name)
def test_sound_kernel_gives_no_finding(case):
    assert run(case, errors="collect").findings == []


def test_parts_of_local_arrays_are_filled():
    y = empty(32)
    trace(local_parts)[1, 32](vector(), y)
    np.testing.assert_array_equal(y, 1 + 2 * vector(32) + 1 + 3)


def test_zoo_covers_every_kind_of_error():
    assert len(ZOO) >= 12
    assert {case.kind for case in ZOO} >= {
        "race",
        "shuffle",
        "out of bounds",
        "uninitialised read",
        "barrier",
        "deadlock",
        "runaway loop",
        "asynchronous copy",
        "missing fence",
    }


def test_collected_errors_do_not_stop_the_kernel():
    x, y = vector(100), empty(100)
    tail = next(case for case in ZOO if name(case) == "no_tail_mask")
    report = trace(tail.kernel, errors="collect")[2, 64](x, y)
    (finding,) = report.findings
    assert finding.kind == "out of bounds"
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (kernels.unsupported, "cuda.float32x2"),
        (kernels.with_try, "the statement try"),
    ],
)
def test_unsupported_feature_is_named_with_its_line(kernel, says):
    with pytest.raises(KernelError) as caught:
        trace(kernel)[1, 1](np.zeros(1, np.float32))
    finding = caught.value.finding
    assert finding.kind == "unsupported"
    assert says in finding.message
    assert finding.places[0].file == __file__.replace("test_threads_errors", "traced_kernels")


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        (0, 32, "grid"),
        (1, 1025, "block"),
        ((1, 65536), 32, "grid"),
        (1, (1, 1, 65), "block"),
        (1, (32, 33), "1056 threads"),
        (1, 65, "launch_bounds allow 64"),
    ],
)
def test_impossible_launch_is_refused_as_cuda_would(grid, block, says):
    with pytest.raises(KernelError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        trace(kernels.bounded)[grid, block](np.zeros(64, np.float32))
    assert says in caught.value.finding.message


def test_too_much_shared_memory_is_refused():
    with pytest.raises(KernelError, match="exceed the 232448"):
        trace(kernels.dynamic_shared)[1, 32, 0, 228 * 1024](vector(), empty(64))


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"takes 2 arguments \(x, y\), got 1"):
        trace(kernels.copy)[1, 32](vector())
    with pytest.raises(TypeError, match="x must be a NumPy array"):
        trace(kernels.copy)[1, 32]([1, 2], empty(2))
    with pytest.raises(TypeError, match=r"x must have a dtype that is emulated \(.*got complex64"):
        trace(kernels.copy)[1, 32](vector().astype(np.complex64), empty(64))
    with pytest.raises(TypeError, match="kernel must be"):
        trace(3)
    with pytest.raises(TypeError, match="grid must be an int"):
        trace(kernels.copy)[1.5, 32]
    with pytest.raises(ValueError, match="griddim and blockdim"):
        trace(kernels.copy)[32]
    with pytest.raises(ValueError, match="errors must be"):
        trace(kernels.copy, errors="ignore")
    with pytest.raises(ValueError, match="turns must be an int of at least 1, got 0"):
        trace(kernels.copy, turns=0)
    with pytest.raises(ValueError, match=r"turns must be an int of at least 1, got 1\.5"):
        trace(kernels.copy, turns=1.5)  # pyright: ignore[reportArgumentType]
    swapped = np.zeros(64, ">f4")
    with pytest.raises(TypeError, match="x must be in this machine's byte order, got >f4"):
        trace(kernels.copy)[1, 64](swapped, empty(64))
    with pytest.raises(ValueError, match="blocks must lie within"):
        trace(kernels.copy, blocks=[2])[2, 32](vector(), empty(64))


@cuda.jit
def read_by_one_updated_by_another(x, y):
    if cuda.blockIdx.x == 0:
        y[0] = x[0]
    else:
        cuda.atomic.add(x, 0, 1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_blocks_must_not_update_what_others_read(order):
    with pytest.raises(KernelError) as caught:
        trace(read_by_one_updated_by_another, blocks=order)[2, 1](vector(1), empty(1))
    finding = caught.value.finding
    assert finding.kind == "race"
    lines = ["y[0] = x[0]", "cuda.atomic.add(x, 0, 1)"]
    found = [place.text.split("  #")[0] for place in finding.places]
    assert found == [lines[block] for block in order]


@cuda.jit
def waits_for_a_flag(flag, y):
    while flag[0] == 0:
        pass
    y[cuda.threadIdx.x] = 1


@cuda.jit
def counts_down(n, y):
    left = n
    while left > 0:
        left -= 1
    y[cuda.threadIdx.x] = left


def test_a_spinning_block_is_stopped_by_the_turns_of_all_its_threads():
    """Not by those of each, which would be 32 times as many."""
    with pytest.raises(KernelError, match="runaway loop") as caught:
        trace(waits_for_a_flag, turns=300_000)[1, 32](np.zeros(1, np.int32), empty(32))
    message = caught.value.finding.message
    (of_all,) = re.findall(r"and ([\d,]+) of all", message)
    assert 300_000 < int(of_all.replace(",", "")) < 310_000
    assert "allow more turns than 300,000" in message


def test_no_thread_is_blamed_before_all_could_run_on():
    y = empty(64)
    trace(counts_down, turns=9_000)[1, 64](8_000, y)
    np.testing.assert_array_equal(y, 0)


def test_kernel_without_source_says_so():
    namespace = {}
    exec("def kernel(x):\n    x[0] = 1\n", namespace)
    with pytest.raises(KernelError, match="source of kernel cannot be read"):
        trace(namespace["kernel"])[1, 1](np.zeros(1))


def test_order_of_threads_changes_nothing_but_what_is_wrong():
    for case in SOUND:
        threads = range(case.block)
        outputs = []
        for order in (None, tuple(reversed(threads))):
            arguments = copies(case)
            trace(case.kernel, order=order)[case.grid, case.block](*arguments)
            outputs.append(np.asarray(getattr(arguments[-1], "array", arguments[-1])))
        np.testing.assert_array_equal(*outputs)
    race = next(case for case in ZOO if name(case) == "missing_barrier")
    with pytest.raises(KernelError, match="race"):
        run(race, order=tuple(reversed(range(64))))
    with pytest.raises(ValueError, match="order must hold each of 0 to 63 once"):
        run(race, order=range(63))


def test_errors_can_be_left_unlooked_for():
    race = next(case for case in ZOO if name(case) == "race_on_output")
    assert run(race, check=False).findings == []
