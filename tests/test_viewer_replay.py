import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_runs import PROBLEMS, RUNS, log_of, moment_of, recorded, replay_of

from flash_numba.problem import Problem
from simulator.events import ACCUMULATE, FILL, FREE, LOAD, OPERATIONS, REGISTER, STORE, EventLog
from simulator.run import simulate
from simulator.viewer.grid import DONE, MIXED, NOW, SKIP, TODO, grid_at, window, zoomed
from simulator.viewer.replay import Replay


def brute_force(log):
    """State after every event, from the events alone, one after another."""
    columns = {name: column.tolist() for name, column in log.columns.items()}
    residents, registers, moved = [], {}, {}
    block, peak = None, 0
    for i in range(len(log)):
        event = {name: column[i] for name, column in columns.items()}
        name = log.names[event["name"]]
        shape = (event["rows"], event["cols"]) if event["cols"] else (event["rows"],)
        if (event["kernel"], event["block"]) != block:
            block = event["kernel"], event["block"]
            registers.clear()
        if event["in_sram"] and event["op"] in (LOAD, FILL):
            residents.append((name, shape, event["nbytes"], i))
        if event["op"] == FREE:
            first = next(tile for tile in residents if tile[0] == name)
            residents.remove(first)
        if event["op"] == REGISTER:
            registers.pop(name, None)
            registers[name] = (name, shape, event["nbytes"], i)
        if event["op"] in (LOAD, STORE, ACCUMULATE):
            read, written = moved.get(name, (0, 0))
            moved[name] = read + event["hbm_read"], written + event["hbm_write"]
        used = sum(tile[2] for tile in residents)
        peak = max(peak, used)
        yield i, list(residents), list(registers.values()), dict(moved), used, peak


def check_against_brute_force(log):
    replay = Replay(log)
    totals = dict.fromkeys(("hbm_read", "sram_load", "matmul_flops", "exp_count"), 0)
    residents = []
    for i, residents, registers, moved, used, peak in brute_force(log):
        assert [dataclasses.astuple(tile) for tile in replay.residents(i)] == residents
        assert [dataclasses.astuple(tile) for tile in replay.registers(i)] == registers
        seen = {name: both for name, both in replay.tensors(i).items() if any(both)}
        assert seen == moved
        assert replay.residency.nbytes(i) == (used, peak)
        for name in totals:
            totals[name] += int(log.columns[name][i])
            assert replay.total(name, i) == totals[name]
    assert not residents, "all SRAM is given back at the end"
    return replay


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("program", "direction"), RUNS)
def test_state_equals_brute_force_at_every_event(program, direction, name):
    run = recorded(program, direction, name)
    replay = check_against_brute_force(run.log)
    last = len(replay) - 1
    assert replay.total("hbm_read", last) == run.counts.hbm_read_elements
    assert replay.total("hbm_write", last) == run.counts.hbm_write_elements
    assert replay.total("sram_load", last) == run.counts.sram_load_elements
    assert replay.residency.nbytes(last)[1] == run.counts.sram_peak_bytes


@settings(max_examples=40)
@given(
    seqlens=st.tuples(st.integers(1, 40), st.integers(0, 40)),
    tiles=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    causal=st.booleans(),
    left=st.none() | st.integers(0, 12),
    run=st.sampled_from(RUNS),
)
def test_state_equals_brute_force_on_random_problems(seqlens, tiles, causal, left, run):
    problem = Problem(*seqlens, head_dim=3, causal=causal, window=(left, None))
    options = {"direction": run[1], "tile_m": tiles[0], "tile_n": tiles[1], "record": True}
    replay = check_against_brute_force(simulate(run[0], problem, **options).log)
    for i in range(0, len(replay), 5):
        grid_at(replay, i)
    assert replay.steps.stops.tolist() == walk(replay, replay.next_stop, -1, len(replay) - 1)


def walk(replay, move, start, end):
    """Stops met by pressing a tile key until it leads no further."""
    met, at = [], start
    while (there := move(at)) != at and there in replay.steps.stops:
        met.append(there)
        at = there
    assert move(at) == end
    return met


@pytest.mark.parametrize(("program", "direction"), RUNS)
def test_the_tile_keys_visit_every_tile_both_ways(program, direction):
    replay = replay_of(program, direction)
    there = walk(replay, replay.next_stop, -1, len(replay) - 1)
    back = walk(replay, replay.previous_stop, len(replay), 0)
    assert there == back[::-1] == replay.steps.stops.tolist()
    assert [replay.steps.begun(stop) for stop in there] == list(range(1, len(there) + 1))


@pytest.mark.parametrize(("program", "direction"), RUNS)
def test_a_landing_is_before_anything_is_freed(program, direction):
    replay = replay_of(program, direction)
    for stop in replay.steps.stops.tolist():
        step = replay.steps.at(stop)
        operations = replay.columns["op"][step.start : step.stop]
        assert OPERATIONS[operations[stop - step.start]] != "free"
        assert (operations[stop - step.start + 1 :] == FREE).all()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("program", "direction"), RUNS)
