"""One frame: title, grid, algorithm, SRAM, row and HBM panels, fitted to width x height cells."""

from __future__ import annotations

from rich.text import Text

from .glyphs import UNICODE, Glyphs
from .grid_panel import grid_height
from .moment import Moment
from .panels import SECTIONS, algorithm_width
from .sections import Line, as_text, fitted, folded, line_length

MIN_WIDTH, MIN_HEIGHT = 40, 20
TWO_COLUMNS = 76
"""From this width on the panels stand in two columns."""

_KEYS = ("←/→ event", "⇧←/→ tile", "g go to", "space play", "r row", "c compare")
_ASCII_KEYS = ("arrows event", ", . tile", *_KEYS[2:])
_MORE_KEYS = ("b break", "p program", "d direction", "h head", "t tensors", "z zoom")
_LAST_KEYS = ("? help", "q quit")


class TooSmall(ValueError):
    """The terminal has no room for a frame."""


def check_size(width: int, height: int, runs: int = 1) -> None:
    """Raise `TooSmall` unless frames of `runs` runs side by side fit.

    Raises
    ------
    TooSmall
        With what is needed and what was given.
    """
    least = MIN_WIDTH * runs
    if width < least or height < MIN_HEIGHT:
        raise TooSmall(f"terminal needs {least}x{MIN_HEIGHT}, got {width}x{height}")


def hint_line(glyphs: Glyphs, width: int = 80) -> str:
    """As many keys as there is room for, those worth knowing first before the others."""
    keys: list[str] = []
    for key in (*(_KEYS if glyphs.unicode else _ASCII_KEYS), *_MORE_KEYS):
        if len("  ".join([*keys, key, *_LAST_KEYS])) > width - 2:
            break
        keys.append(key)
    return "  ".join([*keys, *_LAST_KEYS])


def frame(
    moment: Moment,
    width: int = 80,
    height: int = 24,
    glyphs: Glyphs = UNICODE,
    hints: str | None = None,
) -> Text:
    """A frame of exactly width x height cells.

    Parameters
    ----------
    moment : Moment
    width, height : int
    glyphs : Glyphs
    hints : str or None
        The last line; None leaves it out. One too long covers the lines above it.

    Returns
    -------
    rich.text.Text
        Shows in a terminal, in an export and in a notebook.

    Raises
    ------
    TooSmall
        If there is no room.
    """
    return pair(moment, None, width, height, glyphs, hints)


