"""Styled lines that know their width: what panels are made of, boxed or read aloud."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
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

    def boxed(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """The section in a border: `height` lines of exactly `width` cells."""
        box = glyphs.box
        title = fitted([(f" {self.title} ", "bold")], width - 4, glyphs, pad=False)
        rest = width - 3 - line_length(title, glyphs)
        top = [(box.top_left + box.top, "dim"), *title, (box.top * rest + box.top_right, "dim")]
        left, right = (f"{box.mid_left} ", "dim"), (f" {box.mid_right}", "dim")
        inside = [*self.lines[: height - 2], *[[]] * max(height - 2 - len(self.lines), 0)]
        body = [[left, *fitted(line, width - 4, glyphs), right] for line in inside]
        bottom = [(box.bottom_left + box.bottom * (width - 2) + box.bottom_right, "dim")]
        return [top, *body, bottom]


def plain(line: Line) -> str:
    """A line's letters."""
    return "".join(text for text, _ in line)


def line_length(line: Line, glyphs: Glyphs) -> int:
    """Cells that a line takes."""
    return cell_len(glyphs.text(plain(line)))


def fitted(line: Line, width: int, glyphs: Glyphs, pad: bool = True) -> Line:
    """A line of exactly `width` cells (at most, without `pad`), spelled with `glyphs`.

    One that is too long ends in a mark.
    """
    spelled = [(glyphs.text(piece), style) for piece, style in line]
    room = width - sum(cell_len(piece) for piece, _ in spelled)
    if room >= 0:
        return [*spelled, (" " * room, "")] if pad and room else spelled
    mark, kept, room = glyphs.text("…"), [], width - 1
    for piece, style in spelled:
        taken = cell_len(piece)
        if taken >= room:
            kept.append((set_cell_size(piece, room), style))
            break
        kept.append((piece, style))
        room -= taken
    return [*kept, (mark, "dim")] if width > 0 else []


def folded(text: str, width: int, glyphs: Glyphs, indent: int = 0) -> list[str]:
    """A text on lines of at most `width` cells, all but the first indented.

    Where it is too long it breaks between its phrases, which two spaces part, then between words.
    """
    if line_length([(text, "")], glyphs) <= width:
        return [text]
    lines: list[str] = []
    for phrase in text.split("  "):
        line = " " * indent if lines else ""
        for number, word in enumerate(phrase.split()):
            longer = f"{line} {word}" if number else line + word
            if number and line_length([(longer, "")], glyphs) > width:
                lines.append(line)
                longer = " " * indent + word
            line = longer
        lines.append(line)
    return lines


def as_text(lines: list[Line]) -> Text:
    """Lines as one rich renderable."""
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for piece, style in line:
            text.append(piece, style or None)
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
