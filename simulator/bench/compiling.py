"""Compile the kernels of many cells in many processes, so that a run on the GPU finds them on disk.

A kernel takes seconds to compile and milliseconds to time: a GPU that others wait for is better not
held meanwhile. Kernels are kept where `flash_numba.kernel_store` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context

from flash_numba import ladder
from flash_numba.ladder import Gpu, Rung

from .cells import Cell, Options
from .contenders import Inputs, backward_call, forward_call


def compile_all(options: Options, gpu: Gpu, device: str, jobs: int) -> Iterator[str]:
    """Compile what a run with `options` needs, in `jobs` processes.

    Yields
    ------
    str
        A line for each group of cells that share a kernel but for their length: what it is, and
        what went wrong if something did.
    """
    rungs = [rung for rung in ladder.RUNGS if rung.name in options.rungs]
    tasks = [
        (form, device, [cell for cell in cells if not rung.why_not(cell.problem, gpu)])
        for rung in rungs
        for cells in groups(options)
        for form in rung.forms(cells[0].direction)
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_compile, *zip(*tasks, strict=True))


def groups(options: Options) -> list[list[Cell]]:
    """The cells, those together that differ in length only."""

    def key(cell: Cell) -> tuple:
        return cell.direction, cell.dtype, cell.head_dim, cell.causal

    return [list(found) for _, found in groupby(sorted(options.cells(), key=key), key)]


def _compile(rung: Rung, device: str, cells: list[Cell]) -> str:
    if not cells:
        return f"{rung.label}: nothing to do"
    name = f"{rung.label} {cells[0]}"
    try:
        for cell in cells:
            inputs = Inputs.empty(cell, device)
            call = forward_call(rung, cell, inputs)
            if cell.direction == "backward":
                backward_call(rung, cell, inputs, call.results["o"], call.results["lse"])
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return name
