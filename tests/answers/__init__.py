"""Right and wrong answers to the puzzles, written from their statements.

An answer is the text of a module that defines the function, mostly a solution of
``tutorials/solutions`` with one thing changed: each wrong one is a mistake that people make.
"""

from dataclasses import dataclass
from pathlib import Path

SOLUTIONS = Path(__file__).parents[2] / "tutorials" / "solutions"


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes
    ----------
    puzzle, label : str
    source : str
    why : str
        For a wrong one: words that its grade must contain. "" for a right one.
    """

    puzzle: str
    label: str
    source: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.puzzle}-{self.label}".replace(" ", "_")


class Answers:
    """Answers to one puzzle, by `right` and `wrong`."""

    def __init__(self, puzzle: str):
        self.puzzle = puzzle
        self.solution = (SOLUTIONS / f"{puzzle}.py").read_text(encoding="utf-8")
        self.rights = [Answer(puzzle, "the solution", self.solution)]
        self.wrongs: list[Answer] = []

    def right(self, label: str, *change: str) -> None:
        """A right answer: its text, or pairs of old and new text of the solution."""
        self.rights.append(Answer(self.puzzle, label, self._source(change)))

    def wrong(self, label: str, why: str, *change: str) -> None:
        """A wrong answer, and words of its grade."""
        self.wrongs.append(Answer(self.puzzle, label, self._source(change), why))

    def _source(self, change: tuple[str, ...]) -> str:
        if len(change) == 1:
            return change[0]
        source = self.solution
        for old, new in zip(change[::2], change[1::2], strict=True):
            assert old in source, f"{self.puzzle}: {old!r} is not in the solution"
            source = source.replace(old, new)
        return source
