"""The programs: each file is a tile loop that reads like its paper's algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import flash2


@dataclass(frozen=True)
class Pass:
    """One direction of a program.

    Attributes
    ----------
    run : callable
        ``run(machine)`` walks the tiles.
    lines : mapping of str to sequence of str
        Its kernels in order, each with the lines of its algorithm.
    """

    run: Callable
    lines: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Program:
    """A way to compute attention.

    Attributes
    ----------
    name, title : str
        What options and tables call it, and one line on what it is.
    forward, backward : Pass
    """

    name: str
    title: str
    forward: Pass
    backward: Pass


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "flash2",
            "FlashAttention-2: query tiles outside, O in registers",
            Pass(flash2.forward, flash2.FORWARD_LINES),
            Pass(flash2.backward, flash2.BACKWARD_LINES),
        ),
        Program(
            "flash2_two_kernel",
            "FlashAttention-2 with a deterministic backward of two kernels",
            Pass(flash2.forward, flash2.FORWARD_LINES),
            Pass(flash2.backward_two_kernels, flash2.TWO_KERNEL_LINES),
        ),
    )
}