def pair(
    left: Moment,
    right: Moment | None,
    width: int = 80,
    height: int = 24,
    glyphs: Glyphs = UNICODE,
    hints: str | None = None,
) -> Text:
    """Two runs side by side, or one.

    Parameters
    ----------
    left : Moment
    right : Moment or None
    width, height, glyphs, hints
        As for `frame`.
    """
    runs = [left] if right is None else [left, right]
    check_size(width, height, len(runs))
    inner = height - (hints is not None)
    widths = [width] if right is None else [width // 2, width - width // 2]
    most = max(3, *(run.replay.residency.most_tiles for run in runs))
    columns = [
        _lines(run, part, inner, glyphs, most) for run, part in zip(runs, widths, strict=True)
    ]
    lines = _beside(*columns)
    if hints is not None:
        told = [f" {piece}" for piece in folded(hints, width - 2, glyphs)]
        lines = lines[: height - len(told)]
        lines += [fitted([(piece, "dim")], width, glyphs) for piece in told]
    return as_text(lines)


def _lines(moment: Moment, width: int, height: int, glyphs: Glyphs, most_tiles: int) -> list[Line]:
    """One run's title and panels; `most_tiles` have room in the SRAM panel."""
    lines = [fitted(title(moment, width, glyphs), width, glyphs)]
    height -= 1
    if width < TWO_COLUMNS:
        line = [(f" {glyphs.pointer} {moment.line}", "bold")]
        heights = _narrow_heights(moment, width, height - 1, most_tiles)
        return [*lines, fitted(line, width, glyphs), *_stack(moment, heights, width, glyphs)]
    left = min(max(round(width * 0.37), min(algorithm_width(moment, glyphs), width - 50), 30), 72)
    tall = min(grid_height(moment, left), height - 9)
    where = _stack(moment, {"grid": tall, "algorithm": height - tall}, left, glyphs)
    what = _stack(moment, _right_heights(height, most_tiles), width - left, glyphs)
    return [*lines, *_beside(where, what)]


def _beside(*columns: list[Line]) -> list[Line]:
    return [[piece for line in row for piece in line] for row in zip(*columns, strict=True)]


def title(moment: Moment, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """What runs and where we are; what matters least goes where room is short, and stays away."""
    meta, replay = moment.meta, moment.replay
    sizes = f"N {meta['seqlen_q']:,}"
    if meta["seqlen_k"] != meta["seqlen_q"]:
        sizes += f" M {meta['seqlen_k']:,}"
    items = {
        "sizes": sizes,
        "head_dim": f"d {meta['head_dim']}",
        "dtype": meta["dtype"],
        "tiles": f"tiles {meta['tile_m']}x{meta['tile_n']}",
        "mask": _mask(meta),
        "head": f"head {meta['head']} of 0..{meta['num_heads'] - 1}",
    }
    if meta["num_heads"] == 1:
        del items["head"]
    tiles, events = len(replay.steps.stops), len(replay) - 1
    form = "tile {}/{}  event {}/{}" if width >= TWO_COLUMNS else "{}/{}  ev {}/{}"
    where = form.format(replay.steps.begun(moment.event), tiles, moment.event, events)
    longest = len(form.format(tiles, tiles, events, events))
    name = f" {meta['program']}"
    if width >= TWO_COLUMNS or len(name) < 12:
        name += f" {meta['direction']}"
    for least in ("", "dtype", "head", "head_dim", "tiles", "mask", "sizes"):
        items.pop(least, None)
        line: Line = [(name, "bold"), ("".join(f"  {item}" for item in items.values() if item), "")]
        if line_length(line, glyphs) + 2 + longest + 1 <= width:
            break
    gap = width - line_length(line, glyphs) - len(where) - 1
    if gap < 1:
        where = where.split("  ")[1]
        gap = width - line_length(line, glyphs) - len(where) - 1
    return [*line, (" " * max(gap, 1), ""), (where, "bold")]


def _mask(meta) -> str:
    left, right = meta["window"]
    text = "causal" if meta["causal"] else ""
    if left is not None or right is not None:
        sides = ",".join("inf" if side is None else str(side) for side in (left, right))
        text = f"{text} window {sides}".strip()
    return text


def _right_heights(height: int, most_tiles: int) -> dict[str, int]:
    """SRAM as tall as the run ever needs, so that panels do not jump; at least 7 lines of HBM."""
    row, hbm = 7, 9
    sram = min(most_tiles + 3, max(height - row - hbm, 5))
    return {"sram": sram, "row": row, "hbm": height - sram - row}


def _narrow_heights(moment: Moment, width: int, height: int, most_tiles: int) -> dict[str, int]:
    """Grid, row and HBM; SRAM and the algorithm too where there is room."""
    heights = {"grid": grid_height(moment, width), "row": 6, "hbm": 7}
    extra = {"sram": most_tiles + 3, "algorithm": 8}
    for name, wanted in extra.items():
        if sum(heights.values()) + wanted <= height:
            heights[name] = wanted
    heights["grid"] = max(min(heights["grid"], height - 13), 5)
    heights["hbm"] += height - sum(heights.values())
    order = ("grid", "algorithm", "sram", "row", "hbm")
    return {name: heights[name] for name in order if name in heights}


def _stack(moment: Moment, heights: dict[str, int], width: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    for name, height in heights.items():
        section = SECTIONS[name](moment, width - 4, height - 2, glyphs)
        lines += section.boxed(width, height, glyphs)
    return lines
