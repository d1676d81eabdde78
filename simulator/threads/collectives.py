"""Barriers, shuffles and votes: what threads of a block or warp do together."""

from __future__ import annotations

from .runtime import Runtime
from .scalars import CASTS

FULL_MASK = 0xFFFFFFFF


def _nothing(payloads):
    return {}


def _same_for_all(value, payloads):
    return dict.fromkeys(payloads, value)


def _reduction(reduce):
    """A collective whose result is ``reduce(values of all)``."""
    return lambda payloads: _same_for_all(reduce(list(payloads.values())), payloads)


_ANY = _reduction(lambda values: any(bool(v) for v in values))
_ALL = _reduction(lambda values: all(bool(v) for v in values))


class Collectives:
    """Part of `device.Device`."""

    runtime: Runtime

    def syncthreads(self, position):
        """Barrier of the block."""
        self.runtime.wait("syncthreads", position, None, None, _nothing)

    def syncthreads_count(self, position, predicate):
        """Barrier; in how many threads the predicate holds."""
        count = _reduction(lambda values: sum(bool(v) for v in values))
        return self.runtime.wait("syncthreads_count", position, None, predicate, count)

    def syncthreads_and(self, position, predicate):
        """Barrier; 1 if the predicate holds in all threads."""
        both = _reduction(lambda values: int(all(bool(v) for v in values)))
        return self.runtime.wait("syncthreads_and", position, None, predicate, both)

    def syncthreads_or(self, position, predicate):
        """Barrier; 1 if the predicate holds in any thread."""
        either = _reduction(lambda values: int(any(bool(v) for v in values)))
        return self.runtime.wait("syncthreads_or", position, None, predicate, either)

    def _joined(self, payloads):
        self.runtime.order.meet(list(payloads))
        return {}

    def syncwarp(self, position, mask=FULL_MASK):
        """Barrier of lanes of a warp; orders their accesses to memory."""
        mask = int(mask) & FULL_MASK
        self.runtime.wait_in_warp("syncwarp", position, mask, None, self._joined)

    def _shuffle(self, name, position, mask, value, source):
        """Value of lane `source`; None means the own."""

        def resolve(payloads):
            by_lane = {thread.lane: payload for thread, payload in payloads.items()}
            results = {}
            for thread, (own, wanted) in payloads.items():
                if wanted is None:
                    results[thread] = own
                elif wanted in by_lane:
                    results[thread] = by_lane[wanted][0]
                else:
                    self.runtime.thread = thread
                    raise self.runtime.error(
                        "shuffle",
                        f"lane {thread.lane} reads from lane {wanted} in {name}, which does not "
                        "take part: its value is undefined",
                    )
            return results

        mask = int(mask) & FULL_MASK
        return self.runtime.wait_in_warp(name, position, mask, (value, source), resolve)

    def shfl_sync(self, position, mask, value, lane):
        """The value of `lane`."""
        return self._shuffle("shfl_sync", position, mask, value, int(lane) % 32)

    def shfl_up_sync(self, position, mask, value, delta):
        """The value of the lane `delta` below."""
        source = self.runtime.thread.lane - int(delta)
        return self._shuffle("shfl_up_sync", position, mask, value, source if source >= 0 else None)

    def shfl_down_sync(self, position, mask, value, delta):
        """The value of the lane `delta` above."""
        source = self.runtime.thread.lane + int(delta)
        source = source if source < 32 else None
        return self._shuffle("shfl_down_sync", position, mask, value, source)

    def shfl_xor_sync(self, position, mask, value, lane_mask):
        """The value of the lane whose number differs in the bits of `lane_mask`."""
        source = self.runtime.thread.lane ^ int(lane_mask)
        return self._shuffle(
            "shfl_xor_sync", position, mask, value, source if source < 32 else None
        )

    def _vote(self, name, position, mask, value, resolve):
        mask = int(mask) & FULL_MASK
        return self.runtime.wait_in_warp(name, position, mask, value, resolve)

    def any_sync(self, position, mask, predicate):
        """Whether the predicate holds in any lane."""
        return self._vote("any_sync", position, mask, predicate, _ANY)

    def all_sync(self, position, mask, predicate):
        """Whether the predicate holds in all lanes."""
        return self._vote("all_sync", position, mask, predicate, _ALL)

    def eq_sync(self, position, mask, predicate):
        """Whether the predicate is the same in all lanes."""
        same = _reduction(lambda values: len({bool(v) for v in values}) == 1)
        return self._vote("eq_sync", position, mask, predicate, same)

    def ballot_sync(self, position, mask, predicate):
        """The lanes in which the predicate holds, as bits."""

        def resolve(payloads):
            bits = sum(1 << t.lane for t, holds in payloads.items() if holds)
            return _same_for_all(CASTS["uint32"](bits), payloads)

        return self._vote("ballot_sync", position, mask, predicate, resolve)

    def match_any_sync(self, position, mask, value):
        """The lanes that hold the same value, as bits."""

        def resolve(payloads):
            return {
                thread: CASTS["uint32"](sum(1 << t.lane for t, v in payloads.items() if v == own))
                for thread, own in payloads.items()
            }

        return self._vote("match_any_sync", position, mask, value, resolve)

    def match_all_sync(self, position, mask, value):
        """(lanes as bits, True) if all hold the same value, else (0, False)."""

        def resolve(payloads):
            same = len(set(payloads.values())) == 1
            bits = sum(1 << t.lane for t in payloads) if same else 0
            return _same_for_all((CASTS["uint32"](bits), same), payloads)

        return self._vote("match_all_sync", position, mask, value, resolve)

    def activemask(self, position):
        """The lanes that run together, as bits: here all that come the same way.

        Which do is the scheduler's choice on a GPU, which may give fewer: it runs them apart.
        """
        runtime, thread = self.runtime, self.runtime.thread
        state, key = runtime.states[thread.slot], ("active", thread.warp, position, thread.place)
        together = state.setdefault(key, [])
        together.append(thread.lane)
        runtime.here, runtime.instruction = position, "activemask"
        # Asked when nobody else can run: then whoever could come has come.
        runtime.wait_until(lambda: state.pop(key, True) is not None, "")
        return CASTS["uint32"](sum(1 << lane for lane in together))

    def lanemask_lt(self, position):
        """Bits of the lanes below."""
        return CASTS["uint32"]((1 << self.runtime.thread.lane) - 1)


COLLECTIVE_UNIFORM = {
    "syncthreads_count",
    "syncthreads_and",
    "syncthreads_or",
    "any_sync",
    "all_sync",
    "eq_sync",
    "ballot_sync",
}
"""Functions whose result is the same in all lanes."""
