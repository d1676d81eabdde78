"""Exact closed forms of every program's counts, and what the papers say of them.

The forms are written from docs/counting.md alone. They know sizes and masks, not loops: each is a
polynomial in a few sums over the visited tiles (`visits`), evaluated once.

Reading order: `visits`, `tally`, `flash`, `standard`, `closed_form`, `asymptotics`, `papers`.
"""

from .closed_form import BASELINES, PROGRAMS, counts

__all__ = ["BASELINES", "PROGRAMS", "counts"]