def test_grid_states_equal_brute_force(program, direction, name):
    replay = replay_of(program, direction, name)
    columns = {n: c.tolist() for n, c in replay.columns.items()}
    place = list(zip(columns["kernel"], columns["m_block"], columns["n_block"], strict=True))
    last = {where: i for i, where in enumerate(place)}
    for i in range(0, len(replay), 7):
        kernel, m, n = place[i]
        pairs = {(a, b) for k, a, b in last if k == kernel and a >= 0 and b >= 0}
        if not pairs:
            continue
        grid = grid_at(replay, i)
        for a, b in np.ndindex(replay.kinds.shape):
            expected = TODO if (a, b) in pairs else SKIP
            if (a, b) in pairs and last[kernel, a, b] <= i:
                expected = DONE
            if (a, b) == (m, n):
                expected = NOW
            assert grid.state[a, b] == expected
        visited = grid.state != SKIP
        assert (grid.partial == (visited & (replay.kinds < 2))).all()


def test_a_kernel_on_query_tiles_alone_is_a_column():
    grid = grid_at(replay_of("flash2", "backward"), 0)
    assert grid.state.tolist() == [[NOW], [TODO], [TODO]]
    assert grid.axes == ("query tiles", "")


def test_zoomed_cells_summarise_their_tiles():
    replay = replay_of("flash2", "forward", "causal", 4, 4)
    for event in range(0, len(replay), 11):
        grid = grid_at(replay, event)
        small = zoomed(grid, 4)
        for row, col in np.ndindex(small.state.shape):
            states = set(grid.state[4 * row : 4 * row + 4, 4 * col : 4 * col + 4].flat)
            if NOW in states:
                assert small.state[row, col] == NOW
            elif states == {SKIP}:
                assert small.state[row, col] == SKIP
            else:
                both = {DONE, TODO} <= states
                assert small.state[row, col] == (MIXED if both else max(states))
            assert not (states == {SKIP} and small.partial[row, col])
    assert (window(10, 4, 9), window(10, 4, 0), window(3, 4, 1)) == (
        slice(6, 10),
        slice(0, 4),
        slice(0, 3),
    )


def test_find_tile_prefers_the_kernel_at_hand():
    replay = replay_of("flash2_two_kernel", "backward")
    kernels = replay.meta["kernels"]
    for event in (0, len(replay) - 1):
        found = replay.find_tile(1, 2, event)
        step = replay.steps.at(found)
        assert (step.m_block, step.n_block, step.landing) == (1, 2, found)
        assert kernels[step.kernel] == "dK dV"
    inside = replay.find_tile(0, 0, int(np.flatnonzero(replay.columns["kernel"] == 1)[0]))
    assert kernels[replay.steps.at(inside).kernel] == "dQ"
    with pytest.raises(ValueError, match=r"query tile must be in 0\.\.2, got 3"):
        replay.find_tile(3, 0)
    with pytest.raises(ValueError, match="is skipped"):
        replay.find_tile(0, 6)


def test_a_saved_log_replays_alike(tmp_path):
    log_of("flash1", "backward").save(tmp_path / "log.npz")
    again = Replay(EventLog.load(tmp_path / "log.npz"))
    first = replay_of("flash1", "backward")
    for i in range(0, len(first), 3):
        assert again.residents(i) == first.residents(i)
        assert again.tensors(i) == first.tensors(i)
    assert again.steps.stops.tolist() == first.steps.stops.tolist()
    assert again.log.watched.keys() == first.log.watched.keys()
    for event, values in first.log.watched.items():
        for name, value in values.items():
            np.testing.assert_array_equal(again.log.watched[event][name], value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda log: log.columns["m_block"].__setitem__(3, 99), "m_block must lie in"),
        (lambda log: log.columns["kernel"].__setitem__(3, 7), "kernel must lie in"),
        (lambda log: log.columns["op"].__setitem__(0, FREE), "event 0 frees Q, which is not"),
        (lambda log: log.meta.pop("tile_kinds"), "tile_kinds is missing"),
        (lambda log: log.meta.__setitem__("tokens", ["a"]), "tokens and seqlen_q"),
        (lambda log: log.watched.__setitem__(10**6, {}), "after event 1000000"),
        (lambda log: log.meta.__setitem__("tile_kinds", [[1]]), "tile_kinds must have shape"),
        (
            lambda log: log.meta.__setitem__("tile_m", "x"),
            "tile_m of an event log must be of type int",
        ),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(tmp_path, spoil, message):
    log_of("flash2", "forward").save(tmp_path / "log.npz")
    log = EventLog.load(tmp_path / "log.npz")
    spoil(log)
    with pytest.raises(ValueError, match=message):
        Replay(log)


def test_an_empty_log_is_refused():
    log = simulate("flash2", Problem(0, 4, 2), record=True).log
    assert log is not None
    with pytest.raises(ValueError, match="at least one event, got 0"):
        Replay(log)


def test_moments_outside_the_run_are_refused():
    with pytest.raises(ValueError, match=r"event must be in 0\.\."):
        moment_of(10**6)
