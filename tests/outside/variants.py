"""Answers that differ from one another in a few words of their text."""

import linecache
from collections.abc import Callable
from itertools import count
from typing import Any

_NUMBERS = count()


def variant(name: str, text: str, *changes: str) -> Callable:
    """The function `name` that a module of `text` defines, after old words gave way to new ones."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if old not in text:
            raise ValueError(f"{old!r} is not in the text of {name}")
        text = text.replace(old, new)
    file = f"<{name} {next(_NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), names)
    return names[name]
