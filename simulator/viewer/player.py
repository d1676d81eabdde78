"""Moving through a run: event by event, tile by tile, playing, and to breakpoints."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding

from . import breakpoints
from .breakpoints import next_hit, previous_hit
from .stage import SPEEDS, Stage

TICKS = 20
"""Frames a second while playing, at most."""


class Player(Stage):
    """A stage with the keys that move, forward and back."""

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
    ]

    _credit = 0.0

    def on_mount(self) -> None:
        """Start the clock that playing goes by."""
        self.set_interval(1 / TICKS, self._tick)

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
