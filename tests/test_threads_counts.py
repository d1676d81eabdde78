"""Counts of the thread runner against numbers derived by hand, and its speed."""

# pyright: reportOperatorIssue=false

# An intrinsic is called without the typing context that its definition names first.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOptionalSubscript=false

import gc
import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="kernels need numba")

import traced_kernels as kernels
from bug_zoo import empty, vector
from numba import cuda, float32

from flash_numba.device.hopper.warpgroups import named_arrive, named_sync
from simulator.threads import advice, trace
from simulator.threads.passes import copy_sectors, passes, sectors

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def test_neighbours_share_sectors():
    report = trace(kernels.copy)[2, 64](vector(128), empty(128))
    load, store = report.count("global", "load"), report.count("global", "store")
    assert (load.instructions, load.lanes, load.bytes) == (4, 128, 512)
    assert load.sectors == load.ideal_sectors == store.sectors == 16
    assert load.partial == 0


def test_which_warps_took_part():
    @cuda.jit
    def odd(x, y):
        i = cuda.threadIdx.x
        if i // 32 % 2:
            y[i] = x[i]

    for kernel, warps in ((kernels.copy, {0, 1, 2}), (odd, {1})):
        report = trace(kernel)[1, 96](vector(96), empty(96))
        assert {entry.warps for entry in report.entries} == {frozenset(warps)}
    report = trace(kernels.copy, blocks="representative")[4, 64](vector(256), empty(256))
    assert {entry.warps for entry in report.entries} == {frozenset({0, 1})}


def test_real_alignment_counts():
    base = vector(65)
    report = trace(kernels.copy)[1, 32](base[1:33], empty(32))
    assert report.count("global", "load").sectors == 5
    assert report.count("global", "store").sectors == 4


def test_column_takes_a_sector_a_lane():
    x = np.zeros((32, 64), np.float32)
    report = trace(kernels.copy_column)[1, 32](x, empty(32))
    load = report.count("global", "load")
    assert (load.sectors, load.ideal_sectors) == (32, 4)


def test_negative_and_wide_strides_keep_their_addresses():
    x = vector(128)
    report = trace(kernels.copy)[1, 32](x[::-2][:32], y := empty(32))
    np.testing.assert_array_equal(y, x[::-2][:32])
    assert report.count("global", "load").sectors == 8


@pytest.mark.parametrize(
    ("stride", "expected"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (32, 32), (33, 1), (31, 1)]
)
def test_stride_decides_bank_conflicts(stride, expected):
    report = trace(kernels.make_shared_stride(stride))[1, 32](empty(32))
    load = report.count("shared", "load")
    assert (load.instructions, load.passes, load.conflicts) == (1, expected, expected - 1)


