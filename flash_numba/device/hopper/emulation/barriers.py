"""Barriers in shared memory and barriers by number, as states that threads wait for."""

from typing import Any


class Barrier:
    """An mbarrier.

    Attributes
    ----------
    count : int
        Arrivals of a phase.
    phase : int
        Phases completed.
    arrived, missing : int
        Arrivals in this phase; bytes announced that have not come.
    syncs : list
        For each phase, what its arrivals released.
    made : context.Mark, optional
        When it was initialised, by one thread.
    announced : bool
        Whether the copy engine sees it.
    """

    def __init__(self, name: str, count: int, sync, made: Any = None):
        self.name, self.count = name, count
        self.phase = self.arrived = self.missing = 0
        self.syncs = [sync]
        self.made, self.announced = made, False

    def advance(self, new_sync) -> None:
        """Begin the next phase if this one is complete."""
        if self.arrived == self.count and self.missing == 0:
            self.phase, self.arrived = self.phase + 1, 0
            self.syncs.append(new_sync())

    def state(self) -> str:
        """Why the phase is not complete."""
        text = f"{self.name}, phase {self.phase}: {self.arrived} of {self.count} arrivals"
        if self.missing > 0:
            text += f", {self.missing} announced bytes missing"
        if self.missing < 0:
            text += f", {-self.missing} bytes more than announced"
        return text


def _key(bars, index) -> int:
    return bars.address(bars.place((int(index),)))


def barrier_at(context, bars, index) -> Barrier:
    """The barrier that a word of shared memory holds."""
    found = bars.memory.objects.get(_key(bars, index))
    if found is None:
        raise context.error(
            "barrier", f"{bars.memory.name}[{int(index)}] is used before barrier_init"
        )
    if context.checking and not context.follows(found.made):
        context.report(
            "race",
            f"thread {found.made.thread.number} initialises {found.name} and thread "
            f"{context.thread.number} uses it, with no barrier in between",
            found.made.place,
        )
    return found


def barrier_of_copy(context, bars, index) -> Barrier:
    """The same, for the copy engine to report to."""
    found = barrier_at(context, bars, index)
    if context.checking and not found.announced:
        context.report(
            "missing fence",
            f"the copy engine is told of {found.name} and may still see what was there before "
            "barrier_init: call fence_barrier_init() after it",
            found.made.place,
        )
    return found


def channel_of(bars, index):
    """Name of the copies that report to a barrier."""
    return ("mbarrier", _key(bars, index))


def init(context, bars, index, count):
    """A new barrier; its word may be no other's."""
    if int(count) < 1:
        raise context.error("barrier", f"a barrier must be for at least 1 arrival, got {count}")
    name = f"{bars.memory.name}[{int(index)}]"
    made = Barrier(name, int(count), context.sync(), context.mark())
    bars.memory.objects[_key(bars, index)] = made
    _unannounced(context).append(made)


def _unannounced(context) -> list[Barrier]:
    """Barriers that the running thread made since its last fence."""
    return context.block.setdefault(("unannounced", context.thread.tid), [])


def arrive(context, bars, index):
    """One arrival."""
    expect(context, bars, index, 0)


def expect(context, bars, index, size):
    """Announce bytes, then arrive."""
    barrier = barrier_at(context, bars, index)
    barrier.missing += int(size)
    if barrier.arrived == barrier.count:
        raise context.error("barrier", f"one arrival too many: {barrier.state()}")
    context.release(barrier.syncs[barrier.phase])
    barrier.arrived += 1
    barrier.advance(context.sync)


def wait(context, bars, index, parity):
    """Until the phase of that parity is complete."""
    barrier, parity = barrier_at(context, bars, index), int(parity) & 1
    context.wait(lambda: barrier.phase % 2 != parity, barrier.state)
    for sync in barrier.syncs[: barrier.phase]:
        context.acquire(sync)
    if barrier.phase:
        context.finish(channel_of(bars, index), barrier.phase)


def fence_init(context):
    """The copy engine sees the barriers that the thread made."""
    for barrier in _unannounced(context):
        barrier.announced = True
    _unannounced(context).clear()


def fence_async(context):
    """The copy engine and wgmma see what the thread wrote."""
    context.fence()
    fence_init(context)


MOST_NUMBER, WARP, MOST_THREADS = 15, 32, 1024
"""Of a barrier by number (PTX ISA 9.0, 9.7.13.1)."""


def _numbers(context, number, threads) -> tuple[int, int]:
    """A barrier's number and how many threads it is for, if the hardware has it."""
    number, threads = int(number), int(threads)
    if not 0 <= number <= MOST_NUMBER:
        raise context.error("barrier", f"a barrier's number must be in 0..15, got {number}")
    if threads % WARP or not WARP <= threads <= MOST_THREADS:
        raise context.error(
            "barrier",
            f"barrier {number} must be for a multiple of 32 threads, up to 1024, got {threads}",
        )
    return number, threads


def named_sync(context, number, threads):
    """Arrive and wait, where all who wait do."""
    context.meet(*_numbers(context, number, threads), aligned=True)


def meet_anywhere(context, number, threads):
    """Arrive and wait, wherever others do."""
    context.meet(*_numbers(context, number, threads))


def named_arrive(context, number, threads):
    """Arrive and go on."""
    context.meet(*_numbers(context, number, threads), wait=False)
