"""The panels of a frame: pure functions from a moment to titled lines.

Each takes the moment, the cells inside its border and the glyphs, and returns a `Section`. `panel`
boxes one of them for a notebook or a frame.
"""

from __future__ import annotations

from rich.text import Text

from ..memory import describe
from .glyphs import UNICODE, Glyphs
from .grid_panel import grid_section
from .hbm_panel import hbm_section
from .moment import Moment
from .residency import Resident
from .row_panel import row_section
from .sections import Line, Section, as_text, in_columns, line_length

HELP = {
    "grid": "Which pairs of a query tile (down) and a key tile (across) are done, at hand, to do, "
    "cut by the mask, or skipped by it.",
    "sram": "The tiles that the thread block keeps in shared memory now, their bytes against the "
    "GPU's capacity, and what it keeps in registers.",
    "algorithm": "The kernel at hand, line by line; the pointer marks the line that the last event "
    "executed.",
    "row": "One query row's numbers before and after this tile, with the arithmetic that leads "
    "from one to the other.",
    "hbm": "Elements moved to and from the GPU's large memory, so far and at the end, against the "
    "closed form and against standard attention as its paper counts it (algorithm0).",
}
"""One sentence on every panel."""


def sram_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """Resident tiles with bytes and since when, a capacity bar, registers."""
    used, peak = moment.replay.residency.nbytes(moment.event)
    capacity = moment.meta["sram_bytes"]
    title = f"SRAM {_kib(used)} KiB"
    if capacity:
        whole = _kib(capacity).removesuffix(".0")
        title = f"SRAM {_kib(used)} of {whole} KiB {_bar(used / capacity, 12, glyphs)}"
    tiles = moment.replay.residents(moment.event)
    lines: list[Line] = [_resident(tile, moment) for tile in tiles]
    registers = _registers(moment.replay.registers(moment.event))
    if len(lines) + 1 > height:
        lines = in_columns([_short_resident(tile, moment) for tile in tiles], width, glyphs)
    if not lines:
        lines = [[("no tile is resident", "dim")]]
    lines = lines[: max(height - 1, 1)]
    lines.append(registers)
    if len(lines) < height:
        lines.append([(f"most resident so far {_kib(peak)} KiB", "dim")])
    return Section(title, lines)


def _resident(tile: Resident, moment: Moment) -> Line:
    size = f"{tile.name:<5}{describe(tile.shape):>8} {_kib(tile.nbytes):>7} KiB  "
    if tile.since == moment.event:
        elements = moment.replay.columns["sram_store"][tile.since]
        return [(size, "bold cyan"), (f"loaded now +{elements:,}", "bold cyan")]
    if tile.since >= moment.step.start:
        return [(size, ""), (f"since event {tile.since}", "")]
    return [(size, ""), (f"kept since event {tile.since}", "dim")]


def _short_resident(tile: Resident, moment: Moment) -> Line:
    mark = "+" if tile.since == moment.event else " "
    style = "bold cyan" if mark == "+" else ""
    return [(f"{mark}{tile.name} {describe(tile.shape)} {_kib(tile.nbytes)}K", style)]


def _registers(tiles: list[Resident]) -> Line:
    by_shape: dict[str, list[str]] = {}
    for tile in tiles:
        by_shape.setdefault(describe(tile.shape), []).append(tile.name)
    text = "  ".join(f"{' '.join(names)} {shape}" for shape, names in by_shape.items())
    return [("registers ", "dim"), (text or "none", "")]


def algorithm_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """Lines of the kernel at hand, the executed one marked and never cut off."""
    meta, kernel = moment.meta, moment.step.kernel
    here = moment.replay.line(moment.event)
    numbers = [i for i, k in enumerate(meta["line_kernels"]) if k == kernel]
    lines: list[Line] = []
    at = 0
    for number in numbers:
        text = meta["lines"][number]
        if number != here:
            lines.append([(f"  {text}", "")])
            continue
        at = len(lines)
        pieces = _folded(text, width - 2, glyphs)
        lines += [
            [(("  " if n else f"{glyphs.pointer} ") + p, "bold")] for n, p in enumerate(pieces)
        ]
    room = max(height - 1, 1)
    start = min(max(at - room // 2, 0), max(len(lines) - room, 0))
    shown = lines[start : start + room]
    shown.append([(f"event: {moment.replay.describe(moment.event)}", "italic")])
    count = len(meta["kernels"])
    title = f"kernel: {meta['kernels'][kernel]}" + (f" ({kernel + 1}/{count})" if count > 1 else "")
    return Section(title, shown)


def _folded(text: str, width: int, glyphs: Glyphs) -> list[str]:
    """Words of a text on lines of at most `width` cells."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if line_length([(longer, "")], glyphs) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


SECTIONS = {
    "grid": grid_section,
    "sram": sram_section,
    "algorithm": algorithm_section,
    "row": row_section,
    "hbm": hbm_section,
}
"""Panels by name."""


def panel(
    name: str, moment: Moment, width: int = 60, height: int = 12, glyphs: Glyphs = UNICODE
) -> Text:
    """One panel as a rich renderable.

    Parameters
    ----------
    name : str
        A key of `SECTIONS`.
    moment : Moment
    width, height : int
        Cells with the border.
    glyphs : Glyphs
    """
    if name not in SECTIONS:
        raise ValueError(f"panel must be one of {', '.join(SECTIONS)}; got {name!r}")
    section = SECTIONS[name](moment, width - 4, height - 2, glyphs)
    return as_text(section.boxed(width, height, glyphs))


def _kib(nbytes: int) -> str:
    return f"{nbytes / 1024:,.1f}"


def _bar(share: float, cells: int, glyphs: Glyphs) -> str:
    full = min(max(round(share * cells), 1 if share else 0), cells)
    left, right = glyphs.ends
    return left + glyphs.full * full + glyphs.empty * (cells - full) + right
