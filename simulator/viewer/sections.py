"""Styled lines that know their width: what panels are made of, boxed or read aloud."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.panel import Panel
from rich.text import Text

from .glyphs import Glyphs

Piece = tuple[str, str]
Line = list[Piece]
"""Pieces of text, each with a rich style."""


@dataclass(frozen=True)
class Section:
    """A titled list of lines."""

    title: str
    lines: list[Line]

    def panel(self, width: int, height: int, glyphs: Glyphs) -> Panel:
        """The section in a border of exactly width x height cells."""
        title = clipped([(glyphs.text(self.title), "bold")], width - 6, glyphs)
        return Panel(
            as_text(self.lines[: height - 2], width - 4, glyphs),
            title=title,
            title_align="left",
            box=glyphs.box,
            width=width,
            height=height,
            border_style="dim",
        )


def plain(line: Line) -> str:
    """A line's letters."""
    return "".join(text for text, _ in line)


def line_length(line: Line, glyphs: Glyphs) -> int:
    """Cells that a line takes."""
    return cell_len(glyphs.text(plain(line)))


def as_text(lines: list[Line], width: int, glyphs: Glyphs) -> Text:
    """Lines as one Text, each clipped to `width` cells."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append_text(Text("\n") if number else Text())
        text.append_text(clipped(line, width, glyphs))
    return text


def clipped(line: Line, width: int, glyphs: Glyphs) -> Text:
    """A line of at most `width` cells; one that is too long ends in a mark."""
    mark = glyphs.text("…")
    text = Text(no_wrap=True, end="")
    long = line_length(line, glyphs) > width
    room = max(width - 1, 0) if long else width
    for piece, style in line:
        spelled = glyphs.text(piece)
        taken = cell_len(spelled)
        if taken > room:
            text.append(set_cell_size(spelled, room), style)
            break
        text.append(spelled, style)
        room -= taken
    if long and width > 0:
        text.append(mark, "dim")
    return text


def in_columns(pieces: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    """Short pieces side by side, as many as fit."""
    if not pieces:
        return []
    cell = max(line_length(piece, glyphs) for piece in pieces) + 1
    across = max(width // cell, 1)
    lines = []
    for start in range(0, len(pieces), across):
        line: Line = []
        for piece in pieces[start : start + across]:
            pad = " " * (cell - line_length(piece, glyphs))
            line += [*piece, (pad, "")]
        lines.append(line)
    return lines
