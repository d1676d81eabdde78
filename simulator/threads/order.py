"""Which accesses of a block come before which: vector clocks.

Everything that accesses memory is an *actor*: each thread, and each channel of asynchronous copies
(`context.Context.copy`). An actor's accesses carry its number and a *moment*, which counts what the
actor did that others can wait for. A thread's *view* holds, for each actor, the last moment that
is known to lie before what the thread does now. Waiting joins views: a ``syncwarp`` those of its
lanes, an acquire that of whoever released, and a barrier of the block those of all threads.
A second row of a view holds the same for what a proxy fence made visible (`proxies`).

References
----------
Flanagan, Freund: "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .thread import Thread


class Segment(NamedTuple):
    """A stretch of the log that one thread, or a copy that it started, wrote without waiting.

    Attributes
    ----------
    thread : Thread
    start, stop : int
        Where in the log.
    actor, moment, view : int
        Who made the accesses, when, and what it knew of others (number in `Order.views`).
    own : int
        The thread's moment: what it did until then comes before.
    carried : bool
        Whether it was counted before: a copy that is under way at a barrier.
    """

    thread: Thread
    start: int
    stop: int
    actor: int
    moment: int
    view: int
    own: int
    carried: bool = False


class Sync:
    """What threads release into and acquire from: all that came before the releases."""

    def __init__(self):
        self.view: np.ndarray | None = None


@dataclass
class Groups:
    """Copies of one thread that are waited for in groups, in the order of commits.

    Attributes
    ----------
    committed, finished : int
        Groups closed, and groups known to be finished.
    open, last, waits : int or None
        Source position (`Runtime.positions`) of a copy of the group that is open, of the last
        copy, and of a wait while a group was open.
    """

    committed: int = 0
    finished: int = 0
    open: int | None = None
    last: int | None = None
    waits: int | None = None


class Order:
    """The clocks of a block.

    Attributes
    ----------
    views : list of int arrays (2, actors)
        One moment an actor, missing actors at the end are at 0; and those that fences preceded.
    partial : bool
        Whether anything but barriers of the block ordered threads since the last of them.
    finished : list of (actor, moment, place in the log)
        When copies were waited for, since the last barrier.
    groups : dict of int to Groups
        Of the channels whose copies are committed in groups, by actor.
    """

    def __init__(self, threads: list[Thread]):
        self.threads = threads
        self.views = [np.zeros((2, len(threads)), np.int64)]
        self.partial = False
        self.finished: list[tuple[int, int, int]] = []
        self.groups: dict[int, Groups] = {}
        self._channels: dict[object, int] = {}

    def channel(self, key) -> int:
        """Actor number of a channel of copies."""
        return self._channels.setdefault(key, len(self.threads) + len(self._channels))

    def _new(self, view: np.ndarray) -> int:
        self.partial = True
        self.views.append(view)
        return len(self.views) - 1

    def _wide(self, view: np.ndarray, actor: int) -> np.ndarray:
        """A copy of `view` that has a place for `actor`."""
        missing = max(actor + 1 - view.shape[1], 0)
        return np.pad(view, ((0, 0), (0, missing)))

    def _with_own(self, thread: Thread) -> np.ndarray:
        view = self.views[thread.view].copy()
        view[0, thread.tid] = thread.moment
        return view

    def fence(self, thread: Thread) -> None:
        """What `thread` did so far, and all that came before it, is visible to the async proxy."""
        view = self._with_own(thread)
        np.maximum(view[1], view[0], out=view[1])
        thread.view = self._new(view)
        thread.moment += 1

    def release(self, thread: Thread, sync: Sync) -> None:
        """What `thread` did so far comes before what follows an acquire of `sync`."""
        view = self._with_own(thread)
        sync.view = view if sync.view is None else joined([view, sync.view])
        thread.moment += 1
        self.partial = True

    def acquire(self, thread: Thread, sync: Sync) -> None:
        """What was released into `sync` comes before what `thread` does now."""
        if sync.view is not None:
            known, view = self.views[thread.view], joined([self.views[thread.view], sync.view])
            if not np.array_equal(known, view):  # a loop may look at it many times
                thread.view = self._new(view)

    def finish(self, threads: Iterable[Thread], key, moment: int, at: int) -> None:
        """The copies of a channel up to `moment` come before what `threads` do now.

        Parameters
        ----------
        at : int
            Length of the log.
        """
        actor = self.channel(key)
        self.finished.append((actor, moment, at))
        for thread in threads:
            view = self._wide(self.views[thread.view], actor)
            view[0, actor] = max(view[0, actor], moment)
            thread.view = self._new(view)

    def meet(self, threads: list[Thread]) -> None:
        """What these threads did so far comes before what any of them does now."""
        known = {thread.view for thread in threads}
        view = joined([self.views[number] for number in known])
        for thread in threads:
            view[0, thread.tid] = thread.moment
            thread.moment += 1
        number = self._new(view)
        for thread in threads:
            thread.view = number

    def barrier(self) -> None:
        """All threads of the block met, and the log was looked at."""
        self.meet(self.threads)
        self.views = [self.views[-1]]
        for thread in self.threads:
            thread.view = 0
        self.finished.clear()
        self.partial = False

    def under_way(self, segments: list[Segment]) -> list[Segment]:
        """Those that are copies which not all threads know to be finished."""
        known = self.views[self.threads[0].view][0]
        return [
            one
            for one in segments
            if one.actor >= len(self.threads)
            and (one.actor >= len(known) or known[one.actor] < one.moment)
        ]

    def table(self) -> np.ndarray:
        """All views, side by side: (views, actors)."""
        return self._rows(0)

    def fenced(self) -> np.ndarray:
        """What fences made visible, likewise."""
        return self._rows(1)

    def _rows(self, which: int) -> np.ndarray:
        actors = len(self.threads) + len(self._channels)
        table = np.zeros((len(self.views), actors), np.int64)
        for row, view in zip(table, self.views, strict=True):
            row[: view.shape[1]] = view[which]
        return table


def joined(views: list[np.ndarray]) -> np.ndarray:
    """The latest moments of all."""
    result = np.zeros((2, max(view.shape[1] for view in views)), np.int64)
    for view in views:
        part = result[:, : view.shape[1]]
        np.maximum(part, view, out=part)
    return result
