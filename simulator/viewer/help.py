"""The help screen: what each panel says, and the keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from .breakpoints import FORMS
from .glyphs import Glyphs
from .panels import HELP

KEYS = (
    ("left right (or j l)", "one event back, forward"),
    ("shift+left right (or , .)", "one tile back, forward"),
    ("home end", "first event, last event"),
    ("g", "go to a tile (2,1), an event (event 136), start, end"),
    ("space, + -", "play or pause, faster or slower"),
    ("b", f"set a breakpoint: {FORMS}"),
    ("n N", "to the next breakpoint, to the one before"),
    ("r, up down", "pick a row, the row above or below"),
    ("h p d", "pick a head, a program; forward or backward"),
    ("c", "show a second program beside this one, at the same tile"),
    ("z", "zoom the grid of tiles"),
    ("t", "HBM elements in total or by tensor"),
    ("? q", "this help, quit"),
)


def help_text(glyphs: Glyphs) -> Text:
    """Panels first, then keys."""
    text = Text()
    text.append("The panels\n", "bold")
    for name, sentence in HELP.items():
        text.append(f"{name:<10}", "bold")
        text.append(f"{glyphs.text(sentence)}\n")
    text.append("\nThe keys\n", "bold")
    for keys, what in KEYS:
        text.append(f"{keys:<27}", "bold")
        text.append(f"{glyphs.text(what)}\n")
    text.append("\nany of escape, q, ?, enter closes this", "dim")
    return text


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
