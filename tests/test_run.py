"""What `simulate` promises besides numbers and counts: capacity, logs, broken programs, errors."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flash_numba import masks, reference
from flash_numba.budget import within_budget
from flash_numba.problem import Problem
from flash_numba.tiling import SKIPPED, Schedule
from simulator import run as run_module
from simulator.events import ACCUMULATE, OPERATIONS, EventLog
from simulator.machine import Machine
from simulator.memory import SramOverflow
from simulator.programs import BROKEN, PROGRAMS
from simulator.run import simulate

TILED = [name for name, program in PROGRAMS.items() if not program.idealised]
FLASH = [name for name in TILED if name != "tiled"]
each_direction = pytest.mark.parametrize("direction", ["forward", "backward"])
PROBLEM = Problem(45, 38, 8, num_heads=2, num_kv_heads=1, causal=True)
TILES: dict[str, Any] = {"tile_m": 16, "tile_n": 8}


def arrays(problem: Problem, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    names = ("q", "k", "v", "do")
    return {n: rng.standard_normal(problem.shapes[n]).astype(np.float32) for n in names}


def run(name, problem=PROBLEM, direction="forward", given=None, **options):
    given = dict(arrays(problem) if given is None else given)
    if direction == "forward":
        given.pop("do", None)
    return simulate(name, problem, **given, direction=direction, **TILES | options)


# Memory


@pytest.mark.parametrize("name", TILED)
@each_direction
def test_a_capacity_of_the_peak_is_enough_and_one_byte_less_is_not(name, direction):
    options: dict[str, Any] = {"direction": direction, **TILES}
    peak = simulate(name, PROBLEM, **options).counts.sram_peak_bytes
    assert peak is not None
    simulate(name, PROBLEM, **options, sram_bytes=peak)
    message = (
        rf"^tile_m and tile_n must let all tiles fit into sram_bytes={peak - 1:,}, "
        r"got tile_m=16 and tile_n=8: tile \w+ \(.*\) does not fit: .* resident: "
    )
    with pytest.raises(SramOverflow, match=message):
        simulate(name, PROBLEM, **options, sram_bytes=peak - 1)


def test_an_idealised_program_has_no_capacity():
    for name in PROGRAMS.keys() - set(TILED):
        found = simulate(name, PROBLEM, sram_bytes=1)
        assert found.counts.sram_peak_bytes is None


@pytest.mark.parametrize("name", FLASH)
@each_direction
def test_nothing_of_size_queries_times_keys_lies_in_hbm(name, direction):
    gpu = Machine(PROBLEM, 16, 8)
    getattr(PROGRAMS[name], direction).run(gpu)
    counts = gpu.ledger.counts(gpu.sram.peak)
    assert not {"S", "P", "dP", "dS"} & (counts.reads.keys() | counts.writes.keys())


def test_memory_grows_with_the_sequence_and_not_with_its_square():
    def peak(seqlen):
        problem = Problem(seqlen, seqlen, 4)
        given: dict[str, Any] = {n: np.ones(problem.shapes[n], np.float32) for n in ("q", "k", "v")}
        tracemalloc.start()
        simulate("flash2", problem, **given, tile_m=64, tile_n=64)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(2048) < 3 * peak(1024)


@pytest.mark.parametrize("name", PROGRAMS)
@each_direction
def test_a_large_batch_is_counted_like_one_head_many_times(name, direction, monkeypatch):
    batch, keys = 5000, np.arange(5000) % 3 * 50
    problem = Problem(
        100, 100, 8, batch=batch, num_heads=32, num_kv_heads=8, causal=True, key_lengths=keys
    )
    machines = []
    monkeypatch.setattr(
        run_module, "Machine", lambda *a, **k: machines.append(1) or Machine(*a, **k)
    )
    all_heads = simulate(name, problem, head=None, direction=direction, **TILES).counts
    assert len(machines) == 3
    few = replace(problem, batch=3, num_heads=4, num_kv_heads=1, key_lengths=keys[:3])
    once = simulate(name, few, head=None, direction=direction, **TILES).counts
    two = replace(few, batch=2, key_lengths=keys[:2])
    twice = simulate(name, two, head=None, direction=direction, **TILES).counts
    assert all_heads == once * (1666 * 8) + twice * 8


# Which head


def test_one_head_fills_its_own_part():
    problem = replace(PROBLEM, batch=2)
    whole = run("flash2", problem, "backward", head=None).arrays
    one = run("flash2", problem, "backward", batch=1, head=1).arrays
    for name in ("O", "dQ"):
        np.testing.assert_array_equal(one[name][1, :, 1], whole[name][1, :, 1])
        assert np.isnan(one[name][0]).all()
        assert np.isnan(one[name][1, :, 0]).all()
    np.testing.assert_array_equal(one["LSE"][1, 1], whole["LSE"][1, 1])
    zero = run("flash2", problem, "backward", batch=1, head=0).arrays
    for name in ("dK", "dV"):
        np.testing.assert_allclose(zero[name][1] + one[name][1], whole[name][1], atol=1e-5)


def test_keys_beyond_a_sequences_own_get_a_gradient_of_zero():
    problem = replace(PROBLEM, batch=2, key_lengths=np.array([38, 20]))
    found = run("flash2", problem, "backward", head=None).arrays
    assert np.all(found["dK"][1, 20:] == 0)
    assert np.all(found["dV"][1, 20:] == 0)
    assert np.isfinite(found["dK"]).all()


# The log


@pytest.mark.parametrize("name", PROGRAMS)
@each_direction
def test_a_recorded_run_has_the_same_counts_and_numbers(name, direction):
    plain, recorded = (run(name, direction=direction, record=flag) for flag in (False, True))
    assert recorded.counts == plain.counts
    for what in plain.arrays:
        np.testing.assert_array_equal(recorded.arrays[what], plain.arrays[what])
    assert recorded.log is not None
    recorded.log._check()
    lines = recorded.log.meta["lines"]
    assert set(np.unique(recorded.log.columns["line"])) <= set(range(len(lines)))


@pytest.mark.parametrize("name", PROGRAMS)
@each_direction
def test_every_line_of_the_algorithm_happens(name, direction):
    problem = replace(PROBLEM, score_mods=(masks.softcap(5.0),), dropout_p=0.1)
    dlse = None if PROGRAMS[name].idealised else True
    found = simulate(name, problem, dlse=dlse, direction=direction, record=True, **TILES)
    assert found.log is not None
    assert set(found.log.columns["line"]) == set(range(len(found.log.meta["lines"])))


@pytest.mark.parametrize("name", ["flash1", "flash2"])
def test_watched_rows_end_at_the_softmax_of_the_reference(name):
    given = arrays(PROBLEM)
    found = run(name, given=given, record=True)
    o, lse = reference.forward(PROBLEM, given["q"], given["k"], given["v"])
    rows = visited_rows(found.log)
    for m_block, values in rows.items():
        part = slice(m_block * 16, m_block * 16 + 16)
        seen = np.isfinite(lse[0, 0, part])
        row_lse = values["row_max"][seen] + np.log(values["row_sum"][seen])
        np.testing.assert_allclose(row_lse, lse[0, 0, part][seen], rtol=1e-5)
        row_o = values["O"]
        if name == "flash2":
            row_o = row_o / np.where(values["row_sum"] == 0, 1, values["row_sum"])[:, None]
        np.testing.assert_allclose(row_o, o[0, part, 0, :4], atol=1e-5)
    assert sorted(rows) == [0, 1, 2]


def visited_rows(log: EventLog | None) -> dict[int, dict[str, np.ndarray]]:
    """The last watched values of each query tile."""
    assert log is not None
    blocks = log.columns["m_block"]
    return {int(blocks[event]): values for event, values in log.watched.items()}


@pytest.mark.parametrize("name", ["flash1", "flash2", "flash2_two_kernel", "tiled"])
def test_watched_gradients_are_those_of_the_tile(name):
    given = arrays(PROBLEM)
    found = run(name, direction="backward", given=given, record=True)
    assert found.log is not None
    q, k, v, do = (given[n][0, :, 0].astype(np.float64) for n in ("q", "k", "v", "do"))
    s = np.where(np.tri(45, 38, 38 - 45, dtype=bool), q @ k.T / np.sqrt(8), -np.inf)
    p = np.exp(s - s.max(axis=1, initial=-1e30, keepdims=True))
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-30)
    dp = do @ v.T
    delta = (p * dp).sum(axis=1)
    ds = p * (dp - delta[:, None]) / np.sqrt(8)
    columns, checked = found.log.columns, 0
    for event, values in found.log.watched.items():
        if "dS" not in values:
            continue
        rows = slice(columns["m_block"][event] * 16, columns["m_block"][event] * 16 + 16)
        first = columns["n_block"][event] * 8
        for what, whole in (("P", p), ("dS", ds)):
            expected = whole[rows, first : first + min(4, 38 - first)]
            np.testing.assert_allclose(values[what], expected, atol=1e-5)
        np.testing.assert_allclose(values["delta"], delta[rows], atol=1e-5)
        checked += 1
    kinds = Schedule(PROBLEM, 16, 8).kinds()
    kernels = 2 if name == "flash2_two_kernel" else 1
    assert checked == (kinds.size if name == "tiled" else kernels * (kinds != SKIPPED).sum())


def test_only_the_one_kernel_backward_accumulates():
    for name in TILED:
        log = run(name, direction="backward", record=True).log
        assert log is not None
        assert (ACCUMULATE in log.columns["op"]) == (name == "flash2"), OPERATIONS[ACCUMULATE]


# Broken programs


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_is_wrong_and_its_counts_look_right(name):
    problem = replace(PROBLEM, causal="flash2_mask" in name)
    given = arrays(problem)
    found = run(name, problem, "backward", given, head=None).arrays
    truth, twin = (answers(problem, given, dtype) for dtype in (None, "fp32"))
    wrong = "dQ" if name == "flash2_without_delta" else "O"
    verdict = within_budget(found[wrong], truth[wrong], twin[wrong], "fp32")
    assert verdict.error > 1000 * verdict.allowance
    for direction in ("forward", "backward"):
        counts = run(name, problem, direction).counts
        real = run("flash2", problem, direction).counts
        tail = name == "flash2_tail_unmasked" and direction == "forward"
        assert (counts == real) != tail


def test_the_forgotten_tail_is_right_where_tiles_divide_the_keys():
    problem = Problem(32, 40, 8)
    broken, real = (run(name, problem) for name in ("flash2_tail_unmasked", "flash2"))
    np.testing.assert_array_equal(broken.arrays["O"], real.arrays["O"])
    assert broken.counts == real.counts


def answers(problem, given, dtype):
    q, k, v, do = (given[n] for n in ("q", "k", "v", "do"))
    o, _ = reference.forward(problem, q, k, v, dtype=dtype)
    return {"O": o, "dQ": reference.backward(problem, q, k, v, do, dtype=dtype).dq}


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"program": "flash3"}, "program must be one of algorithm0, .*; got 'flash3'"),
        ({"direction": "sideways"}, "direction must be 'forward' or 'backward', got 'sideways'"),
        ({"tile_m": 0}, "tile_m must be a whole number >= 1, got 0"),
        ({"tile_n": 2.5}, "tile_n must be a whole number >= 1, got 2.5"),
        ({"sram_bytes": -1}, "sram_bytes must be a whole number >= 1, got -1"),
        ({"batch": 1}, r"batch must lie in 0\.\.0, got 1"),
        ({"head": 2}, r"head must lie in 0\.\.1, got 2"),
        ({"head": None, "record": True}, "head must be a number, got None"),
        ({"v": None}, "q, k and v must come together, got none for v"),
        ({"k": np.ones((1, 38, 2, 8), np.float32)}, r"k must have shape \(1, 38, 1, 8\)"),
        ({"q": np.ones((45, 8), np.float32)}, r"q must have shape \(1, 45, 2, 8\)"),
        ({"direction": "backward"}, "q, k, v and do must come together, got none for do"),
        ({"program": "algorithm0", "direction": "backward", "dlse": True}, "dlse must be None"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(change, message):
    given = {n: array for n, array in arrays(PROBLEM).items() if n != "do"}
    options: dict[str, Any] = {"program": "flash2", "problem": PROBLEM, **given, **change}
    with pytest.raises(ValueError, match=message):
        simulate(**options)


def test_arrays_of_integers_are_refused():
    given: dict[str, Any] = {n: np.ones(PROBLEM.shapes[n], np.int32) for n in ("q", "k", "v")}
    with pytest.raises(TypeError, match="q must hold floats, got dtype int32"):
        simulate("flash2", PROBLEM, **given)


def test_a_score_change_without_derivative_is_refused_before_the_backward():
    mod = masks.ScoreMod("cubed", lambda score, b, h, q, k, aux: score**3)
    problem = replace(PROBLEM, score_mods=(mod,))
    simulate("flash2", problem)
    with pytest.raises(ValueError, match="'cubed' must have a callable derivative"):
        simulate("flash2", problem, direction="backward")


def test_a_program_may_be_handed_over():
    program = replace(PROGRAMS["flash2"], name="mine")
    assert simulate(program, PROBLEM).counts == simulate("flash2", PROBLEM).counts
