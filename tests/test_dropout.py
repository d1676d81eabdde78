"""Dropout is Philox4x32-10, and its mask a function of seed, head, row and column."""

import numpy as np
import pytest
from cases import kept
from hypothesis import given
from hypothesis import strategies as st

from flash_numba.dropout import keep_mask, philox, threshold
from flash_numba.problem import Problem

# Known answers of philox4x32 with 10 rounds, from kat_vectors of the Random123 distribution.
KNOWN_ANSWERS = {
    "zeros": ("00000000 00000000 00000000 00000000", "00000000 00000000",
              "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
             "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "pi": ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
           "d16cfe09 94fdcceb 5001e420 24126ea1"),
}  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("known", KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(known):
    counter, key, answer = map(words, known)
    assert [int(word) for word in philox(counter, key)] == answer


def test_philox_runs_on_arrays_as_on_numbers():
    counter = np.arange(12).reshape(3, 4), 5, np.arange(4), 0
    found = np.array(philox(counter, (1, 2)))
    assert found.shape == (4, 3, 4)
    for row, col in np.ndindex(3, 4):
        alone = philox((4 * row + col, 5, col, 0), (1, 2))
        assert found[:, row, col].tolist() == [int(word) for word in alone]


positions = st.integers(0, 2**31)


@given(st.integers(0, 2**64 - 1), positions, positions, positions, st.floats(0, 0.999))
def test_a_weight_is_kept_by_the_word_of_its_own_position(seed, batch_head, row, col, p):
    problem = Problem(1, 1, 1, dropout_p=p, seed=seed)
    found = keep_mask(seed, batch_head, np.array([[row]]), np.array([[col]]), p)
    assert found.tolist() == [[kept(problem, batch_head, row, col)]]


def test_any_tiling_cuts_the_same_mask():
    rows, cols = np.arange(37)[:, None], np.arange(29)[None, :]
    whole = keep_mask(7, 3, rows, cols, 0.3)
    tile = keep_mask(7, 3, rows[11:30], cols[:, 5:18], 0.3)
    np.testing.assert_array_equal(tile, whole[11:30, 5:18])


@pytest.mark.parametrize("p", [0.0, 0.1, 0.48, 0.9])
def test_about_one_in_1_over_p_is_dropped(p):
    size = 400
    found = keep_mask(11, 0, np.arange(size)[:, None], np.arange(size)[None, :], p)
    # Five standard deviations of a binomial count.
    spread = 5 * np.sqrt(p * (1 - p) / size**2)
    assert abs((1 - found.mean()) - p) <= spread


def test_seeds_heads_rows_and_columns_have_masks_of_their_own():
    rows, cols = np.arange(64)[:, None], np.arange(64)[None, :]
    base = keep_mask(1, 0, rows, cols, 0.5)
    others = {
        "seed": keep_mask(2, 0, rows, cols, 0.5),
        "high half of the seed": keep_mask(1 + 2**32, 0, rows, cols, 0.5),
        "head": keep_mask(1, 1, rows, cols, 0.5),
        "rows": keep_mask(1, 0, rows + 1, cols, 0.5),
        "columns": keep_mask(1, 0, rows, cols + 1, 0.5),
    }
    for name, other in others.items():
        # Two independent masks agree on half of 4096 weights, within five standard deviations.
        assert abs((base == other).mean() - 0.5) < 5 * 0.5 / 64, name


def test_the_threshold_is_p_in_units_of_one_word():
    assert threshold(0.0) == 0
    assert threshold(0.5) == 2**31
    assert threshold(1 - 2**-40) == 2**32
    assert not keep_mask(0, 0, np.arange(9)[:, None], np.arange(9)[None, :], 1 - 2**-40).any()
