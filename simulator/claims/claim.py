"""A claim about FlashAttention, and what the project finds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HOLDS = "holds"
CONDITIONS = "holds with conditions"
WRONG = "wrong"
UNCHECKABLE = "not checkable here"
UNMEASURED = "not measured yet"

VERDICTS = (HOLDS, CONDITIONS, WRONG, UNCHECKABLE, UNMEASURED)


@dataclass(frozen=True)
class Found:
    """What is found of a claim.

    Attributes
    ----------
    verdict : str
        One of `VERDICTS`, decided by the code that measures.
    exact : str
        The statement that is true, in symbols.
    measured : str
        The numbers behind the verdict; for what cannot be checked here, the bound that says
        whether it is plausible.
    """

    verdict: str
    exact: str
    measured: str


@dataclass(frozen=True)
class Claim:
    """A claim, and how to check it.

    Attributes
    ----------
    name : str
        C01 to C95, or M01 to M10 for popular misconceptions.
    source : str
        Document and section that make the claim; "" for what many say.
    text : str
    topic : str
    check : callable
        Gives `Found`.
    """

    name: str
    source: str
    text: str
    topic: str
    check: Callable[[], Found]


CLAIMS: dict[str, Claim] = {}
"""Every claim by name, filled by the modules of this package."""


def claim(name: str, source: str) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Decorator: enters a function into the ledger; its docstring is the claim."""

    def enter(check: Callable[[], Found]) -> Callable[[], Found]:
        if name in CLAIMS:
            raise ValueError(f"claim {name} is there twice")
        text = " ".join((check.__doc__ or "").split())
        topic = check.__module__.rpartition(".")[2]
        CLAIMS[name] = Claim(name, source, text, topic, check)
        return check

    return enter


def holds_if(true: bool | np.bool_) -> str:
    """`HOLDS` or `WRONG`."""
    return HOLDS if true else WRONG


def plausible_if(possible: bool | np.bool_) -> str:
    """What a bound says of a claim that nothing here decides."""
    return "plausible" if possible else "not plausible"


def conditional_if(true: bool | np.bool_) -> str:
    """`CONDITIONS` or `WRONG`."""
    return CONDITIONS if true else WRONG
