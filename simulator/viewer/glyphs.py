"""Marks and letters of the frames, and what stands in where a terminal cannot show them."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box

_ASCII = {
    "ᵀ": "^T",
    "∘": "*",
    "·": "*",
    "×": "x",
    "α": "alpha",
    "δ": "delta",
    "Δ": "delta",
    "√": "sqrt",
    "→": "->",
    "←": "<-",
    "⇧": "shift-",
    "↑": "up",
    "↓": "down",
    "–": "-",
    "—": "-",
    "…": "~",
    "✓": "(ok)",
    "✗": "(!)",
    "₀": "0",
    "₁": "1",
    "²": "^2",
    "̃": "~",
    "≤": "<=",
    "≥": ">=",
}


@dataclass(frozen=True)
class Glyphs:
    """Marks for tiles (whole, or partly masked), for bars, pointers and borders."""

    unicode: bool
    done: str
    done_partial: str
    todo: str
    todo_partial: str
    now: str
    now_partial: str
    mixed: str
    skipped: str
    pointer: str
    full: str
    empty: str
    ends: tuple[str, str]
    box: box.Box

    def text(self, text: str) -> str:
        """`text` in letters that the terminal has."""
        if self.unicode or text.isascii():
            return text
        spelled = "".join(_ASCII.get(letter, letter) for letter in text)
        return spelled.encode("ascii", "replace").decode()


UNICODE = Glyphs(
    True, "■", "◆", "□", "◇", "▣", "◈", "◧", "·", "▸", "█", "░", ("▕", "▏"), box.SQUARE
)
ASCII = Glyphs(False, "#", "%", "o", "v", "@", "&", "+", ".", ">", "#", ".", ("[", "]"), box.ASCII)


def for_encoding(encoding: str | None) -> Glyphs:
    """The marks that text in `encoding` can hold."""
    try:
        "■◆□◇▣◈◧·▸█░▕▏─│ᵀ∘α→⇧✓".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return UNICODE
