"""Frames as plain lines, for pipes and screen readers: no borders, no cursor, no colour."""

from __future__ import annotations

import textwrap

from flash_numba.tiling import PARTIAL

from .frame import title
from .glyphs import UNICODE, Glyphs
from .moment import Moment
from .panels import SECTIONS
from .replay import Replay
from .sections import fitted, plain

ROOM = 1000


def chosen_events(replay: Replay, frames: int, start: int = 0) -> list[int]:
    """Events to print: the first tile from `start` on, tiles spread evenly, and the end.

    Raises
    ------
    ValueError
        If `frames` is below 1.
    """
    if frames < 1:
        raise ValueError(f"frames must be a whole number >= 1, got {frames}")
    last = len(replay) - 1
    stops = [int(stop) for stop in replay.steps.stops if stop >= start] or [start]
    if start and start not in stops:
        stops.insert(0, start)
    if frames == 1:
        return [stops[0]]
    inner = frames - 1
    spread = [stops[round(n * (len(stops) - 1) / inner)] for n in range(inner)]
    return sorted({*spread, last})


def place_in_words(moment: Moment) -> str:
    """Where we are, as a sentence: ``at query tile 2, key tile 3 (cut by the mask)``."""
    step = moment.step
    parts = [
        f"{name} tile {number}"
        for name, number in (("query", step.m_block), ("key", step.n_block))
        if number >= 0
    ]
    if not parts:
        return "at no single tile"
    cut = len(parts) == 2 and moment.replay.kinds[step.m_block, step.n_block] == PARTIAL
    return f"at {', '.join(parts)}{' (cut by the mask)' if cut else ''}"


def plain_frame(moment: Moment, width: int = 80, glyphs: Glyphs = UNICODE) -> str:
    """One frame as lines of at most `width` cells, panel after panel."""
    *what, where = (text for text, _ in title(moment, ROOM, glyphs))
    lines = textwrap.wrap(" ".join("".join(what).split()), width)
    lines += textwrap.wrap(f"{' '.join(where.split())}, {place_in_words(moment)}", width)
    for section in (make(moment, width - 2, ROOM, glyphs) for make in SECTIONS.values()):
        lines.append(f"{glyphs.text(section.title)}:")
        shown = (plain(fitted(line, width - 2, glyphs)) for line in section.lines)
        lines += [f"  {line.rstrip()}" for line in shown if line.strip()]
    return "\n".join(lines) + "\n"
