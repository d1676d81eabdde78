"""What a running kernel shares with the emulation: the current thread, the log, the errors."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import replace
from typing import Any

from greenlet import greenlet

from .alike import Alike
from .engines import Call
from .errors import Finding, KernelError, Place
from .log import Log, Site
from .order import Order, Segment
from .thread import EVERYBODY, Dim3, Thread, Wait

PAUSE = "pause"
TURNS_BEFORE_PAUSE = 4096
MOST_SUSPECTS = 16


class Runtime:
    """State of a launch.

    Attributes
    ----------
    counting, checking : bool
        Whether accesses are logged; whether reads of unwritten memory and races are looked for.
    thread : Thread
        The one that runs.
    members : list of Thread or None
        Those that run an instruction together.
    order, segments, flying
        Clocks of the block that runs; the log in stretches; (actor, moment) of a copy being made.
    block : tuple of 3 ints
        Index of the block whose thread runs.
    cluster : int
        Blocks of a cluster.
    states, cluster_states : lists of dict
        What instructions keep of each block, and of each cluster, that runs.
    positions : list of (Place, column)
        Source positions of calls; `here` is the number of the one that runs.
    alike : Alike or None
        What is known of the other blocks, where one is traced for many.
    findings : list of Finding
        Errors, if they are collected.
    barriers : Counter of Place
        Barriers in which threads met since the blocks that run began.
    calls : list of Call
        Instructions since the last barrier that started an engine (`engines`).
    moved : Counter of (code, Memory)
        Sectors of bulk copies since the last barrier (`context.Context.moved`).
    """

    def __init__(self, counting: bool, checking: bool, collect: bool, turns: int):
        self.counting, self.checking, self.collect = counting, checking, collect
        self.most_turns = turns
        self.log = Log()
        self.append = self.log.words.append
        self.positions: list[tuple[Place, int]] = []
        self.here, self.traffic, self.instruction = 0, "", ""
        self.findings: list[Finding] = []
        self.suspects: list[KernelError] = []
        self.thread: Thread
        self.members: list[Thread] | None = None
        self.order: Order
        self.segments: list[Segment] = []
        self.flying: tuple[int, int] | None = None
        self.cluster = 1
        self.states: list[dict] = [{}]
        self.cluster_states: list[dict] = [{}]
        self.alike: Alike | None = None
        self._segment_start = self._turns_of_all = 0
        self.block, self.grid, self.block_shape = Dim3(0, 0, 0), Dim3(1, 1, 1), Dim3(1, 1, 1)
        self.hub: greenlet
        self.calls: list[Call] = []
        self.moved: Tally = Tally()
        self.barriers: Tally[Place] = Tally()
        self._codes: dict[tuple, int] = {}
        self._places: dict[tuple, int] = {}
        self._last_place = 0

    def position(self, place: Place, column: int) -> int:
        """Number of a source position."""
        self.positions.append((place, column))
        return len(self.positions) - 1

    def code(self, operation: str, size: int = 0) -> int:
        """Log code of an access made within the call that runs."""
        key = (self.here, operation, size, self.traffic)
        if key not in self._codes:
            place, column = self.positions[self.here]
            self._codes[key] = self.log.code(Site(place, column, operation, size, self.traffic))
        return self._codes[key]

    def sized(self, code: int, size: int) -> int:
        """The code of an access of elements that are wider than what its memory is watched by."""
        key = (code, size)
        if key not in self._codes:
            site: Any = self.log.sites[code]
            self._codes[key] = self.log.code(replace(site, size=size))
        return self._codes[key]

    def begin(self, order: Order, blocks: int = 1) -> None:
        """So many blocks begin, which run at once."""
        self.order, self.flying, self.members = order, None, None
        self.barriers, self._turns_of_all = Tally(), 0
        self.states = [{} for _ in range(blocks)]
        self.cluster_states = [{} for _ in range(-(-blocks // self.cluster))]
        self.log.clear()
        self.calls.clear()
        self.suspects.clear()
        self.segments.clear()
        self._segment_start = 0

    def cut(self) -> None:
        """End a stretch of the log: what follows is another thread's, or ordered otherwise."""
        start, stop = self._segment_start, len(self.log.words)
        if stop > start:
            thread = self.thread
            actor, moment = self.flying or (thread.tid, thread.moment)
            self.segments.append(
                Segment(thread, start, stop, actor, moment, thread.view, thread.moment)
            )
            self._segment_start = stop

    def wait(self, operation, position, members, payload, resolve, detail=""):
        """Stop this thread until all that take part are there; its result."""
        return self.hub.switch(Wait(operation, position, members, payload, resolve, detail))

    def wait_for_grid(self, operation, position):
        """Stop this thread until all threads of the grid are there."""
        self.wait(operation, position, EVERYBODY, None, lambda payloads: {})

    def wait_in_warp(self, operation, position, mask, payload, resolve):
        """Stop this thread until the lanes in `mask` are there; its result."""
        thread = self.thread
        if not mask >> thread.lane & 1:
            self.here = position
            raise self.error(
                "shuffle",
                f"lane {thread.lane} calls {operation} with mask 0x{mask:08x}, which does not "
                "name it",
            )
        members = mask << (32 * thread.warp)
        return self.wait(operation, position, members, payload, resolve, f"0x{mask:08x}")

    def wait_until(self, condition, what) -> None:
        """Stop this thread until `condition` holds."""
        if self.members:
            raise self.error("unsupported", "a whole warp cannot wait for a condition")
        position, traffic = self.here, self.traffic
        name = self.instruction
        self.hub.switch(Wait(name, position, 0, None, lambda payloads: {}, what, condition))
        self.here, self.traffic, self.instruction = position, traffic, name

    def who(self) -> str:
        """The running thread, in words."""
        return f"thread {self.thread.index} of block {self.block}"

    def error(
        self, kind: str, message: str, place: Place | None = None, *also: Place
    ) -> KernelError:
        """An error of the running thread, at the call that runs unless told where."""
        place = place or self.positions[self.here][0]
        return KernelError(Finding(kind, f"{message} ({self.who()})", (place, *also)))

    def report(self, error: KernelError) -> None:
        """Raise `error`, or note it once where findings are collected."""
        if not self.collect:
            raise error
        if not any(
            known.kind == error.finding.kind and known.places == error.finding.places
            for known in self.findings
        ):
            self.findings.append(error.finding)

    def _place(self, code: int | None) -> Place | None:
        site = self.log.sites[code] if code is not None else None
        return site.place if site else None

    def outside(self, array, index, code: int | None = None):
        """An index outside of its array: raised, or if collected read as 0."""
        index = tuple(int(i) for i in index)
        if len(index) != array.ndim:
            raise self.error(
                "exception",
                f"{array.memory.name} has {array.ndim} axes, the index {index} has {len(index)}",
                self._place(code),
            )
        shown = index[0] if len(index) == 1 else index
        note = "; Numba would wrap a negative index round" if min(index) < 0 else ""
        error = self.error(
            "out of bounds",
            f"{array.memory.space} array {array.memory.name} of shape {array.shape} is indexed "
            f"at {shown}{note}",
            self._place(code),
        )
        self.report(error)
        return array.dtype.type(0) if code is not None else error

    def unset(self, array, at: int, code: int | None = None) -> None:
        """A read of memory that nobody wrote.

        It is judged at the next barrier: if another thread writes there before that, the error is
        the race, and which of the two comes first is chance.
        """
        memory = array.memory
        why = (
            "shared memory starts undefined"
            if memory.space == "shared"
            else "it was all NaN at launch"
        )
        if len(self.suspects) < MOST_SUSPECTS:
            self.suspects.append(
                self.error(
                    "uninitialised read",
                    f"element {at - array.start} of {memory.space} array {memory.name} is read "
                    f"before anything wrote it ({why})",
                    self._place(code),
                )
            )

    def left(self, line: int) -> None:
        """The running thread returns from the kernel at `line`."""
        self.thread.left_at = line

    def branch(self, region: int):
        """The running thread reaches a branch or loop at which threads may part ways.

        Returns the key of this visit. Threads that came the same way get the same key.
        """
        thread = self.thread
        key = (thread.place, region)
        visit = thread.counts.get(key, 0)
        thread.counts[key] = visit + 1
        return (thread.place, region, visit)

    def turn(self, visit, arm: int) -> None:
        """It enters an arm of the branch, or a turn of the loop."""
        key = (visit, arm)
        place = self._places.get(key)
        if place is None:
            self._last_place += 1
            place = self._places[key] = self._last_place
        self.thread.place = place
        self.append(place << 16)

    def leave(self, visit, value=None):
        """It is where the ways meet again. Passes `value` on."""
        self.thread.place = visit[0]
        self.append(visit[0] << 16)
        return value

    def spin(self, position: int, waits: bool) -> int:
        """Let other threads run after many turns of a loop; 0, the count to go on with.

        A ``while`` may wait (`waits`) for what no thread does, and all threads with it: its turns
        are limited in sum. No thread is blamed before all could run on.
        """
        thread = self.thread
        thread.turns += TURNS_BEFORE_PAUSE
        self._turns_of_all += TURNS_BEFORE_PAUSE * waits
        turned = thread.turns > 2 * TURNS_BEFORE_PAUSE and self._turns_of_all > self.most_turns
        if turned or thread.turns > self.most_turns:
            self.here = position
            raise self.error(
                "runaway loop",
                f"this loop is still turning after {thread.turns:,} turns of this thread and "
                f"{self._turns_of_all:,} of all; if it waits for another thread, none changes what "
                f"it waits for (else allow more turns than {self.most_turns:,}: turns= or --turns)",
            )
        self.hub.switch(PAUSE)
        return 0

    def judge(self) -> None:
        """Report the reads of unwritten memory that turned out to be no races."""
        suspects, self.suspects = self.suspects, []
        for error in suspects:
            self.report(error)

    def clear(self) -> None:
        """Forget the log and where threads parted: at a barrier all are together again.

        Copies that are under way stay, for what comes may race with them.
        """
        self.order.barrier()
        kept = self.order.under_way(self.segments) if self.checking else []
        taken = self.log.taken(kept)
        self.log.clear()
        self.calls.clear()
        self._places.clear()
        self.segments.clear()
        for one, (words, stored) in zip(kept, taken, strict=True):
            start = len(self.log.words)
            self.log.words.extend(words)
            self.log.stored.extend(stored)
            stop = len(self.log.words)
            self.segments.append(one._replace(start=start, stop=stop, view=0, carried=True))
        self._segment_start = len(self.log.words)
