"""The panel that shows what it cost: elements moved to and from HBM."""

from __future__ import annotations

from .costs import BASELINE
from .glyphs import Glyphs
from .moment import Moment
from .sections import Line, Section, line_length

BY_KEY = ("K", "V", "dK", "dV")
"""Tensors with a row for every key."""

SQUARE = ("S", "P", "dS", "dP")
"""Tensors with an element for every query and key."""


def hbm_section(moment: Moment, width: int, height: int, glyphs: Glyphs) -> Section:
    """Elements read and written: this event, this tile, so far, at the end, by formula."""
    if moment.view.tensors:
        return Section("HBM elements so far, by tensor", _by_tensor(moment, width, height, glyphs))
    replay, event, start = moment.replay, moment.event, moment.step.start
    last = len(replay) - 1
    largest = max(replay.total("hbm_read", last), replay.total("hbm_write", last))
    label, gap = (12, 2) if width >= 40 else (11, 1)
    digits = max(len(f"{largest:,}"), len("written")) + gap
    room = width - label - 2 * digits - 2
    lines: list[Line] = [[(f"{'':<{label}}{'read':>{digits}}{'written':>{digits}}", "dim")]]

    def add(name: str, read: int, written: int, note: str = "", style: str = "") -> None:
        numbers = f"{name:<{label}}{read:>{digits},}{written:>{digits},}"
        lines.append([(numbers, style), (f"  {note}", style)])

    def both(begin: int, end: int) -> tuple[int, int]:
        return replay.total("hbm_read", end, begin), replay.total("hbm_write", end, begin)

    if height >= 7:
        add("this event", *both(event, event), _moving(moment, event, room), "cyan")
    add("this tile", *both(start, event), _moving(moment, start, room))
    add("so far", *both(0, event), "", "bold")
    add("at the end", *both(0, last))
    closed = moment.costs.closed
    if closed is None:
        lines.append([("closed form: none for this program", "dim")])
    else:
        verdict = ("equal ✓", "green") if moment.costs.equal else ("DIFFERS ✗", "bold red")
        add("closed form", closed.hbm_read_elements, closed.hbm_write_elements, *verdict)
    lines.append(_against_standard(moment, sum(both(0, last)), width, glyphs))
    rest = height - len(lines)
    if rest >= 3:
        lines += [[], *_by_tensor(moment, width, rest - 1, glyphs)]
    return Section("HBM elements", lines[:height])


def _against_standard(moment: Moment, total: int, width: int, glyphs: Glyphs) -> Line:
    """The whole run's traffic, as a share of standard attention's, in as many words as fit."""
    baseline = moment.costs.baseline
    ratio = f"{total / baseline:.3f}x" if baseline else "-"
    ways: list[Line] = [
        [
            (f"in all {total:,}, ", ""),
            (ratio, "bold"),
            (f" standard attention's {baseline:,} ({BASELINE})", ""),
        ],
        [(f"in all {total:,}, ", ""), (ratio, "bold"), (f" standard's {baseline:,}", "")],
        [(f"{total:,}, ", ""), (ratio, "bold"), (f" standard's {baseline:,}", "")],
        [(ratio, "bold"), (f" standard's {baseline:,}", "")],
    ]
    return next((line for line in ways if line_length(line, glyphs) <= width), ways[-1])


def _moving(moment: Moment, start: int, room: int) -> str:
    """Tensors that moved since an event, and how many more there are than fit."""
    moved = moment.replay.tensors(moment.event, start)
    names = [name for name, (read, written) in moved.items() if read or written]
    text, shown = " ".join(names), len(names)
    while len(text) > room and shown:
        shown -= 1
        text = " ".join([*names[:shown], f"+{len(names) - shown}"])
    return text


def _by_tensor(moment: Moment, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A table of tensors if it fits, else as many side by side as do."""
    moved = moment.replay.tensors(moment.event)
    now = moment.replay.tensors(moment.event, moment.event)
    header = f" {'so far':<6}{'read':>11} {'times':>6}{'written':>11} {'times':>6}"
    if len(moved) < height and width >= len(header):
        lines: list[Line] = [[(header, "dim")]]
        for name, (read, written) in moved.items():
            moving = any(now[name])
            size = _elements(name, moment.meta)
            numbers = "".join(
                f"{n:>11,} {f'{n / size:.1f}' if n else '':>6}" for n in (read, written)
            )
            mark, style = ("+", "bold cyan") if moving else (" ", "")
            lines.append([(f"{mark}{name:<6}{numbers}", style)])
        return lines
    lines = [[]]
    for name, (read, written) in moved.items():
        counts = [f"{n:,}{letter}" for n, letter in ((read, "r"), (written, "w")) if n]
        piece = (f"{name} {' '.join(counts) or '-'}", "bold cyan" if any(now[name]) else "")
        longer = [*lines[-1], *([("  ", "")] if lines[-1] else []), piece]
        if line_length(longer, glyphs) <= width:
            lines[-1] = longer
        else:
            lines.append([piece])
    return lines[:height]


def _elements(name: str, meta) -> int:
    """Size of a tensor, of one head."""
    if name in SQUARE:
        return meta["seqlen_q"] * meta["seqlen_k"]
    rows = meta["seqlen_k"] if name in BY_KEY else meta["seqlen_q"]
    columns = {"head_dim": ("Q", "K", "dQ", "dK"), "head_dim_v": ("V", "O", "dV", "dO")}
    return rows * next((meta[size] for size, names in columns.items() if name in names), 1)
