"""Bytes of bulk copies (TMA) in the thread runner, against what an H200's counters gave.

`benchmarks/bulk_sectors.py` copied boxes that lie within their tensor, hang over its end or lie
beside it, of tensors whose rows are whole sectors or not, and rows of numbers. The runner counts
each of these launches, to the sector.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bulk_sectors as program  # noqa: E402

from simulator.threads import trace  # noqa: E402
from simulator.threads.passes import SECTOR_BYTES, bulk_sectors  # noqa: E402
from simulator.threads.report import BULK_METRICS  # noqa: E402

MEASURED = json.loads((BENCHMARKS / "results" / "bulk_sectors.json").read_text())
LOADED, STORED = BULK_METRICS
LARGE = 64 * 64
"""Elements of boxes that are more of the same within their tensor, and take long."""
L2_READS = "lts__t_sectors_srcunit_tex_op_read.sum"
BY_KIND = defaultdict(list)
for row in MEASURED["cases"]:
    counters = row["counters"]
    one = program.Case(**{name: row[name] for name in program.Case._fields})
    BY_KIND[one.kind].append((one, counters))


def array_of(case):
    """What a case copies, where it lies within its allocation."""
    if not case.tensor:
        return np.zeros((1, program.NUMBERS), np.float32)
    seqlen, heads, columns, skipped = program.TENSORS[case.tensor]
    size = seqlen * heads * columns
    return np.zeros(skipped + size, np.uint16)[skipped:].reshape(1, seqlen, heads, columns)


def test_every_case_was_measured():
    assert [case for found in BY_KIND.values() for case, _ in found] == program.cases()
    assert MEASURED["machine"]["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize("kind", ["numbers", "load", "store", "beside"])
def test_bytes_are_those_of_a_gpu(kind):
    for case, counters in BY_KIND[kind]:
        if kind != "beside" and case.tensor and case.rows * case.columns >= LARGE:
            continue
        kernel, shared_bytes = program.kernel_of(case)
        run = trace(kernel, check=False)[program.BLOCKS, 32, 0, shared_bytes]
        found = run(*program.arguments(case, array_of(case))).hardware()
        assert {name: found[name] for name in BULK_METRICS} == {
            name: counters[name] for name in BULK_METRICS
        }, case


def test_zeros_come_from_nowhere():
    """A box beside its tensor is counted as bytes that come, but not read."""
    box = program.BLOCKS * 2 * 64 * 64
    for case, counters in BY_KIND["beside"]:
        if (case.rows, case.columns) == (64, 64):
            assert counters[LOADED] == box
            assert SECTOR_BYTES * counters[L2_READS] < box, case


def test_blocks_that_load_one_box_at_once_ask_l2_for_less():
    """Requests of several multiprocessors for a sector are joined on their way to L2."""
    joined = [
        (case, counters)
        for case, counters in BY_KIND["load"]
        if case.tensor == "whole sectors" and case.step == 0
    ]
    assert joined
    for case, counters in joined:
        assert SECTOR_BYTES * counters[L2_READS] < counters[LOADED] / 2, case


def test_a_line_takes_the_sectors_that_it_touches():
    assert [bulk_sectors(0, 64), bulk_sectors(16, 64), bulk_sectors(48, 128)] == [2, 3, 5]
    assert [bulk_sectors(16, 16), bulk_sectors(0, 16), bulk_sectors(96, 32)] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["numbers", "load", "store", "beside"])
def test_a_copy_is_one_instruction_and_touches_what_lies_within_its_tensor(kind):
    """Instructions are those of a GPU; sectors are gathered element by element."""
    for case, counters in BY_KIND[kind]:
        if case.rows > 8 and not (kind == "beside" and case.column):
            continue
        kernel, shared_bytes = program.kernel_of(case)
        given, operation = array_of(case), "store" if case.direction == "store" else "load"
        run = trace(kernel, check=False)[program.BLOCKS, 32, 0, shared_bytes]
        report = run(*program.arguments(case, given))
        found = report.count("global", operation, traffic="bulk")
        shared = report.count("shared", "load" if operation == "store" else "store", traffic="bulk")
        short = "st" if operation == "store" else "ld"
        executed = counters[f"smsp__inst_executed_op_tma_{short}.sum"]
        assert shared.instructions == shared.lanes == executed, case
        size = sectors = copies = 0
        for block in range(program.BLOCKS):
            places = bytes_of_copy(case, given, case.first + block * case.step)
            size, copies = size + len(places), copies + bool(places)
            sectors += len({place // SECTOR_BYTES for place in places})
        assert (found.instructions, found.bytes, found.sectors) == (copies, size, sectors), case


def bytes_of_copy(case, array, row):
    """Places, from a sector's first byte on, of the bytes that a block's copy touches."""
    if not case.tensor:
        return range(4 * row, 4 * (row + case.columns))
    seqlen, heads, columns, skipped = program.TENSORS[case.tensor]
    first = np.arange(row, min(row + case.rows, seqlen))[:, None] * heads + program.HEAD
    column = np.arange(case.column, min(case.column + case.columns, columns))
    elements = skipped + first * columns + column
    return [2 * one + half for one in elements.ravel().tolist() for half in (0, 1)]
