"""Instructions that wait, order threads, or go on while their thread does other things."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

from bug_zoo import empty, vector
from numba import cuda, float32, int32
from test_threads_instructions import Operation, _copy16

from flash_numba.device.hopper.mbarrier import fence_async
from simulator.threads import KernelError, trace


class Mailbox:
    """A flag in shared memory: fills with `count` arrivals, then its phase turns."""

    def __init__(self, count, sync):
        self.count, self.arrived, self.phase, self.syncs = count, 0, 0, [sync]


def _start(context, array, index, count):
    array.memory.objects[index] = Mailbox(int(count), context.sync())


def _arrive(context, array, index):
    box = array.memory.objects[index]
    context.release(box.syncs[-1])
    box.arrived += 1
    if box.arrived == box.count:
        box.arrived, box.phase = 0, box.phase + 1
        box.syncs.append(context.sync())


def _await(context, array, index, phase):
    box = array.memory.objects[index]
    context.wait(lambda: box.phase > phase, lambda: f"{box.arrived} of {box.count} arrivals")
    context.acquire(box.syncs[phase])
    context.finish(("bulk", index), phase + 1)


def _bulk(context, shared, source, box, index, phase):
    """One thread copies 128 floats; they arrive with a phase of the mailbox."""
    with context.copy(("bulk", index), phase + 1):
        for i in range(0, 128, 4):
            shared.store_vector(i, source.load_vector(i, 4))
    _arrive(context, box, index)


start = Operation(_start, context=True)
arrive = Operation(_arrive, context=True)
wait = Operation(_await, context=True)
bulk = Operation(_bulk, context=True, traffic="bulk")
meet = Operation(lambda context, key, count: context.meet(int(key), int(count)), context=True)
come = Operation(
    lambda context, key, count: context.meet(int(key), int(count), False), context=True
)
copy16 = Operation(_copy16, traffic="cp.async")
commit = Operation(lambda: None, traffic="cp.async.commit_group")
wait_group = Operation(lambda n: None, traffic="cp.async.wait_group")
transposed_rows = Operation(
    lambda rows: [tuple(row[lane % 4] for row in rows[:4]) for lane in range(32)],
    scope="warp",
    fetch=lambda array, index: array.load_vector(index, 4),
)
exchanged = Operation(
    lambda values, arrays, indices: [values[lane ^ 1] for lane in range(32)],
    scope="warp",
    put=lambda result, value, array, index: array.__setitem__(index, result),
)
group_sum = Operation(lambda values: [sum(values)] * 128, scope="warpgroup")


@cuda.jit
def fetching(x, y):
    s = cuda.shared.array((32, 4), float32, alignment=16)
    i = cuda.threadIdx.x
    for j in range(4):
        s[i, j] = x[4 * i + j]
    cuda.syncthreads()
    a, b, c, d = transposed_rows(s, (i, 0))
    y[i] = a + 2 * b + 4 * c + 8 * d


@cuda.jit
def putting(x, y):
    i = cuda.threadIdx.x
    exchanged(x[i], y, i)


@cuda.jit
def warpgroups(x, y):
    i = cuda.threadIdx.x
    y[i] = group_sum(x[i])


@cuda.jit
def producer_and_consumer(x, y, tiles, waits):
    s = cuda.shared.array((2, 32), float32)
    box = cuda.shared.array(4, int32)
    i = cuda.threadIdx.x
    if i == 0:
        for stage in range(2):
            start(box, stage, 32)
            start(box, 2 + stage, 32)
    cuda.syncthreads()
    for tile in range(tiles):
        stage, phase = tile % 2, tile // 2
        if i < 32:
            if phase > 0 and waits:
                wait(box, 2 + stage, phase - 1)
            s[stage, i] = x[tile * 32 + i]
            arrive(box, stage)
        else:
            wait(box, stage, phase)
            y[tile * 32 + i - 32] = s[stage, 63 - i]
            arrive(box, 2 + stage)


@cuda.jit
def nobody_arrives(x, y):
    box = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        start(box, 0, 33)
    cuda.syncthreads()
    if i < 32:
        arrive(box, 0)
    if i >= 16:
        wait(box, 0, 0)


@cuda.jit
def named_barriers(x, y):
    s = cuda.shared.array(128, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    meet(1 + i // 64, 64)
    y[i] = s[i ^ 63]


@cuda.jit
def too_small_a_barrier(x, y):
    s = cuda.shared.array(128, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    meet(1 + i // 64, 64)
    y[i] = s[127 - i]


@cuda.jit
def arriving_without_waiting(x, y):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    if i < 32:
        s[i] = x[i]
        come(3, 64)
    else:
        meet(3, 64)
        y[i - 32] = s[63 - i]


@cuda.jit
def pipeline(x, y, left):
    s = cuda.shared.array((2, 128), float32, alignment=16)
    i = cuda.threadIdx.x
    copy16(s, (0, 4 * i), x, 4 * i)
    commit()
    for tile in range(3):
        if tile < 2:
            copy16(s, ((tile + 1) % 2, 4 * i), x, 128 * (tile + 1) + 4 * i)
        commit()
        wait_group(left)
        cuda.syncthreads()
        for j in range(4):
            y[128 * tile + 32 * j + i] = s[tile % 2, 127 - i - 32 * j]
        cuda.syncthreads()


@cuda.jit
def bulk_copy(x, y, waits):
    s = cuda.shared.array(128, float32, alignment=16)
    box = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        start(box, 0, 1)
    cuda.syncthreads()
    if i == 0:
        bulk(s, x, box, 0, 0)
    if waits:
        wait(box, 0, 0)
    else:
        cuda.syncthreads()
    y[i] = s[i]


@cuda.jit
def overwritten_while_copied(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    box = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    for j in range(4):
        s[32 * j + i] = x[32 * j + i]
    fence_async()
    if i == 0:
        start(box, 0, 1)
    cuda.syncthreads()
    if i == 0:
        bulk(y, s, box, 0, 0)
    cuda.syncthreads()
    s[i] = 0


def test_lanes_fetch_what_the_warp_works_on():
    x, y = vector(128), empty(32)
    report = trace(fetching)[1, 32](x, y)
    rows = x.reshape(32, 4)[:4, np.arange(32) % 4]
    np.testing.assert_array_equal(y, np.array([1, 2, 4, 8]) @ rows)
    load = report.count("shared", "load")
    assert (load.instructions, load.bytes, load.passes) == (1, 512, 4)


def test_lanes_put_what_the_warp_gives_them():
    x, y = vector(64), empty(64)
    report = trace(putting)[1, 64](x, y)
    np.testing.assert_array_equal(y, x[np.arange(64) ^ 1])
    assert report.count("global", "store").sectors == 8


def test_warpgroup():
    x, y = vector(256), empty(256)
    trace(warpgroups)[1, 256](x, y)
    np.testing.assert_array_equal(
        y.reshape(2, 128), np.repeat(x.reshape(2, 128).sum(1), 128).reshape(2, 128)
    )


def test_producer_and_consumer_do_not_race():
    x, y = vector(160), empty(160)
    report = trace(producer_and_consumer)[1, 64](x, y, 5, True)
    np.testing.assert_array_equal(y.reshape(5, 32), x.reshape(5, 32)[:, ::-1])
    assert report.barriers == 1


def test_producer_that_does_not_wait_races():
    with pytest.raises(KernelError) as caught:
        trace(producer_and_consumer)[1, 64](vector(160), empty(160), 5, False)
    finding = caught.value.finding
    assert finding.kind == "race"
    assert {place.text for place in finding.places} == {
        "s[stage, i] = x[tile * 32 + i]",
        "y[tile * 32 + i - 32] = s[stage, 63 - i]",
    }


def test_deadlock_says_what_is_waited_for():
    with pytest.raises(KernelError) as caught:
        trace(nobody_arrives)[1, 64](vector(), empty(64))
    finding = caught.value.finding
    assert finding.kind == "deadlock"
    assert "threads 16-63 wait in wait(32 of 33 arrivals)" in finding.message
    assert "threads 0-15 have returned" in finding.message


def test_named_barriers_order_those_who_meet():
    x, y = vector(128), empty(128)
    trace(named_barriers)[1, 128](x, y)
    np.testing.assert_array_equal(y, x[np.arange(128) ^ 63])
    with pytest.raises(KernelError, match="race"):
        trace(too_small_a_barrier)[1, 128](x, y)


def test_arriving_orders_without_waiting():
    x, y = vector(32), empty(32)
    trace(arriving_without_waiting)[1, 64](x, y)
    np.testing.assert_array_equal(y, x[::-1])


def test_named_barrier_that_nobody_else_reaches():
    with pytest.raises(KernelError, match=r"barrier 1: 32 of 64 threads came"):
        trace(named_barriers)[1, 32](vector(), empty(64))


def test_groups_of_copies_are_waited_for_one_by_one():
    x, y = vector(384), empty(384)
    trace(pipeline)[1, 32](x, y, 1)
    np.testing.assert_array_equal(y.reshape(3, 128), x.reshape(3, 128)[:, ::-1])
    with pytest.raises(KernelError) as caught:
        trace(pipeline)[1, 32](x, y, 2)
    assert caught.value.finding.kind == "asynchronous copy"


def test_bulk_copy_across_a_barrier():
    x, y = vector(128), empty(32)
    report = trace(bulk_copy)[1, 32](x, y, True)
    np.testing.assert_array_equal(y, x[:32])
    copied = report.count("global", traffic="bulk")
    assert (copied.instructions, copied.lanes, copied.bytes, copied.sectors) == (1, 1, 512, 16)
    assert report.count("shared", traffic="bulk").passes == 0
    with pytest.raises(KernelError) as caught:
        trace(bulk_copy)[1, 32](x, y, False)
    finding = caught.value.finding
    assert finding.kind == "asynchronous copy"
    assert [place.text for place in finding.places] == ["y[i] = s[i]", "bulk(s, x, box, 0, 0)"]


def test_source_of_a_copy_that_is_under_way_must_not_change():
    with pytest.raises(KernelError) as caught:
        trace(overwritten_while_copied)[1, 32](vector(128), empty(128))
    finding = caught.value.finding
    assert finding.kind == "asynchronous copy"
    assert [place.text for place in finding.places] == ["s[i] = 0", "bulk(y, s, box, 0, 0)"]
