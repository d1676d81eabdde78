"""The whole ledger of claims in a notebook, a topic at a time."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..claims import TOPICS, VERDICTS, Claim, Found

HEAD = ("claim", "says", "verdict", "exactly", "by the numbers")


def display_ledger(rows: Iterable[tuple[Claim, Found]]) -> None:
    """Show claims under their topics, which open and close; as text where there is no HTML.

    Parameters
    ----------
    rows : iterable of (Claim, Found)
        As `simulator.claims.ledger` gives them.
    """
    from IPython.display import display

    rows = list(rows)
    html, text = [], []
    for topic in TOPICS:
        chosen = [row for row in rows if row[0].topic == topic]
        if chosen:
            html.append(_details(topic, chosen))
            text.append(f"{topic}: {_tally(chosen)}\n")
            text += [_plain(*row) for row in chosen]
    display({"text/html": "\n".join(html), "text/plain": "\n".join(text)}, raw=True)


def _tally(rows: list[tuple[Claim, Found]]) -> str:
    verdicts = [found.verdict for _, found in rows]
    counted = ((verdicts.count(verdict), verdict) for verdict in VERDICTS)
    return ", ".join(f"{n} {verdict}" for n, verdict in counted if n)


def _plain(claim: Claim, found: Found) -> str:
    return (
        f"{claim.name}  {claim.text}\n  {found.verdict.upper()}: {found.exact}\n"
        f"  {found.measured}\n"
    )


def _details(topic: str, rows: list[tuple[Claim, Found]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    lines = [
        f"<details><summary><b>{escape(topic)}</b>: {escape(_tally(rows))}</summary>",
        f"<table><thead><tr>{head}</tr></thead><tbody>",
    ]
    for claim, found in rows:
        cells = (claim.text, found.verdict, found.exact, found.measured)
        told = "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in cells)
        lines.append(f'<tr><th scope="row">{claim.name}</th>{told}</tr>')
    return "\n".join([*lines, "</tbody></table></details>"])
