"""The functions of `numba.cuda` that device code calls.

The method for ``cuda.atomic.add`` is `Device.atomic_add`. Each takes the number of the call's
source position first.
"""

from __future__ import annotations

import math

import numpy as np

from .memory import atomic_update
from .runtime import Runtime
from .scalars import CASTS, F32, dtype_name, fma, larger, smaller

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


class Device:
    """Emulations that need the running thread."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self._epochs = 0

    # -- barriers -------------------------------------------------------------------------------

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

    def _new_epoch(self, payloads):
        self._epochs += 1
        for thread in payloads:
            thread.epoch = self._epochs
        return {}

    def syncwarp(self, position, mask=FULL_MASK):
        """Barrier of lanes of a warp; orders their accesses to memory."""
        self.runtime.wait("syncwarp", position, int(mask) & FULL_MASK, None, self._new_epoch)

    # -- shuffles and votes ---------------------------------------------------------------------

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
        return self.runtime.wait(name, position, mask, (value, source), resolve)

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
        return self.runtime.wait(name, position, int(mask) & FULL_MASK, value, resolve)

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
        """Not emulated: which lanes run together is the scheduler's choice."""
        self.runtime.here = position
        raise self.runtime.error("unsupported", "cuda.activemask depends on timing")

    def lanemask_lt(self, position):
        """Bits of the lanes below."""
        return CASTS["uint32"]((1 << self.runtime.thread.lane) - 1)

    # -- indices --------------------------------------------------------------------------------

    def grid(self, position, ndim):
        """Absolute index of the thread in the grid."""
        r, t = self.runtime, self.runtime.thread
        at = [b * n + i for b, n, i in zip(r.block, r.block_shape, t.index, strict=True)]
        return at[0] if ndim == 1 else tuple(at[:ndim])

    def gridsize(self, position, ndim):
        """Threads of the whole grid."""
        r = self.runtime
        size = [g * n for g, n in zip(r.grid, r.block_shape, strict=True)]
        return size[0] if ndim == 1 else tuple(size[:ndim])

    # -- scalars --------------------------------------------------------------------------------

    def fma(self, position, a, b, c):
        """``a * b + c`` rounded once."""
        return fma(a, b, c)

    def popc(self, position, x):
        """Number of one bits."""
        return (int(x) & (2 ** getattr(x, "bits", 64) - 1)).bit_count()

    def brev(self, position, x):
        """Bits in reverse order."""
        bits = getattr(x, "bits", 64)
        return type(x)(int(f"{int(x) & (2**bits - 1):0{bits}b}"[::-1], 2))

    def clz(self, position, x):
        """Leading zero bits."""
        bits = getattr(x, "bits", 64)
        return bits - (int(x) & (2**bits - 1)).bit_length()

    def ffs(self, position, x):
        """Number of the lowest one bit, counted from 1; 0 if there is none."""
        return (int(x) & -int(x)).bit_length()

    def selp(self, position, condition, a, b):
        """`a` if the condition holds, else `b`."""
        return a if condition else b

    def cbrt(self, position, x):
        """Cube root."""
        return F32(math.cbrt(x)) if x.__class__ is F32 else np.float64(math.cbrt(x))

    def threadfence(self, position):
        """Orders this thread's accesses; threads run one at a time here."""

    threadfence_block = threadfence_system = threadfence

    def nanosleep(self, position, nanoseconds):
        """Time does not pass here."""

    # -- atomics --------------------------------------------------------------------------------

    def _atomic(self, position, array, index, update):
        self.runtime.here = position
        kind = CASTS[dtype_name(array.dtype)]
        return atomic_update(array, index, lambda old: kind(update(old)))

    def atomic_add(self, position, array, index, value):
        """Old value; memory gets the sum."""
        return self._atomic(position, array, index, lambda old: old + value)

    def atomic_sub(self, position, array, index, value):
        """Old value; memory gets the difference."""
        return self._atomic(position, array, index, lambda old: old - value)

    def atomic_max(self, position, array, index, value):
        """Old value; memory gets the larger."""
        return self._atomic(
            position, array, index, lambda old: old if old != old else larger(old, value)
        )

    def atomic_min(self, position, array, index, value):
        """Old value; memory gets the smaller."""
        return self._atomic(
            position, array, index, lambda old: old if old != old else smaller(old, value)
        )

    def atomic_nanmax(self, position, array, index, value):
        """Old value; memory gets the larger, a NaN losing."""
        return self._atomic(position, array, index, lambda old: larger(old, value))

    def atomic_nanmin(self, position, array, index, value):
        """Old value; memory gets the smaller, a NaN losing."""
        return self._atomic(position, array, index, lambda old: smaller(old, value))

    def atomic_and_(self, position, array, index, value):
        """Old value; memory gets the bitwise and."""
        return self._atomic(position, array, index, lambda old: int(old) & int(value))

    def atomic_or_(self, position, array, index, value):
        """Old value; memory gets the bitwise or."""
        return self._atomic(position, array, index, lambda old: int(old) | int(value))

    def atomic_xor(self, position, array, index, value):
        """Old value; memory gets the bitwise exclusive or."""
        return self._atomic(position, array, index, lambda old: int(old) ^ int(value))

    def atomic_inc(self, position, array, index, value):
        """Old value; memory gets it plus 1, or 0 past `value`."""
        return self._atomic(position, array, index, lambda old: 0 if old >= value else old + 1)

    def atomic_dec(self, position, array, index, value):
        """Old value; memory gets it minus 1, or `value` at 0 and above `value`."""
        return self._atomic(
            position, array, index, lambda old: value if old == 0 or old > value else old - 1
        )

    def atomic_exch(self, position, array, index, value):
        """Old value; memory gets `value`."""
        return self._atomic(position, array, index, lambda old: value)

    def atomic_cas(self, position, array, index, old, value):
        """Old value; memory gets `value` if it held `old`."""
        return self._atomic(position, array, index, lambda now: value if now == old else now)

    def atomic_compare_and_swap(self, position, array, old, value):
        """`atomic_cas` of element 0."""
        return self.atomic_cas(position, array, 0, old, value)


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
