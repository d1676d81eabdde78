"""What the emulation of an instruction may ask of the running block.

An intrinsic with ``operation.context = True`` gets a `Context` before its operands. With it an
instruction can wait, order threads, and start copies that go on while the threads do other things.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .arrays import Array
from .errors import Finding, KernelError, Place
from .order import Groups, Sync
from .passes import bulk_sectors
from .runtime import Runtime
from .thread import Thread


class Cluster(NamedTuple):
    """Where a block stands among those of its cluster.

    Attributes
    ----------
    rank : int
    size, threads : int
        Blocks and threads of the cluster.
    state : dict
        What lasts as long as the cluster.
    """

    rank: int
    size: int
    threads: int
    state: dict


class Mark(NamedTuple):
    """A moment of a thread, and the line that it was at."""

    thread: Thread
    moment: int
    place: Place


class Meeting:
    """A barrier that any number of threads may share (`Context.meet`).

    Attributes
    ----------
    here : int, optional
        Where the first thread that waits this time does so, a number of `Runtime.positions`.
    """

    def __init__(self, count: int):
        self.count, self.arrived, self.turn = count, 0, 0
        self.syncs = [Sync()]
        self.here: int | None = None


class Context:
    """The running thread, or threads, and their block."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

    @property
    def thread(self) -> Thread:
        """The running thread, with ``x, y, z, tid, warp, lane``; the first one of a warp."""
        return self.runtime.thread

    @property
    def members(self) -> list[Thread]:
        """The threads that run this instruction together, in order."""
        return self.runtime.members or [self.runtime.thread]

    @property
    def block(self) -> dict:
        """State that lasts as long as the block; empty at its start."""
        return self.runtime.states[self.thread.slot]

    @property
    def cluster(self) -> Cluster:
        """The cluster that the block belongs to; one block alone where there are none."""
        runtime = self.runtime
        number, rank = divmod(self.thread.slot, runtime.cluster)
        threads = runtime.cluster * math.prod(runtime.block_shape)
        return Cluster(rank, runtime.cluster, threads, runtime.cluster_states[number])

    def peer(self, array: Array, rank: int) -> Array:
        """The array that stands where `array` does, in the shared memory of another block."""
        cluster = self.cluster
        if array.memory.space != "shared":
            raise self.error("exception", f"{array.memory.name} does not lie in shared memory")
        if not 0 <= rank < cluster.size:
            raise self.error(
                "out of bounds", f"rank {rank} is none of a cluster of {cluster.size} blocks"
            )
        return array.there(self.thread.slot - cluster.rank + rank)

    def at_end(self, key: str, check: Callable[[], None]) -> None:
        """Call `check` when the running thread returns; once a `key`."""
        self.thread.at_end[key] = check

    @property
    def checking(self) -> bool:
        """Whether errors are looked for."""
        return self.runtime.checking

    @property
    def place(self) -> Place:
        """The line that runs."""
        return self.runtime.positions[self.runtime.here][0]

    def error(self, kind: str, message: str, *also: Place) -> KernelError:
        """An error to raise at the line that runs; `kind` is one of `errors.KINDS`."""
        return self.runtime.error(kind, message, None, *also)

    def report(self, kind: str, message: str, *also: Place) -> None:
        """Raise an error after which the kernel could go on, or note it if they are collected."""
        self.runtime.report(self.error(kind, message, *also))

    def wait(self, condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
        """Stop the running thread until `condition` holds; only with scope "thread".

        Parameters
        ----------
        condition : function
            Asked again and again while other threads run; without side effects.
        what : str or function that gives one
            For the report of a deadlock, such as "full[1], phase 0: 0 of 128 arrivals".
        """
        if not condition():
            self.runtime.wait_until(condition, what)

    def meet(self, key, count: int, wait: bool = True, aligned: bool = False) -> None:
        """A barrier between `count` threads of the block, as ``bar.sync`` and ``bar.arrive``.

        Parameters
        ----------
        key : hashable
            Which barrier; it can be used again once all have come.
        count : int
            Arrivals that open it.
        wait : bool
            Whether this thread waits for the others, or only says that it came.
        aligned : bool
            Whether all that wait must do so at one place of the code.

        Notes
        -----
        The report counts it once it opens, at the line of the first thread that waits in it.
        """
        meeting = self.block.setdefault(("meeting", key), Meeting(count))
        if meeting.count != count:
            if meeting.arrived:
                raise self.error(
                    "barrier",
                    f"barrier {key} is used for {count} threads while {meeting.arrived} of "
                    f"{meeting.count} wait in it",
                )
            meeting.count = count
        turn, sync, here = meeting.turn, meeting.syncs[-1], self.runtime.here
        if wait and meeting.here is None:
            meeting.here = here
        if wait and aligned and meeting.here != here:
            self.report(
                "barrier",
                f"threads wait in barrier {key} at different places, which is undefined for "
                "bar.sync; barrier.sync (make_meeting) may be more than one instruction",
                self.runtime.positions[meeting.here][0],
            )
        self.release(sync)
        meeting.arrived += 1
        if meeting.arrived == meeting.count:
            first = here if meeting.here is None else meeting.here
            self.runtime.barriers[self.runtime.positions[first][0]] += 1
            meeting.arrived, meeting.turn, meeting.here = 0, turn + 1, None
            meeting.syncs.append(Sync())
        if wait:
            self.wait(
                lambda: meeting.turn > turn,
                lambda: f"barrier {key}: {meeting.arrived} of {meeting.count} threads came",
            )
            self.acquire(sync)

    def sync(self) -> Sync:
        """Something to release into and acquire from; a barrier takes a new one every phase."""
        return Sync()

    def sync_of(self, array: Array, index) -> Sync:
        """That of an element, the same for all blocks that run at once."""
        parts = index if isinstance(index, tuple) else (index,)
        at = array.start + sum(int(i) * step for i, step in zip(parts, array.steps, strict=True))
        return self.cluster.state.setdefault((id(array.memory), at), Sync())

    def release(self, sync: Sync) -> None:
        """What the running threads did so far comes before what follows an acquire of `sync`."""
        self.runtime.cut()
        for thread in self.members:
            self.runtime.order.release(thread, sync)

    def acquire(self, sync: Sync) -> None:
        """What was released into `sync` comes before what the running threads do now."""
        self.runtime.cut()
        for thread in self.members:
            self.runtime.order.acquire(thread, sync)

    def mark(self) -> Mark:
        """What the running thread did so far; see `follows`."""
        self.runtime.cut()
        mark = Mark(self.thread, self.thread.moment, self.place)
        self.thread.moment += 1
        return mark

    def follows(self, mark: Mark) -> bool:
        """Whether that comes before what the running thread does now."""
        known = self.runtime.order.views[self.thread.view][0]
        return mark.thread is self.thread or known[mark.thread.tid] >= mark.moment

    def fence(self) -> None:
        """What the running threads did so far is visible to the async proxy (`proxies`)."""
        self.runtime.cut()
        for thread in self.members:
            self.runtime.order.fence(thread)

    @contextmanager
    def copy(self, channel, moment: int) -> Iterator[None]:
        """Accesses within are those of an asynchronous copy that goes on after this instruction.

        The data moves at once. But until `finish` says that it may, whoever writes what the copy
        reads, or touches what it writes, races with it.

        Parameters
        ----------
        channel : hashable
            Names copies that finish in order, such as ("cp.async", thread.tid) or a barrier in
            shared memory.
        moment : int
            From 1 on, never less than before in this channel: which of the copies this one is.
            Several may share a moment: they are waited for together.
        """
        runtime = self.runtime
        runtime.cut()
        runtime.flying = (runtime.order.channel(channel), moment)
        try:
            yield
        finally:
            runtime.cut()
            runtime.flying = None
            runtime.thread.moment += 1

    def moved(self, array: Array, operation: str, size: int, lines: list[tuple[int, int]]) -> None:
        """Lines that a bulk copy moved, for the hardware's count of them (`passes.bulk_sectors`).

        Parameters
        ----------
        array, operation, size
            Accesses that the copy made, as they were logged; the lines are counted with them. What
            comes from global memory is counted where it arrives, as zeros come from nowhere.
        lines : list of (start, size)
            First byte in global memory, and bytes.
        """
        runtime = self.runtime
        if runtime.counting and lines:
            sectors = sum(bulk_sectors(*line) for line in lines)
            runtime.moved[runtime.code(operation, size), array.memory] += sectors

    def groups(self, channel) -> Groups:
        """The groups of copies of a channel of the running thread."""
        order = self.runtime.order
        return order.groups.setdefault(order.channel(channel), Groups())

    @contextmanager
    def grouped_copy(self, channel, must_finish: bool = False) -> Iterator[None]:
        """As `copy`, in the group of the channel that is open.

        Parameters
        ----------
        channel : hashable
            Of the running thread alone.
        must_finish : bool
            Whether the thread must not return before it waited: the copy reads its shared memory.
        """
        groups = self.groups(channel)
        groups.open = groups.last = self.runtime.here
        self.at_end(str(channel), lambda: self._check_groups(groups, must_finish))
        with self.copy(channel, groups.committed + 1):
            yield

    def commit(self, channel) -> None:
        """Close the open group of a channel."""
        groups = self.groups(channel)
        groups.committed, groups.open = groups.committed + 1, None

    def wait_groups(self, channel, pending: int = 0) -> None:
        """The running thread knows all groups to be finished, but for the last `pending` ones."""
        groups = self.groups(channel)
        if groups.open is not None:
            groups.waits = self.runtime.here
        groups.finished = max(groups.finished, groups.committed - pending)
        self.finish(channel, groups.committed - pending)

    def _check_groups(self, groups: Groups, must_finish: bool) -> None:
        """The thread returns: copies that it waits for must have been committed."""
        runtime = self.runtime
        if groups.open is not None and (must_finish or groups.waits is not None):
            places = [runtime.positions[groups.open][0]]
            text = "an asynchronous copy is never committed"
            if groups.waits is not None:
                places.append(runtime.positions[groups.waits][0])
                text += ", so the wait does not cover it"
        elif must_finish and groups.last is not None and groups.finished < groups.committed:
            places = [runtime.positions[groups.last][0]]
            text = "a thread returns while its bulk copy may still read shared memory: wait for it"
        else:
            return
        text = f"{text} ({runtime.who()})"
        error = KernelError(Finding("asynchronous copy", text, tuple(places)))
        runtime.suspects.append(error)  # whoever read what it copied is the better report

    def finish(self, channel, moment: int) -> None:
        """The running threads know that copies of a channel are finished, up to `moment`."""
        runtime = self.runtime
        runtime.cut()
        runtime.order.finish(self.members, channel, moment, len(runtime.log.words))
