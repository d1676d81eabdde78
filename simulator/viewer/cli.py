"""``flash-numba step``: options, what they choose, and where the frames go."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .session import Saved, Session


def step(
    program: Annotated[str, typer.Option(help="Program to step through.")] = "flash2",
    direction: Annotated[str, typer.Option(help="forward or backward.")] = "forward",
    seqlen: Annotated[int | None, typer.Option(help="Queries and keys. (default: 512)")] = None,
    seqlen_q: Annotated[int | None, typer.Option(help="Queries, where they differ.")] = None,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys, where they differ.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Columns. (default: 64)")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads. (default: 1)")] = None,
    tile_m: Annotated[
        int | None, typer.Option(help="Rows of a query tile. (default: 128; demo: 64)")
    ] = None,
    tile_n: Annotated[
        int | None, typer.Option(help="Rows of a key tile. (default: 64; demo: 32)")
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--no-causal", help="Hide later keys. (default: only in the demo)"),
    ] = None,
    window: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Keys seen before and after; 'none' is unlimited.", metavar="L R"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, fp16, bf16 or fp8. (default: the input's, or fp16)")
    ] = None,
    head: Annotated[int | None, typer.Option(help="Head followed. (default: 0; demo: 9)")] = None,
    row: Annotated[
        int | None, typer.Option(help="Row followed. (default: one of the tile at hand)")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Whose SRAM. (default: H100)")] = None,
    input: Annotated[
        str | None, typer.Option(help="q, k and v in .npz, .npy or .safetensors.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="A transformer's layer over a paragraph of English.")
    ] = False,
    replay: Annotated[str | None, typer.Option(help="A log that --save wrote.")] = None,
    compare_with: Annotated[
        str | None, typer.Option(help="A second program, beside the first.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="'2,1' (tile), 'event 136', 'hbm 40000', 'row 97', 'start' or 'end'."),
    ] = None,
    stop_at: Annotated[
        list[str] | None,
        typer.Option("--break", help="Breakpoint 'tile 2,1', 'hbm 40000' or 'row 97'; repeatable."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print frames, for pipes and screen readers.")
    ] = False,
    frames: Annotated[int | None, typer.Option(help="Frames to print. (default: 3)")] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Use ASCII alone.")] = False,
    export: Annotated[str | None, typer.Option(help="Write a frame to .html or .svg.")] = None,
    save: Annotated[str | None, typer.Option(help="Write the event log to .npz.")] = None,
) -> None:
    """Step through an algorithm tile by tile, forward and back."""
    # Products of tiles are small: BLAS threads cost more than they give (30x on busy CPUs).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from . import sources
    from .breakpoints import parse, place
    from .export import check_export
    from .glyphs import ASCII, for_encoding
    from .moment import View
    from .show import Show, is_terminal, print_comparison, telling

    if export is not None:
        check_export(export)
    if save is not None:
        _check_save(save)
    conditions = [parse(text, "--break") for text in stop_at or []]
    given = {
        "seqlen": seqlen,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "head_dim": head_dim,
        "heads": heads,
    }
    options = {"tile_m": tile_m, "tile_n": tile_n, "causal": causal, "head": head, "dtype": dtype}
    places = {"--input": input, "--demo": demo or None, "--replay": replay}
    sources.check_exclusive(places, given, options | {"window": window, "gpu": gpu})
    if replay is not None:
        source, key = sources.replayed(replay, compare_with)
    else:
        if demo:
            options = {n: sources.DEMO.get(n) if v is None else v for n, v in options.items()}
        source = sources.session(input, demo, given, options, window, gpu)
        key = (program, direction, options["head"] or 0)
    glyphs = ASCII if ascii else for_encoding(getattr(sys.stdout, "encoding", None))
    loaded = _recorded(source, key)
    for condition in conditions:
        condition.events(loaded.replay)
    if save is not None:
        loaded.replay.log.save(save)
    event = 0 if start is None else place(start, loaded.replay)
    show = Show(source, key, compare_with, View(row=row), glyphs, conditions)
    show.check(event)
    if export is not None:
        show.export(export, event if start is not None else telling(loaded.replay), frames or 1)
    elif plain or not is_terminal():
        show.print(event, 3 if frames is None else frames)
        if demo and not plain:
            print_comparison(source, direction)
    else:
        show.run(event)


def _recorded(source: Session | Saved, key: tuple[str, str, int]):
    """The run; a sign of life while it is recorded, if a person is there to see it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        return source.run(*key)
    with console.status(f"recording {key[0]} {key[1]}"):
        return source.run(*key)


def _check_save(path: str) -> None:
    if not path.endswith(".npz"):
        raise ValueError(f"--save must end in .npz, got {path}")
    if not Path(path).parent.is_dir():
        raise ValueError(f"--save must lie in a folder that exists, got {path}")
