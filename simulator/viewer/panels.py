"""The panels of a frame: pure functions from a moment to titled lines.

Each takes the moment, the cells inside its border and the glyphs, and returns a `Section`. `panel`
boxes one of them for a notebook or a frame.
"""

from __future__ import annotations

from rich.panel import Panel

from ..memory import describe
from .costs import BASELINE
from .glyphs import UNICODE, Glyphs
from .grid_panel import grid_section
from .moment import Moment
from .replay import Resident
from .row_panel import row_section
from .sections import Line, Section, line_length, plain

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
    used, peak = moment.replay.sram_bytes(moment.event)
    capacity = moment.meta["sram_bytes"]
    title = f"SRAM {_kib(used)} of {_kib(capacity)} KiB" if capacity else f"SRAM {_kib(used)} KiB"
    if capacity:
        title += f" {_bar(used / capacity, 12, glyphs)}"
    tiles = moment.replay.residents(moment.event)
    lines: list[Line] = [_resident(tile, moment) for tile in tiles]
    registers = _registers(moment.replay.registers(moment.event))
    if len(lines) + 1 > height:
        lines = _in_columns([_short_resident(tile, moment) for tile in tiles], width, glyphs)
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


def _in_columns(pieces: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    """Short pieces side by side, as many as fit."""
    if not pieces:
        return []
    cell = max(line_length(piece, glyphs) for piece in pieces) + 1
    across = max(width // cell, 1)
    lines = []
    for start in range(0, len(pieces), across):
        line: Line = []
        for piece in pieces[start : start + across]:
            pad = " " * (cell - line_length(piece, glyphs))
            line += [*piece, (pad, "")]
        lines.append(line)
    return lines


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


def hbm_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """Elements read and written: this event, this tile, so far, at the end, by formula."""
    if moment.view.tensors:
        return Section("HBM elements so far, by tensor", _by_tensor(moment, width, height, glyphs))
    replay, event, start = moment.replay, moment.event, moment.step.start
    last = len(replay) - 1
    largest = max(replay.total("hbm_read", last), moment.costs.baseline)
    label, gap = (12, 2) if width >= 40 else (11, 1)
    digits = max(len(f"{largest:,}"), len("written")) + gap
    lines: list[Line] = [[(f"{'':<{label}}{'read':>{digits}}{'written':>{digits}}", "dim")]]

    def add(name: str, read: int, written: int, note: str = "", style: str = "") -> None:
        numbers = f"{name:<{label}}{read:>{digits},}{written:>{digits},}"
        lines.append([(numbers, style), (f"  {note}", style)])

    def both(begin: int, end: int) -> tuple[int, int]:
        return replay.total("hbm_read", end, begin), replay.total("hbm_write", end, begin)

    if height >= 7:
        add("this event", *both(event, event), _moving(moment, event), "cyan")
    add("this tile", *both(start, event), _moving(moment, start))
    add("so far", *both(0, event), "", "bold")
    add("at the end", *both(0, last))
    closed = moment.costs.closed
    if closed is None:
        lines.append([("closed form: none for this program", "dim")])
    else:
        verdict = ("equal ✓", "green") if moment.costs.equal else ("DIFFERS ✗", "bold red")
        add("closed form", closed.hbm_read_elements, closed.hbm_write_elements, *verdict)
    lines.append(_against_standard(moment, sum(both(0, last)), label, digits))
    room = height - len(lines)
    if room >= 3:
        lines += [[("so far, by tensor:", "dim")], *_by_tensor(moment, width, room - 1, glyphs)]
    return Section("HBM elements", lines[:height])


def _against_standard(moment: Moment, total: int, label: int, digits: int) -> Line:
    baseline = moment.costs.baseline
    ratio = f"{total / baseline:.3f}x of it" if baseline else ""
    return [
        (f"{BASELINE:<{label}}{baseline:>{digits},}{'in all':>{digits}}  ", ""),
        (ratio, "bold"),
    ]


def _moving(moment: Moment, start: int) -> str:
    moved = moment.replay.tensors(moment.event, start)
    return " ".join(name for name, (read, written) in moved.items() if read or written)


def _by_tensor(moment: Moment, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A table of tensors if it fits, else as many side by side as do."""
    moved = moment.replay.tensors(moment.event)
    now = moment.replay.tensors(moment.event, moment.event)
    pieces: list[Line] = []
    for name, (read, written) in moved.items():
        style = "bold cyan" if any(now[name]) else ""
        mark = "+" if any(now[name]) else " "
        pieces.append([(f"{mark}{name:<6}{read:>9,} r {written:>9,} w", style)])
    if len(pieces) > height and width < 2 * (len(plain(pieces[0])) + 1):
        short = (f"{name} {r:,}r {w:,}w" for name, (r, w) in moved.items())
        pieces = [[(text, "")] for text in short]
        lines: list[Line] = [[]]
        for piece in pieces:
            longer = [*lines[-1], *([("  ", "")] if lines[-1] else []), *piece]
            if line_length(longer, glyphs) <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
        return lines[:height]
    if len(pieces) > height:
        return _in_columns(pieces, width, glyphs)[:height]
    return pieces


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
) -> Panel:
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
    return section.panel(width, height, glyphs)


def _kib(nbytes: int) -> str:
    text = f"{nbytes / 1024:,.1f}"
    return text.removesuffix(".0") if nbytes >= 100 * 1024 else text


def _bar(share: float, cells: int, glyphs: Glyphs) -> str:
    full = min(max(round(share * cells), 1 if share else 0), cells)
    left, right = glyphs.ends
    return left + glyphs.full * full + glyphs.empty * (cells - full) + right
