"""The panel that shows where we are: the grid of tiles, zoomed and scrolled to the one at hand."""

from __future__ import annotations

from .glyphs import Glyphs
from .grid import DONE, MIXED, NOW, SKIP, TODO, Grid, fitting_zoom, window, zoomed
from .moment import Moment
from .sections import Line, Section

LABEL = 5
"""Cells left of the grid: pointer and number of the query tile."""

AUTO_ZOOM = 8
"""The most tiles along a side of a cell before the grid scrolls instead of shrinking further."""

_STYLES = {SKIP: "dim", TODO: "", MIXED: "yellow", DONE: "green", NOW: "bold reverse"}


def grid_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """The grid of the kernel at hand; brackets stand around the tile at hand."""
    whole = moment.grid
    short = height < grid_height(moment, width + 4) - 2
    rows, cols = max(height - (2 if short else 3), 1), max((width - LABEL - 1) // 2, 1)
    zoom = moment.view.zoom or fitting_zoom(whole, rows, cols, AUTO_ZOOM)
    grid = zoomed(whole, zoom)
    down = window(grid.state.shape[0], rows, grid.at_row)
    across = window(grid.state.shape[1], cols, grid.at_col)
    lines = [_header(grid, across)]
    lines += [_row(grid, row, across, glyphs) for row in range(down.start, down.stop)]
    lines += _legend(grid, glyphs, short)
    return Section(_title(whole, grid), lines)


def grid_height(moment: Moment, width: int) -> int:
    """Lines that the panel would like at a width, both with the border."""
    whole = moment.grid
    zoom = moment.view.zoom or fitting_zoom(whole, 1000, (width - 5 - LABEL) // 2, AUTO_ZOOM)
    return zoomed(whole, zoom).state.shape[0] + 5


def _title(whole: Grid, grid: Grid) -> str:
    rows, cols = whole.state.shape
    if grid.zoom > 1 and all(whole.axes):
        return f"{rows}x{cols} tiles, cell {grid.zoom}x{grid.zoom}"
    axes = {("query tiles", "key tiles"): f"tiles: {rows} query x {cols} key"}
    title = axes.get(whole.axes) or next(
        (f"{count} {axis}" for count, axis in zip((rows, cols), whole.axes, strict=True) if axis),
        "one block",
    )
    return title + (f", {grid.zoom} a cell" if grid.zoom > 1 else "")


def _header(grid: Grid, across: slice) -> Line:
    if not grid.axes[1]:
        return [(f"{'':>{LABEL}} (no key tiles)", "dim")]
    text = ""
    for place, col in enumerate(range(across.start, across.stop)):
        label = str(col * grid.zoom)
        position = 2 * place
        if len(text) <= position and (len(label) == 1 or place % 2 == 0):
            text = text.ljust(position) + label
            if len(label) > 1:
                text += " "
    corner = "Q\\K" if grid.axes[0] else "K"
    return [(f"{corner:>{LABEL - 1}}  {text.rstrip()}", "dim")]


def _row(grid: Grid, row: int, across: slice, glyphs: Glyphs) -> Line:
    here = row == grid.at_row
    label = f"{row * grid.zoom:>{LABEL - 2}}" if grid.axes[0] else " " * (LABEL - 2)
    pointer = glyphs.pointer if here else " "
    line: Line = [(f"{pointer}{label} ", "bold" if here else "dim")]
    for col in range(across.start, across.stop):
        state = int(grid.state[row, col])
        gap = " "
        if state == NOW:
            gap = "["
        elif col > across.start and grid.state[row, col - 1] == NOW:
            gap = "]"
        line.append((gap, "bold" if gap != " " else ""))
        line.append((_mark(state, bool(grid.partial[row, col]), glyphs), _STYLES[state]))
    if across.stop > across.start and grid.state[row, across.stop - 1] == NOW:
        line.append(("]", "bold"))
    return line


def _mark(state: int, partial: bool, glyphs: Glyphs) -> str:
    if state in (SKIP, MIXED):
        return glyphs.skipped if state == SKIP else glyphs.mixed
    whole = {TODO: glyphs.todo, DONE: glyphs.done, NOW: glyphs.now}
    cut = {TODO: glyphs.todo_partial, DONE: glyphs.done_partial, NOW: glyphs.now_partial}
    return (cut if partial else whole)[state]


def _legend(grid: Grid, glyphs: Glyphs, short: bool) -> list[Line]:
    gap = "" if glyphs.unicode else " "  # marks that are letters would be read as part of a word
    marks = glyphs.done, glyphs.now, glyphs.todo
    words = ("done", "now", "to do" if glyphs.unicode else "todo")  # 26 columns are left
    known = " ".join(f"{mark}{gap}{word}" for mark, word in zip(marks, words, strict=True))
    part = f" {glyphs.mixed}{gap}part" if grid.zoom > 1 else ""
    skip = f"{glyphs.skipped}{gap}skip"
    if short:
        cut = f"{glyphs.done_partial}{glyphs.todo_partial}{gap}cut"
        return [[(f"{known} {cut} {skip}{part}", "dim")]]
    first = f"{known} {skip}ped" if glyphs.unicode else f"{known} {skip}"
    cut = f"{glyphs.done_partial} {glyphs.now_partial} {glyphs.todo_partial}"
    second = f"{cut} cut by mask{part}" if part else f"{cut} same, cut by mask"
    return [[(first, "dim")], [(second, "dim")]]
