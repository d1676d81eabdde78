"""``flash-numba bench``: options, what they choose, and where the results go."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

EXAMPLES = """\b
Examples:
  flash-numba bench --quick
  flash-numba bench --rung flash2 --dtype fp32 --direction forward
  flash-numba bench --dtype bf16 --head-dim 128 --peer torch_cudnn --output mine.json
  flash-numba bench --dtype fp16 --compile 8 --compile-for 9.0
  flash-numba bench --show benchmarks/results/h200_fp32.json
"""
"""Shown below the options."""


def bench(
    rung: Annotated[
        list[str] | None,
        typer.Option(
            help="Implementation to time; repeatable. (default: all that have kernels)",
            metavar="NAME",
        ),
    ] = None,
    direction: Annotated[
        list[str] | None,
        typer.Option(help="forward or backward; repeatable. (default: both)", metavar="WAY"),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="fp32, fp16 or bf16; repeatable. (default: all)", metavar="NAME"),
    ] = None,
    head_dim: Annotated[
        list[int] | None,
        typer.Option(help="Columns of Q, K and V; repeatable. (default: 64, 128)"),
    ] = None,
    seqlen: Annotated[
        list[int] | None,
        typer.Option(help="Queries and keys; repeatable. (default: 512, 1024 ... 16384)"),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(help="full or causal; repeatable. (default: both)", metavar="NAME"),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="torch's backend to time beside; repeatable. (default: all)", metavar="NAME"
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Batch times seqlen.")] = 16384,
    hidden: Annotated[int, typer.Option(help="Heads times head_dim.")] = 2048,
    budget: Annotated[float, typer.Option(help="Seconds of timing for a cell.")] = 1.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two lengths and 0.2 seconds for a cell.", metavar="")
    ] = False,
    compile_in: Annotated[
        int,
        typer.Option(
            "--compile", help="Only compile the kernels, in so many processes.", metavar="N"
        ),
    ] = 0,
    compile_for: Annotated[
        str | None,
        typer.Option(
            "--compile-for",
            help="Compute capability to compile for, such as 9.0; needs no GPU. (default: of the "
            "GPU here)",
            metavar="CC",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Write the results as JSON.", metavar="FILE")
    ] = None,
    show: Annotated[
        str | None, typer.Option(help="Print results measured before.", metavar="FILE")
    ] = None,
) -> None:
    """Time the kernels on a GPU beside torch's attention, after a look whether they are right."""
    from ..viewer.glyphs import print_in_own_letters
    from . import results, table
    from .cells import Options, with_kernels

    chosen = {
        "rungs": rung,
        "directions": direction,
        "dtypes": dtype,
        "head_dims": head_dim,
        "seqlens": seqlen,
        "masks": mask,
        "peers": peer,
    }
    given: dict[str, Any] = {name: tuple(values) for name, values in chosen.items() if values}
    if show is not None:
        print_in_own_letters(table.render(results.load(show)))
        return
    given.setdefault("rungs", with_kernels())
    options = Options(**given, tokens=tokens, hidden=hidden, budget_s=budget)
    if quick:
        options = options.quick("seqlens" in given)
    if compile_in:
        compile_only(options, compile_in, compile_for)
        return
    found = run(options, output)
    print_in_own_letters(table.render(found))
    if found["wrong"]:
        raise typer.Exit(1)


def compile_only(options, jobs: int, capability: str | None) -> None:
    """Compile what a run with `options` would, for this machine's GPU or another."""
    from flash_numba.ahead import compile_all, gpu_to_compile_for
    from flash_numba.checks import whole

    from .compiling import check_toolkit, tasks

    whole("compile", jobs, 1, 1024)
    gpu, failed = gpu_to_compile_for(capability), False
    check_toolkit()
    for line in compile_all(tasks(options, gpu), gpu.compute_capability, jobs):
        print(line, file=sys.stderr)
        failed |= ": failed, " in line
    if failed:
        raise typer.Exit(1)


def run(options, output: str | None) -> dict[str, Any]:
    """Measure; what is measured is written to `output` cell by cell."""
    from . import gpu, measure, results

    try:
        device = gpu.find()
    except ValueError as error:
        raise ValueError(f"{error}. --show FILE prints what was measured before") from None
    found: dict[str, Any] = {
        "machine": device.machine(),
        "method": measure.METHOD,
        "options": asdict(options),
    }
    for cell, parts in measure.measure(device, options):
        print(cell, file=sys.stderr)
        found |= parts
        if output is not None:
            results.save(output, found)
    return found
