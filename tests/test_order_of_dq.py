"""The model of turns at dQ, and the table of it in docs/hopper.md."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = runpy.run_path(str(ROOT / "benchmarks" / "order_of_dq.py"))
time_over_work, Problem = MODEL["time_over_work"], MODEL["Problem"]


def test_the_document_has_the_models_table():
    assert "\n".join(MODEL["table"]()) in (ROOT / "docs" / "hopper.md").read_text()


def test_a_causal_head_by_hand(monkeypatch):
    """Two key tiles on two multiprocessors, a step a query tile; the short one waits or not."""
    globals_ = time_over_work.__globals__
    for name, value in (("MULTIPROCESSORS", 2), ("TOKENS", 256), ("HIDDEN", 64), ("BETWEEN", 0.5)):
        monkeypatch.setitem(globals_, name, value)
    problem, work = Problem(256, 64, 64), 0.5 + 4 + 0.5 + 2
    # Query tiles 0 to 3; the second key tile sees 2 and 3, which the first one adds to at 3.5, 4.5.
    assert time_over_work(problem, "ascending") == pytest.approx((4.5 + 0.7) * 2 / work)
    assert time_over_work(problem, "descending") == pytest.approx(4.5 * 2 / work)
    assert time_over_work(problem, "none") == pytest.approx(4.5 * 2 / work)
    # From query tile 3 on: the second one adds behind the first one, at 1.5 + 0.7.
    assert time_over_work(problem, MODEL["ORDERS"][3]) == pytest.approx(4.5 * 2 / work)


def test_order_of_arrival_costs_least():
    problem = Problem(1024, 128, 64)
    ascending, descending = (time_over_work(problem, f"{way}scending") for way in ("a", "de"))
    assert descending < 1.1 < 1.5 < ascending
