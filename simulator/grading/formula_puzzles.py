"""Puzzles that want a formula: the traffic of a program, predicted before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flash_numba.problem import Problem

from ..hardware import GPUS
from ..theory import counts
from ..theory.asymptotics import break_even_tile
from .verdict import Wrong, code_of, on_one_line, place_of


@dataclass(frozen=True, kw_only=True)
class FormulaPuzzle:
    """A number to predict.

    Attributes
    ----------
    name, statement : str
    hints : tuple of str
        From a nudge to nearly the answer.
    cases : tuple of dict
        Arguments that the answer is called with.
    expected : callable
        The right number, of the same arguments.
    mistakes : mapping of str to callable
        What a wrong number may mean, and of the arguments the number that means it.
    nudge : str
        What a wrong number that nobody knows is told.
    """

    name: str
    statement: str
    hints: tuple[str, ...]
    cases: tuple[dict[str, int], ...]
    expected: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    nudge: str = "count again what is moved, and how often"

    @property
    def signature(self) -> str:
        """How the answer is called."""
        return f"{self.name}({', '.join(self.cases[0])})"

    def check(self, answer: Callable) -> str:
        """What was checked, if the answer is right.

        Raises
        ------
        Wrong
            With the reason.
        """
        code = code_of(answer)
        found = None
        for number, case in enumerate(self.cases):
            asked = ", ".join(f"{name}={value:,}" for name, value in case.items())
            try:
                found = answer(*case.values())
            except Exception as error:
                told = f"fails: {type(error).__name__}: {on_one_line(str(error))}"
                raise Wrong(f"{told} ({asked})", place_of(error, code.co_filename)) from error
            if (right := self.expected(**case)) != found:
                why = self._meaning(found, number)
                lines = [line for *_, line in code.co_lines() if line is not None]
                place = code.co_filename, max(lines)
                raise Wrong(f"gives {found!r} for {asked}, where {right!r} is right: {why}", place)
        return f"right on {len(self.cases)} sizes; the last is {found!r}"

    def _meaning(self, found: Any, number: int) -> str:
        """Why an answer that was right on the cases before gives `found` on this one."""
        if found is None:
            return "the function returns nothing"
        passed = self.cases[:number]
        for why, wrong in self.mistakes.items():
            if wrong(**self.cases[number]) == found and all(
                wrong(**case) == self.expected(**case) for case in passed
            ):
                return why
        return self.nudge


def _elements(program: str, N: int, M: int, d: int, B_r: int = 1, B_c: int = 1) -> int:
    return counts(program, Problem(N, M, d), B_r, B_c, direction="forward").hbm_elements


def _flash_sizes(*sizes: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(("N", "M", "d", "B_r", "B_c"), one, strict=True)) for one in sizes)


def _fits(d: int, sram_bytes: int, B_r: int, B_c: int) -> bool:
    problem = Problem(B_r, B_c, d, dtype="fp16")
    peak = counts("flash2", problem, B_r, B_c, direction="forward").sram_peak_bytes
    return peak is not None and peak <= sram_bytes


def tallest_tile(d: int, sram_bytes: int) -> int:
    """The largest multiple of 16 for B_r with which flash2 fits next to key tiles of 16, fp16."""
    B_r = 16
    while _fits(d, sram_bytes, B_r + 16, 16):
        B_r += 16
    return B_r


FORMULA_PUZZLES = (
    FormulaPuzzle(
        name="predict_standard",
        statement="""How many elements does standard attention move between HBM and the chip in
its forward pass? Three operations, each of which reads its operands once and writes its result
once: S = scale Q Kᵀ, P = softmax(S), O = P V, for N queries and M keys of d columns.""",
        hints=(
            "Write down for each of the three operations what it reads and what it writes.",
            "S is written, read, and P is written and read: how many passes over N x M is that?",
            "Q, K, V are read once and O is written once: 2Nd + 2Md besides the N x M passes.",
        ),
        cases=tuple({"N": N, "M": M, "d": d} for N, M, d in ((1024, 1024, 64), (100, 300, 32))),
        expected=lambda N, M, d: _elements("algorithm0", N, M, d),
        mistakes={
            "that is what one writes and reads of S alone; P is as large": lambda N, M, d: (
                2 * N * M + 2 * (N + M) * d
            ),
            "S and P are moved too, four times N x M": lambda N, M, d: 2 * (N + M) * d,
            "that is what is read; what is written counts too": lambda N, M, d: (
                2 * N * M + (N + 2 * M) * d
            ),
            "these look like bytes; count elements": lambda N, M, d: (
                2 * _elements("algorithm0", N, M, d)
            ),
            "this counts queries and keys as if there were equally many": lambda N, M, d: (
                4 * N * N + 4 * N * d
            ),
        },
    ),
    FormulaPuzzle(
        name="predict_flash2",
        statement="""How many elements does FlashAttention-2 move in its forward pass? N queries,
