"""The stepper: a player, and the keys that choose what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import work
from textual.binding import Binding

from . import breakpoints
from .align import aligned_event
from .help import HelpScreen
from .moment import Moment
from .player import Player
from .prompt import Prompt
from .session import Loaded, program_names
from .stage import one_line


class Stepper(Player):
    """Steps through one run, or two side by side; the parameters are those of `Stage`."""

    BINDINGS: ClassVar = [
        Binding("g", "ask('go')", priority=True),
        Binding("b", "ask('breakpoint')", priority=True),
        Binding("r", "ask('row')", priority=True),
        Binding("up", "row(-1)", priority=True),
        Binding("down", "row(1)", priority=True),
        Binding("h", "ask('head')", priority=True),
        Binding("p", "ask('program')", priority=True),
        Binding("d", "direction", priority=True),
        Binding("c", "ask('compare')", priority=True),
        Binding("z", "zoom", priority=True),
        Binding("t", "tensors", priority=True),
        Binding("question_mark,f1", "help", priority=True),
    ]

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

    def _set_breakpoint(self, text: str) -> None:
        if not text.strip():
            self.conditions.clear()
            self.say("breakpoints cleared")
            return
        condition = breakpoints.parse(text)
        condition.events(self.loaded.replay)
        self.conditions.append(condition)
        self.say("breakpoints: " + "; ".join(map(str, self.conditions)) + " (n next, N back)")

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
            self.call_from_thread(self.say, one_line(error))
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
        self.prompt = Prompt(what, self._question(what))
        self.refresh_frame()

    def _question(self, what: str) -> str:
        rows, cols = self.loaded.replay.kinds.shape
        meta, last = self.loaded.replay.meta, len(self.loaded.replay) - 1
        now = f"now {self.key[0]}"
        return {
            "go": f"a tile such as 2,1 (query 0..{rows - 1}, key 0..{cols - 1}), event 136 "
            f"(0..{last}), start, end, or what a breakpoint takes",
            "breakpoint": f"{breakpoints.MEANINGS}; an empty line clears all",
            "row": f"0..{meta['seqlen_q'] - 1}; an empty line follows the tile at hand",
            "head": f"0..{meta['num_heads'] - 1}, now {self.key[2]}",
            "program": f"{', '.join(program_names())}; {now}",
            "compare": f"{', '.join(program_names())}; {now}; an empty line ends it",
        }[what]

    def answer(self, asked: str, text: str) -> None:
        """Do what was typed, or say what is wrong with it."""
        _, direction, head = self.key
        answers: dict[str, Callable[[], None]] = {
            "go": lambda: self.action_jump_to(text),
            "breakpoint": lambda: self._set_breakpoint(text),
            "row": lambda: self._pick_row(text),
            "head": lambda: self._load(*self.key[:2], _whole("head", text)),
            "program": lambda: self._load(text.strip(), direction, head),
            "compare": lambda: self._compare(text),
        }
        self.attempt(answers[asked])

    def action_help(self) -> None:
        """Keys and panels."""
        self.playing = False
        self.push_screen(HelpScreen(self.glyphs))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text.strip()!r}") from None
