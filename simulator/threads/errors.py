"""What a kernel did wrong, and where."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from pathlib import Path

PACKAGES = Path(__file__).parents[2]
"""Where the packages lie."""


@dataclass(frozen=True)
class Place:
    """A line of a kernel's source.

    Attributes
    ----------
    file : str
    line : int
    function : str
        Name of the kernel or device function.
    """

    file: str
    line: int
    function: str = ""

    @property
    def text(self) -> str:
        """The line as it is written, without indentation."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.text}"


def shown_file(place: Place) -> str:
    """Path of a line's file, from here or from where the packages lie; "" for a notebook's cell."""
    path = Path(place.file)
    if not path.is_file():
        return ""
    roots = (root for root in (Path.cwd(), PACKAGES) if path.is_relative_to(root))
    return next((path.relative_to(root).as_posix() for root in roots), str(path))


@dataclass(frozen=True)
class Finding:
    """One error of a kernel.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    message : str
        What happened, which thread of which block, and what to do.
    places : tuple of Place
        The source lines involved.
    """

    kind: str
    message: str
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.message}", *(f"    {p}" for p in self.places)])


KINDS = (
    "out of bounds",
    "uninitialised read",
    "race",
    "barrier",
    "deadlock",
    "shuffle",
    "misaligned access",
    "asynchronous copy",
    "missing fence",
    "runaway loop",
    "unsupported",
    "launch",
    "exception",
)
"""The kinds of finding: the first four and 'misaligned access' are what a GPU hides."""


class KernelError(RuntimeError):
    """A kernel broke a rule of CUDA, or something it uses is not emulated.

    Attributes
    ----------
    finding : Finding
    """

    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding


def fail(kind: str, message: str, *places: Place) -> KernelError:
    """The error to raise."""
    return KernelError(Finding(kind, message, places))
