"""The grader on answers by someone who knew its statements but not its code."""

import linecache
import re

import pytest
from outside import (
    attention_tiles,
    backward_tiles,
    cheating_tiles,
    first_tiles,
    formulas,
    kernels,
    later_formulas,
    other_attention,
    other_kernels,
    other_ways,
    ring_kernels,
    row_kernels,
    second_thoughts,
    tile_kernels,
    warp_kernels,
)

from simulator.grade import PUZZLES, grade

TOPICS = (
    formulas,
    first_tiles,
    attention_tiles,
    backward_tiles,
    cheating_tiles,
    kernels,
    row_kernels,
    tile_kernels,
    second_thoughts,
    later_formulas,
    warp_kernels,
    ring_kernels,
    other_ways,
    other_attention,
    other_kernels,
)
TABLES = [(puzzle, answers) for topic in TOPICS for puzzle, answers in topic.ANSWERS.items()]
RIGHT = [(puzzle, answer) for puzzle, answers in TABLES for answer in answers["right"]]
WRONG = [(puzzle, *wrong) for puzzle, answers in TABLES for wrong in answers["wrong"]]


def name(value):
    """An answer's name in a test's id; a cuda.jit kernel has its function's."""
    return value if isinstance(value, str) else value.__name__


def test_every_puzzle_is_answered():
    assert {puzzle for puzzle, _ in RIGHT} == {puzzle for puzzle, *_ in WRONG} == set(PUZZLES)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_answers_are_many(puzzle):
    assert sum(one == puzzle for one, _ in RIGHT) >= 3
    assert sum(one == puzzle for one, *_ in WRONG) >= 5


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=name)
def test_right_answers_pass(puzzle, answer):
    found = grade(puzzle, answer)
    assert found, str(found)


@pytest.mark.parametrize(("puzzle", "answer", "words"), WRONG, ids=name)
def test_wrong_answers_fail_for_their_reason(puzzle, answer, words):
    found = grade(puzzle, answer)
    assert not found, str(found)
    assert found.line is not None
    file = getattr(answer, "py_func", answer).__code__.co_filename
    assert f"(`{linecache.getline(file, found.line).strip()}`)" in found.message
    reason = re.sub(r"^line \d+ \(`.*?`\) ", "", found.message)  # not the answer's own words
    assert re.search(words, reason), str(found)
