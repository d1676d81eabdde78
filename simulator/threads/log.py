"""The access log: one 64-bit word an access, appended in the order in which threads run.

A word is ``address << 16 | code``. The code is the number of a `Site`: a position in the source,
what it does and how many bytes a lane moves. Code 0 marks that the thread's control flow went to
another place (`places`); the rest of such a word is the number of the place.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from .errors import Place, fail

CODE_BITS = 16
NOWHERE = 0
"""Address of a copy that reads nothing and writes zeros, so that its lane keeps step."""

LOAD, STORE, ATOMIC = "load", "store", "atomic"


@dataclass(frozen=True)
class Site:
    """One kind of access at one position of the source.

    Attributes
    ----------
    place : Place
    column : int
        Tells apart several accesses of a line.
    operation : "load", "store" or "atomic"
    size : int
        Bytes a lane moves; 0 where the array decides (a scalar access).
    traffic : str
        "" for plain accesses, else what the instruction declares, such as "cp.async".
    """

    place: Place
    column: int
    operation: str
    size: int = 0
    traffic: str = ""


class Log:
    """Sites and the words logged since the last barrier."""

    def __init__(self):
        self.words = array("q")
        self.stored: list = []
        self.sites: list[Site | None] = [None]
        self._codes: dict[Site, int] = {}

    def code(self, site: Site) -> int:
        """Number of a site; the same site has one number."""
        if site not in self._codes:
            if len(self.sites) >> CODE_BITS:
                raise fail("unsupported", "more than 65535 accesses in the source", site.place)
            self._codes[site] = len(self.sites)
            self.sites.append(site)
        return self._codes[site]

    def taken(self, segments) -> list[tuple]:
        """(words, stored values) of stretches of the log."""
        if not segments:
            return []
        words = np.array(self.words)
        stores = [bool(site and site.operation == STORE) for site in self.sites]
        before = np.concatenate([[0], np.cumsum(np.array(stores)[words & ((1 << CODE_BITS) - 1)])])
        return [
            (self.words[one.start : one.stop], self.stored[before[one.start] : before[one.stop]])
            for one in segments
        ]

    def clear(self) -> None:
        """Forget the words, in place: traced arrays hold on to the lists."""
        del self.words[:]
        self.stored.clear()
