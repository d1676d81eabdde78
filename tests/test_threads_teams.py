"""Blocks that run at once: barriers of the grid, and clusters with each other's shared memory."""

# pyright: reportOptionalSubscript=false

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

from numba import cuda, float32, int32

from flash_numba.device.hopper.clusters import (
    cluster_arrive,
    cluster_rank,
    cluster_size,
    cluster_wait,
    shared_of,
)
from simulator.threads import KernelError, trace

THREADS, BLOCKS = 64, 4


def numbers(n=THREADS * BLOCKS):
    return np.random.default_rng(5).standard_normal(n, np.float32)


def blank(*shape):
    return np.full(shape, np.nan, np.float32)


@cuda.jit
def total(x, parts, y):
    """Every block adds up its own numbers; then all read all sums."""
    s = cuda.shared.array(THREADS, float32)
    grid = cuda.cg.this_grid()
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        kept = float32(0)
        for one in s:
            kept += one
        parts[cuda.blockIdx.x] = kept
    grid.sync()
    kept = float32(0)
    for one in parts:
        kept += one
    y[i] = kept


@cuda.jit
def total_without_sync(x, parts, y):
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = x[i]
    if x.shape[0] == 0:
        cuda.cg.this_grid().sync()
    y[i] = parts[cuda.gridDim.x - 1 - cuda.blockIdx.x]


