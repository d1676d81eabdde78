"""The claims ledger: what popular texts say of FlashAttention, derived, measured and judged.

Two documents are taken apart into 95 claims: a long tutorial (source 0, with its sections) and a
short card (source 1); ten popular misconceptions follow. Every number is computed when the ledger
is: from closed forms that the simulator confirms, from the simulator and the reference, from data
sheets, or from measurements that are committed with their GPU and date.

Reading order: `claim`, `evidence`, `memory`, `traffic`, `algorithm`, `complexity`, `precision`,
`hardware`, `practice`, `misconceptions`.
"""

from collections.abc import Iterator

from . import (
    algorithm,
    complexity,
    hardware,
    memory,
    misconceptions,
    practice,
    precision,
    traffic,
)
from .claim import CLAIMS, VERDICTS, Claim, Found

__all__ = ["CLAIMS", "TOPICS", "VERDICTS", "Claim", "Found", "ledger"]

TOPICS = tuple(
    module.__name__.rpartition(".")[2]
    for module in (
        memory,
        traffic,
        algorithm,
        complexity,
        precision,
        hardware,
        practice,
        misconceptions,
    )
)
"""What claims are about."""


def ledger(topic: str | None = None) -> Iterator[tuple[Claim, Found]]:
    """Claims in order, each with what is found of it; of one topic, or all."""
    for _, claim in sorted(CLAIMS.items()):
        if topic is None or claim.topic == topic:
            yield claim, claim.check()
