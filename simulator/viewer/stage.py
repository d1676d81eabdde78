"""A recorded run on the screen: its frame, its messages, and who gets the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widget import Widget

from .align import aligned_event, difference
from .breakpoints import Breakpoint
from .frame import TooSmall, check_size, hint_line, pair
from .glyphs import UNICODE, Glyphs
from .moment import Moment, View
from .prompt import Prompt
from .session import Loaded, Saved, Session

SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Events a second while playing."""


class Picture(Widget):
    """The frame; made when it is drawn, so that a burst of keys draws once."""

    def render(self) -> RenderableType:
        """What the stage shows now."""
        return cast(Stage, self.app).picture()


class Stage(App[None]):
    """Shows one run, or two side by side.

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
    BINDINGS: ClassVar = [Binding("q,ctrl+c", "quit", priority=True)]

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
        self.playing, self.speed = False, 3
        self.status = ""
        self.prompt: Prompt | None = None

    def compose(self) -> ComposeResult:
        """One frame."""
        yield Picture(id="frame")

    def on_mount(self) -> None:
        """Begin."""
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
        hints = hints or hint_line(self.glyphs, width)
        return pair(moment, other, width, height, self.glyphs, hints)

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


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
