"""Emulations of Hopper's instructions against NumPy, and against what an H200 gave."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hopper_instructions as program
from rich.console import Console

from flash_numba.device.hopper.layouts import SwizzledTile, matrix_descriptor
from flash_numba.problem import DTYPES
from simulator.threads import trace, warp

NAMES = "lines", "copy", "sums", "out"


def traced(dtype, panel, numbers):
    given = program.operands(dtype, panel, numbers)
    shared = 2 * program.DEPTH * (program.ROWS + 2 * program.KEYS)
    kernel = program.make_products(dtype, panel)
    report = trace(kernel)[1, 128, 0, shared](*program.arguments(given, panel))
    return given, report


def matrix(parts):
    """(64, n) from the threads' parts, by the formula of PTX ISA 9.0, 9.7.15.5.1.1."""
    found = np.empty((64, parts.shape[2] * 4))
    for thread, i, j in np.ndindex(parts.shape):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * i
        found[row, lane % 4 * 2 + 8 * (j // 2) + j % 2] = parts[thread, i, j]
    return found


@pytest.mark.parametrize("case", program.CASES, ids=lambda case: "-".join(map(str, case)))
def test_emulation_is_the_definition(case):
    dtype, panel, numbers = case
    given, _ = traced(*case)
    A = np.zeros((64, 64))
    stored = given["a"].view(DTYPES[dtype])[0, :, 0].astype(np.float64)
    A[3:53] = stored  # the box begins three rows above the tensor and ends below it
    B, C = (given[name].view(DTYPES[dtype])[0, :, 0].astype(np.float64) for name in "bc")
    S = matrix(given["sums"])
    np.testing.assert_allclose(S, A @ B.T, rtol=0, atol=1e-5 if numbers == "normal" else 0)
    P = S.astype(np.float32).astype(DTYPES[dtype]).astype(np.float64)
    exact = numbers == "integers"
    np.testing.assert_allclose(matrix(given["out"]), 1 + P @ C, rtol=0, atol=0 if exact else 1e-4)
    copied = given["copy"].view(DTYPES[dtype])[0, :, 0].astype(np.float64)
    assert np.array_equal(copied[7:], A[:43])
    assert (given["copy"][:, :7] == 0xFFFF).all()
    tile = SwizzledTile(64, 64, panel)
    row, column = np.indices((64, 64))
    lines = given["lines"].view(DTYPES[dtype]).astype(np.float64)
    assert np.array_equal(lines[tile.place(row, column)], A)


@pytest.mark.parametrize("panel", [64, 32])
def test_instructions_are_those_of_the_source(panel):
    """A copy of a panel is one, by one thread; each of a warpgroup's warps executes its wgmma."""
    _, report = traced("fp16", panel, "integers")
    depth, keys, panels = program.DEPTH, program.KEYS, program.DEPTH // panel
    for name, rows in (("a", program.A_ROWS), ("b", keys), ("c", keys)):
        load = report.count("global", "load", f"{name}_map[0]")
        assert (load.instructions, load.lanes, load.partial) == (panels,) * 3
        assert load.bytes == 2 * rows * depth == 32 * load.sectors == 32 * load.ideal_sectors
    arrived = report.count("shared", "store", traffic="bulk")
    assert (arrived.instructions, arrived.passes) == (3 * panels, 0)
    assert arrived.bytes == 2 * depth * (program.ROWS + 2 * keys)
    products = report.count("shared", "load", traffic="wgmma")
    steps, more = depth // 16, keys // 16  # S = A B^T with A in shared memory, O += P C without P
    assert products.instructions == 4 * (steps + more)
    assert products.lanes == 32 * products.instructions
    assert products.bytes == 2 * 16 * (steps * (program.ROWS + keys) + more * depth)
    assert (products.passes, products.partial) == (0, 0)
    warps = [e.warps for e in report.entries if e.site.traffic == "wgmma"]
    assert warps == [frozenset(range(4))] * len(warps)


def test_swizzle_by_hand():
    """Figures of PTX ISA 9.0, section 5.5.7: 128-byte and 64-byte lines."""
    wide, narrow = SwizzledTile(8, 64, 64), SwizzledTile(8, 32, 32)
    assert [int(wide.place(3, 8 * c)) % 64 // 8 for c in range(8)] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert [int(narrow.place(2, 8 * c)) % 32 // 8 for c in range(4)] == [1, 0, 3, 2]
    assert [int(narrow.place(7, 8 * c)) % 32 // 8 for c in range(4)] == [3, 2, 1, 0]
    for tile in (wide, narrow, SwizzledTile(16, 192, 64), SwizzledTile(24, 96, 32)):
        places = tile.place(*np.indices((tile.rows, tile.columns)))
        assert sorted(places.ravel().tolist()) == list(range(tile.size))


def test_a_warps_store_meets_no_bank_twice():
    """Eight rows, four lanes each with 4 bytes of one chunk: 32 different banks."""
    for panel in (64, 32):
        tile, rows = SwizzledTile(64, 2 * panel, panel), np.arange(8)[:, None]
        banks = tile.place(rows, 8 + 2 * np.arange(4)) // 2 % 32
        assert np.unique(banks).size == 32


def test_descriptor_fields():
    tile = SwizzledTile(128, 128)
    word = tile.by_columns()
    assert word & 0x3FFF == 0
    assert word >> 16 & 0x3FFF == 128 * 128 // 16  # from panel to panel
    assert word >> 32 & 0x3FFF == 1024 // 16  # from eight rows to the next eight
    assert word >> 49 & 7 == 0
    assert word >> 62 == 1
    assert SwizzledTile(128, 96, 32).by_rows() >> 62 == 2
    assert [tile.step_along_row(i) for i in (0, 1, 4)] == [0, 32, 128 * 128]
    assert tile.step_down_rows(2) == 32 * 128


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((8, 1024, 128), "leading_bytes"), ((0, 1 << 18, 128), "stride_bytes"), ((0, 0, 48), "line")],
)
def test_descriptor_refuses(sizes, message):
    with pytest.raises(ValueError, match=message):
        matrix_descriptor(*sizes)


@pytest.mark.skipif(not program.RESULTS.exists(), reason="not measured yet")
@pytest.mark.parametrize("case", program.CASES, ids=lambda case: "-".join(map(str, case)))
def test_emulation_is_what_the_gpu_does(case):
    measured = np.load(program.RESULTS)
    given, got = (
        traced(*case)[0],
        {name: measured[f"{' '.join(map(str, case))} {name}"] for name in NAMES},
    )
    assert np.array_equal(given["lines"], got["lines"])
    assert np.array_equal(given["copy"], got["copy"])
    # The tensor cores add 64 products near 1 in their own way and may cut off bits.
    budget = 0 if case[2] == "integers" else 64 * 2.0**-20
    assert np.abs(given["sums"] - got["sums"]).max() <= budget
    dtype = DTYPES[case[0]]
    C = given["c"].view(dtype)[0, :, 0].astype(np.float64)
    P = matrix(got["sums"]).astype(np.float32).astype(dtype).astype(np.float64)
    assert np.abs(1 + P @ C - matrix(got["out"])).max() <= 16 * budget


def test_a_bulk_copy_has_no_lanes_to_show():
    _, report = traced("fp16", 64, "integers")
    (load,) = (e for e in report.entries if e.memory.name == "b_map[0]")
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(warp(report, load.site.place.line, "b_map[0]"))
    assert "load of 4,096 bytes an instruction, global b_map[0]" in capture.get()
    assert "bulk: lanes have no addresses of their own" in capture.get()
