"""A sign of life while a command computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Show what is done until it is, on stderr, if a person is there to see it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield
