"""The panel that shows what it cost: elements moved to and from HBM."""

from __future__ import annotations

from .costs import BASELINE
from .glyphs import Glyphs
from .moment import Moment
from .sections import Line, Section, in_columns, line_length, plain


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
        return in_columns(pieces, width, glyphs)[:height]
    return pieces
