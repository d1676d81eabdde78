"""Frames as HTML or SVG files, written only when complete."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

FORMATS = (".html", ".svg")


def check_export(path) -> Path:
    """`path` if a frame can be exported to it.

    Raises
    ------
    ValueError
        If it does not end in one of `FORMATS`, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"export must end in {' or '.join(FORMATS)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"export must lie in a folder that exists, got {path}")
    return path


def export(renderable: RenderableType, path, width: int, title: str = "flash-numba step") -> None:
    """Write a renderable to an .html or .svg file.

    Parameters
    ----------
    renderable : rich renderable
    path : str or Path
        Replaced only once all is written.
    width : int
        Cells.
    title : str
        Of the picture's window (SVG).
    """
    path = check_export(path)
    console = Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        _environ={},
    )
    console.print(renderable)
    if path.suffix.lower() == ".svg":
        text = console.export_svg(title=title)
    else:
        text = console.export_html(theme=DEFAULT_TERMINAL_THEME)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
