"""A recorded run on the screen, and the keys that move through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widget import Widget

from . import breakpoints
from .align import aligned_event, difference
from .breakpoints import Breakpoint, next_hit, previous_hit
from .frame import TooSmall, check_size, hint_line, pair
from .glyphs import UNICODE, Glyphs
from .moment import Moment, View
from .prompt import Prompt
from .session import Loaded, Saved, Session

SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Events a second while playing."""

TICKS = 20
"""Frames a second while playing, at most."""


class Picture(Widget):
    """The frame; made when it is drawn, so that a burst of keys draws once."""

    def render(self) -> RenderableType:
        """What the stage shows now."""
        return cast(Stage, self.app).picture()


class Stage(App[None]):
    """Shows one run, or two side by side, and moves through it forward and back.

    Parameters
    ----------
    source : Session or Saved
        Where runs come from.
    program, direction, head
        The run to begin with.
    compare_with : str, optional
        A program to show beside it.
    event : int
        Where to begin.
    view : View, optional
    glyphs : Glyphs
    conditions : list of Breakpoint, optional
        Breakpoints that are set from the start.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    #frame { height: 1fr; width: 100%; background: ansi_default; color: ansi_default; }
    """
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("right,l", "step(1)", priority=True),
        Binding("left,j", "step(-1)", priority=True),
        Binding("shift+right,full_stop", "tile(1)", priority=True),
        Binding("shift+left,comma", "tile(-1)", priority=True),
        Binding("home", "jump_to('start')", priority=True),
        Binding("end", "jump_to('end')", priority=True),
        Binding("space", "play", priority=True),
        Binding("plus,equals_sign", "speed(1)", priority=True),
        Binding("minus", "speed(-1)", priority=True),
        Binding("n", "breakpoint(1)", priority=True),
        Binding("N", "breakpoint(-1)", priority=True),
        Binding("q,ctrl+c", "quit", priority=True),
    ]

    def __init__(
        self,
        source: Session | Saved,
        program: str = "flash2",
        direction: str = "forward",
        head: int = 0,
        *,
        compare_with: str | None = None,
        event: int = 0,
        view: View | None = None,
        glyphs: Glyphs = UNICODE,
        conditions: list[Breakpoint] | None = None,
    ):
        super().__init__(ansi_color=True)
        self.source, self.glyphs, self.view = source, glyphs, view or View()
        self.key = program, direction, head
        self.loaded = source.run(program, direction, head)
        self.other: Loaded | None = None
        if compare_with is not None:
            self.other = source.run(compare_with, direction, head)
        self.event = min(max(event, 0), len(self.loaded.replay) - 1)
        self.conditions = list(conditions or [])
        self.playing, self.speed, self._credit = False, 3, 0.0
        self.status = ""
        self.prompt: Prompt | None = None

    def compose(self) -> ComposeResult:
        """One frame."""
        yield Picture(id="frame")

    def on_mount(self) -> None:
        """Begin."""
        self.set_interval(1 / TICKS, self._tick)
        self.refresh_frame()

    def on_resize(self, _event: events.Resize) -> None:
        """Fit the frame to the new size."""
        self.refresh_frame()

    # Keys

    async def on_event(self, event: events.Event) -> None:
        """Give what is typed to the prompt if there is one.

        Keys are handled here and by priority bindings, one after another, so that none overtakes
        another when they come in a burst, as from a paste or a slow line.
        """
        if self.prompt is None or not isinstance(event, events.Key | events.Paste):
            await super().on_event(event)
            return
        if isinstance(event, events.Paste):
            self.prompt.text += event.text.split("\n")[0]
        elif end := self.prompt.type(event.key, event.character):
            asked, self.prompt = self.prompt, None
            if end == "enter":
                self.answer(asked.what, asked.text)
        self.refresh_frame()

    def answer(self, asked: str, text: str) -> None:
        """Do what was typed into the prompt."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the help screen while it is open."""
        return super().check_action(action, parameters) and len(self.screen_stack) == 1

    # The frame

    def moment(self) -> Moment:
        """What the (left) run shows."""
        return Moment(self.loaded.replay, self.event, self.view, self.loaded.costs)

    def other_moment(self, moment: Moment) -> Moment | None:
        """What the other run shows, at the same tile and row."""
        if self.other is None:
            return None
        event = aligned_event(self.loaded.replay, self.event, self.other.replay)
        view = self.view.but(row=moment.row.row)
        return Moment(self.other.replay, event, view, self.other.costs)

    def picture(self) -> RenderableType:
        """The frame for the terminal's size, or one line if it is too small."""
        width, height = self.size
        try:
            check_size(width, height, 1 if self.other is None else 2)
        except TooSmall as error:
            return Text(str(error), no_wrap=False)
        moment = self.moment()
        other = self.other_moment(moment)
        hints = self.glyphs.text(self.prompt.line()) if self.prompt else self.status
        if not hints and self.playing:
            hints = f"playing, {SPEEDS[self.speed]} events/s (space pauses, + - speed)"
        if not hints and other is not None:
            hints = difference(moment, other) or ""
        return pair(moment, other, width, height, self.glyphs, hints or hint_line(self.glyphs))

    def refresh_frame(self) -> None:
        """Draw again."""
        if self.is_mounted:
            self.query_one(Picture).refresh()

    def say(self, text: str) -> None:
        """A message in the last line until the next key."""
        self.status = self.glyphs.text(text)
        self.refresh_frame()

    def go(self, event: int) -> None:
        """Show the run after another event."""
        self.status = ""
        self.event = min(max(event, 0), len(self.loaded.replay) - 1)
        self.refresh_frame()

    def attempt(self, action: Callable[[], None]) -> None:
        """Do something; what is wrong with it becomes a message."""
        try:
            action()
        except (ValueError, TypeError) as error:
            self.say(one_line(error))

    # Moving

    def action_step(self, by: int) -> None:
        """One event forward or back."""
        self.playing = False
        self.go(self.event + by)

    def action_tile(self, by: int) -> None:
        """One tile forward or back."""
        self.playing = False
        replay = self.loaded.replay
        self.go(replay.next_stop(self.event) if by > 0 else replay.previous_stop(self.event))

    def action_jump_to(self, text: str) -> None:
        """A place such as "2,1", "event 136" or "end"."""
        self.attempt(lambda: self.go(breakpoints.place(text, self.loaded.replay, self.event)))

    def action_play(self) -> None:
        """Play or pause."""
        self.playing, self._credit = not self.playing, 0.0
        if self.playing and self.event == len(self.loaded.replay) - 1:
            self.event = 0
        self.status = ""
        self.refresh_frame()

    def action_speed(self, by: int) -> None:
        """Faster or slower."""
        self.speed = min(max(self.speed + by, 0), len(SPEEDS) - 1)
        self.say(f"speed {SPEEDS[self.speed]} events/s")

    def _tick(self) -> None:
        if not self.playing:
            return
        self._credit += SPEEDS[self.speed] / TICKS
        whole = int(self._credit)
        if not whole:
            return
        self._credit -= whole
        target = min(self.event + whole, len(self.loaded.replay) - 1)
        hit = next_hit(self.conditions, self.loaded.replay, self.event)
        if hit is not None and hit <= target:
            self.playing = False
            self.go(hit)
            self.say(f"stopped at a breakpoint: {self._met(hit)}")
            return
        if target == len(self.loaded.replay) - 1:
            self.playing = False
        self.go(target)

    # Breakpoints

    def action_breakpoint(self, by: int) -> None:
        """To the next breakpoint, or back to the one before."""
        if not self.conditions:
            self.say(f"no breakpoint is set: press b and type {breakpoints.FORMS}")
            return
        search = next_hit if by > 0 else previous_hit
        hit = search(self.conditions, self.loaded.replay, self.event)
        if hit is None:
            self.say("no breakpoint is met " + ("after" if by > 0 else "before") + " this event")
            return
        self.go(hit)
        self.say(f"breakpoint: {self._met(hit)}")

    def _met(self, event: int) -> str:
        replay = self.loaded.replay
        return ", ".join(str(c) for c in self.conditions if event in c.events(replay))


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
