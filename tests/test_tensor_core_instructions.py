"""Tensor-core instructions: emulation against the PTX ISA, and against what an H200 answered."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet")

from flash_numba.device import ptx_matrix
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx_copies import copy16_async, copy_commit, copy_wait_group
from flash_numba.device.ptx_matrix import ldmatrix_x4, ldmatrix_x4_trans
from flash_numba.problem import DTYPES
from simulator.threads import KernelError, trace

RECORD = Path(__file__).parents[1] / "benchmarks/results/tensor_core_instructions.npz"
RNG = np.random.default_rng(5)
PRODUCTS = {
    "mma_m16n8k16_fp16": ("fp16", 16),
    "mma_m16n8k16_bf16": ("bf16", 16),
    "mma_m16n8k8_fp16": ("fp16", 8),
}
LOADS = [f"ldmatrix_x{count}{trans}" for count in (1, 2, 4) for trans in ("", "_trans")]
PACKS = {"pack_fp16": "fp16", "pack_bf16": "bf16", "pack_fp16_by_parts": "fp16"}


# Where the PTX ISA puts element i of a lane's fragment (9.7.14.5.7 and 9.7.14.5.8).


def place_in_a(lane, i, depth):
    group, thread = lane >> 2, lane % 4
    if depth == 8:
        return (group if i < 2 else group + 8), thread * 2 + (i & 1)
    row = group if i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def place_in_b(lane, i):
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def place_in_c(lane, i):
    return (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)


def spread(matrix, place, count, dtype):
    """A matrix as registers: one lane's elements two to a word."""
    elements = [[matrix[place(lane, i)] for i in range(count)] for lane in range(32)]
    return np.array(elements).astype(DTYPES[dtype]).view(np.uint32)


