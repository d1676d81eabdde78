"""What a run of the benchmark needs compiled.

A kernel takes seconds to compile and milliseconds to time: a GPU that others wait for is better not
held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from flash_numba import ladder
from flash_numba.ahead import Task
from flash_numba.ladder import Gpu

from .cells import Options


def tasks(options: Options, gpu: Gpu) -> Iterator[Task]:
    """What a run with `options` needs."""
    for cell in options.cells():
        for one in ladder.RUNGS:
            if one.name in options.rungs and not one.why_not(cell.problem, gpu):
                for form in one.forms(cell.direction):
                    yield Task(form, cell.problem, cell.direction)
