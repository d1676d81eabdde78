"""Masks and score changes against their definitions, on arrays and on scalars."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from flash_numba import fn, masks
from flash_numba.masks import Mask, ScoreMod
from flash_numba.problem import Problem
from flash_numba.scores import apply_scores, aux_totals, check_differentiable, score_gradient

ROWS, COLS = 9, 7
Q_IDX, K_IDX = np.ogrid[:ROWS, :COLS]
RNG = np.random.default_rng(2)


def seen(mask: Mask, batch: int = 0, head: int = 0) -> np.ndarray:
    return np.broadcast_to(mask.keep(batch, head, Q_IDX, K_IDX, mask.aux), (ROWS, COLS))


def by_position(function) -> np.ndarray:
    return np.array([[function(i, j) for j in range(COLS)] for i in range(ROWS)])


BOOLEAN = RNG.random((2, 3, ROWS, COLS)) < 0.5
SHIFTS = np.array([-2, 1])
VISIBLE = {
    "causal": (masks.causal(-2), lambda b, h, i, j: j <= i - 2),
    "causal-lengths": (masks.causal(SHIFTS), lambda b, h, i, j: j <= i + SHIFTS[b]),
    "window": (masks.window(1, 2, 1), lambda b, h, i, j: -1 <= i + 1 - j <= 2),
    "window-left": (masks.window(1, 2, None), lambda b, h, i, j: i + 1 - j <= 2),
    "window-right": (masks.window(1, None, 0), lambda b, h, i, j: j <= i + 1),
    "window-lengths": (
        masks.window(SHIFTS, 0, 3),
        lambda b, h, i, j: -3 <= i + SHIFTS[b] - j <= 0,
    ),
    "boolean": (masks.boolean(BOOLEAN), lambda b, h, i, j: BOOLEAN[b, h, i, j]),
    "range-second": (
        masks.boolean(BOOLEAN) & masks.causal(0),
        lambda b, h, i, j: j <= i and BOOLEAN[b, h, i, j],
    ),
    "both": (
        masks.causal(0) & masks.boolean(BOOLEAN) & masks.window(0, 3, None),
        lambda b, h, i, j: j <= i and BOOLEAN[b, h, i, j] and i - j <= 3,
    ),
}


@pytest.mark.parametrize(("mask", "rule"), VISIBLE.values(), ids=VISIBLE)
def test_a_mask_keeps_what_its_rule_says(mask, rule):
    for batch, head in np.ndindex(2, 3):
        right = by_position(partial(rule, batch, head))
        np.testing.assert_array_equal(seen(mask, batch, head), right)


@pytest.mark.parametrize("mask", [mask for mask, _ in VISIBLE.values()], ids=VISIBLE)
def test_scalars_and_arrays_get_the_same_answer(mask):
    alone = by_position(lambda i, j: mask.keep(1, 2, i, j, mask.aux))
    np.testing.assert_array_equal(seen(mask, 1, 2), alone)


@pytest.mark.parametrize("mask", [mask for mask, _ in VISIBLE.values()], ids=VISIBLE)
def test_a_key_range_holds_every_visible_key_and_if_exact_no_other(mask):
    if mask.key_range is None:
        assert not mask.exact
        return
    lo, hi = mask.key_range(1, 0, Q_IDX, mask.aux)
    inside = (lo <= K_IDX) & (hi > K_IDX)
    assert not (seen(mask, 1) & ~inside).any()
    if mask.exact:
        np.testing.assert_array_equal(seen(mask, 1), inside)


def test_two_masks_are_exact_only_together_and_name_both():
    bare = Mask("odd", lambda b, h, i, j, aux: j % 2 == 1)
    together = masks.causal(0) & bare
    assert together.name == "causal & odd"
    assert together.key_range is not None
    assert not together.exact
    assert (masks.causal(0) & masks.window(0, 1, 1)).exact
    assert (bare & bare).key_range is None
    # The same functions give the same function: kernels are compiled once for them.
    assert together.keep is (masks.causal(5) & bare).keep


BIAS = RNG.standard_normal((2, 3, ROWS, COLS))
SLOPES = RNG.random((2, 3))
WEIGHTS, THETA = RNG.standard_normal(4), RNG.random(4)
CHANGED = {
    "softcap": (masks.softcap(2.0), lambda s, b, h, i, j: 2 * math.tanh(s / 2)),
    "alibi": (masks.alibi(SLOPES, -2), lambda s, b, h, i, j: s - SLOPES[b, h] * abs(i - 2 - j)),
    "alibi-lengths": (
        masks.alibi(SLOPES, SHIFTS),
        lambda s, b, h, i, j: s - SLOPES[b, h] * abs(i + SHIFTS[b] - j),
    ),
    "bias": (masks.bias(BIAS), lambda s, b, h, i, j: s + BIAS[b, h, i, j]),
    "relative": (
        masks.relative_positions(WEIGHTS, THETA),
        lambda s, b, h, i, j: s + sum(WEIGHTS * np.sin(abs(i - j) * THETA)),
    ),
}


@pytest.mark.parametrize(("mod", "rule"), CHANGED.values(), ids=CHANGED)
def test_a_score_change_does_what_its_formula_says(mod, rule):
    scores = 3 * RNG.standard_normal((ROWS, COLS))
    found = mod.apply(scores, 1, 2, Q_IDX, K_IDX, mod.aux)
    right = by_position(lambda i, j: rule(scores[i, j], 1, 2, i, j))
    np.testing.assert_allclose(found, right, rtol=1e-13, atol=1e-13)
    step = 1e-6
    moved = [mod.apply(scores + x, 1, 2, Q_IDX, K_IDX, mod.aux) for x in (step, -step)]
    slope = mod.derivative(scores, 1, 2, Q_IDX, K_IDX, mod.aux)
    np.testing.assert_allclose((moved[0] - moved[1]) / (2 * step) - slope, 0, atol=1e-8)


def test_a_softcap_may_be_small():
    assert abs(masks.softcap(1e-3).apply(5.0, 0, 0, 0, 0, (1e-3,)) - 1e-3) < 1e-12


def test_nothing_to_do_costs_nothing():
    scores = RNG.standard_normal((ROWS, COLS))
    problem = Problem(ROWS, COLS, 8)
    changed, chain = apply_scores(problem, 0, 0, Q_IDX, K_IDX, scores)
    assert changed is scores
    assert chain == ()
    assert score_gradient(problem, 0, 0, Q_IDX, K_IDX, scores, chain) is scores
    causal = Problem(ROWS, COLS, 8, causal=True)
    assert apply_scores(causal, 0, 0, Q_IDX, K_IDX, scores, masked=False)[0] is scores


def only_scalars(score, batch, head, q_idx, k_idx, aux):
    return math.sin(score) if k_idx > q_idx and score > 0 else score / 2


def test_a_function_of_scalars_runs_element_by_element_and_says_so_once():
    scores = RNG.standard_normal((ROWS, COLS)).astype(np.float32)
    problem = Problem(ROWS, COLS, 8, score_mods=[ScoreMod("mine", only_scalars)])
    with pytest.warns(RuntimeWarning, match="'mine' works only on scalars"):
        found, _ = apply_scores(problem, 0, 0, Q_IDX, K_IDX, scores)
    assert found.dtype == np.float32
    right = by_position(lambda i, j: only_scalars(float(scores[i, j]), 0, 0, i, j, ()))
    np.testing.assert_allclose(found, right, rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, _ = apply_scores(problem, 0, 0, Q_IDX, K_IDX, scores)
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("where", [(1, 1), (1, COLS), (ROWS, 1)], ids=str)
def test_a_function_of_scalars_is_right_on_every_shape_of_tile(where):
    def keep(batch, head, q_idx, k_idx, aux):
        return k_idx <= q_idx or math.cos(k_idx) > 0

    problem = Problem(ROWS, COLS, 8, mask=Mask("m", keep))
    rows, cols = Q_IDX[: where[0]], K_IDX[:, : where[1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, _ = apply_scores(problem, 0, 0, rows, cols, np.zeros(where))
    right = by_position(lambda i, j: keep(0, 0, i, j, ()))[: where[0], : where[1]]
    np.testing.assert_array_equal(found == 0, right)


@pytest.mark.parametrize(
    "apply",
    [
        lambda s, b, h, i, j, aux: 3.0,
        lambda s, b, h, i, j, aux: j + 0.5,
        lambda s, b, h, i, j, aux: s,
    ],
    ids=["a constant", "a row", "the same"],
)
def test_whatever_a_change_returns_the_scores_are_a_whole_writable_tile(apply):
    scores = RNG.standard_normal((ROWS, COLS))
    problem = Problem(ROWS, COLS, 8, score_mods=[ScoreMod("mine", apply)])
    found, _ = apply_scores(problem, 0, 0, Q_IDX, K_IDX, scores)
    right = np.broadcast_to(apply(scores, 0, 0, Q_IDX, K_IDX, ()), (ROWS, COLS))
    np.testing.assert_array_equal(found, right)
    was = scores.copy()
    found += 1
    np.testing.assert_array_equal(scores, was)


def test_a_single_element_is_a_scalar_and_needs_no_warning():
    def keep(batch, head, q_idx, k_idx, aux):
        return math.cos(k_idx) > 0 and q_idx == 0

    problem = Problem(1, 1, 8, mask=Mask("m", keep))
    found, _ = apply_scores(problem, 0, 0, Q_IDX[:1], K_IDX[:, :1], np.zeros((1, 1)))
    assert found.tolist() == [[0.0]]


def test_a_function_cannot_change_the_scores_it_is_given():
    def greedy(score, batch, head, q_idx, k_idx, aux):
        score += 1
        return score

    scores = np.zeros((ROWS, COLS))
    problem = Problem(ROWS, COLS, 8, score_mods=[ScoreMod("greedy", greedy)])
    with pytest.warns(RuntimeWarning, match="greedy"):
        found, (came_in,) = apply_scores(problem, 0, 0, Q_IDX, K_IDX, scores)
    assert np.all(found == 1)
    assert not came_in.any()


def test_a_users_own_error_comes_through():
    def wrong(batch, head, q_idx, k_idx, aux):
        return aux[0][q_idx, k_idx]

    problem = Problem(ROWS, COLS, 8, mask=Mask("wrong", wrong, (np.ones((2, 2), bool),)))
    with pytest.raises(IndexError):
        apply_scores(problem, 0, 0, Q_IDX, K_IDX, np.zeros((ROWS, COLS)))


def test_a_masked_score_has_no_gradient_whatever_its_derivative():
    mod = ScoreMod(
        "log",
        lambda s, b, h, i, j, aux: s - fn.where(i == j, 0.0, 1.0),
        derivative=lambda s, b, h, i, j, aux: fn.where(i == j, 1.0, math.nan),
    )
    problem = Problem(4, 4, 8, score_mods=[mod])
    q_idx, k_idx = np.ogrid[:4, :4]
    _, chain = apply_scores(problem, 0, 0, q_idx, k_idx, np.zeros((4, 4)))
    found = score_gradient(problem, 0, 0, q_idx, k_idx, np.eye(4), chain)
    np.testing.assert_array_equal(found, np.eye(4))


@pytest.mark.parametrize("broadcast", [(), (0,), (1,), (2,), (3,), (2, 3), (0, 1, 2, 3)], ids=str)
def test_the_gradient_of_a_bias_has_its_own_shape(broadcast):
    own = tuple(1 if axis in broadcast else size for axis, size in enumerate((2, 3, ROWS, COLS)))
    tensor = np.broadcast_to(RNG.standard_normal(own), (2, 3, ROWS, COLS))
    problem = Problem(ROWS, COLS, 8, batch=2, num_heads=3, score_mods=[masks.bias(tensor)])
    totals = aux_totals(problem)
    d_scores = RNG.standard_normal((2, 3, ROWS, COLS))
    for batch, head in np.ndindex(2, 3):
        for rows in (slice(0, 4), slice(4, None)):
            tile = d_scores[batch, head, rows]
            chain = (tile,)
            score_gradient(problem, batch, head, Q_IDX[rows], K_IDX, tile, chain, totals)
    (total,) = totals
    assert total is not None
    assert total.shape == own
    np.testing.assert_allclose(total, d_scores.sum(axis=broadcast, keepdims=True))


def test_a_backward_pass_asks_for_the_derivative():
    problem = Problem(4, 4, 8, score_mods=[masks.softcap(3.0), ScoreMod("mine", only_scalars)])
    with pytest.raises(ValueError, match=r"'mine' must have a callable derivative, got None"):
        check_differentiable(problem)


def unknown(value) -> Any:
    """A value of a type that a checker would refuse first."""
    return value


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Mask("m", unknown(3)), TypeError, "keep must be callable.*got 3"),
        (lambda: Mask("m", only_scalars, exact=True), ValueError, "'m'.*needs a key_range"),
        (lambda: ScoreMod("s", unknown(None)), TypeError, "apply must be callable.*got None"),
        (
            lambda: ScoreMod("s", only_scalars, (BIAS,), aux_index=0),
            ValueError,
            "'s'.*aux_axes and aux_derivative come together, got aux_index=0, aux_axes=()",
        ),
        (
            lambda: ScoreMod("s", only_scalars, (BIAS,), None, 1, ("query",), only_scalars),
            ValueError,
            r"'s'.*aux_index must lie in 0\.\.0.*got 1",
        ),
        (
            lambda: ScoreMod("s", only_scalars, (BIAS,), None, 0, ("row",), only_scalars),
            ValueError,
            r"'s'.*aux_axes must be a tuple of batch, head, query, key, term.*got \('row',\)",
        ),
        (
            lambda: ScoreMod("s", only_scalars, (BIAS,), None, 0, ("query",), only_scalars),
            ValueError,
            r"aux\[aux_index\] must have 1 axis \(query\), got shape",
        ),
        (lambda: masks.softcap(0), ValueError, "softcap must be a finite number > 0, got 0"),
        (lambda: masks.softcap(math.inf), ValueError, "softcap must be a finite number, got inf"),
        (lambda: masks.bias(np.zeros((4, 4))), ValueError, r"bias must have 4 axes.*\(4, 4\)"),
        (lambda: masks.boolean(np.ones((4, 4), bool)), ValueError, r"mask must have 4 axes"),
        (lambda: masks.boolean(BIAS), TypeError, "mask must be a bool array.*got float64"),
        (lambda: masks.alibi(np.ones(3), 0), ValueError, r"slopes must have 2 axes.*\(3,\)"),
        (
            lambda: masks.relative_positions(np.ones((2, 2)), np.ones(2)),
            ValueError,
            r"weights must have 1 axis \(terms\), got shape \(2, 2\)",
        ),
        (
            lambda: masks.relative_positions(np.ones(2), np.ones(3)),
            ValueError,
            r"theta must have the shape of weights, \(2,\), got \(3,\)",
        ),
    ],
)
def test_errors_say_what_is_allowed_and_what_came(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("batch", [0, 1])
def test_of_one_sequence_a_number_takes_the_place_of_the_shifts(batch):
    """Kernels of packed batches know the shift of their sequence; a mask without one stays."""
    boolean, shift = masks.boolean(BOOLEAN), int(SHIFTS[batch])
    mask = masks.causal(SHIFTS) & masks.window(SHIFTS, 1, None) & boolean
    sides = mask.aux[0][1][1:]
    own = ((shift,), (shift, *sides)), boolean.aux
    keep, key_range = map(masks.of_one_sequence, (mask.keep, mask.key_range))
    assert keep is not None
    assert key_range is not None
    found = np.broadcast_to(keep(batch, 1, Q_IDX, K_IDX, own), (ROWS, COLS))
    np.testing.assert_array_equal(found, seen(mask, batch, 1))
    for row in range(ROWS):
        assert key_range(batch, 1, row, own) == mask.key_range(batch, 1, row, mask.aux)  # type: ignore[misc]
    assert masks.of_one_sequence(boolean.keep) is boolean.keep
    assert masks.of_one_sequence(None) is None
