"""The help screen: what each panel says, and the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from .breakpoints import MEANINGS
from .glyphs import Glyphs
from .panels import HELP

WORDS = (
    ("event", "One load, product, computation, store or free of a tile."),
    ("tile", "All events at one pair of a query tile and a key tile."),
)

TITLES = {"grid": "tiles", "sram": "SRAM", "algorithm": "kernel", "row": "row", "hbm": "HBM"}
"""What the panels' titles begin with."""

KEYS = (
    ("left right, j l", "one event back, forward"),
    ("shift+left right, , .", "one tile back, forward"),
    ("home end", "first event, last event"),
    ("g", "go to a tile (2,1), an event (event 136), start, end"),
    ("space, + -", "play or pause, faster or slower"),
    ("r, up down", "pick a row, the row above or below"),
    ("c", "show a second program beside this one, at the same tile"),
    ("p d h", "pick a program; forward or backward; pick a head"),
    ("b", f"set a breakpoint: {MEANINGS}"),
    ("n N", "to the next breakpoint, to the one before"),
    ("t", "HBM elements in total, or by tensor and how many times each moved"),
    ("z", "zoom the grid of tiles"),
    ("? q", "this help, quit"),
)


def help_text(glyphs: Glyphs) -> Group:
    """Words and panels first, then keys."""
    panels = ((TITLES[name], sentence) for name, sentence in HELP.items())
    arrows = "down scrolls; escape, q, ? or enter closes this"
    return Group(
        Text(arrows, "dim"),
        _table("The words", WORDS, glyphs),
        _table("The panels", panels, glyphs),
        _table("The keys", KEYS, glyphs),
    )


def _table(title: str, rows: Iterable[tuple[str, str]], glyphs: Glyphs) -> Group:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, what in rows:
        table.add_row(Text(name), Text(glyphs.text(what)))
    return Group(Text(f"\n{title}", "bold underline"), table)


class HelpScreen(ModalScreen[None]):
    """Shows `help_text`; scrolls where it does not fit."""

    CSS = """
    HelpScreen { background: ansi_default; }
    HelpScreen VerticalScroll { background: ansi_default; padding: 0 1; scrollbar-size: 0 0; }
    HelpScreen Static { background: ansi_default; color: ansi_default; }
    """
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter,f1", "dismiss")]

    def __init__(self, glyphs: Glyphs):
        super().__init__()
        self.glyphs = glyphs

    def compose(self) -> ComposeResult:
        """The text in a column that scrolls."""
        with VerticalScroll():
            yield Static(help_text(self.glyphs))
