"""One block traced for many: which are alike, and that counts are those of a full run."""

# numba.cuda describes its device API by stubs that a type checker takes at their word.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")

from bug_zoo import empty, vector
from data_kernels import KERNELS
from numba import cuda, float32, int32
from traced_attention import CASES, blank, extra, random_problem

from flash_numba.device.ptx_copies import copy16_async, copy_commit, copy_wait_group
from flash_numba.kernels import flash1
from flash_numba.kernels.spec import ForwardTiles, Spec
from simulator.threads import trace


@cuda.jit
def doubled(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


@cuda.jit
def shifted(x, y, by):
    y[cuda.blockIdx.x * by + cuda.threadIdx.x] = x[cuda.threadIdx.x]


@cuda.jit
def rows(x, y):
    batch, head = cuda.blockIdx.y, cuda.blockIdx.x
    i = cuda.threadIdx.x
    gX = x[batch, :, head]
    for row in range(batch * 4, batch * 4 + 4):
        y[batch, head, row, i] = gX[row, i]


@cuda.jit
def ragged(x, lengths, y):
    length = lengths[cuda.blockIdx.x]
    total = float32(0)
    for i in range(length):
        total += x[cuda.blockIdx.x, i]
    y[cuda.blockIdx.x, cuda.threadIdx.x] = total


@cuda.jit
def of_the_block_and_common(x, y, n):
    i = cuda.threadIdx.x
    j = (cuda.blockIdx.x * 13) % n if i < 16 else 1
    y[cuda.grid(1)] = x[j]


@cuda.jit
def common_first(x, first, y):
    j = first[cuda.blockIdx.x]
    if cuda.threadIdx.x < 16:
        j = 1
    y[cuda.grid(1)] = x[j]


@cuda.jit
def by_value(x, y):
    i = cuda.grid(1)
    if x[i] > 100:
        y[i] = x[i]


@cuda.jit
def tickets(counter, x, y):
    ticket = cuda.atomic.add(counter, 0, 1)
    y[ticket] = x[ticket]


@cuda.jit
def in_place(x):
    i = cuda.grid(1)
    cuda.threadfence()
    x[i] += 1


@cuda.jit
def other_columns(x, y):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i + cuda.blockIdx.x % 2] = x[i]
    y[cuda.blockIdx.x, i] = s[i + cuda.blockIdx.x % 2]


@cuda.jit
def truths(x, y, n):
    s = cuda.shared.array(32, int32)
    i = cuda.threadIdx.x
    late = cuda.blockIdx.x >= 2
    s[i] = late
    if i == 0:
        n[cuda.blockIdx.x] = late
    cuda.syncthreads()
    y[cuda.blockIdx.x, i * (1 + 7 * late) + s[i] + int(late) + (late + late)] = x[i]


@cuda.jit
def copied_across_lines(x, y):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    copy16_async(s, 4 * ((i + 1) % 32), x, cuda.blockIdx.x * 8 + 4 * i, True)
    copy_commit()
    copy_wait_group(0)
    cuda.syncthreads()
    y[cuda.blockIdx.x, i] = s[i]


@cuda.jit
def squared_above_50(x, y):
    v = x[cuda.grid(1)]
    if v > 50:
        v = v * v + v
    y[cuda.grid(1)] = v


@cuda.jit
def by_quotients(x, y):
    q, r = divmod(cuda.blockIdx.x, 2)
    y[q * 64 + r * 32 + cuda.threadIdx.x] = x[cuda.threadIdx.x]


def both(kernel, grid, block, arguments, shared_bytes=0, **options):
    """The reports of a full run and of one with representative blocks, which must agree."""
    reports = []
    for blocks in (None, "representative"):
        copies = [np.array(one) if isinstance(one, np.ndarray) else one for one in arguments]
        run = trace(kernel, blocks=blocks, **options)[grid, block, 0, shared_bytes]
        reports.append(run(*copies))
    full, sampled = reports
    found = {(entry.site, entry.memory.name): entry.count for entry in sampled.entries}
    assert found == {(entry.site, entry.memory.name): entry.count for entry in full.entries}
    assert sampled.barriers == full.barriers
    return full, sampled


def classes(report):
    """How many blocks each class has."""
    return [one.times for one in report.sampled]


def test_blocks_that_differ_by_an_offset_are_alike():
    full, sampled = both(doubled, 8, 64, (vector(512), empty(512)))
    assert full.flops == sampled.flops
    assert classes(sampled) == [8]
    assert (full.blocks, sampled.blocks) == (8, 2)
    assert "block (0, 0, 0) counted 8 times; (7, 0, 0) ran too and accessed the same" in str(
        sampled
    )
    assert full.sampled == ()


def test_a_block_at_the_tail_is_its_own_class():
    _, sampled = both(doubled, 8, 64, (vector(500), empty(500)))
    assert classes(sampled) == [7, 1]
    assert sampled.sampled[1].checked is None


def test_alignment_to_sectors_counts():
    _, sampled = both(shifted, 16, 32, (vector(32), empty(700), 36))
    assert classes(sampled) == [8, 8]
    _, sampled = both(shifted, 16, 32, (vector(32), empty(700), 40))
    assert classes(sampled) == [16]


@pytest.mark.parametrize(("grid", "found"), [(5, [2, 1, 1, 1]), (9, [3, 2, 2, 2])])
def test_alignment_to_lines_counts_where_cp_async_reads(grid, found):
    x = vector(8 * grid + 128)
    full, sampled = both(copied_across_lines, grid, 32, (x, empty(grid, 32)))
    assert classes(sampled) == found
    (entry,) = [one for one in full.entries if one.site.traffic == "cp.async" and one.count.sectors]
    assert entry.count.counted_sectors > entry.count.sectors


