"""``flash-numba claims``."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer

SOURCES = "Sources: 0 is a long popular tutorial, by its sections; 1 is a short card."
EXAMPLES = f"""\b
Examples:
  flash-numba claims
  flash-numba claims --topic misconceptions
  flash-numba claims C20 M01
  flash-numba claims --json

{SOURCES}
"""


def claims_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims to tell in full, such as C20. (default: all, briefly)", metavar="NAME"
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="memory, traffic, algorithm, complexity, precision, hardware, practice or "
            "misconceptions.",
            metavar="NAME",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a claim.", metavar="")
    ] = False,
) -> None:
    """Judge what popular texts say of FlashAttention, by counting and measuring."""
    from flash_numba.checks import one_of

    from .claims import CLAIMS, TOPICS, ledger
    from .options import exclude
    from .viewer.glyphs import print_in_own_letters
    from .waiting import waiting

    exclude("--topic", topic is not None, "names of claims", bool(names))
    if topic is not None:
        one_of("topic", topic, TOPICS)
    for name in names or ():
        if name.upper() not in CLAIMS:
            raise ValueError(
                f"claim must be one of {_ranges(CLAIMS)}, which `flash-numba claims` lists; "
                f"got {name!r}"
            )
    with waiting("counting and measuring what is claimed"):
        if names:
            rows = [(CLAIMS[name.upper()], CLAIMS[name.upper()].check()) for name in names]
        else:
            rows = list(ledger(topic))
    if json:
        for claim, found in rows:
            plain = {**asdict(claim), **asdict(found)}
            del plain["check"]
            print(json_module.dumps(plain, ensure_ascii=False))
        return
    print_in_own_letters(_full(rows) if names else _table(rows))


def _ranges(names: Iterable[str]) -> str:
    """The first and the last name of each letter: "C01 to C95, M01 to M10"."""
    of_letter = [list(own) for _, own in groupby(sorted(names), key=lambda name: name[0])]
    return ", ".join(f"{own[0]} to {own[-1]}" for own in of_letter)


def _full(rows):
    from rich.console import Group
    from rich.text import Text

    parts = []
    for claim, found in rows:
        source = f" (source {claim.source})" if claim.source else ""
        parts += [
            Text(f"{claim.name}{source}: {claim.text}"),
            Text(f"  {found.verdict}", style="bold"),
            Text(f"  exactly: {found.exact}"),
            Text(f"  measured: {found.measured}"),
        ]
    if any(claim.source for claim, _ in rows):
        parts.append(Text(SOURCES, style="dim"))
    return Group(*parts)


def _table(rows):
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 1, 0))
    for name in ("", "verdict", "claim", "measured"):
        table.add_column(name, overflow="fold", no_wrap=not name)
    for claim, found in rows:
        table.add_row(
            *(Text(one) for one in (claim.name, found.verdict, claim.text, found.measured))
        )
    verdicts = Counter(found.verdict for _, found in rows)
    total = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return Group(
        table, Text(f"{len(rows)} claims: {total}"), Text("In full: flash-numba claims C20")
    )
