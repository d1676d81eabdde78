"""What to look at in a `Report`, as text, and one warp instruction lane by lane."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .engines import ENGINES
from .errors import Place, shown_file
from .grouping import LANES
from .log import ATOMIC
from .passes import BANK_BYTES, BANKS, SECTOR_BYTES, distinct, passes, sectors
from .report import ARBITRATION, SHARED_CONFLICTS, SHARED_PASSES, Entry, Report


def advice(report: Report) -> list[str]:
    """Lines whose accesses cost twice what the same bytes need, dearest first.

    Then local arrays that cannot be registers.
    """
    several = len({entry.site.place.file for entry in report.entries}) > 1
    found = [remark for entry in report.entries if (remark := _remark(entry, several))]
    ordered = [text for _, text in sorted(found, key=lambda one: -one[0])]
    return ordered + [
        f"local memory: {_named(place, several)} indexes a local array by what is not "
        "constant once loops are unrolled, so the array cannot stay in registers"
        for place in report.run_time_indices
    ]


def _named(place: Place, several: bool) -> str:
    """A line and its text; with the name of its file, where a report has lines of several."""
    file = Path(shown_file(place)).name if several else ""
    return f"line {place.line}{f' of {file}' if file else ''} ({place.text})"


def _remark(entry: Entry, several: bool) -> tuple[int, str] | None:
    """What the accesses of a position cost too much, and in words; None if they do not."""
    count, line = entry.count, _named(entry.site.place, several)
    name, each = entry.memory.name, count.instructions
    if count.sectors >= 2 * count.ideal_sectors > 0:
        text = f"uncoalesced: {line} takes {count.sectors / each:.1f} sectors of {name} an "
        text += f"instruction where {count.ideal_sectors / each:.1f} would do"
        return count.sectors - count.ideal_sectors, text
    if not count.passes or count.passes < 2 * (count.passes - count.conflicts):
        return None
    if entry.memory.space == "constant":
        text = f"constant memory: {line} asks {name} for {count.passes / each:.1f} addresses an "
        return count.conflicts, text + "instruction, one after another"
    if entry.site.operation == ATOMIC:
        text = (
            f"serialised: {line} updates {name} in {count.passes / each:.1f} turns an instruction"
        )
        return count.conflicts, text + ", for lanes that share an address or a bank"
    text = f"bank conflict: {line} takes {count.passes / each:.1f} passes over {name} an "
    return count.conflicts, text + f"instruction, conflicts cost {count.conflicts / each:.1f}"


def beside_hardware(report: Report, counters: dict[str, int]) -> Table:
    """What the source predicts beside what Nsight Compute measured.

    Parameters
    ----------
    report : Report
    counters : dict of metric to count
        Those of one launch, as benchmarks/results/h200_counters.json has them.
    """
    table = Table(title="Predicted and measured", title_justify="left", box=None)
    table.add_column("metric")
    table.add_column("predicted", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for metric, value in report.hardware().items():
        measured = counters.get(metric)
        if measured is None:
            note = "not measured"
        elif measured == value:
            note = "equal"
        elif "inst_executed" in metric:
            note = f"source-level: the compiler changed {measured - value:+,}"
        elif metric.startswith((SHARED_PASSES, SHARED_CONFLICTS)) and counters.get(ARBITRATION):
            note = f"{measured - value:+,}; met others {counters[ARBITRATION]:,} times"
        else:
            note = f"{measured - value:+,}"
        shown = "-" if measured is None else f"{measured:,}"
        table.add_row(metric, f"{value:,}", shown, note)
    return table


def tile_table(traced: Counter, simulated: Counter) -> Table:
    """Traffic by tile step as a kernel made it, beside the tile simulator's.

    Parameters
    ----------
    traced : Counter of Step
        `Report.tile_steps`.
    simulated : Counter of Step
        `tiles.logged` of the simulator's event log.
    """
    table = Table(title="Elements of global memory by tile step", title_justify="left", box=None)
    table.add_column("tensor")
    table.add_column("direction")
    for name in ("query tile", "key tile", "kernel", "simulator"):
        table.add_column(name, justify="right")
    table.add_column("")
    for step in sorted({*traced, *simulated}):
        tiles = ("-" if tile < 0 else str(tile) for tile in (step.m_block, step.n_block))
        a, b = traced[step], simulated[step]
        note = "" if a == b else "differs"
        table.add_row(step.tensor, step.direction, *tiles, f"{a:,}", f"{b:,}", note)
    return table


def at_line(report: Report, line: int, array: str | None = None) -> Entry:
    """The dearest entry of a source line.

    Raises
    ------
    ValueError
        If no access of the trace stands there, or none of that array.
    """
    found = [
        entry
        for entry in report.entries
        if entry.site.place.line == line and array in (None, entry.memory.name)
    ]
    names = {entry.memory.name for entry in report.entries if entry.site.place.line == line}
    if names and not found:
        raise ValueError(f"array must be one of line {line}, {sorted(names)}, got {array!r}")
    if not found:
        lines = sorted({entry.site.place.line for entry in report.entries})
        raise ValueError(f"line must be one with accesses, {lines}, got {line}")
    return max(found, key=lambda entry: entry.count.sectors + entry.count.passes)


def warp(report: Report, line: int, array: str | None = None) -> Group:
    """The dearest warp instruction of a line: which lane goes to which bank or sector.

    Parameters
    ----------
    report : Report
    line : int
    array : str, optional
        Where the line accesses several.
    """
    entry = at_line(report, line, array)
    place, traffic, count = entry.site.place, entry.site.traffic, entry.count
    moved = f"{count.bytes / count.instructions:,.0f} bytes an instruction"
    each = moved if traffic in ENGINES else f"{entry.size} bytes a lane"
    title = Text(
        f"line {place.line}: {place.text}\n"
        f"{entry.site.operation} of {each}, {entry.memory.space} {entry.memory.name}"
    )
    if traffic in ENGINES:
        return Group(title, Text(f"{traffic}: lanes have no addresses of their own"))
    table = Table(box=None)
    table.add_column("lanes", justify="right")
    for lane in range(8):
        table.add_column(f"+{lane}", justify="right")
    cells = [_cell(entry, lane) for lane in range(LANES)]
    for first in range(0, LANES, 8):
        table.add_row(str(first), *cells[first : first + 8])
    return Group(title, table, Text(_sentence(entry)))


def _cell(entry: Entry, lane: int) -> str:
    address = int(entry.worst[lane])
    if address < 0:
        return "."
    if entry.memory.space == "shared":
        word = address // BANK_BYTES
        return f"{word % BANKS}:{(address - entry.memory.base) // BANK_BYTES // BANKS}"
    unit = SECTOR_BYTES if entry.memory.space == "global" else entry.size
    return str((address - entry.memory.base) // unit)


def _sentence(entry: Entry) -> str:
    row = entry.worst[None, :]
    active = int(np.count_nonzero(entry.worst >= 0))
    if entry.memory.space == "shared":
        needed, lost = passes(row, entry.size)
        return (
            f"a cell is bank:row of the lane's first word; {active} lanes, {needed[0]} passes, "
            f"{lost[0]} of them lost to bank conflicts"
        )
    if entry.memory.space == "constant":
        return f"a cell is the element; {active} lanes, {distinct(row)[0]} addresses"
    return f"a cell is the sector of the array; {active} lanes, {sectors(row)[0]} sectors"
