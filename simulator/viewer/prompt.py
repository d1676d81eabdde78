"""One line to type into, in the frame's last line."""

from __future__ import annotations

from dataclasses import dataclass

CURSOR = "_"


@dataclass
class Prompt:
    """What is asked, and what has been typed so far.

    Attributes
    ----------
    what : str
        Which question: "go", "row", ...
    question : str
        Shown until something is typed.
    text : str
    """

    what: str
    question: str
    text: str = ""

    def line(self) -> str:
        """What the last line shows."""
        return f"{self.what}: {self.text}{CURSOR}" if self.text else f"{self.what}? {self.question}"

    def type(self, key: str, character: str | None) -> str | None:
        """Take a key: "enter" and "escape" end the prompt and are returned."""
        if key in ("enter", "escape", "ctrl+c"):
            return "enter" if key == "enter" else "escape"
        if key in ("backspace", "ctrl+h"):
            self.text = self.text[:-1]
        elif key == "ctrl+u":
            self.text = ""
        elif character is not None and character.isprintable():
            self.text += character
        return None
