"""Blocks of a cluster: their barrier, and each other's shared memory."""

from .barriers import Barrier, arrive
from .copies import deliver, lines_of


def rank(context):
    """Number of the block within its cluster."""
    return context.cluster.rank


def size(context):
    """Blocks of the cluster."""
    return context.cluster.size


def _barrier(context) -> Barrier:
    state = context.cluster.state
    if "barrier" not in state:
        state["barrier"] = Barrier("the cluster's barrier", context.cluster.threads, context.sync())
    return state["barrier"]


def arrive_cluster(context):
    """One arrival of a thread, which goes on."""
    barrier, waits = _barrier(context), context.cluster.state.setdefault("arrived", {})
    tid = context.thread.tid
    if tid in waits:
        raise context.error("barrier", "a thread arrives twice without cluster_wait in between")
    waits[tid] = barrier.phase
    context.release(barrier.syncs[barrier.phase])
    barrier.arrived += 1
    barrier.advance(context.sync)


def wait_cluster(context):
    """Until all threads of the cluster have arrived."""
    barrier = _barrier(context)
    phase = context.cluster.state.get("arrived", {}).pop(context.thread.tid, None)
    if phase is None:
        raise context.error("barrier", "cluster_wait without cluster_arrive before it")
    context.wait(lambda: barrier.phase > phase, barrier.state)
    context.acquire(barrier.syncs[phase])


def shared_of(context, array, number):
    """The array at the same place in another block's shared memory."""
    return context.peer(array, int(number))


def arrive_at(context, bars, index, number):
    """One arrival at another block's barrier."""
    arrive(context, context.peer(bars, int(number)), index)


def load_multicast(context, to, source, c0, c1, c2, c3, bars, index, mask):
    """The box arrives in each block of `mask`, at the same place, and counts at its barrier."""
    mask = int(mask)
    if mask < 1 or mask >> context.cluster.size:
        raise context.error(
            "asynchronous copy",
            f"mask {mask:#x} must name blocks of a cluster of {context.cluster.size}",
        )
    box = list(lines_of(context, source, to, (c0, c1, c2, c3)))
    for number in range(context.cluster.size):
        if mask >> number & 1:
            there = context.peer(to, number), context.peer(bars, number)
            deliver(context, source, box, *there, index)
