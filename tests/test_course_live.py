"""Times in notebooks: committed ones say so, others are measured."""

import sys

import fake_gpu
import pytest

pytest.importorskip("numba")

from flash_numba.ladder import NoGpu
from simulator.bench.cells import Cell
from simulator.claims.evidence import results
from simulator.course import live


def test_without_a_gpu_committed_rows_are_shown(monkeypatch):
    monkeypatch.setattr(live, "_find", lambda: live.NO_GPU)
    rows, where = live.measured(
        "h200_fp16", rungs=("hopper",), directions=("forward",), masks=("causal",), head_dims=(64,)
    )
    stored = results("h200_fp16")
    assert stored is not None
    assert rows
    for row in rows:
        assert row in stored["rows"]
        assert (row["rung"], row["direction"], row["causal"]) == ("hopper", "forward", True)
    assert where.startswith(f"measured on {stored['machine']['gpu']}, 20")
    assert where.endswith("(no GPU here)")


def test_steps_without_a_gpu(monkeypatch):
    monkeypatch.setattr(live, "_find", lambda: live.NO_GPU)
    cell = Cell("forward", "fp32", 64, 4096, False, 4, 32)
    rows, where = live.measured_steps({}, cell)
    assert [row["step"] for row in rows] == [
        "naive", "conflict-free", "registers", "tiles", "async", "flash2"
    ]  # fmt: skip
    assert "no GPU here" in where


def test_why_times_are_committed_ones(monkeypatch):
    """A GPU that torch is missing for is not said to be missing."""
    monkeypatch.setattr(live.ladder, "find_gpu", lambda: fake_gpu.GPU)
    monkeypatch.setitem(sys.modules, "torch", None)
    _, where = live.measured("h200_fp16", rungs=("hopper",), head_dims=(64,))
    assert where.endswith(f"(the {fake_gpu.GPU.name} here is not timed: torch is not installed)")
    monkeypatch.setattr(live.ladder, "find_gpu", lambda: NoGpu("the driver found none"))
    _, where = live.measured("h200_fp16", rungs=("hopper",), head_dims=(64,))
    assert where.endswith("(no GPU here)")


def test_unknown_results(monkeypatch):
    monkeypatch.setattr(live, "_find", lambda: live.NO_GPU)
    with pytest.raises(ValueError, match="got 'nothing'"):
        live.measured("nothing")


def test_a_wrong_kernel_is_no_missing_row(monkeypatch):
    monkeypatch.setattr(live, "_find", object)
    found = {"rows": [], "left_out": [], "wrong": [{"rung": "hopper", "why": "off by 2"}]}
    monkeypatch.setattr(live, "measure", lambda gpu, options: [(None, found)])
    with pytest.raises(RuntimeError, match="off by 2"):
        live.measured("h200_fp16", rungs=("hopper",))


@pytest.fixture
def known_times(monkeypatch):
    """A GPU whose times are known, with a rung that asks the reference."""
    pytest.importorskip("torch")
    from test_bench import Counted, KnownTimes

    functions = Counted()
    fake_gpu.install(monkeypatch, functions=functions)
    monkeypatch.setattr(live, "_find", KnownTimes)
    return functions


SMALL = {"tokens": 80, "hidden": 32, "head_dims": (16,), "seqlens": (40,)}


def test_with_a_gpu_times_are_measured(known_times):
    rows, where = live.measured(
        "h200_fp32", rungs=("fake",), directions=("forward",), dtypes=("fp32",), **SMALL
    )
    assert where == f"measured now on {fake_gpu.GPU.name}"
    assert [(row["rung"], row["seqlen"], row["causal"]) for row in rows] == [
        ("fake", 40, False),
        ("fake", 40, True),
    ]
    assert {row["ms"] for row in rows} == {0.5}


def test_with_a_gpu_steps_are_measured(known_times):
    cell = Cell("forward", "fp32", 16, 40, False, 2, 2)
    rows, where = live.measured_steps({"fake": known_times}, cell)
    assert where.startswith("measured now on ")
    assert rows == [{"step": "fake", "ms": 0.5, "tflops": cell.flops / 0.5e9}]


@pytest.mark.gpu
def test_with_a_gpu_they_are_measured():
    rows, where = live.measured(
        "h200_fp32",
        rungs=("flash2",),
        directions=("forward",),
        dtypes=("fp32",),
        masks=("full",),
        head_dims=(64,),
        seqlens=(512,),
    )
    assert where.startswith("measured now on ")
    assert [row["seqlen"] for row in rows] == [512]
    assert rows[0]["ms"] > 0
