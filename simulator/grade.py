"""Puzzles that are graded on cost as well as on numbers.

``grade("online_lse", my_function)`` runs an answer on several problems and says what it checked,
or which line is at fault and why: numbers, elements read and written, SRAM, nothing of N x M in
HBM, no race, an end. ``statement(name)`` tells what to do, ``hint(name, step)`` helps. Three kinds:

- a formula: ``predict_flash2(N, M, d, B_r, B_c)`` returns a number;
- a program of tiles: ``flash_forward(gpu)`` on a `simulator.machine.Machine`, whose operations take
  words for what they do first: ``sK = gpu.load("load K_j", gpu.tensor("K")[cols])``. The programs
  of `simulator.programs` are written the same way;
- a CUDA kernel: ``flash_kernel``, decorated with ``@cuda.jit``, run thread by thread on the CPU.

Answers are graded in float32, with N queries, M keys, d columns and tiles of B_r and B_c rows, as
the papers call them.
"""

from __future__ import annotations

from collections.abc import Callable

from flash_numba.checks import one_of, whole

from .grading import PUZZLES, Grade, Wrong
from .grading.limit import LIMIT_S, Endless, time_limit
from .grading.verdict import code_of, place_of

__all__ = ["PUZZLES", "Grade", "grade", "hint", "statement"]


def grade(puzzle: str, fn: Callable, seconds: float = LIMIT_S) -> Grade:
    """Check an answer.

    Parameters
    ----------
    puzzle : str
        A key of `PUZZLES`.
    fn : callable
        The answer: a function, or a ``@cuda.jit`` kernel.
    seconds : float
        Processor time after which an answer counts as one that never ends.

    Returns
    -------
    Grade
        True if the answer passes; printed, it is one sentence.

    Raises
    ------
    ValueError, TypeError
        If there is no such puzzle, or `fn` is no Python function.
    """
    chosen, file = PUZZLES[one_of("puzzle", puzzle, PUZZLES)], code_of(fn).co_filename
    try:
        with time_limit(seconds):
            return Grade(puzzle, True, chosen.check(fn))
    except Wrong as error:
        return error.grade(puzzle)
    except SystemExit as error:  # no Exception, and it would end the one who asks
        why = "fails: SystemExit: an answer returns, it does not end Python"
        return Wrong(why, place_of(error, file)).on("", fn).grade(puzzle)
    except Endless as error:
        why = f"still runs after {seconds:g} s of computing: does its loop ever end?"
        return Wrong(why, place_of(error, file)).on("", fn).grade(puzzle)


def statement(puzzle: str) -> str:
    """What to write, and how it is called."""
    chosen = PUZZLES[one_of("puzzle", puzzle, PUZZLES)]
    text = " ".join(chosen.statement.split())
    return f"{chosen.signature}\n{text}"


def hint(puzzle: str, step: int = 1) -> str:
    """A hint; 1 is a nudge, the last nearly the answer.

    Raises
    ------
    ValueError
        If there is no such puzzle or step.
    """
    hints = PUZZLES[one_of("puzzle", puzzle, PUZZLES)].hints
    return hints[whole("step", step, 1, len(hints)) - 1]