def lanes(array):
    return tuple(tuple(row) for row in array.tolist())


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_of_integers_is_exact(name):
    dtype, depth = PRODUCTS[name]
    a, b = RNG.integers(-8, 9, (16, depth)), RNG.integers(-8, 9, (depth, 8))
    c = RNG.integers(-99, 100, (16, 8)).astype(np.float32)
    given_a = spread(a, lambda lane, i: place_in_a(lane, i, depth), depth // 2, dtype)
    given_b = spread(b, place_in_b, depth // 4, dtype)
    given_c = [tuple(c[place_in_c(lane, i)] for i in range(4)) for lane in range(32)]
    found = getattr(ptx_matrix, name).emulate(lanes(given_a), lanes(given_b), given_c)
    for lane, i in np.ndindex(32, 4):
        assert found[lane][i] == (a @ b + c)[place_in_c(lane, i)]
        assert type(found[lane][i]) is np.float32


def test_accumulators_packed_are_the_next_operand():
    """C of two neighbouring tiles is A of a product 16 deep, with no exchange between lanes."""
    tiles = RNG.integers(-8, 9, (2, 16, 8)).astype(np.float32)
    words = []
    for lane in range(32):
        c = [[tile[place_in_c(lane, i)] for i in range(4)] for tile in tiles]
        pairs = (c[0][:2], c[0][2:], c[1][:2], c[1][2:])
        words.append([int(ptx_matrix.pack_fp16.emulate(*pair)) for pair in pairs])
    found = ptx_matrix.matrix_of_a(np.array(words, np.uint32), "fp16")
    np.testing.assert_array_equal(found, np.concatenate(tiles, axis=1))


@pytest.mark.parametrize("name", LOADS)
def test_matrices_reach_the_lanes_that_the_isa_says(name):
    count, transposed = int(name[len("ldmatrix_x")]), name.endswith("trans")
    rows = RNG.integers(0, 2**16, (32, 8))
    found = getattr(ptx_matrix, name).emulate(None, [tuple(row) for row in rows.tolist()])
    for lane, i in np.ndindex(32, count):
        matrix = rows[8 * i : 8 * i + 8]
        matrix = matrix.T if transposed else matrix
        low, high = matrix[lane // 4, 2 * (lane % 4)], matrix[lane // 4, 2 * (lane % 4) + 1]
        assert found[lane][i] == low | high << 16


@pytest.mark.parametrize("name", PACKS)
def test_pack_rounds_to_nearest_even_and_puts_low_first(name):
    number = DTYPES[PACKS[name]].type
    for low, high in RNG.standard_normal((50, 2)).astype(np.float32):
        word = int(getattr(ptx_matrix, name).emulate(low, high))
        assert word == int(number(low).view(np.uint16)) | int(number(high).view(np.uint16)) << 16


# Within kernels


def make_square(load_b, swizzled):
    """One warp: Y = X @ X.T (or X @ X) for X of 16 x 64 at the start of 128-byte rows."""

    @kernel(32)
    def square(X, Y):
        memory = cuda.shared.array(16 * 64, types.uint16, alignment=128)
        lane = types.int64(cuda.threadIdx.x)
        for i in range(32):
            row, column = i // 2, i % 2 * 32 + lane
            at = column ^ (row & 7) * 8 if swizzled else column
            memory[row * 64 + at] = X[row, column]
        cuda.syncthreads()
        row, chunk = lane & 15, lane >> 4
        at = row * 64 + ((chunk ^ (row & 7 if swizzled else 0)) << 3)
        a = ldmatrix_x4(memory, at)
        b = load_b(memory, at)
        c = (types.float32(0), types.float32(0), types.float32(0), types.float32(0))
        d = ptx_matrix.mma_m16n8k16_fp16(a, (b[0], b[2] if load_b is ldmatrix_x4 else b[1]), c)
        for e in range(4):
            Y[lane // 4 + 8 * (e // 2), lane % 4 * 2 + e % 2] = d[e]

    return square


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_product_in_a_kernel_without_bank_conflicts(transposed):
    """Chunk ^ row % 8: eight rows of a matrix lie in all 32 banks, one pass over shared memory."""
    x = RNG.integers(-8, 9, (16, 64)).astype(np.float16)
    y = np.full((16, 8), np.nan, np.float32)
    load_b = ldmatrix_x4_trans if transposed else ldmatrix_x4
    report = trace(make_square(load_b, True))[1, 32](x.view(np.uint16), y)
    left = x[:, :16].astype(np.float64)
    right = left[:, :8] if transposed else left[:8].T
    np.testing.assert_array_equal(y, left @ right)
    loads = report.count("shared", "load")
    assert (loads.instructions, loads.passes, loads.conflicts) == (2, 8, 0)


def test_rows_side_by_side_conflict():
    x, y = np.ones((16, 64), np.float16), np.full((16, 8), np.nan, np.float32)
    report = trace(make_square(ldmatrix_x4, False))[1, 32](x.view(np.uint16), y)
    loads = report.count("shared", "load")
    assert (loads.instructions, loads.passes, loads.conflicts) == (2, 64, 56)


def test_a_row_of_a_matrix_must_start_on_16_bytes():
    @kernel(32)
    def off_by_one(X):
        memory = cuda.shared.array(512, types.uint16, alignment=16)
        memory[16 * cuda.threadIdx.x] = X[0]
        ldmatrix_x4(memory, 8 * cuda.threadIdx.x + 1)

    with pytest.raises(KernelError, match="no multiple of 16") as caught:
        trace(off_by_one)[1, 32](np.zeros(1, np.uint16))
    assert caught.value.finding.kind == "misaligned access"


def test_a_load_races_with_what_another_lane_wrote():
    @kernel(32)
    def no_barrier(X):
        memory = cuda.shared.array(256, types.uint16, alignment=16)
        lane = cuda.threadIdx.x
        for i in range(8):
            memory[8 * (31 - lane) + i] = X[lane]
        ldmatrix_x4(memory, 8 * lane)

    with pytest.raises(KernelError) as caught:
        trace(no_barrier)[1, 32](np.arange(32, dtype=np.uint16))
    assert caught.value.finding.kind == "race"


# Against hardware


def record():
    if not RECORD.exists():
        pytest.skip(f"{RECORD.name} was not measured yet")
    return np.load(RECORD)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_an_h200(name):
    """Exact on small integers; else as far off as 17 additions in float32 may be."""
    emulate = getattr(ptx_matrix, name).emulate
    for kind in ("integers", "random"):
        a, b, c, d = (record()[f"{name}/{kind}/{operand}"] for operand in "abcd")
        for warp in range(len(a)):
            found = np.array(emulate(lanes(a[warp]), lanes(b[warp]), c[warp]))
            if kind == "integers":
                np.testing.assert_array_equal(found, d[warp])
            else:
                dtype = PRODUCTS[name][0]
                terms = np.abs(ptx_matrix.matrix_of_a(a[warp], dtype)) @ np.abs(
                    ptx_matrix.matrix_of_b(b[warp], dtype)
                ) + np.abs(ptx_matrix.matrix_of_c(c[warp]))
                errors = ptx_matrix.matrix_of_c(found - d[warp])
                assert (np.abs(errors) <= 17 * 2.0**-23 * terms).all()


@pytest.mark.parametrize("name", LOADS)
def test_loads_of_an_h200(name):
    words, at, out = (record()[f"{name}/{part}"] for part in ("words", "at", "out"))
    for warp in range(len(words)):
        rows = [tuple(words[warp, i : i + 8].tolist()) for i in at[warp]]
        found = getattr(ptx_matrix, name).emulate(None, rows)
        np.testing.assert_array_equal(np.array(found), out[warp])


@pytest.mark.parametrize("name", PACKS)
def test_packs_of_an_h200(name):
    low, high, out = (record()[f"{name}/{part}"] for part in ("low", "high", "out"))
    for place in np.ndindex(low.shape):
        with np.errstate(over="ignore"):
            assert getattr(ptx_matrix, name).emulate(low[place], high[place]) == out[place]


def test_the_record_says_where_it_is_from():
    machine = json.loads(str(record()["machine"]))
    assert set(machine) == {"gpu", "driver", "versions", "date"}


# Groups of asynchronous copies


@kernel(32)
def two_groups(X, Y, row, last, pending):
    memory = cuda.shared.array((2, 256), types.uint16, alignment=16)
    lane = cuda.threadIdx.x
    copy16_async(memory, (0, 8 * lane), X, 8 * lane, True)
    copy_commit()
    copy16_async(memory, (1, 8 * lane), X, 8 * lane, lane < last)
    if pending < 2:
        copy_commit()
    if pending == 0:
        copy_wait_group(0)
    else:
        copy_wait_group(1)
    cuda.syncthreads()
    for i in range(8):
        Y[8 * lane + i] = memory[row, 8 * lane + i]


def test_groups_of_copies_that_fill_with_zeros():
    x, y = np.arange(1, 257, dtype=np.uint16), np.zeros(256, np.uint16)
    trace(two_groups)[1, 32](x, y, 1, 20, 0)
    np.testing.assert_array_equal(y, np.where(np.arange(256) < 160, x, 0))
    report = trace(two_groups)[1, 32](x, y, 0, 20, 1)
    np.testing.assert_array_equal(y, x)
    assert report.count("global", "load", "X", traffic="cp.async").bytes == 512 + 320


@pytest.mark.parametrize("pending", [1, 2], ids=["too few waited for", "never committed"])
def test_reading_what_no_wait_covers_names_the_lines(pending):
    x, y = np.arange(256, dtype=np.uint16), np.zeros(256, np.uint16)
    with pytest.raises(KernelError) as caught:
        trace(two_groups)[1, 32](x, y, 1, 20, pending)
    assert {place.text for place in caught.value.finding.places} == {
        "Y[8 * lane + i] = memory[row, 8 * lane + i]",
        "copy16_async(memory, (1, 8 * lane), X, 8 * lane, lane < last)",
    } | ({"copy_wait_group(1)"} if pending == 2 else set())
    assert ("never committed" in caught.value.finding.message) == (pending == 2)


@kernel(32)
def waits_for_nothing(X):
    memory = cuda.shared.array(256, types.uint16, alignment=16)
    copy16_async(memory, 8 * cuda.threadIdx.x, X, 8 * cuda.threadIdx.x, True)
    copy_wait_group(0)


def test_wait_for_a_copy_that_is_never_committed():
    with pytest.raises(KernelError, match="never committed, so the wait does not") as caught:
        trace(waits_for_nothing)[1, 32](np.arange(256, dtype=np.uint16))
    assert [place.text for place in caught.value.finding.places] == [
        "copy16_async(memory, 8 * cuda.threadIdx.x, X, 8 * cuda.threadIdx.x, True)",
        "copy_wait_group(0)",
    ]
