"""Instructions with an emulation of their own: vectors, asynchronous copies, whole warps."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

from bug_zoo import empty, vector
from numba import cuda, float32, int32

from simulator.threads import KernelError, trace


class Operation:
    """Stands for an intrinsic: only its attributes count."""

    def __init__(self, emulate, **attributes):
        self.emulate = emulate
        self.__dict__.update(attributes)

    def __call__(self, *operands) -> Any:
        raise AssertionError("the intrinsic itself must not be called")


load4 = Operation(lambda array, index: array.load_vector(index, 4))
store4 = Operation(lambda array, index, values: array.store_vector(index, values))
hint = Operation(lambda: None)
square = Operation(lambda x: np.float32(x) * np.float32(x))
bits = Operation(lambda x: np.float32(x).view(np.uint32))


def _copy16(shared, to, source, index):
    shared.store_vector(to, source.load_vector(index, 4))


copy16 = Operation(_copy16, traffic="cp.async")
wait_all = Operation(lambda: None, traffic="cp.async.wait_all")
turn = Operation(
    lambda values, by: [values[(lane + by[0]) % 32] for lane in range(32)], scope="warp"
)
swap = Operation(lambda array: array.__setitem__(0, array[0] + array.load_vector(2, 2)[1]))
acquire = Operation(lambda array, index: array[index], traffic="acquire")
release = Operation(lambda array, index, value: array.__setitem__(index, value), traffic="release")


@cuda.jit
def vectors(x, y):
    s = cuda.shared.array((32, 4), float32, alignment=16)
    i = cuda.threadIdx.x
    hint()
    a, b, c, d = load4(x, (4 * i,))
    store4(s, (i, 0), (a, b, c, d))
    cuda.syncthreads()
    store4(y, (4 * i,), load4(s, (31 - i, 0)))


@cuda.jit
def misaligned(x, y):
    i = cuda.threadIdx.x
    a, b, c, d = load4(x, 4 * i + 2)
    y[i] = a + b + c + d


@cuda.jit
def beyond_the_end(x, y):
    i = cuda.threadIdx.x
    a, _, _, _ = load4(x, 4 * i)
    y[i] = a


@cuda.jit
def through_cp_async(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16(s, 4 * i, x, 4 * i)
    wait_all()
    cuda.syncthreads()
    y[i] = s[i]


@cuda.jit
def without_waiting(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16(s, 4 * i, x, 4 * i)
    cuda.syncthreads()
    y[i] = s[i]
    wait_all()


@cuda.jit
def without_barrier(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16(s, 4 * i, x, 4 * i)
    wait_all()
    y[i] = s[127 - i]


@cuda.jit
def whole_warp(x, y):
    i = cuda.threadIdx.x
    y[i] = turn(x[i], 5)


@cuda.jit
def scalars(x, y):
    i = cuda.threadIdx.x
    y[0, i] = int32(square(x[i]))
    y[1, i] = int32(bits(x[i]) >> 16)


@cuda.jit
def local_operand(x, y):
    i = cuda.threadIdx.x
    r = cuda.local.array(4, float32)
    for j in range(4):
        r[j] = x[i] + j
    swap(r)
    y[i] = r[0]


@cuda.jit
def ordered_blocks(flag, y):
    block = cuda.blockIdx.x
    while acquire(flag, 0) != block:
        pass
    y[0] += 1
    release(flag, 0, block + 1)


def test_vector_access_is_one_instruction():
    x, y = vector(128), empty(128)
    report = trace(vectors)[1, 32](x, y)
    np.testing.assert_array_equal(y.reshape(32, 4), x.reshape(32, 4)[::-1])
    load = report.count("global", "load")
    assert (load.instructions, load.bytes, load.sectors) == (1, 512, 16)
    shared = report.count("shared", "load")
    assert (shared.instructions, shared.passes, shared.conflicts) == (1, 4, 0)


def test_misaligned_vector_is_an_error():
    with pytest.raises(KernelError, match="starts at byte 8, which is no multiple of 16") as caught:
        trace(misaligned)[1, 8](vector(), empty(64))
    assert caught.value.finding.kind == "misaligned access"
    assert caught.value.finding.places[0].text == "a, b, c, d = load4(x, 4 * i + 2)"


def test_vector_beyond_the_end_is_out_of_bounds():
    with pytest.raises(KernelError, match=r"shape \(63,\) is indexed at 63") as caught:
        trace(beyond_the_end)[1, 16](vector(63), empty(64))
    assert caught.value.finding.kind == "out of bounds"


def test_asynchronous_copy_is_counted_apart():
    x, y = vector(128), empty(32)
    report = trace(through_cp_async)[1, 32](x, y)
    np.testing.assert_array_equal(y, x[:32])
    copies = report.count(traffic="cp.async", space="global")
    assert (copies.instructions, copies.bytes, copies.sectors) == (1, 512, 16)
    assert report.count("global", "load", traffic="").instructions == 0
    assert report.count("shared", "store").passes == 0
    hardware = report.hardware()
    assert hardware["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 16
    assert hardware["smsp__inst_executed_op_ldgsts.sum"] == 1
    assert hardware["smsp__inst_executed_op_shared_st.sum"] == 0


def test_read_before_the_copy_was_waited_for():
    with pytest.raises(KernelError) as caught:
        trace(without_waiting)[1, 32](vector(128), empty(32))
    finding = caught.value.finding
    assert finding.kind == "asynchronous copy"
    assert [place.text for place in finding.places] == ["y[i] = s[i]", "copy16(s, 4 * i, x, 4 * i)"]


def test_waiting_alone_does_not_show_the_copy_to_others():
    with pytest.raises(KernelError) as caught:
        trace(without_barrier)[1, 32](vector(128), empty(32))
    finding = caught.value.finding
    assert finding.kind == "race"
    assert {place.text for place in finding.places} == {
        "y[i] = s[127 - i]",
        "copy16(s, 4 * i, x, 4 * i)",
    }


def test_emulation_of_a_whole_warp():
    x, y = vector(64), empty(64)
    trace(whole_warp)[1, 64](x, y)
    np.testing.assert_array_equal(y.reshape(2, 32), np.roll(x.reshape(2, 32), -5, axis=1))


def test_scalar_results_follow_numbas_rules():
    x = np.random.default_rng(2).standard_normal(32, np.float32) * 9
    y = np.zeros((2, 32), np.int32)
    trace(scalars)[1, 32](x, y)
    np.testing.assert_array_equal(y[0], (x * x).astype(np.int32))
    np.testing.assert_array_equal(y[1], (x.view(np.uint32) >> 16).astype(np.int32))


def test_local_array_as_an_operand():
    x, y = vector(32), empty(32)
    trace(local_operand)[1, 32](x, y)
    np.testing.assert_array_equal(y, 2 * x + 3)


def test_blocks_ordered_by_acquire_and_release_do_not_race():
    y = np.zeros(1, np.float32)
    trace(ordered_blocks)[3, 1](np.zeros(1, np.int32), y)
    assert y[0] == 3
