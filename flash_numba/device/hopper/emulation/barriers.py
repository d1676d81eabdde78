"""Barriers in shared memory and barriers by number, as states that threads wait for."""


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
    """

    def __init__(self, name: str, count: int, sync):
        self.name, self.count = name, count
        self.phase = self.arrived = self.missing = 0
        self.syncs = [sync]

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
    return found


def channel_of(bars, index):
    """Name of the copies that report to a barrier."""
    return ("mbarrier", _key(bars, index))


def init(context, bars, index, count):
    """A new barrier; its word may be no other's."""
    if int(count) < 1:
        raise context.error("barrier", f"a barrier must be for at least 1 arrival, got {count}")
    name = f"{bars.memory.name}[{int(index)}]"
    bars.memory.objects[_key(bars, index)] = Barrier(name, int(count), context.sync())


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
    """Barriers are seen by all at once here."""


def fence_async(context):
    """The copy engine and wgmma see what the thread wrote."""
    context.fence()


def named_sync(context, number, threads):
    """Arrive and wait."""
    context.meet(int(number), int(threads))


def named_arrive(context, number, threads):
    """Arrive and go on."""
    context.meet(int(number), int(threads), wait=False)
