"""A `Report` as text: totals, the dearest lines with their source, what to look at."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .errors import shown_file
from .report import Report
from .views import advice

TOP_LINES = 12

LEGEND = (
    "passes: turns over shared memory; conflicts: those of them lost to bank conflicts; ideal: "
    "sectors (32 bytes) that the same bytes need side by side; partial: without all lanes"
)
"""What the columns count (`counts.Count` has it in full)."""


def summary(report: Report, top: int = TOP_LINES) -> Group:
    """Totals, the dearest lines with their source, what to look at, findings."""
    parts: list = [_head(report), _memory_table(report), Text(LEGEND), *_lines(report, top)]
    for title, rows in (("Look at", advice(report)), ("Errors", list(map(str, report.findings)))):
        if rows:
            parts.append(Text(title, style="bold"))
            parts += [Text(f"  {row}") for row in rows]
    return Group(*parts)


def _head(report: Report) -> Text:
    flops = ", ".join(f"{n:,} {name}" for name, n in sorted(report.total_flops.items())) or "none"
    return Text(
        f"{report.kernel} on grid {report.grid}, block {report.block}: {report.blocks:,} blocks "
        f"ran, {report.barriers:,} barriers, {report.shared_bytes:,} bytes of shared memory a "
        f"block, {report.local_bytes:,} bytes of local arrays a thread\n"
        f"floating-point operations: {flops}\n"
        "source-level: the compiler may merge, move or drop loads; in Python, "
        "`simulator.threads.beside_hardware` shows what a GPU counted"
        + "".join(f"\n{one}" for one in report.sampled)
    )


def _number(value: int) -> str:
    return f"{value:,}" if value else "-"


def _memory_table(report: Report) -> Table:
    table = Table(title="Warp instructions by memory", title_justify="left", box=None)
    table.add_column("memory")
    for name in ("issued", "bytes", "sectors", "ideal", "passes", "conflicts", "partial"):
        table.add_column(name, justify="right", no_wrap=True)
    keys = {
        (e.memory.space, e.memory.name, e.site.operation, e.site.traffic) for e in report.entries
    }
    for space, array, operation, traffic in sorted(keys):
        count = report.count(space, operation, array, traffic=traffic)
        numbers = (
            count.instructions,
            count.bytes,
            count.sectors,
            count.ideal_sectors,
            count.passes,
            count.conflicts,
            count.partial,
        )
        named = array if space in array.split() else f"{space} {array}"
        label = escape(f"{named} {operation} {traffic}".rstrip())
        table.add_row(label, *map(_number, numbers))
    return table


def _lines(report: Report, top: int) -> tuple[Text, Table]:
    """The dearest lines under the files that they are of, if there are any: not of a notebook."""
    chosen = list(report.lines().items())[:top]
    files = list(dict.fromkeys(file for place, _ in chosen if (file := shown_file(place))))
    table = Table(box=None)
    for name in ("line", "sectors", "passes", "conflicts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source")  # the one that gives way in a narrow terminal
    for place, count in chosen:
        file = shown_file(place)
        other = f"{Path(file).name}: " if file not in ("", *files[:1]) else ""
        table.add_row(
            str(place.line),
            _number(count.sectors),
            _number(count.passes),
            _number(count.conflicts),
            escape(other + place.text),
        )
    title = "Dearest lines" + (f" of {files[0]}" if files else "")
    return Text(title + (f"; where named, of {', '.join(files[1:])}" if files[1:] else "")), table
