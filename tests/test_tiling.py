"""Tile schedules against the predicate itself, evaluated on every pair of positions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash_numba.masks import Mask, boolean
from flash_numba.problem import Problem
from flash_numba.tiling import (
    FULL,
    PARTIAL,
    SKIPPED,
    BlockMask,
    Schedule,
    make_key_tiles,
    make_query_span,
)


def visible(problem: Problem, batch: int, head: int = 0) -> np.ndarray:
    """Whether each query sees each of the sequence's own keys."""
    q_idx, k_idx = np.ogrid[: problem.seqlen_q, : problem.key_length(batch)]
    shape = problem.seqlen_q, problem.key_length(batch)
    if problem.visibility is None or 0 in shape:
        return np.ones(shape, bool)
    keep = problem.visibility.keep(batch, head, q_idx, k_idx, problem.visibility.aux)
    return np.broadcast_to(keep, shape)


def kinds_by_force(problem: Problem, tile_m: int, tile_n: int, batch: int, head=0) -> np.ndarray:
    seen = visible(problem, batch, head)
    rows, cols = -(-seen.shape[0] // tile_m), -(-seen.shape[1] // tile_n)
    kinds = np.zeros((rows, cols), int)
    for m, n in np.ndindex(rows, cols):
        tile = seen[m * tile_m : (m + 1) * tile_m, n * tile_n : (n + 1) * tile_n]
        kinds[m, n] = FULL if tile.all() else PARTIAL if tile.any() else SKIPPED
    return kinds


sizes = st.integers(0, 40)
tiles = st.integers(1, 17)
sides = st.none() | st.integers(0, 30)


@st.composite
def range_problems(draw) -> Problem:
    """Problems with causal, window and key lengths only: their schedule is exact."""
    seqlen_k, batch = draw(sizes), draw(st.integers(1, 2))
    lengths = st.none() | st.lists(st.integers(0, seqlen_k), min_size=batch, max_size=batch)
    return Problem(
        draw(sizes),
        seqlen_k,
        8,
        batch=batch,
        causal=draw(st.booleans()),
        window=(draw(sides), draw(sides)),
        key_lengths=draw(lengths),
    )


@given(range_problems(), tiles, tiles)
@settings(max_examples=300)
def test_a_schedule_visits_exactly_the_tiles_with_a_visible_key(problem, tile_m, tile_n):
    for batch in range(problem.batch):
        schedule = Schedule(problem, tile_m, tile_n, batch)
        right = kinds_by_force(problem, tile_m, tile_n, batch)
        np.testing.assert_array_equal(schedule.kinds(), right)


@given(range_problems(), tiles, tiles, st.data())
@settings(max_examples=150)
def test_any_other_mask_is_visited_at_least_where_it_is_visible(problem, tile_m, tile_n, data):
    seed = data.draw(st.integers(0, 99))
    tensor = np.random.default_rng(seed).random((problem.seqlen_q, problem.seqlen_k)) < 0.1
    shape = problem.batch, 2, problem.seqlen_q, problem.seqlen_k
    mask = boolean(np.broadcast_to(tensor, shape))
    options = {"batch": problem.batch, "causal": problem.causal, "window": problem.window}
    options |= {"key_lengths": problem.key_lengths, "num_heads": 2}
    bare = Problem(problem.seqlen_q, problem.seqlen_k, 8, mask=mask, **options)
    batches = data.draw(st.sampled_from([1, problem.batch]))
    block_mask = BlockMask.from_mask(mask, bare, tile_m, tile_n, batches=batches)
    listed = Problem(problem.seqlen_q, problem.seqlen_k, 8, block_mask=block_mask, **options)
    for batch in range(problem.batch):
        ranges = Schedule(problem, tile_m, tile_n, batch).kinds()
        # A bare predicate skips nothing and makes every tile partial.
        found = Schedule(bare, tile_m, tile_n, batch, 1).kinds()
        np.testing.assert_array_equal(found, np.minimum(ranges, PARTIAL))
        # A list skips: visited if some key is visible, full only if all are.
        found = Schedule(listed, tile_m, tile_n, batch, 1).kinds()
        right = kinds_by_force(listed, tile_m, tile_n, batch)
        assert not ((right != SKIPPED) & (found == SKIPPED)).any()
        assert not ((right != FULL) & (found == FULL)).any()
        if problem.key_lengths is None or batches == problem.batch:
            alone = Problem(problem.seqlen_q, bare.key_length(batch), 8, mask=mask)
            own = kinds_by_force(alone, tile_m, tile_n, 0)
            np.testing.assert_array_equal(found, np.minimum(own, ranges))


@given(st.integers(1, 30), sizes, tiles, tiles, st.data())
@settings(max_examples=200)
def test_any_rising_key_range_is_followed(seqlen_q, seqlen_k, tile_m, tile_n, data):
    ends = st.lists(st.integers(-5, 45), min_size=seqlen_q, max_size=seqlen_q)
    lo, hi = np.sort(data.draw(ends)), np.sort(data.draw(ends))
    mask = Mask(
        "rising",
        lambda b, h, i, j, aux: (aux[0][i] <= j) & (j < aux[1][i]),
        (lo, hi),
        lambda b, h, i, aux: (aux[0][i], aux[1][i]),
        exact=True,
    )
    problem = Problem(seqlen_q, seqlen_k, 8, mask=mask)
    schedule = Schedule(problem, tile_m, tile_n)
    found, right = schedule.kinds(), kinds_by_force(problem, tile_m, tile_n, 0)
    np.testing.assert_array_equal(found == FULL, right == FULL)
    for m_block, n_block in np.ndindex(found.shape):
        # Visited: what overlaps the keys from the first row's first to the last row's last.
        rows, cols = schedule.rows(m_block), schedule.cols(n_block)
        overlap = max(lo[rows.start], cols.start) < min(hi[rows.stop - 1], cols.stop)
        assert (found[m_block, n_block] != SKIPPED) == overlap


@given(range_problems(), tiles, tiles)
@settings(max_examples=100)
def test_runs_by_query_tile_and_by_key_tile_list_the_same_tiles(problem, tile_m, tile_n):
    schedule = Schedule(problem, tile_m, tile_n)
    by_column = np.zeros((schedule.m_blocks, schedule.n_blocks), np.int8)
    for n_block in range(schedule.n_blocks):
        runs = schedule.query_runs(n_block)
        for start, stop, kind in runs:
            assert start < stop
            by_column[start:stop, n_block] = kind
        assert [run.start for run in runs] == sorted(run.start for run in runs)
    np.testing.assert_array_equal(by_column, schedule.kinds())
    for m_block in range(schedule.m_blocks):
        ends = [end for run in schedule.key_runs(m_block) for end in run[:2]]
        assert ends == sorted(ends)


@given(range_problems(), tiles, tiles)
@settings(max_examples=50)
def test_one_query_tile_is_told_what_an_array_of_them_is_told(problem, tile_m, tile_n):
    mask = problem.range_mask
    key_tiles = make_key_tiles(mask.key_range, mask.exact) if mask else make_key_tiles(None, True)
    schedule = Schedule(problem, tile_m, tile_n)
    for m_block in range(schedule.m_blocks):
        aux = mask.aux if mask else ()
        found = key_tiles(m_block, 0, 0, schedule.seqlen_q, schedule.seqlen_k, tile_m, tile_n, aux)
        start, full_start, full_stop, stop = (int(end) for end in found)
        assert 0 <= start <= full_start <= full_stop <= stop <= schedule.n_blocks
        runs = [(start, full_start, 1), (full_start, full_stop, 2), (full_stop, stop, 1)]
        assert [run for run in runs if run[1] > run[0]] == schedule.key_runs(m_block)


def test_tiles_end_where_the_sequence_ends():
    schedule = Schedule(Problem(10, 9, 8, batch=2, key_lengths=[9, 5]), 4, 3, batch=1)
    assert (schedule.m_blocks, schedule.n_blocks) == (3, 2)
    assert [schedule.rows(m) for m in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert [schedule.cols(n) for n in range(2)] == [slice(0, 3), slice(3, 5)]


def test_a_mask_by_batch_and_head_has_a_list_by_batch_and_head():
    mask = boolean(np.random.default_rng(1).random((2, 3, 12, 12)) < 0.2)
    plain = Problem(12, 12, 8, batch=2, num_heads=3)
    block_mask = BlockMask.from_mask(mask, plain, 4, 4, batches=2, heads=3)
    problem = Problem(12, 12, 8, batch=2, num_heads=3, block_mask=block_mask)
    for batch, head in np.ndindex(2, 3):
        right = kinds_by_force(problem, 4, 4, batch, head)
        np.testing.assert_array_equal(block_mask.tile_kinds(batch, head), right)
        np.testing.assert_array_equal(Schedule(problem, 4, 4, batch, head).kinds(), right)


def test_functions_of_scalars_make_schedules_and_lists_too():
    def keep(batch, head, q_idx, k_idx, aux):
        return k_idx <= q_idx and k_idx >= max(0, q_idx - 5)

    def key_range(batch, head, q_idx, aux):
        return max(0, q_idx - 5), q_idx + 1

    windowed = Problem(20, 20, 8, window=(5, 0))
    right = Schedule(windowed, 4, 3).kinds()
    with pytest.warns(RuntimeWarning, match="key_range works only on scalars"):
        found = Schedule(Problem(20, 20, 8, mask=Mask("m", keep, (), key_range, True)), 4, 3)
    np.testing.assert_array_equal(found.kinds(), right)
    with pytest.warns(RuntimeWarning, match="mask 'm' works only on scalars"):
        listed = BlockMask.from_mask(Mask("m", keep), Problem(20, 20, 8), 4, 3)
    np.testing.assert_array_equal(listed.tile_kinds(0, 0), right)


def falling(batch, head, q_idx, aux):
    return 0, 10 - 2 * (q_idx // 5)


anything = Mask("anything", lambda b, h, i, j, aux: True)


float_tile: Any = 2.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: Schedule(p, 0, 4), "tile_m must be a whole number >= 1, got 0"),
        (
            lambda p: Schedule(p, 4, tile_n=float_tile),
            r"tile_n must be a whole number >= 1, got 2\.5",
        ),
        (lambda p: Schedule(p, 4, 4, 2), r"batch must lie in 0\.\.1, got 2"),
        (lambda p: Schedule(p, 4, 4, 0, -1), r"head must lie in 0\.\.2, got -1"),
        (
            lambda p: Schedule(Problem(9, 9, 8, mask=Mask("f", anything.keep, (), falling)), 4, 4),
            r"'f' must not decrease as q_idx grows, got a fall between rows 4 and 5",
        ),
        (
            lambda p: Schedule(
                Problem(9, 9, 8, block_mask=BlockMask.from_mask(anything, p, 4, 4)), 8, 4
            ),
            "made for tiles of 4x4, got tile_m=8 and tile_n=4",
        ),
        (lambda p: BlockMask.from_mask(anything, p, 4, 0), "tile_n must be a whole number >= 1"),
        (
            lambda p: BlockMask.from_mask(anything, p, 4, 4, batches=3),
            r"batches must be 1 or 2 \(the problem's\), got 3",
        ),
        (
            lambda p: BlockMask.from_mask(anything, p, 4, 4, heads=2),
            r"heads must be 1 or 3 \(the problem's\), got 2",
        ),
    ],
)
def test_errors_say_what_is_allowed_and_what_came(make, says):
    with pytest.raises(ValueError, match=says):
        make(Problem(9, 9, 8, batch=2, num_heads=3))


@given(range_problems(), tiles, tiles)
@settings(max_examples=100)
def test_query_span_is_what_walking_over_all_query_tiles_finds(problem, tile_m, tile_n):
    mask, schedule = problem.range_mask, Schedule(problem, tile_m, tile_n)
    query_span = make_query_span(mask.key_range if mask else None)
    aux = mask.aux if mask else ()
    for n_block in range(schedule.n_blocks):
        sizes = schedule.seqlen_q, schedule.seqlen_k, tile_m, tile_n
        start, stop = query_span(n_block, 0, 0, *sizes, aux)
        inside = []
        for m_block in range(schedule.m_blocks):
            rows, cols = schedule.rows(m_block), schedule.cols(n_block)
            lo, hi = (0, schedule.seqlen_k)
            if mask is not None and mask.key_range is not None:
                lo = mask.key_range(0, 0, rows.start, aux)[0]
                hi = mask.key_range(0, 0, rows.stop - 1, aux)[1]
            if lo < cols.start + tile_n and hi > cols.start:
                inside.append(m_block)
        assert list(range(start, stop)) == inside
        for run in schedule.query_runs(n_block):
            assert start <= run.start
            assert run.stop <= stop
