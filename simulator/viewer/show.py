"""Where a run goes: to a terminal, a pipe or a file."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass

from rich.console import Group

from .align import aligned_event
from .breakpoints import Breakpoint
from .export import export
from .frame import TooSmall, check_size, pair
from .glyphs import UNICODE, Glyphs, print_in_own_letters
from .moment import Moment, View
from .plain import chosen_events, plain_frame
from .session import Saved, Session

EXPORT_SIZE, PAIR_EXPORT_SIZE = (100, 30), (140, 34)
"""Cells of an exported frame."""


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
        loaded = self.source.run(*self.key)
        moment = Moment(loaded.replay, event, self.view, loaded.costs)
        if self.compare_with is None:
            _ = moment.row
            return [moment]
        other = self.source.run(self.compare_with, *self.key[1:])
        there = aligned_event(loaded.replay, event, other.replay)
        view = self.view.but(row=moment.row.row)
        return [moment, Moment(other.replay, there, view, other.costs)]

    def introduce(self) -> None:
        """What the demo prints where it cannot be stepped through."""
        program, direction, head = self.key
        text = (
            f"Head {head} of a transformer's layer over a paragraph of English: moments of "
            f"{program} {direction}, then what it costs beside standard attention. In a terminal "
            "you step through it."
        )
        print("\n".join(textwrap.wrap(text, _width())) + "\n")

    def print(self, event: int, frames: int) -> None:
        """Frames as plain lines."""
        replay = self.source.run(*self.key).replay
        width = _width()
        for number, at in enumerate(chosen_events(replay, frames, event)):
            for moment in self.moments(at):
                text = plain_frame(moment, width, self.glyphs)
                print(("\n" if number else "") + text, end="")

    def export(self, path: str, event: int, frames: int) -> None:
        """Frames as a picture."""
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

        size = shutil.get_terminal_size((80, 24))
        try:
            check_size(size.columns, size.lines, 1 if self.compare_with is None else 2)
        except TooSmall as error:
            raise TooSmall(f"{error}: enlarge it, or add --plain") from None
        app = Stepper(
            self.source,
            *self.key,
            compare_with=self.compare_with,
            event=event,
            view=self.view,
            glyphs=self.glyphs,
            conditions=self.conditions,
        )
        gc.collect()
        gc.freeze()  # else a collection walks the whole log and a key waits 20 to 30 ms for it
        app.run(mouse=False)


def _width() -> int:
    return max(shutil.get_terminal_size((80, 24)).columns, 40)


def is_terminal() -> bool:
    """Whether a person sits at all ends (Textual draws on stderr) of a terminal that can draw."""
    ends = sys.stdin, sys.stdout, sys.stderr
    attached = all(stream is not None and stream.isatty() for stream in ends)
    return attached and os.environ.get("TERM", "unset") not in ("", "dumb", "unknown")


def telling(replay) -> int:
    """A moment in the middle, when something has happened and something is to come."""
    return int(replay.steps.stops[len(replay.steps.stops) // 2])


def print_comparison(source: Session | Saved, direction: str) -> None:
    """What the problem of a session costs, program by program."""
    assert isinstance(source, Session)
    from ..compare import choose, comparison

    found = comparison(
        source.problem,
        source.options["tile_m"],
        source.options["tile_n"],
        direction=direction,
        programs=choose(None, None),
        gpu=source.gpu,
    )
    print()
    print_in_own_letters(found.table())
