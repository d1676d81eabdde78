"""What grading an answer gives: passed or not, and why, in one sentence with the line."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType

import numpy as np

from flash_numba.budget import within_budget

from .cases import Case
from .formulas import Tensors

Elements = Mapping[str, int]
"""Elements by tensor."""

Mistakes = Mapping[str, Callable[[Case, Tensors], Tensors]]
"""What a wrong result may mean, and of a case and its tensors the result that means it."""


@dataclass(frozen=True)
class Grade:
    """The outcome of one answer to one puzzle; true if it passed.

    Attributes
    ----------
    puzzle : str
    passed : bool
    message : str
        One sentence: what was checked, or which line is at fault and why.
    line : int or None
        The line of the answer's source that `message` speaks of.
    """

    puzzle: str
    passed: bool
    message: str
    line: int | None = None

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return f"{'✓' if self.passed else '✗'} {self.puzzle}: {self.message}"

    __repr__ = __str__  # what a notebook shows


class Wrong(Exception):
    """An answer breaks a rule of its puzzle.

    Parameters
    ----------
    why : str
        One sentence that can follow "line 7 (...)".
    place : tuple of str and int, optional
        File and line at fault.
    """

    def __init__(self, why: str, place: tuple[str, int] | None = None):
        super().__init__(why)
        self.why, self.place = why, place
        self.case = ""

    def on(self, case: str, answer: Callable) -> Wrong:
        """The same, of one case; without a line, it is the answer as a whole."""
        self.case = case
        code = code_of(answer)
        self.place = self.place or (code.co_filename, code.co_firstlineno)
        return self

    def grade(self, puzzle: str) -> Grade:
        """The grade of the answer."""
        where = f" ({self.case})" if self.case else ""
        if self.place is None:
            return Grade(puzzle, False, self.why + where)
        file, line = self.place
        text = linecache.getline(file, line).strip()
        source = f" (`{text}`)" if text else ""  # typed at a prompt, it is kept nowhere
        return Grade(puzzle, False, f"line {line}{source} {self.why}{where}", line)


def code_of(function: Callable) -> CodeType:
    """The code of a Python function, or of the one that a `@cuda.jit` kernel is made from."""
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    if code is None:
        raise TypeError(f"fn must be a Python function or a kernel, got {function!r}")
    return code


def place_of(error: BaseException, file: str) -> tuple[str, int] | None:
    """The innermost line of `file` that an exception passed through."""
    walked = traceback.walk_tb(error.__traceback__)
    lines = [number for frame, number in walked if frame.f_code.co_filename == file]
    return (file, lines[-1]) if lines else None


def on_one_line(text: str) -> str:
    """An error's message without line breaks."""
    return " ".join(text.split())


def too_many(does: str, name: str, elements: int, allowed: int) -> str:
    """Why so many accesses to a tensor are too many."""
    if not allowed:
        return f"{does} {name}, which this puzzle does without"
    return (
        f"{does} {name} too often: {elements:,} elements where {allowed:,} are enough "
        f"({elements / allowed:.1f} times as many)"
    )


def close(found: np.ndarray, truth: np.ndarray, twin: np.ndarray) -> bool:
    """True if a result is as near to the truth as float32 lets answers come.

    They may scale and add up in any order: four times what a kernel of known order is allowed.
    """
    if found.shape != truth.shape:
        return False
    if truth.dtype.kind == "u":
        return bool((found == truth).all())
    error, allowance = within_budget(found, truth, twin, "fp32")
    return error <= 4 * allowance


SOFTMAX_RESULTS = ("LSE", "P", "O", "gLSE", "gO", "y")
"""What only a softmax's maximum can spoil once it was right for scores around 0."""


def mistake(mistakes: Mistakes, name: str, found: np.ndarray, case: Case) -> str | None:
    """The known mistake that gives this very result."""
    tensors = case.tensors(np.float32)
    for why, result in mistakes.items():
        with np.errstate(all="ignore"):
            wrong = result(case, tensors).get(name)
        if wrong is not None and np.allclose(found, wrong, 1e-4, 1e-4, equal_nan=True):
            return why
    if case.scores == "low" and name in SOFTMAX_RESULTS:
        return (
            "it is right until all scores are far below 0: subtract the row's own maximum, which "
            "starts at -inf, not at 0"
        )
    return None


def difference(name: str, found: np.ndarray, truth: np.ndarray) -> str:
    """The element that is most wrong, or one that nothing has written."""
    if found.shape != truth.shape:
        return f"{name} has shape {found.shape} where {truth.shape} is right"
    if truth.dtype.kind == "u":
        missing = (found == np.iinfo(truth.dtype).max) & (found != truth)
    else:
        missing = np.isnan(found) & ~np.isnan(truth)
    if missing.any():
        where = ", ".join(map(str, np.argwhere(missing)[0]))
        return f"{name}[{where}] is NaN or was never written"
    found, truth = found.astype(np.float64), truth.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(found - truth)
    error = np.where(found == truth, 0, np.nan_to_num(error, nan=np.inf))
    where = np.unravel_index(np.argmax(error), error.shape)
    at = ", ".join(map(str, where))
    return f"{name}[{at}] is {found[where]:.6g} where {truth[where]:.6g} is right"
