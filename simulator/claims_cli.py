"""``flash-numba claims``."""

from __future__ import annotations

import json as json_module
from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer


def claims_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Claims to tell in full, such as C20.", metavar="NAME"),
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

    exclude("--topic", topic is not None, "names of claims", bool(names))
    if topic is not None:
        one_of("topic", topic, TOPICS)
    if names:
        chosen = [CLAIMS[one_of("claim", name.upper(), sorted(CLAIMS))] for name in names]
        rows = [(claim, claim.check()) for claim in chosen]
    else:
        rows = list(ledger(topic))
    if json:
        for claim, found in rows:
            plain = {**asdict(claim), **asdict(found)}
            del plain["check"]
            print(json_module.dumps(plain, ensure_ascii=False))
        return
    print_in_own_letters(_full(rows) if names else _table(rows))


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
