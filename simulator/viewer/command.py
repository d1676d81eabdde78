"""``flash-numba step``: options, what they choose, and where the frames go."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .breakpoints import Breakpoint
    from .glyphs import Glyphs
    from .moment import Moment, View
    from .session import Saved, Session

DEMO = {"tile_m": 64, "tile_n": 32, "causal": True, "head": 9}
"""The demo's defaults: every state of the grid, a tail both ways, and a head with a habit (it looks
at the token before) that a causal mask leaves."""

SEQLEN, HEAD_DIM, TILE_M, TILE_N = 512, 64, 128, 64
EXPORT_SIZE, PAIR_EXPORT_SIZE = (100, 30), (140, 34)


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
    # Products of tiles are small: BLAS threads cost more than they give, 30 times where CPUs are busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from .breakpoints import parse, place
    from .export import check_export
    from .glyphs import ASCII, for_encoding
    from .moment import View

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
    sources = {"--input": input, "--demo": demo or None, "--replay": replay}
    _only_one(sources, given, options | {"window": window, "gpu": gpu})
    if replay is not None:
        source, key = _replayed(replay, compare_with)
    else:
        if demo:
            options = {n: DEMO.get(n) if v is None else v for n, v in options.items()}
        source = _session(input, demo, given, options, window, gpu)
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
        show.export(export, event if start is not None else _telling(loaded.replay), frames or 1)
    elif plain or not is_terminal():
        show.print(event, 3 if frames is None else frames)
        if demo and not plain:
            _print_comparison(source, direction)
    else:
        show.run(event)


@dataclass
class Show:
    """What was asked for, ready to go to a terminal, a pipe or a file."""

    source: Session | Saved
    key: tuple[str, str, int]
    compare_with: str | None
    view: View
    glyphs: Glyphs
    conditions: list[Breakpoint]

    def check(self, event: int) -> None:
        """Raise what is wrong with the choices before anything is shown."""
        self.moments(event)

    def moments(self, event: int) -> list[Moment]:
        """The run, and the one beside it, at an event."""
        from .align import aligned_event
        from .moment import Moment

        loaded = self.source.run(*self.key)
        moment = Moment(loaded.replay, event, self.view, loaded.costs)
        if self.compare_with is None:
            _ = moment.row
            return [moment]
        other = self.source.run(self.compare_with, *self.key[1:])
        there = aligned_event(loaded.replay, event, other.replay)
        view = self.view.but(row=moment.row.row)
        return [moment, Moment(other.replay, there, view, other.costs)]

    def print(self, event: int, frames: int) -> None:
        """Frames as plain lines."""
        from .plain import chosen_events, plain_frame

        replay = self.source.run(*self.key).replay
        width = max(shutil.get_terminal_size((80, 24)).columns, 40)
        for number, at in enumerate(chosen_events(replay, frames, event)):
            for moment in self.moments(at):
                text = plain_frame(moment, width, self.glyphs)
                print(("\n" if number else "") + text, end="")

    def export(self, path: str, event: int, frames: int) -> None:
        """Frames as a picture."""
        from rich.console import Group

        from .export import export
        from .frame import pair
        from .glyphs import UNICODE
        from .plain import chosen_events

        replay = self.source.run(*self.key).replay
        size = EXPORT_SIZE if self.compare_with is None else PAIR_EXPORT_SIZE
        pictures = []
        for at in [event] if frames == 1 else chosen_events(replay, frames, event):
            moments = self.moments(at)
            pictures.append(pair(moments[0], moments[1] if moments[1:] else None, *size, UNICODE))
        export(Group(*pictures), path, size[0])
        print(f"wrote {path}")

    def run(self, event: int) -> None:
        """The app."""
        from .app import Stepper
        from .frame import check_size

        size = shutil.get_terminal_size((80, 24))
        check_size(size.columns, size.lines, 1 if self.compare_with is None else 2)
        app = Stepper(
            self.source,
            *self.key,
            compare_with=self.compare_with,
            event=event,
            view=self.view,
            glyphs=self.glyphs,
            conditions=self.conditions,
        )
        app.run(mouse=False)


def is_terminal() -> bool:
    """Whether a person sits at both ends."""
    both = sys.stdin, sys.stdout
    attached = all(stream is not None and stream.isatty() for stream in both)
    return attached and os.environ.get("TERM") != "dumb"


def _only_one(sources: dict, sizes: dict, options: dict) -> None:
    """The input comes from one place, and what it states cannot be stated again."""
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"{', '.join(sources)} exclude each other, got {' and '.join(named)}")
    stated = dict(sizes) if named else {}
    if "--replay" in named:
        stated |= options
    given = [f"--{n.replace('_', '-')}" for n, value in stated.items() if value is not None]
    if given:
        raise ValueError(f"{named[0]} brings its own sizes, got {', '.join(given)} too")


def _session(path, demo: bool, sizes: dict, options: dict, window, gpu: str | None) -> Session:
    from flash_numba.problem import Problem

    from .. import cli, hardware, inputs
    from .session import Session

    tokens = None
    dtype = options["dtype"]
    common = {"causal": bool(options["causal"]), "window": cli._window(window)}
    if demo:
        q, k, v, tokens = inputs.demo_input()
        problem = Problem.of(q, k, v, dtype=dtype or "fp16", **common)
    elif path is not None:
        q, k, v = inputs.load_input(path, dtype=dtype)
        problem = Problem.of(q, k, v, **common)
    else:
        sizes = dict(sizes, kv_heads=None, batch=None)
        if sizes["seqlen"] is sizes["seqlen_q"] is sizes["seqlen_k"] is None:
            sizes["seqlen"] = SEQLEN
        problem = cli._problem_of(None, sizes, {"dtype": dtype or "fp16", **common})
        q, k, v = inputs.random_input(problem)
    return Session(
        problem,
        q,
        k,
        v,
        tile_m=TILE_M if options["tile_m"] is None else options["tile_m"],
        tile_n=TILE_N if options["tile_n"] is None else options["tile_n"],
        sram_bytes=hardware.get(gpu or "H100").shared_bytes_per_block,
        tokens=tokens,
    )


def _replayed(path: str, compare_with: str | None) -> tuple[Saved, tuple[str, str, int]]:
    from ..events import EventLog
    from .session import Saved

    if not zipfile.is_zipfile(path):
        what = "is no .npz file" if Path(path).exists() else "does not exist"
        raise ValueError(f"--replay must name a file that --save wrote, got {path}, which {what}")
    source = Saved(EventLog.load(path))
    meta = source.loaded.replay.meta
    if compare_with not in (None, meta["program"]):
        raise ValueError(
            f"--compare-with needs a run to record, and --replay {path} holds {meta['program']} "
            f"alone; got {compare_with}"
        )
    return source, (meta["program"], meta["direction"], meta["head"])


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


def _telling(replay) -> int:
    """A moment in the middle, when something has happened and something is to come."""
    return int(replay.stops[len(replay.stops) // 2])


def _print_comparison(source, direction: str) -> None:
    """What the demo's problem costs, program by program."""
    from rich.console import Console

    from ..compare import choose, comparison

    found = comparison(
        source.problem,
        source.options["tile_m"],
        source.options["tile_n"],
        direction=direction,
        programs=choose(None, None),
    )
    print()
    Console(highlight=False).print(found.table())
