"""``flash-numba step``: options, what they choose, and where the frames go."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..waiting import waiting

EXAMPLES = """\b
Examples:
  flash-numba step --demo
  flash-numba step --demo --compare-with flash1 --start 2,4
  flash-numba step --seqlen 300 --direction backward --break 'hbm 100000'
  flash-numba step --input layer.npz --head 1 --save run.npz
  flash-numba step --replay run.npz --start end --export frame.svg
"""
"""Shown below the options."""


def step(
    program: Annotated[
        str | None,
        typer.Option(
            help="flash2, flash2_two_kernel, flash1, tiled (standard attention), or flash2 with a "
            "bug: flash2_without_rescale, flash2_mask_off_by_one, flash2_mask_forgotten, "
            "flash2_tail_unmasked, flash2_without_delta. (default: flash2)",
            metavar="NAME",
        ),
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help="forward or backward. (default: forward)", metavar="WAY")
    ] = None,
    seqlen: Annotated[int | None, typer.Option(help="Queries and keys. (default: 512)")] = None,
    seqlen_q: Annotated[int | None, typer.Option(help="Queries, where they differ.")] = None,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys, where they differ.")] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="Columns of Q, K and V. (default: 64)")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads. (default: 1)")] = None,
    tile_m: Annotated[
        int | None, typer.Option(help="Rows of a query tile. (default: 128; demo: 64)")
    ] = None,
    tile_n: Annotated[
        int | None, typer.Option(help="Rows of a key tile. (default: 64; demo: 32)")
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal",
            help="Hide later keys. (default: only in the demo)",
            metavar="",
        ),
    ] = None,
    window: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Keys seen before and after; 'none' is unlimited.", metavar="L R"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="fp32, fp16, bf16 or fp8. (default: the input's, or fp16)", metavar="NAME"
        ),
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head followed, from 0. (default: 0; demo: 9)")
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(
            help="Row followed, from 0. (default: of the tile at hand, the row whose maximum rises "
            "most often)"
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Whose SRAM: V100, T4, A100, RTX3090, RTX4090, H100, H200 or B200. "
            "(default: H100)",
            metavar="NAME",
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            help="q, k and v of (batch, seqlen, heads, head_dim) in .npz or .safetensors, or one "
            ".npy of all three; the first sequence is followed.",
            metavar="FILE",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="A transformer's layer over a paragraph of English.", metavar=""
        ),
    ] = False,
    replay: Annotated[
        str | None, typer.Option(help="A log that --save wrote.", metavar="FILE")
    ] = None,
    compare_with: Annotated[
        str | None, typer.Option(help="A second program, beside the first.", metavar="NAME")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Begin at '2,1' (query tile, key tile), 'event 136', 'start', 'end', or a "
            "breakpoint. (default: the first event)",
            metavar="PLACE",
        ),
    ] = None,
    stop_at: Annotated[
        list[str] | None,
        typer.Option(
            "--break",
            help="Breakpoint, repeatable: 'tile 2,1', 'hbm 40000' (more elements moved) or "
            "'row 97' (its maximum rises).",
            metavar="PLACE",
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print frames, for pipes and screen readers.", metavar=""),
    ] = False,
    frames: Annotated[
        int | None, typer.Option(help="Frames to print or export. (default: 3; export: 1)")
    ] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Use ASCII alone.", metavar="")] = False,
    export: Annotated[
        str | None,
        typer.Option(
            help="Write a frame to .html or .svg. (default: the middle of the run)", metavar="FILE"
        ),
    ] = None,
    save: Annotated[
        str | None, typer.Option(help="Write the event log to .npz.", metavar="FILE")
    ] = None,
) -> None:
    """Step through an algorithm tile by tile, forward and back.

    In a terminal arrow keys step, ? explains panels and keys, q quits; a pipe gets three frames.
    """
    # Products of tiles are small: BLAS threads cost more than they give (30x on busy CPUs).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flash_numba.checks import whole

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
    run = {"program": program, "direction": direction, "window": window, "gpu": gpu}
    sources.check_exclusive(places, given, options | run)
    program, direction = program or "flash2", direction or "forward"
    if frames is not None:
        whole("frames", frames, 1)
    if replay is not None:
        source, key = sources.replayed(replay, compare_with)
    else:
        if demo:
            options = {n: sources.DEMO.get(n) if v is None else v for n, v in options.items()}
        source = sources.session(input, demo, given, options, window, gpu)
        key = (program, direction, options["head"] or 0)
    glyphs = ASCII if ascii else for_encoding(getattr(sys.stdout, "encoding", None))
    with waiting(f"recording {key[0]} {key[1]}"):
        loaded = source.run(*key)
    for condition in conditions:
        condition.events(loaded.replay)
    event = 0 if start is None else place(start, loaded.replay)
    show = Show(source, key, compare_with, View(row=row), glyphs, conditions)
    show.check(event)
    if save is not None:
        loaded.replay.log.save(save)
    if export is not None:
        show.export(export, event if start is not None else telling(loaded.replay), frames or 1)
    elif plain or not is_terminal():
        if demo and not plain:
            show.introduce()
        show.print(event, 3 if frames is None else frames)
        if demo and not plain:
            print_comparison(source, direction)
    else:
        show.run(event)


def _check_save(path: str) -> None:
    if not path.endswith(".npz"):
        raise ValueError(f"--save must end in .npz, got {path}")
    if Path(path).is_dir() or not Path(path).parent.is_dir():
        raise ValueError(f"--save must be a file in a folder that exists, got {path}")