@pytest.mark.parametrize(
    ("kernel", "instructions", "lanes"),
    [
        (kernels.alternating, 8 // 2, 64),
        (kernels.uneven_inner_loops, 4, 96),
        (kernels.leaves_loop, 4, 96),
        (kernels.skips_turns, 3, 64),
        (kernels.device_function_returns_early, 4, 64),
        (kernels.conditional_expression, 4, 64),
        (kernels.short_circuit, 4, 64),
    ],
    ids=lambda one: one.py_func.__name__ if hasattr(one, "py_func") else str(one),
)
def test_lanes_meet_again_after_what_parted_them(kernel, instructions, lanes):
    x = np.ones(160, np.float32)
    report = trace(kernel)[1, 32](x, empty(32))
    load = report.count("global", "load", array="x")
    assert (load.instructions, load.lanes) == (instructions, lanes)
    assert report.count("global", "store").instructions == 1


def test_naive_flash_attention_costs_what_its_schedule_says():
    n, tile, depth = 64, kernels.TILE, kernels.DEPTH
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, depth), np.float32) for _ in range(3))
    out = empty(n, depth)
    report = trace(kernels.make_naive())[n // tile, tile](q, k, v, out, np.float32(0.125))
    scores = (q @ k.T).astype(np.float64) / 8
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ v
    assert np.abs(out - expected).max() < 64 * 2**-24

    blocks = tiles = n // tile
    whole = n * depth // 8
    assert report.count("global", "load").sectors == whole + blocks * 2 * whole
    assert report.count("global", "store").sectors == n * depth
    pairs = blocks * tiles
    load = report.count("shared", "load")
    assert load.instructions == pairs * tile * depth * 3
    assert load.conflicts == pairs * tile * depth * 31
    assert report.count("shared", "load", array="sQ").passes == pairs * tile * depth * 32
    assert report.count("shared", "store").conflicts == 0
    assert report.barriers == blocks * tiles * 2
    products = 2 * n * n * depth
    flops = report.total_flops
    assert flops["mul"] == products + n * n + n * tiles * (depth + 1)
    assert flops["add"] == products + 2 * n * n + n * tiles
    assert flops["exp"] == n * n + n * tiles
    assert flops["div"] == n * depth
    assert report.local_bytes == 4 * (depth + tile)


USES_POWERS = True


@cuda.jit
def powers(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] ** x[i] * float32(2) if USES_POWERS else math.exp(x[i])


def test_arms_that_constants_decide_against_do_no_operations():
    report = trace(powers)[1, 32](np.ones(32, np.float32), np.zeros(32, np.float32))
    assert report.total_flops == {"pow": 32, "mul": 32}


def definition_of_passes(words, width, store):
    """The rule lane by lane, as plain sets; `words` has None for lanes that take no part."""

    def repeats(lanes):
        wanted = {
            word + k for lane in lanes if (word := words[lane]) is not None for k in range(width)
        }
        banks = [word % 32 for word in wanted]
        return max((banks.count(bank) for bank in set(banks)), default=0)

    def agree(lanes, bit):
        return all(
            words[lane] is None or words[lane ^ bit] is None or words[lane] == words[lane ^ bit]
            for lane in lanes
        )

    if width == 1:
        return repeats(range(32))
    step = 32 * 2 // width
    total = 0
    for first in range(0, 32, step):
        lanes = range(first, first + step)
        if not store and (agree(lanes, 1) or agree(lanes, 2)):
            total += repeats(lanes)
        else:
            total += repeats(lanes[: step // 2]) + repeats(lanes[step // 2 :])
    return total


words = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(0, 200)), min_size=32, max_size=32),
    st.builds(
        lambda a, b, c, m: [
            a * (lane // m) + b * (lane % m) + c * (lane >> 3) for lane in range(32)
        ],
        st.integers(0, 40),
        st.integers(0, 40),
        st.integers(0, 40),
        st.sampled_from([1, 2, 4, 8, 16]),
    ),
)


@given(st.lists(words, min_size=1, max_size=5), st.sampled_from([1, 2, 4]), st.booleans())
def test_passes_follow_their_definition(rows, width, store):
    rows = [[w if w is None else w * width for w in row] for row in rows]
    addresses = np.array([[-1 if w is None else 4 * w for w in row] for row in rows])
    found, lost = passes(addresses, 4 * width, store)
    assert found.tolist() == [definition_of_passes(row, width, store) for row in rows]
    assert ((lost >= 0) & (lost <= found)).all()
    expected = [len({w * 4 // 32 for w in row if w is not None}) for row in rows]
    assert sectors(addresses).tolist() == expected


def test_passes_are_those_of_a_gpu():
    measured = json.loads((RESULTS / "shared_passes.json").read_text())
    assert len(measured["cases"]) == 600
    other_conflicts = 0
    for case in measured["cases"]:
        at, size = np.array(case["at"]), case["bytes"]
        addresses = np.where(at < 0, -1, at * size)[None]
        found, lost = passes(addresses, size, case["store"])
        assert found.tolist() == [case["passes"]]
        if lost.tolist() != [case["conflicts"]]:
            other_conflicts += 1
            assert size == 16
            assert (at < 0).any()
    assert other_conflicts == 2


def test_copied_sectors_are_those_of_a_gpu():
    """Where lanes have own targets; an H200 merges copies to one target, which is a race."""
    found = json.loads((RESULTS / "copy_sectors.json").read_text())["cases"]
    own = [one for one in found if len(set(one["target"])) == 32]
    assert len(own) >= 220
    sources = np.array([one["source"] for one in own])
    targets = np.array([one["target"] for one in own]) * 16
    sources = np.where(sources < 0, -1, sources * 16 + (1 << 20))
    predicted = copy_sectors(sources, targets)
    assert predicted.tolist() == [one["sectors"] for one in own]


def test_two_byte_neighbours_share_a_word():
    addresses = np.arange(32)[None] * 2
    assert passes(addresses, 2)[0].tolist() == [1]


def test_whole_16_byte_broadcast_takes_two_passes():
    assert passes(np.zeros((1, 32), np.int64), 16)[0].tolist() == [2]
    assert passes(np.arange(32)[None] * 16, 16)[0].tolist() == [4]


def test_chosen_blocks_run_alone():
    y = empty(128)
    report = trace(kernels.copy, blocks=[1])[2, 64](vector(128), y)
    assert report.blocks == 1
    assert report.count("global", "load").lanes == 64
    assert np.isnan(y[:64]).all()
    assert not np.isnan(y[64:]).any()


def test_speed_of_the_naive_kernel():
    """At least 0.5 million counted accesses a second of one core's time, twice that uncounted.

    The best of five runs, as `timeit` does it: the first translates the kernel, and a busy machine
    or the garbage of the tests before makes a run slower, never faster.
    """
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((64, 64), np.float32) for _ in range(3)]
    kernel = kernels.make_naive()
    accesses = 0

    def seconds(count):
        nonlocal accesses
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            report = trace(kernel, count=count)[2, 32](*arrays, empty(64, 64), np.float32(1))
            spent = time.process_time() - start
        finally:
            gc.enable()
        accesses = report.count().lanes or accesses
        return spent

    assert accesses / min(seconds(True) for _ in range(5)) > 0.5e6
    assert accesses / min(seconds(False) for _ in range(5)) > 1e6


@cuda.jit
def barriers_by_number(y, turns):
    warp = cuda.threadIdx.x // 32
    for _ in range(turns):
        if warp < 2:
            named_sync(1, 64)
        elif warp == 2:
            named_arrive(2, 64)
        else:
            named_sync(2, 64)
        if warp >= 2:
            named_sync(3, 64)
    cuda.syncthreads()
    y[cuda.grid(1)] = 1


def test_barriers_by_number_are_counted_when_they_open():
    report = trace(barriers_by_number)[3, 128](empty(384), 5)
    assert report.barriers == 3 * (3 * 5 + 1)
    by_text = {place.text: count for place, count in report.barriers_of.items()}
    named = {f"named_sync({number}, 64)": 15 for number in (1, 2, 3)}
    assert by_text == named | {"cuda.syncthreads()": 3}
    sampled = trace(barriers_by_number, blocks="representative")[3, 128](empty(384), 5)
    assert sampled.barriers_of == report.barriers_of
    assert sampled.blocks == 2


@cuda.jit
def turns_of_lanes(x, n):
    s = cuda.shared.array(1024, float32)
    i = cuda.threadIdx.x
    s[i], s[32 * i] = 0, 0
    cuda.syncthreads()
    cuda.atomic.add(x, 0, float32(1))
    cuda.atomic.add(x, i, float32(1))
    cuda.atomic.add(n, i // 4, 1)
    cuda.atomic.add(s, 0, float32(1))
    cuda.atomic.add(s, 32 * i, float32(1))


def test_atomic_operations_of_lanes_at_one_address_take_turns():
    x, n = np.zeros(32, np.float32), np.zeros(8, np.int32)
    report = trace(turns_of_lanes, check=False)[1, 32](x, n)
    found = {
        one.site.place.text: (one.count.passes, one.count.conflicts, one.count.sectors)
        for one in report.entries
        if one.site.operation == "atomic"
    }
    assert list(found.values()) == [(32, 31, 1), (1, 0, 4), (4, 3, 1), (32, 31, 0), (32, 31, 0)]
    parts = {part for metric in report.hardware() for part in re.split(r"[_.]+", metric)}
    assert not parts & {"red", "atom"}, "docs/counting.md says that none is predicted"
    remarks = [one for one in advice(report) if one.startswith("serialised: ")]
    assert len(remarks) == 4
    assert "updates x in 32.0 turns an instruction" in str(report)
