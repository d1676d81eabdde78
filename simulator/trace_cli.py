"""``flash-numba trace module:case``.

The target names a function without parameters, in a module or a Python file, that returns what to
run: ``(kernel, grid, block, arguments)`` or ``(kernel, grid, block, arguments, shared_bytes)``.
The name of a kernel K stands for the function ``K_case`` beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

INSTALL_NUMBA = (
    "tracing a kernel needs numba: pip install 'numba-cuda[cu12]' on Linux or Windows, "
    "pip install numba on macOS"
)
EXAMPLES = """\b
Examples:
  flash-numba trace simulator.threads.cases:naive
  flash-numba trace simulator.threads.cases:naive --line 83
  flash-numba trace simulator.threads.cases:conflict_free
  flash-numba trace mine.py:my_kernel

For the last, mine.py has my_kernel_case() beside my_kernel, which returns
(kernel, grid, block, arguments) or (kernel, grid, block, arguments, shared_bytes).
"""
SHAPE = "(kernel, grid, block, arguments[, shared_bytes])"


def _module(name: str) -> Any:
    try:
        if name.endswith(".py"):
            path = Path(name)
            if not path.is_file():
                raise FileNotFoundError(f"no such file: {name}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None:
                raise ValueError(f"{name} is no Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, "")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("numba", "numba_cuda"):
            raise ValueError(INSTALL_NUMBA) from None
        raise ValueError(f"cannot import {name}: {error}") from None


def load_case(target: str) -> tuple:
    """``(kernel, grid, block, arguments, shared_bytes)`` of a target.

    Raises
    ------
    ValueError
        If the target does not name a case.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon or not attribute:
        raise ValueError(f"the target must be module:name or file.py:name, got {target!r}")
    module = _module(name)
    for candidate in (f"{attribute}_case", attribute):
        make = getattr(module, candidate, None)
        if make is not None:
            break
    else:
        raise ValueError(f"{name} must have {attribute} or {attribute}_case, it has neither")
    if hasattr(make, "py_func"):
        raise ValueError(
            f"{attribute} is a kernel: write a function {attribute}_case() beside it that returns "
            f"{SHAPE}"
        )
    case = make() if callable(make) else make
    if not isinstance(case, tuple) or len(case) not in (4, 5):
        raise ValueError(f"{candidate} must give {SHAPE}, got {type(case).__name__}")
    return (*case, 0)[:5]


def trace_command(
    target: Annotated[
        str, typer.Argument(help="module:name or file.py:name of a function that gives a case.")
    ],
    line: Annotated[
        int | None, typer.Option(help="Show the dearest warp instruction of this line.")
    ] = None,
    array: Annotated[str | None, typer.Option(help="With --line: the array.")] = None,
    top: Annotated[int, typer.Option(help="Lines to show.")] = 12,
    collect: Annotated[
        bool, typer.Option("--collect", help="Go on after an error where possible.")
    ] = False,
    cluster: Annotated[int, typer.Option(min=1, help="Neighbouring blocks of a cluster.")] = 1,
    representative: Annotated[
        bool,
        typer.Option("--representative", help="Run one block of those that provably do the same."),
    ] = False,
    turns: Annotated[
        int | None,
        typer.Option(min=1, help="Turns after which a loop is said to run away, if not 4,000,000."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a CUDA kernel on the CPU, thread by thread: count its accesses, find its errors."""
    from rich.console import Console

    from .threads.errors import KernelError
    from .threads.launch import trace
    from .threads.totals import summary
    from .threads.views import warp

    if array is not None and line is None:
        raise ValueError("--array chooses between the arrays of a line: give --line, too")
    kernel, grid, block, arguments, shared_bytes = load_case(target)
    errors = "collect" if collect else "raise"
    options: dict[str, Any] = {} if turns is None else {"turns": turns}
    try:
        blocks = "representative" if representative else None
        tracer = trace(kernel, errors=errors, cluster=cluster, blocks=blocks, **options)
        report = tracer[grid, block, 0, shared_bytes](*arguments)
    except KernelError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if json:
        print(json_module.dumps(report.as_dict(), indent=2))
    else:
        shown = summary(report, top) if line is None else warp(report, line, array)
        Console(highlight=False).print(shown)
    if report.findings:
        raise typer.Exit(1)
