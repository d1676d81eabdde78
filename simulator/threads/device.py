"""The functions of `numba.cuda` that device code calls.

The method for ``cuda.atomic.add`` is `Device.atomic_add`. Each takes the number of the call's
source position first.
"""

from __future__ import annotations

import math

import numpy as np

from .atomics import Atomics
from .collectives import Collectives
from .halves import Halves
from .mathematics import fma
from .runtime import Runtime
from .scalars import F32


class Device(Collectives, Atomics, Halves):
    """Emulations that need the running thread."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

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

    def cg_grid_sync(self, position):
        """Barrier of all threads of the grid (``cuda.cg.this_grid().sync()``)."""
        self.runtime.wait_for_grid("this_grid().sync", position)

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
