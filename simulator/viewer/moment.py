"""One moment of one run, as the panels are told it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from .costs import Costs, costs_of
from .grid import Grid, grid_at
from .replay import Replay
from .rows import Row, followed_row, row_at
from .steps import Step


@dataclass(frozen=True)
class View:
    """What a person has chosen to see.

    Attributes
    ----------
    row : int or None
        The row followed; None = as `rows.followed_row` chooses.
    zoom : int or None
        Tiles along a side of a grid cell; None = as many as make the grid fit.
    tensors : bool
        HBM elements by tensor instead of in total.
    """

    row: int | None = None
    zoom: int | None = None
    tensors: bool = False

    def but(self, **changes) -> View:
        """The same view with changes."""
        return replace(self, **changes)


class Moment:
    """A run after one event.

    Parameters
    ----------
    replay : Replay
    event : int
    view : View, optional
    costs : Costs, optional
        What the run is held against; worked out if left out.
    """

    def __init__(
        self, replay: Replay, event: int, view: View | None = None, costs: Costs | None = None
    ):
        if not 0 <= event < len(replay):
            raise ValueError(f"event must be in 0..{len(replay) - 1}, got {event}")
        self.replay, self.event, self.meta = replay, event, replay.meta
        self.view = view or View()
        self.costs = costs or costs_of(replay)

    @cached_property
    def step(self) -> Step:
        """The block and pair of tiles at hand."""
        return self.replay.steps.at(self.event)

    @cached_property
    def line(self) -> str:
        """The line of the algorithm that was executed."""
        return self.meta["lines"][self.replay.line(self.event)]

    @cached_property
    def grid(self) -> Grid:
        """States of all tiles."""
        return grid_at(self.replay, self.event)

    @cached_property
    def row(self) -> Row:
        """The row picked, or the one followed."""
        picked = self.view.row
        row = followed_row(self.replay, self.event) if picked is None else picked
        return row_at(self.replay, self.event, row)

    @cached_property
    def token(self) -> str | None:
        """What the row stands for."""
        tokens = self.replay.tokens
        return None if tokens is None else str(tokens[self.row.row])