@pytest.mark.parametrize(("grid", "n"), [(14, 97), (5, 26), (5, 52), (26, 32), (34, 32)])
def test_lanes_at_a_common_element_are_compared_with_those_of_the_block(grid, n):
    """Whether both lie in one sector depends on the block."""
    _, sampled = both(of_the_block_and_common, grid, 32, (vector(128), empty(32 * grid), n))
    elements = (np.arange(grid) * 13) % n
    assert sorted(classes(sampled)) == sorted(np.unique(elements, return_counts=True)[1])


def test_lanes_of_the_block_are_compared_with_those_at_a_common_element():
    first = np.array([0, 100, 200, 300, 100, 500, 600, 3], np.int32)
    _, sampled = both(common_first, 8, 32, (vector(700), first, empty(256)))
    assert sorted(classes(sampled)) == [1, 1, 1, 1, 1, 1, 2]


def test_several_axes_and_views():
    x = np.random.default_rng(0).standard_normal((3, 16, 4, 32), np.float32)
    _, sampled = both(rows, (4, 3), 32, (x, empty(3, 4, 16, 32)))
    assert classes(sampled) == [12]


def test_integers_from_memory_decide():
    x = np.ones((6, 9), np.float32)
    lengths = np.array([3, 9, 3, 3, 0, 9], np.int32)
    full, sampled = both(ragged, 6, 32, (np.pad(x, ((0, 0), (0, 7))), lengths, empty(6, 32)))
    assert classes(sampled) == [3, 2, 1]
    assert full.flops == sampled.flops


def test_places_in_shared_memory_must_be_the_same():
    _, sampled = both(other_columns, 6, 32, (vector(32), empty(6, 32)))
    assert classes(sampled) == [3, 3]


def test_truths_about_the_block_are_numbers():
    _, sampled = both(truths, 5, 32, (vector(32), empty(5, 320), np.zeros(5, np.int32)))
    assert classes(sampled) == [2, 3]


@pytest.mark.parametrize(
    ("kernel", "arguments", "why"),
    [
        (by_value, (vector(256), empty(256)), "whether an access happens depends on numbers"),
        (tickets, (np.zeros(1, np.int64), vector(8), empty(8)), "an index depends on numbers"),
        (in_place, (vector(256),), "the kernel orders blocks by fences"),
    ],
    ids=["data", "atomic", "fence"],
)
def test_what_cannot_be_followed_makes_every_block_run(kernel, arguments, why):
    threads = 1 if kernel is tickets else 32
    full, sampled = both(kernel, 8, threads, arguments)
    assert full.blocks == sampled.blocks == 8
    assert full.flops == sampled.flops
    assert sampled.sampled[0].startswith(f"every block ran: {why}")


def test_operations_that_depend_on_data_are_said_to_be_unproven():
    full, sampled = both(squared_above_50, 4, 32, (vector(128), empty(128)))
    assert full.total_flops == {"mul": 77, "add": 77}
    assert not sampled.total_flops
    assert "not proven" in sampled.sampled[-1]
    assert sampled.sampled[-1].endswith("and the other one that ran did others")
    _, sampled = both(squared_above_50, 4, 32, (np.ones(128, np.float32), empty(128)))
    assert sampled.sampled[-1].endswith("counted as in the first block of each class")


def test_the_reason_for_running_every_block_names_what_is_not_followed():
    _, sampled = both(by_quotients, 4, 32, (vector(), empty(128)))
    assert "(of memory, or through floats or functions)" in sampled.sampled[0]


@pytest.mark.parametrize("name", KERNELS)
def test_numbers_from_memory_decide_nothing_unseen(name):
    """The first block and the last one, which is run to make sure, do the same; others do not."""
    x = np.outer([0.4, 1.9, 1.2, 0.4], np.linspace(0.5, 1, 32)).astype(np.float32).ravel()
    h = np.repeat(np.array([1, 8, 3, 1], np.int16), 32)
    b = np.repeat(np.array([1, 8, 3, 1], np.int8), 32)
    full, sampled = both(KERNELS[name], 4, 32, (x, empty(4096), h, b), check=False)
    assert sampled.blocks == 4
    assert sampled.sampled[0].startswith("every block ran: ")
    assert full.flops == sampled.flops


def test_memory_is_as_after_a_full_run_where_every_block_ran():
    x = vector(256)
    trace(in_place, blocks="representative")[8, 32](x)
    np.testing.assert_array_equal(x, vector(256) + 1)


def test_wrong_requests():
    with pytest.raises(ValueError, match="blocks must be indices or 'representative', got 'some'"):
        trace(doubled, blocks="some")
    with pytest.raises(ValueError, match="needs count=True and tiles=False"):
        trace(doubled, blocks="representative", count=False)


@pytest.mark.parametrize("name", ["full", "causal-gqa", "window-lengths"])
def test_attention(name):
    problem, q, k, v, _ = random_problem(**CASES[name] | {"seqlen_q": 24, "head_dim": 24})
    tiles = ForwardTiles(32, 32, 4, 4, 8, threads=32)
    vectors = (blank(problem.shapes["lse"]) for _ in range(3))
    arguments = (q, k, v, blank(problem.shapes["o"]), *vectors, np.float32(1), *extra(problem))
    blocks = problem.batch * problem.num_heads
    kernel = flash1.make_forward(Spec.of(problem, False), tiles)
    _, sampled = both(kernel, blocks, 32, arguments, tiles.shared_bytes)
    assert classes(sampled) == {"full": [1], "causal-gqa": [2], "window-lengths": [1, 1]}[name]
