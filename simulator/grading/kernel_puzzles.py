"""Puzzles that want a CUDA kernel: it runs thread by thread, and its accesses are counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..threads import KernelError, Report, trace
from .cases import Case
from .formulas import Tensors
from .verdict import Elements, Wrong, close, code_of, difference, mistake, on_one_line, too_many


@dataclass(frozen=True, kw_only=True)
class KernelPuzzle:
    """A kernel to write, launched for a `Case` over NumPy arrays.

    Attributes
    ----------
    name, statement : str
    hints : tuple of str
        From a nudge to nearly the answer.
    parameters : tuple of str
        Of the kernel, in order.
    given : callable
        Of tensors (`formulas.attention`): arrays, tensor maps and numbers handed in, by parameter.
    wanted : callable
        Of tensors: the arrays that the kernel must have filled, by parameter.
    launch : callable
        Of a `Case`: grid and block.
    loads, stores : callable
        Of a `Case`: the most elements of each array that threads may load and store in global
        memory.
    sectors : callable
        Of a `Case`: the most 32-byte sectors that loads and stores of an array may touch.
    loading_warps : callable
        Of a `Case`: how many warps of a block must load from global memory.
    requests : callable
        Of a `Case`: the most instructions of warps that may load from global memory; None for any
        number.
    shared, local : callable
        Of a `Case`: bytes of shared memory of a block, of local arrays of a thread.
    shared_loads : callable
        Of a `Case`: the most bytes that threads may read from shared memory; None for any number.
    conflict_free : bool
        No access to shared memory may take a second pass.
    cases : tuple of Case
    """

    name: str
    statement: str
    hints: tuple[str, ...]
    parameters: tuple[str, ...]
    given: Callable[[Tensors], dict[str, Any]]
    wanted: Callable[[Tensors], Tensors]
    launch: Callable[[Case], tuple]
    loads: Callable[[Case], Elements]
    stores: Callable[[Case], Elements]
    cases: tuple[Case, ...]
    sectors: Callable[[Case], Elements] = lambda case: {}
    loading_warps: Callable[[Case], int] = lambda case: 0
    requests: Callable[[Case], int | None] = lambda case: None
    shared: Callable[[Case], int] = lambda case: 0
    local: Callable[[Case], int] = lambda case: 0
    shared_loads: Callable[[Case], int | None] = lambda case: None
    conflict_free: bool = False
    mistakes: Mapping[str, Callable[[Case, Tensors], Tensors]] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """How the kernel is called."""
        return f"{self.name}[grid, block]({', '.join(self.parameters)})"

    def check(self, answer: Callable) -> str:
        """What was checked, if the answer is right.

        Raises
        ------
        Wrong
            With the reason.
        """
        names = list(inspect.signature(getattr(answer, "py_func", answer)).parameters)
        if len(names) != len(self.parameters):
            raise Wrong(
                f"takes {len(names)} parameters ({', '.join(names)}), where "
                f"{len(self.parameters)} are handed in: {', '.join(self.parameters)}"
            ).on("", answer)
        renamed = dict(zip(self.parameters, names, strict=True))
        report = None
        for case in self.cases:
            try:
                report, arrays = self._run(answer, case)
                self._check_numbers(report, arrays, renamed, case)
                self._check_traffic(report, arrays, renamed, case)
                self._check_sharing(report, case)
            except Wrong as error:
                sizes = f"N={case.N}, M={case.M}, {case.scores} scores"
                raise error.on(sizes, answer) from error.__cause__
        assert report is not None
        moved = report.count("global")
        return (
            f"right on {len(self.cases)} problems, and no race; on the last it moves "
            f"{moved.bytes:,} bytes in {moved.sectors:,} sectors"
        )

    def _run(self, answer: Callable, case: Case) -> tuple[Report, Tensors]:
        twin = case.tensors(np.float32)
        arguments = {
            name: np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
            for name, value in self.given(twin).items()
        }
        outputs = {name: unwritten(array) for name, array in self.wanted(twin).items()}
        arguments |= outputs
        file = code_of(answer).co_filename
        try:
            with np.errstate(all="ignore"):
                values = [arguments[name] for name in self.parameters]
                report = trace(answer)[self.launch(case)](*values)
        except KernelError as error:
            finding = error.finding
            places = [one for one in finding.places if one.file == file] or list(finding.places)
            place = (places[-1].file, places[-1].line) if places else None
            raise Wrong(f"fails: {finding.kind}: {on_one_line(finding.message)}", place) from error
        return report, outputs

    def _check_numbers(self, report: Report, arrays: Tensors, renamed, case: Case) -> None:
        twin, truth = (self.wanted(case.tensors(dtype)) for dtype in (np.float32, np.float64))
        for name, found in arrays.items():
            if close(found, truth[name], twin[name]):
                continue
            why = mistake(self.mistakes, name, found, case) or difference(name, found, truth[name])
            place = dearest(report, "store", renamed[name])
            if place is None:
                raise Wrong(f"never stores to {name}")
            raise Wrong(f"writes {name}, and {why}", place)

    def _check_traffic(self, report: Report, outputs: Tensors, renamed, case: Case) -> None:
        given = {**self.given(case.tensors(np.float32)), **outputs}
        for operation, most in (("load", self.loads(case)), ("store", self.stores(case))):
            for name, value in given.items():
                if isinstance(value, tuple):  # a tensor map
                    array, itemsize = f"{renamed[name]}[0]", value[0].itemsize
                elif isinstance(value, np.ndarray):
                    array, itemsize = renamed[name], value.itemsize
                else:
                    continue
                elements = report.count("global", operation, array).bytes // itemsize
                if elements > most.get(name, 0):
                    raise Wrong(
                        too_many(f"{operation}s", name, elements, most.get(name, 0)),
                        dearest(report, operation, array),
                    )
        for name, most in self.sectors(case).items():
            count, array = report.count("global", array=renamed[name]), renamed[name]
            if count.sectors > most:
                operation = "load" if report.count("global", "load", array).sectors else "store"
                raise Wrong(
                    f"touches {count.sectors:,} sectors of {name} where {most:,} hold it: the "
                    "lanes of a warp must take neighbouring elements",
                    dearest(report, operation, array),
                )
        most, read = self.shared_loads(case), report.count("shared", "load").bytes
        if most is not None and read > most:
            raise Wrong(
                f"reads {read:,} bytes of shared memory, where {most:,} are enough: each element "
                "once, as an operand of mma, which uses it for several products",
                dearest(report, "load", None, "shared"),
            )
        conflicts = report.count("shared").conflicts
        if self.conflict_free and conflicts:
            worst = max(report.entries, key=lambda entry: entry.count.conflicts).site.place
            raise Wrong(
                f"takes {conflicts:,} passes too many over shared memory: lanes of a warp meet in "
                "one bank",
                (worst.file, worst.line),
            )
        for what, held, most in (
            ("of shared memory a block", report.shared_bytes, self.shared(case)),
            ("of local arrays a thread", report.local_bytes, self.local(case)),
        ):
            if held > most:
                raise Wrong(
                    f"takes {held:,} bytes {what}, where {most:,} are enough, and nothing that "
                    "grows with N or M may be among them"
                )

    def _check_sharing(self, report: Report, case: Case) -> None:
        """All warps, and all lanes of a warp, must take their share of the loads."""
        found = [
            entry.warps
            for entry in report.entries
            if (entry.site.operation, entry.memory.space) == ("load", "global")
        ]
        warps, least = len(frozenset().union(*found)), self.loading_warps(case)
        if warps < least:
            raise Wrong(
                f"is run by {warps} of the {least} warps of a block, while the others load "
                "nothing: all threads must share the work",
                dearest(report, "load", None),
            )
        requests, most = report.count("global", "load").instructions, self.requests(case)
        if most is not None and requests > most:
            raise Wrong(
                f"takes {requests:,} instructions of a warp to load, where {most:,} are enough: "
                "all lanes must share the work",
                dearest(report, "load", None),
            )


def unwritten(array: np.ndarray) -> np.ndarray:
    """An array as large as `array` of what no right answer has: NaN, or the largest integer."""
    if array.dtype.kind == "u":
        return np.full(array.shape, np.iinfo(array.dtype).max, array.dtype)
    return np.full(array.shape, np.nan, np.float32)


def dearest(
    report: Report, operation: str, array: str | None, space: str = "global"
) -> tuple[str, int] | None:
    """The file and line that cost most accesses of one kind to an array, or to all of a memory."""
    entries = [
        entry
        for entry in report.entries
        if (entry.site.operation, entry.memory.space) == (operation, space)
        and array in (None, entry.memory.name)
    ]
    if not entries:
        return None
    place = max(entries, key=lambda entry: (entry.count.bytes, entry.count.sectors)).site.place
    return place.file, place.line
