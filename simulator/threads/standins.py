"""What `cuda` and `types` are to a kernel that runs on a CPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent

WARP = 32


def current() -> Any:
    """The `runner.Thread` that runs now."""
    return getcurrent()


class _Integer:
    """A Numba integer type: a cast that keeps the low bits, as a plain Python int."""

    def __init__(self, dtype):
        info = np.iinfo(dtype)
        self.dtype, self.low, self.span = np.dtype(dtype), int(info.min), 1 << info.bits

    def __call__(self, value):
        return (int(value) - self.low) % self.span + self.low


class _Float:
    """A Numba float type: a cast."""

    def __init__(self, dtype):
        self.dtype, self.cast = np.dtype(dtype), dtype

    def __call__(self, value):
        return self.cast(value)


class Types:
    """The stand-in for Numba's `types`."""

    float32, float64 = _Float(np.float32), _Float(np.float64)
    int32, int64 = _Integer(np.int32), _Integer(np.int64)
    uint16, uint32, uint64 = _Integer(np.uint16), _Integer(np.uint32), _Integer(np.uint64)


class Cuda:
    """The stand-in for `numba.cuda`, as the threads of one block see it."""

    def __init__(self, block):
        self.block = block
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(array=_local_array)
        self.atomic = SimpleNamespace(add=_atomic_add)

    @property
    def threadIdx(self):
        """Index of the thread within its block."""
        return SimpleNamespace(x=current().index)

    @property
    def blockIdx(self):
        """Index of the block within the grid."""
        return SimpleNamespace(x=self.block.index)

    @property
    def blockDim(self):
        """Threads of the block."""
        return SimpleNamespace(x=self.block.size)

    @property
    def gridDim(self):
        """Blocks of the grid."""
        return SimpleNamespace(x=self.block.blocks)

    def _shared_array(self, shape, dtype):
        if shape == 0:
            return self.block.dynamic
        # All threads come by the same declarations in the same order.
        thread = current()
        thread.arrays += 1
        fresh = _local_array(shape, dtype)
        return self.block.static.setdefault(thread.arrays, fresh)

    def syncthreads(self):
        """Barrier of the block; threads that have finished do not hold it up."""
        self.block.meet("block", 0, self.block.size, None, lambda offers: offers)

    def syncwarp(self):
        """Barrier of the warp."""
        self._in_warp(None, lambda offers: offers)

    def shfl_xor_sync(self, mask, value, distance):
        """The `value` of the lane whose number differs in the bits of `distance`."""
        return self._in_warp(value, lambda offers: [offers[i ^ distance] for i in range(WARP)])

    def any_sync(self, mask, predicate):
        """Whether any lane's `predicate` holds."""
        return self._in_warp(predicate, lambda offers: [any(offers)] * WARP)

    def _in_warp(self, value, answer):
        return self.block.meet("warp", current().index // WARP, WARP, value, answer)


def _local_array(shape, dtype):
    fill = np.nan if dtype.dtype.kind == "f" else 0
    return np.full(shape, fill, dtype.dtype)


def _atomic_add(array, index, value):
    old = array[index]
    array[index] += value
    return int(old)
