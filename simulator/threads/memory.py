"""Where arrays lie: global memory, and a block's shared memory."""

from __future__ import annotations

import math

import numpy as np

from .arrays import Array, Memory, c_steps
from .scalars import CASTS, dtype_name, numpy_dtype

SHARED_BASE = BETWEEN_BLOCKS = 1 << 20
GLOBAL_BASE = 1 << 32
"""Addresses of the two memories. An allocation starts on a multiple of 256 bytes, as cudaMalloc
gives it, so sectors and banks come out as on a GPU."""


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory an array shows part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class GlobalMemory:
    """Places arrays of the caller and constants; arrays that share memory share a `Memory`."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.memories: list[Memory] = []
        self._owners: list[tuple[np.ndarray, Memory]] = []
        self._granules: dict[int, int] = {}
        self._top = GLOBAL_BASE

    def plan(self, arrays: list[np.ndarray]) -> None:
        """Learn the arguments first: the smallest element decides how finely memory is watched."""
        for array in arrays:
            key = id(_owner(array))
            self._granules[key] = min(array.itemsize, self._granules.get(key, array.itemsize))

    def _memory(self, array: np.ndarray, name: str, space: str) -> tuple[Memory, int]:
        owner = _owner(array)
        memory = next((memory for known, memory in self._owners if known is owner), None)
        if memory is None:
            data = np.ravel(owner, order="K").view(np.uint8)
            if owner.size and not np.may_share_memory(data, owner):
                raise ValueError(f"the memory that {name} is part of must have no gaps")
            granule = self._granules.get(id(owner), array.itemsize)
            memory = Memory(name, space, self._top, data, granule)
            memory.shape = array.shape if array.flags.c_contiguous and owner is array else ()
            poisoned = np.issubdtype(array.dtype, np.floating) and array.size
            if space == "global" and self.runtime.checking and poisoned and np.isnan(array).all():
                memory.valid = bytearray(len(data) // granule)
            self._top += -(-len(data) // 256) * 256 + 256
            self._owners.append((owner, memory))
            self.memories.append(memory)
        low = np.lib.array_utils.byte_bounds(owner)[0]
        return memory, array.__array_interface__["data"][0] - low

    def constant(self, array: np.ndarray, name: str) -> Array:
        """The traced twin of an array that the kernel captures: a copy, that nobody may write."""
        copy = np.array(array)
        copy.flags.writeable = False
        return self.array(copy, name, "constant")

    def array(self, array: np.ndarray, name: str, space: str = "global") -> Array:
        """The traced twin of an argument."""
        if not dtype_name(array.dtype):
            raise TypeError(
                f"{name} must have a dtype that is emulated ({', '.join(CASTS)}), got {array.dtype}"
            )
        if not array.dtype.isnative:
            raise TypeError(
                f"{name} must be in this machine's byte order, got {array.dtype.str}: hand over "
                f"{name}.astype({name}.dtype.newbyteorder('='))"
            )
        memory, first = self._memory(array, name, space)
        if first % array.itemsize or any(s % array.itemsize for s in array.strides):
            raise ValueError(f"{name} is not aligned to its {array.itemsize}-byte elements")
        steps = [stride // array.itemsize for stride in array.strides]
        return Array(self.runtime, memory, array.dtype, array.shape, steps, first // array.itemsize)


class SharedMemory:
    """A block's shared memory: static arrays one after another, then the dynamic part."""

    def __init__(self, runtime, dynamic_bytes: int):
        self.runtime, self.dynamic_bytes = runtime, dynamic_bytes
        self.memories: list[Memory] = []
        self._arrays: dict[object, Array] = {}
        self._dynamic: Memory | None = None
        self.static_bytes = 0

    def reset(self) -> None:
        """As at a block's start."""
        for memory in self.memories:
            memory.reset()

    def static(self, key, name: str, shape, dtype: str, alignment: int | None) -> Array:
        """The array that a ``cuda.shared.array`` in the source stands for."""
        if key not in self._arrays:
            kind = numpy_dtype(dtype)
            size = math.prod(shape) * kind.itemsize
            align = max(alignment or kind.itemsize, kind.itemsize)
            first = -(-self.static_bytes // align) * align
            self.static_bytes = first + size
            memory = self._new(name, SHARED_BASE + first, size, kind.itemsize)
            memory.shape = tuple(shape)
            self._arrays[key] = Array(self.runtime, memory, kind, shape, c_steps(shape), 0)
        return self._arrays[key]

    def dynamic(self, name: str, dtype: str, granule: int) -> Array:
        """The whole dynamic part as a flat array; all dtypes see the same bytes."""
        if self._dynamic is None:
            base = SHARED_BASE + (1 << 19)
            self._dynamic = self._new(name, base, self.dynamic_bytes, granule)
        key = ("dynamic", dtype)
        if key not in self._arrays:
            kind = numpy_dtype(dtype)
            shape = (self.dynamic_bytes // kind.itemsize,)
            self._arrays[key] = Array(self.runtime, self._dynamic, kind, shape, (1,), 0)
        return self._arrays[key]

    def spread(self, blocks: int) -> None:
        """Give each of `blocks` blocks that run at once its own, on addresses of its own."""
        for memory in list(self.memories):
            memory.twins.append(memory)
            for slot in range(1, blocks):
                base = memory.base + slot * BETWEEN_BLOCKS
                size = len(memory.data)
                twin = self._new(memory.name, base, size, memory.granule)
                twin.shape, twin.twins = memory.shape, memory.twins
                memory.twins.append(twin)

    def _new(self, name, base, size, granule):
        data = np.empty(size, np.uint8)
        valid = bytearray(-(-size // granule)) if self.runtime.checking else None
        memory = Memory(name, "shared", base, data, granule, valid)
        memory.unknown = bytearray(size) if self.runtime.alike is not None else None
        memory.reset()
        self.memories.append(memory)
        return memory