@cuda.jit
def one_block_meets(x, parts, y):
    if cuda.blockIdx.x == 0:
        cuda.cg.this_grid().sync()
    y[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def turns_with_grid_barriers(x, parts, y):
    """Each turn reads what the block beside it wrote in the turn before."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    y[b * THREADS + t] = x[b * THREADS + t]
    for _ in range(3):
        cuda.cg.this_grid().sync()
        kept = y[(b + 1) % BLOCKS * THREADS + t]
        cuda.cg.this_grid().sync()
        y[b * THREADS + t] = kept


def test_blocks_meet_in_a_barrier_of_the_grid():
    x, parts, y = numbers(), blank(BLOCKS), blank(BLOCKS * THREADS)
    report = trace(total)[BLOCKS, THREADS](x, parts, y)
    np.testing.assert_allclose(y, x.sum(dtype=np.float64), rtol=1e-5)
    assert report.blocks == BLOCKS
    assert report.barriers == 2 * BLOCKS
    shared = report.count("shared", "load", "s")
    assert (shared.instructions, shared.lanes) == (BLOCKS * THREADS, BLOCKS * THREADS)
    assert {e.memory.base for e in report.entries if e.memory.space == "shared"} == {1 << 20}


def test_barriers_of_the_grid_order_turns():
    x, y = numbers(), blank(BLOCKS * THREADS)
    trace(turns_with_grid_barriers)[BLOCKS, THREADS](x, blank(BLOCKS), y)
    np.testing.assert_array_equal(y, np.roll(x.reshape(BLOCKS, THREADS), -3, axis=0).ravel())


def test_blocks_that_do_not_meet_race():
    with pytest.raises(KernelError) as caught:
        trace(total_without_sync)[BLOCKS, THREADS](numbers(), blank(BLOCKS), blank(256))
    finding = caught.value.finding
    assert finding.kind == "race"
    assert {place.text for place in finding.places} == {
        "parts[cuda.blockIdx.x] = x[i]",
        "y[i] = parts[cuda.gridDim.x - 1 - cuda.blockIdx.x]",
    }
    assert "block (0, 0, 0) and block (3, 0, 0)" in finding.message


def test_grid_barrier_that_some_blocks_never_reach():
    with pytest.raises(KernelError) as caught:
        trace(one_block_meets)[BLOCKS, THREADS](numbers(), blank(BLOCKS), blank(256))
    assert caught.value.finding.kind == "barrier"
    assert "some threads of the grid never reach" in str(caught.value)
    assert "threads 0-63 of block (0, 0, 0) wait in this_grid().sync" in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "says"), [(5000, "COOPERATIVE_LAUNCH_TOO_LARGE"), ((66, 70), "4224 blocks of 64")]
)
def test_grid_that_cannot_run_at_once_is_refused_as_cuda_would(grid, says):
    with pytest.raises(KernelError, match=says):
        trace(total)[grid, THREADS](numbers(), blank(BLOCKS), blank(256))


def test_blocks_that_run_at_once_cannot_be_chosen_or_sampled():
    for options in ({"blocks": [0]}, {"blocks": "representative"}, {"tiles": True}):
        with pytest.raises(ValueError, match="run"):
            trace(total, **options)[BLOCKS, THREADS](numbers(), blank(BLOCKS), blank(256))
    with pytest.raises(KernelError, match="blocks of 40 threads"):
        trace(total)[BLOCKS, 40](numbers(), blank(BLOCKS), blank(256))


@cuda.jit
def reads_beside(x, y, meets, leaves):
    """Each block reads the number of the block beside it in the cluster."""
    s = cuda.shared.array(THREADS, float32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    s[t] = x[b * THREADS + t]
    if meets:
        cluster_arrive()
        cluster_wait()
    y[b * THREADS + t] = shared_of(s, (cluster_rank() + 1) % cluster_size())[t]
    if leaves:
        cluster_arrive()
        cluster_wait()


@cuda.jit
def counts_in_the_first(y):
    s = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cluster_arrive()
    cluster_wait()
    cuda.atomic.add(shared_of(s, 0), 0, 1)
    cluster_arrive()
    cluster_wait()
    y[cuda.grid(1)] = s[0]


@cuda.jit
def arrives_twice(y):
    cluster_arrive()
    cluster_arrive()


@cuda.jit
def waits_alone(y):
    if cluster_rank() == 0:
        cluster_arrive()
        cluster_wait()


@cuda.jit
def asks_for_nobody(y):
    s = cuda.shared.array(1, float32)
    shared_of(s, 2)[0] = 1


@pytest.mark.parametrize("cluster", [2, 4])
def test_blocks_of_a_cluster_read_each_other(cluster):
    x, y = numbers(), blank(BLOCKS * THREADS)
    trace(reads_beside, cluster=cluster)[BLOCKS, THREADS](x, y, True, True)
    clusters = x.reshape(-1, cluster, THREADS)
    np.testing.assert_array_equal(y, np.roll(clusters, -1, axis=1).ravel())


def test_atomics_of_a_cluster_are_no_race():
    y = np.zeros(BLOCKS * THREADS, np.int32)
    trace(counts_in_the_first, cluster=2)[BLOCKS, THREADS](y)
    np.testing.assert_array_equal(y.reshape(BLOCKS, -1)[:, 0], [2 * THREADS, 0] * 2)


def test_block_alone_is_a_cluster_of_one():
    x, y = numbers(), blank(BLOCKS * THREADS)
    trace(reads_beside)[BLOCKS, THREADS](x, y, True, True)
    np.testing.assert_array_equal(y, x)


def found(kernel, *arguments, cluster=2):
    with pytest.raises(KernelError) as caught:
        trace(kernel, cluster=cluster)[BLOCKS, THREADS](*arguments)
    return caught.value.finding


def test_reading_before_the_cluster_met_is_a_race():
    finding = found(reads_beside, numbers(), blank(256), False, True)
    assert finding.kind == "race"
    assert "s[t] = x[b * THREADS + t]" in [place.text for place in finding.places]


def test_leaving_while_others_read_is_found():
    finding = found(reads_beside, numbers(), blank(256), True, False)
    assert finding.kind == "race"
    assert "may have ended" in finding.message
    assert "shared_of(s" in finding.places[0].text


@pytest.mark.parametrize(
    ("kernel", "kind", "says"),
    [
        (arrives_twice, "barrier", "arrives twice"),
        (waits_alone, "deadlock", "64 of 128 arrivals"),
        (asks_for_nobody, "out of bounds", "rank 2 is none of a cluster of 2 blocks"),
    ],
)
def test_misuse_of_clusters_is_named(kernel, kind, says):
    finding = found(kernel, blank(1))
    assert finding.kind == kind
    assert says in finding.message


def test_impossible_clusters_are_refused():
    with pytest.raises(KernelError, match="CUDA_ERROR_INVALID_CLUSTER_SIZE"):
        trace(arrives_twice, cluster=9)[18, 32](blank(1))
    with pytest.raises(KernelError, match="multiple of the cluster's 3"):
        trace(arrives_twice, cluster=3)[4, 32](blank(1))
    with pytest.raises(ValueError, match="cluster must be"):
        trace(arrives_twice, cluster=0)[4, 32](blank(1))
