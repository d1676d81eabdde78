"""Puzzles on the tile API: a program walks over tiles, and everything that it moves is counted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..hbm import LAYOUT
from ..memory import UnusedTile
from .bench import WHOLE_MATRIX, Bench
from .cases import SHAPES, Case
from .formulas import Tensors
from .verdict import (
    Elements,
    Mistakes,
    Wrong,
    close,
    code_of,
    difference,
    mistake,
    on_one_line,
    place_of,
    too_many,
)


@dataclass(frozen=True, kw_only=True)
class TilePuzzle:
    """A program to write: ``answer(gpu)`` on a `simulator.machine.Machine`.

    Attributes
    ----------
    name, statement : str
    hints : tuple of str
        From a nudge to nearly the answer.
    given, wanted : tuple of str
        Tensors in HBM before and after, by the names of `formulas.attention`.
    reads, writes : callable
        Of a `Case`: the most elements of each tensor that may be read and written. A tensor that
        is not named may not be touched.
    sram, registers : callable
        Of a `Case`: elements (of 4 bytes) that fit at once.
    product_flops : callable
        Of a `Case`: the least FLOPs that `Machine.product` must have done.
    cases : tuple of Case
    expected : callable, optional
        Of the given tensors: the wanted ones, where `formulas.attention` does not have them.
    mistakes : mapping of str to callable
        What a wrong result may mean, and of a `Case` and its tensors the result that means it.
    """

    name: str
    statement: str
    hints: tuple[str, ...]
    given: tuple[str, ...]
    wanted: tuple[str, ...]
    reads: Callable[[Case], Elements]
    writes: Callable[[Case], Elements]
    sram: Callable[[Case], int]
    registers: Callable[[Case], int]
    product_flops: Callable[[Case], int] = lambda case: 0
    cases: tuple[Case, ...] = SHAPES
    expected: Callable[[Tensors], Tensors] | None = None
    mistakes: Mistakes = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """How the answer is called."""
        return f"{self.name}(gpu)"

    def check(self, answer: Callable) -> str:
        """What was checked, if the answer is right.

        Raises
        ------
        Wrong
            With the reason.
        """
        bench = None
        for case in self.cases:
            try:
                bench = self._run(answer, case)
                self._check_numbers(bench, case)
                self._check_traffic(bench, case)
            except Wrong as error:
                raise error.on(str(case), answer) from error.__cause__
        assert bench is not None
        counts = bench.ledger.counts(bench.sram.peak)
        return (
            f"right on {len(self.cases)} problems; on the last it moves {counts.hbm_elements:,} "
            f"elements and holds at most {bench.sram.peak:,} bytes of SRAM"
        )

    def _run(self, answer: Callable, case: Case) -> Bench:
        twin = case.tensors(np.float32)
        data = {name: twin[name].copy() for name in self.given}
        matrices = [n for n in self.given + self.wanted if LAYOUT[n] == WHOLE_MATRIX]
        bench = Bench(case, data, matrices, 4 * self.sram(case))
        file = code_of(answer).co_filename
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", UnusedTile)
                answer(bench)
        except Exception as error:
            told = on_one_line(str(error)) or "no message"
            raise Wrong(f"fails: {type(error).__name__}: {told}", place_of(error, file)) from error
        return bench

    def _check_numbers(self, bench: Bench, case: Case) -> None:
        twin, truth = case.tensors(np.float32), case.tensors(np.float64)
        if self.expected is not None:
            inputs = {name: twin[name] for name in self.given}
            doubles = {name: array.astype(np.float64) for name, array in inputs.items()}
            twin, truth = self.expected(inputs), self.expected(doubles)
        assert bench.data is not None
        for name in self.wanted:
            place = bench.by_line.dearest("writes", name)
            found = bench.data.get(name)
            if place is None or found is None:
                raise Wrong(f"never writes {name} to HBM: store it tile by tile")
            if not close(found, truth[name], twin[name]):
                why = mistake(self.mistakes, name, found, case)
                why = why or difference(name, found, truth[name])
                raise Wrong(f"writes {name}, and {why}", place)

    def _check_traffic(self, bench: Bench, case: Case) -> None:
        counts = bench.ledger.counts(bench.sram.peak)
        assert bench.data is not None
        for direction, moved, most in (
            ("reads", counts.reads, self.reads(case)),
            ("writes", counts.writes, self.writes(case)),
        ):
            for name in sorted(moved.keys() | most.keys()):
                elements, allowed = moved.get(name, 0), most.get(name, 0)
                if elements > allowed:
                    place = bench.by_line.dearest(direction, name)
                    raise Wrong(too_many(direction, name, elements, allowed), place)
                least = min(allowed, bench.data[name].size) if name in self.given else 0
                if direction == "reads" and elements < least:
                    raise Wrong(
                        f"reads only {elements:,} elements of {name} by gpu.load, where no program "
                        f"can do with fewer than {least:,}"
                    )
        if counts.matmul_flops < self.product_flops(case):
            raise Wrong(
                f"does only {counts.matmul_flops:,} of {self.product_flops(case):,} FLOPs by "
                "gpu.product, which is how tiles are multiplied"
            )
        held = bench.register_peak // 4
        if held > self.registers(case):
            raise Wrong(
                f"fills up the registers: a block keeps {held:,} elements there, where "
                f"{self.registers(case):,} fit and nothing that grows with N or M may lie",
                max(bench.register_lines, key=lambda place: bench.register_lines[place]),
            )
