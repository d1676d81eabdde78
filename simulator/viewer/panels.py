"""The panels of a frame: pure functions from a moment to titled lines.

Each takes the moment, the cells inside its border and the glyphs, and returns a `Section`. `panel`
boxes one of them for a notebook or a frame.
"""

from __future__ import annotations

from rich.text import Text

from ..events import LOAD
from ..memory import describe
from .glyphs import UNICODE, Glyphs
from .grid_panel import grid_section
from .hbm_panel import hbm_section
from .moment import Moment
from .residency import Resident
from .row_panel import row_section
from .sections import Line, Section, as_text, folded, in_columns, line_length

HELP = {
    "grid": "Pairs of a query tile (down) and a key tile (across): done, at hand, to do, each "
    "whole or cut by the mask, or skipped because the mask hides all of it.",
    "sram": "The tiles that the thread block keeps in shared memory, their bytes against what one "
    "block can have on the GPU, and what it keeps in registers (fp32), by shape.",
    "algorithm": "The kernel at hand, line by line; the pointer marks the line that the last event "
    "belongs to.",
    "row": "One query row before and after the key tile at hand: when its maximum m (row_max) "
    "rises, its sum l (row_sum) and its O so far are multiplied with the rescale factor α.",
    "hbm": "Elements moved between the GPU's large memory and the chip, so far and at the end, "
    "against the closed form and standard attention as the paper counts it (algorithm0).",
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
    registers = _registers(moment.replay.registers(moment.event), width, glyphs)
    if len(lines) + len(registers) > height:
        lines = in_columns([_short_resident(tile, moment) for tile in tiles], width, glyphs)
    if not lines:
        lines = [[("no tile is resident", "dim")]]
    lines = [*lines[: max(height - len(registers), 1)], *registers]
    if len(lines) < height:
        lines.append([(f"most at once so far {_kib(peak)} KiB", "dim")])
    return Section(title, lines)


def _resident(tile: Resident, moment: Moment) -> Line:
    size = f"{tile.name:<5}{describe(tile.shape):>8} {_kib(tile.nbytes):>6} KiB  "
    loaded = moment.replay.columns["op"][tile.since] == LOAD
    if tile.since == moment.event:
        elements = moment.replay.columns["sram_store"][tile.since]
        now = f"loaded now +{elements:,}" if loaded else "made now"
        return [(size, "bold cyan"), (now, "bold cyan")]
    if tile.since >= moment.step.start:
        return [(size, ""), (f"{'loaded' if loaded else 'made'} in event {tile.since}", "")]
    return [(size, ""), (f"kept from event {tile.since}", "dim")]


def _short_resident(tile: Resident, moment: Moment) -> Line:
    mark = "+" if tile.since == moment.event else " "
    style = "bold cyan" if mark == "+" else ""
    return [(f"{mark}{tile.name} {describe(tile.shape)} {_kib(tile.nbytes)}K", style)]


def _registers(tiles: list[Resident], width: int, glyphs: Glyphs) -> list[Line]:
    by_shape: dict[str, list[str]] = {}
    for tile in tiles:
        by_shape.setdefault(describe(tile.shape), []).append(tile.name)
    text = "; ".join(f"{shape}: {', '.join(names)}" for shape, names in by_shape.items())
    pieces = folded(f"registers {text or 'none'}", width, glyphs, indent=2)
    return [[(piece, "")] for piece in pieces]


def algorithm_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """Lines of the kernel at hand, folded where they are too long, the executed one marked."""
    meta, kernel = moment.meta, moment.step.kernel
    here = moment.replay.line(moment.event)
    numbers = [i for i, k in enumerate(meta["line_kernels"]) if k == kernel]
    lines: list[Line] = []
    at = 0
    for number in numbers:
        mark, style = (f"{glyphs.pointer} ", "bold") if number == here else ("  ", "")
        at = len(lines) if number == here else at
        for piece in folded(meta["lines"][number], width - 2, glyphs, indent=2):
            lines.append([(mark + piece, style)])
            mark = "  "
    event = folded(f"event: {moment.replay.describe(moment.event)}", width, glyphs, indent=2)
    room = max(height - len(event), 1)
    start = min(max(at - room // 2, 0), max(len(lines) - room, 0))
    shown = lines[start : start + room]
    shown += [[(piece, "italic")] for piece in event]
    count = len(meta["kernels"])
    title = f"kernel: {meta['kernels'][kernel]}" + (f" ({kernel + 1}/{count})" if count > 1 else "")
    return Section(title, shown)


def algorithm_width(moment: Moment, glyphs: Glyphs) -> int:
    """Cells, border and pointer included, in which no line of the algorithm needs folding."""
    return 6 + max(line_length([(line, "")], glyphs) for line in moment.meta["lines"])


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
