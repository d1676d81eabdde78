"""What a run of the benchmark needs compiled.

A kernel takes seconds to compile and milliseconds to time: a GPU that others wait for is better not
held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from flash_numba import ladder
from flash_numba.ahead import Task
from flash_numba.ladder import Gpu

from ..installation import install_extra
from .cells import Options

LIBRARIES = ("nvrtc", "nvvm")
"""Of the CUDA toolkit: what Numba compiles a kernel with."""


def check_toolkit() -> None:
    """See that the CUDA toolkit is there, as wheels or of the system.

    Raises
    ------
    ValueError
        Naming what is missing and the command that installs it.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    missing = []
    for name in LIBRARIES:
        try:
            load_nvidia_dynamic_lib(name)
        except DynamicLibNotFoundError:
            missing.append(name)
    if missing:
        raise ValueError(
            f"compiling kernels needs {', '.join(missing)} of the CUDA toolkit, not found here: "
            f"the extra cu13, or cu12 for a driver of CUDA 12, brings them; {install_extra('cu13')}"
        )


def tasks(options: Options, gpu: Gpu) -> Iterator[Task]:
    """What a run with `options` needs."""
    for cell in options.cells():
        for one in ladder.RUNGS:
            if one.name in options.rungs and not one.why_not(cell.problem, gpu):
                for form in one.forms(cell.direction):
                    yield Task(form, cell.problem, cell.direction)
