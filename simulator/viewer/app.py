"""The stepper: an event log under arrow keys, in a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderableType
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Input, Static

from . import breakpoints
from .align import aligned_event, difference
from .breakpoints import Breakpoint, next_hit, previous_hit
from .frame import TooSmall, check_size, hint_line, pair
from .glyphs import UNICODE, Glyphs
from .help import HelpScreen
from .moment import Moment, View
from .session import Loaded, Saved, Session, program_names

SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Events a second while playing."""

TICKS = 20
"""Frames a second while playing, at most."""


class Prompt(Input):
    """One line to type into; escape leaves it."""

    BINDINGS = [Binding("escape", "app.cancel_prompt", show=False)]


class Stepper(App[None]):
    """Steps through one run, or two side by side.

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
    Screen { layout: vertical; background: ansi_default; color: ansi_default; overflow: hidden; }
    #frame { height: 1fr; width: 100%; background: ansi_default; color: ansi_default; }
    #prompt { dock: bottom; height: 1; border: none; padding: 0; display: none;
              background: ansi_default; color: ansi_default; }
    """
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [
        Binding("right,l", "step(1)"),
        Binding("left,j", "step(-1)"),
        Binding("shift+right,full_stop", "tile(1)"),
        Binding("shift+left,comma", "tile(-1)"),
        Binding("home", "jump_to('start')"),
        Binding("end", "jump_to('end')"),
        Binding("g", "ask('go')"),
        Binding("space", "play"),
        Binding("plus,equals_sign", "speed(1)"),
        Binding("minus", "speed(-1)"),
        Binding("b", "ask('breakpoint')"),
        Binding("n", "breakpoint(1)"),
        Binding("N", "breakpoint(-1)"),
        Binding("r", "ask('row')"),
        Binding("up", "row(-1)"),
        Binding("down", "row(1)"),
        Binding("h", "ask('head')"),
        Binding("p", "ask('program')"),
        Binding("d", "direction"),
        Binding("c", "ask('compare')"),
        Binding("z", "zoom"),
        Binding("t", "tensors"),
        Binding("question_mark,f1", "help"),
        Binding("q,ctrl+c", "quit"),
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
        self._asked = ""

    def compose(self) -> ComposeResult:
        """One frame, and a prompt that shows when it is needed."""
        yield Static("", id="frame")
        yield Prompt(id="prompt")

    def on_mount(self) -> None:
        """Begin."""
        self.set_interval(1 / TICKS, self._tick)
        self.query_one("#frame", Static).can_focus = True
        self.refresh_frame()

    def on_resize(self, _event: events.Resize) -> None:
        """Fit the frame to the new size."""
        self.refresh_frame()

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
        hints = self.status
        if not hints and self.playing:
            hints = f"playing, {SPEEDS[self.speed]} events/s (space pauses, + - speed)"
        if not hints and other is not None:
            hints = difference(moment, other) or ""
        return pair(moment, other, width, height, self.glyphs, hints or hint_line(self.glyphs))

    def refresh_frame(self) -> None:
        """Draw again."""
        if self.is_mounted:
            self.query_one("#frame", Static).update(self.picture())

    def say(self, text: str) -> None:
        """A message in the last line until the next key."""
        self.status = self.glyphs.text(text)
        self.refresh_frame()

    def go(self, event: int) -> None:
        """Show the run after another event."""
        self.status = ""
        self.event = min(max(event, 0), len(self.loaded.replay) - 1)
        self.refresh_frame()

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
        self._try(lambda: self.go(breakpoints.place(text, self.loaded.replay, self.event)))

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

    def _set_breakpoint(self, text: str) -> None:
        if not text.strip():
            self.conditions.clear()
            self.say("breakpoints cleared")
            return
        condition = breakpoints.parse(text)
        condition.events(self.loaded.replay)
        self.conditions.append(condition)
        self.say("breakpoints: " + "; ".join(map(str, self.conditions)) + " (n next, N back)")

    # Choosing

    def action_row(self, by: int) -> None:
        """The row above or below."""
        row = self.moment().row.row + by
        if 0 <= row < self.loaded.replay.meta["seqlen_q"]:
            self.view = self.view.but(row=row)
        self.go(self.event)

    def _pick_row(self, text: str) -> None:
        if not text.strip():
            self.view = self.view.but(row=None)
        else:
            row = _whole("row", text)
            Moment(self.loaded.replay, self.event, self.view.but(row=row), self.loaded.costs).row  # noqa: B018
            self.view = self.view.but(row=row)
        self.go(self.event)

    def action_zoom(self) -> None:
        """Cells of 1, 2, 4, ... tiles, then fitting again."""
        largest = max(self.loaded.replay.kinds.shape)
        zoom = 1 if self.view.zoom is None else self.view.zoom * 2
        self.view = self.view.but(zoom=zoom if zoom < max(largest, 2) else None)
        fits = "as fits" if self.view.zoom is None else f"{zoom}x{zoom} tiles a cell"
        self.say(f"grid zoom: {fits}")

    def action_tensors(self) -> None:
        """HBM in total, or by tensor."""
        self.view = self.view.but(tensors=not self.view.tensors)
        self.go(self.event)

    def action_direction(self) -> None:
        """Forward or backward."""
        program, direction, head = self.key
        self._load(program, "backward" if direction == "forward" else "forward", head)

    def _compare(self, text: str) -> None:
        if not text.strip():
            self.other = None
            self.go(self.event)
            return
        self._load(*self.key, compare_with=text.strip())

    def _load(
        self, program: str, direction: str, head: int, compare_with: str | None = None
    ) -> None:
        """Show another run, at the same tile."""
        self.playing = False
        if compare_with is None and self.other is not None:
            compare_with = self.other.replay.meta["program"]
        self.say(f"recording {program} {direction} of head {head} …")
        self._record((program, direction, head), compare_with)

    @work(thread=True, exclusive=True)
    def _record(self, key: tuple[str, str, int], compare_with: str | None) -> None:
        try:
            loaded = self.source.run(*key)
            other = None if compare_with is None else self.source.run(compare_with, *key[1:])
        except (ValueError, TypeError) as error:
            self.call_from_thread(self.say, _one_line(error))
            return
        self.call_from_thread(self._show, key, loaded, other)

    def _show(self, key: tuple[str, str, int], loaded: Loaded, other: Loaded | None) -> None:
        event = aligned_event(self.loaded.replay, self.event, loaded.replay)
        if key[1] != self.key[1]:
            event = 0
        self.key, self.loaded, self.other = key, loaded, other
        self.go(event)

    # The prompt

    def action_ask(self, what: str) -> None:
        """Open the prompt."""
        self.playing = False
        self._asked = what
        prompt = self.query_one("#prompt", Prompt)
        prompt.placeholder = self.glyphs.text(self._question(what))
        prompt.value = ""
        prompt.display = True
        prompt.focus()

    def _question(self, what: str) -> str:
        rows, cols = self.loaded.replay.kinds.shape
        heads = self.loaded.replay.meta["num_heads"]
        return {
            "go": f"go to: query tile 0..{rows - 1}, key tile 0..{cols - 1} (as 2,1), "
            "event 136, end",
            "breakpoint": f"stop at: {breakpoints.FORMS}; nothing clears",
            "row": f"row 0..{self.loaded.replay.meta['seqlen_q'] - 1}; nothing follows the tile",
            "head": f"head 0..{heads - 1}",
            "program": ", ".join(program_names()),
            "compare": f"compare with: {', '.join(program_names())}; nothing ends it",
        }[what]

    def action_cancel_prompt(self) -> None:
        """Close the prompt."""
        self.query_one("#prompt", Prompt).display = False
        self.query_one("#frame", Static).focus()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Do what was typed, or say what is wrong with it."""
        text, asked = message.value, self._asked
        self.action_cancel_prompt()
        _, direction, head = self.key
        answers: dict[str, Callable[[], None]] = {
            "go": lambda: self.action_jump_to(text),
            "breakpoint": lambda: self._set_breakpoint(text),
            "row": lambda: self._pick_row(text),
            "head": lambda: self._load(*self.key[:2], _whole("head", text)),
            "program": lambda: self._load(text.strip(), direction, head),
            "compare": lambda: self._compare(text),
        }
        self._try(answers[asked])

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (ValueError, TypeError) as error:
            self.say(_one_line(error))

    def action_help(self) -> None:
        """Keys and panels."""
        self.playing = False
        self.push_screen(HelpScreen(self.glyphs))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text.strip()!r}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