M keys, d columns, query tiles of B_r and key tiles of B_c rows; the last tile of each may have
fewer. Count the reads of Q, K and V and the writes of O and LSE.""",
        hints=(
            "How often is Q read, and how often is a key tile loaded?",
            "There are T_r = ⌈N / B_r⌉ query tiles, and each of them meets every key.",
            "Nd for Q, T_r · 2Md for K and V, Nd for O, N for LSE. B_c does not appear.",
        ),
        cases=_flash_sizes((1024, 1024, 64, 128, 64), (1000, 300, 32, 96, 64), (50, 70, 8, 64, 16)),
        expected=lambda N, M, d, B_r, B_c: _elements("flash2", N, M, d, B_r, B_c),
        mistakes={
            "K and V are loaded anew for every query tile": lambda N, M, d, B_r, B_c: (
                2 * N * d + N + 2 * M * d
            ),
            "a last tile that is not whole is a tile too: round up": lambda N, M, d, B_r, B_c: (
                2 * N * d + N + N // B_r * 2 * M * d
            ),
            "tiles come in whole numbers: round up": lambda N, M, d, B_r, B_c: (
                2 * N * d + N + N / B_r * 2 * M * d
            ),
            "the last tile has fewer rows: count valid ones alone": lambda N, M, d, B_r, B_c: (
                -(-N // B_r) * (2 * B_r + 2 * -(-M // B_c) * B_c) * d + N
            ),
            "LSE is written too, one number a query": lambda N, M, d, B_r, B_c: (
                2 * N * d + -(-N // B_r) * 2 * M * d
            ),
            "it is the query tiles that K and V are loaded for": lambda N, M, d, B_r, B_c: (
                2 * N * d + N + -(-M // B_c) * 2 * M * d
            ),
        },
    ),
    FormulaPuzzle(
        name="break_even",
        statement="""With small tiles FlashAttention-2 moves *more* than standard attention. For
long sequences (N = M, much larger than d): what is the smallest B_r with which it moves less?""",
        hints=(
            "Keep only what grows with N²: 4N² for standard attention, and T_r · 2Nd for the "
            "other.",
            "T_r = N / B_r, so the other moves 2d/B_r · N².",
            "2d / B_r < 4 is B_r > d / 2: the smallest whole number above that.",
        ),
        cases=({"d": 64}, {"d": 33}, {"d": 128}),
        expected=lambda d: break_even_tile("flash2", d),
        mistakes={
            "at B_r = d / 2 both move the same; it must be less": lambda d: d // 2,
            "that is where it moves only half as much: a smaller B_r will do": lambda d: d + 1,
            "a query tile loads K and V, both of them": lambda d: d // 4 + 1,
        },
        nudge="write down both counts again, and keep what grows with N²",
    ),
    FormulaPuzzle(
        name="tallest_tile",
        statement="""A taller query tile means fewer visits to K and V. Which is the largest B_r,
a multiple of 16, whose tile fits into SRAM beside a tile of K and one of V of 16 rows each?
Elements are fp16, two bytes; S, P and O are in registers.""",
        hints=(
            "Add up the bytes of the three tiles.",
            "2 · (B_r + 2 · 16) · d bytes must be at most sram_bytes.",
            "B_r = sram_bytes / (2d) - 32, rounded down to a multiple of 16.",
        ),
        cases=tuple(
            {"d": d, "sram_bytes": gpu.shared_bytes_per_block}
            for gpu, d in zip(GPUS, (64, 128, 64, 96, 128, 256, 80, 64), strict=True)
        ),
        expected=tallest_tile,
        mistakes={
            "K and V take a tile each, not one together": lambda d, sram_bytes: (
                (sram_bytes // (2 * d) - 16) // 16 * 16
            ),
            "an element is two bytes": lambda d, sram_bytes: (sram_bytes // d - 32) // 16 * 16,
            "four bytes an element is fp32; these are two": lambda d, sram_bytes: (
                (sram_bytes // (4 * d) - 32) // 16 * 16
            ),
            "tiles that fill SRAM to the last byte still fit": lambda d, sram_bytes: (
                ((sram_bytes - 1) // (2 * d) - 32) // 16 * 16
            ),
            "Q is not alone: K and V need room": lambda d, sram_bytes: (
                sram_bytes // (2 * d) // 16 * 16
            ),
        },
        nudge="add up the bytes of the three tiles again, and round B_r down to a multiple of 16",
    ),
)
