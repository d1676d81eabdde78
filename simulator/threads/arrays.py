"""Traced arrays: what a kernel's global and shared arrays are here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .access import make_access
from .log import ATOMIC, LOAD, STORE
from .per_block import PerBlock, chosen
from .scalars import dtype_name, from_memory


@dataclass(eq=False)
class Memory:
    """A stretch of bytes with one owner: a global allocation or a block's shared array.

    Attributes
    ----------
    name : str
    space : "global", "shared" or "constant"
        Constant: captured arrays and those of ``cuda.const.array_like``, which a GPU reads with
        ``ld.const`` through a cache of its own.
    base : int
        Address of the first byte.
    data : uint8 array
    granule : int
        Bytes to one entry of `valid`.
    valid : bytearray or None
        Which granules were written; None where everything counts as written.
    shape : tuple of int
        To name elements; () where the array is a view.
    objects : dict
        First byte -> what an instruction keeps there, such as the state of a barrier.
    twins : list of Memory
        For each block that runs at once, the same stretch of its shared memory; else empty.
    unknown : bytearray or None
        Bytes of shared memory that hold no integers known in all blocks (`alike`).
    """

    name: str
    space: str
    base: int
    data: np.ndarray
    granule: int
    valid: bytearray | None = None
    objects: dict = field(default_factory=dict)
    shape: tuple = ()
    twins: list[Memory] = field(default_factory=list)
    unknown: bytearray | None = None

    def reset(self) -> None:
        """As at a block's start: nothing written, every float NaN."""
        self.data[:] = 0xFF
        if self.valid is not None:
            self.valid[:] = bytes(len(self.valid))
        if self.unknown is not None:
            self.unknown[:] = b"\1" * len(self.unknown)
        self.objects.clear()


class Array:
    """An array of a kernel, whose accesses are logged.

    Indexes like a NumPy array. ``load_vector(index, n)`` and ``store_vector(index, values)`` move
    n neighbours of the last axis in one access.

    Attributes
    ----------
    get, set : functions
        ``get(i, j, ..., code)`` and ``set(value, i, j, ..., code)``: one logged access of a whole
        index; what rewritten kernels call.
    """

    __slots__ = (
        "dtype",
        "get",
        "itemsize",
        "memory",
        "ndim",
        "parts",
        "runtime",
        "set",
        "shape",
        "start",
        "steps",
    )

    def __init__(self, runtime, memory: Memory, dtype, shape, steps, start: int):
        self.runtime, self.memory = runtime, memory
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        self.shape, self.steps, self.start = tuple(shape), tuple(steps), start
        self.ndim = len(self.shape)
        self.parts: dict[tuple, Array] = {}
        self.get, self.set = make_access(self)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, by axis."""
        return tuple(step * self.itemsize for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        # Without it, Python would iterate by index until one is reported as out of bounds.
        raise TypeError("an array is run through here in a way that is not traced: use its indices")

    def there(self, slot: int) -> Array:
        """The same part of the shared memory of another block that runs at once."""
        twins = self.memory.twins
        if not twins or twins[slot] is self.memory:
            return self
        key = ("there", slot)
        if key not in self.parts:
            size = self.shape, self.steps, self.start
            self.parts[key] = Array(self.runtime, twins[slot], self.dtype, *size)
        return self.parts[key]

    def flat(self) -> np.ndarray:
        """The memory as a flat NumPy array of this dtype, unlogged."""
        usable = len(self.memory.data) // self.itemsize * self.itemsize
        return self.memory.data[:usable].view(self.dtype)

    def place(self, index) -> int:
        """Number of an element within `flat`.

        Raises
        ------
        KernelError
            If the index is outside of the array.
        """
        inside = len(index) == self.ndim and all(
            0 <= i < n for i, n in zip(index, self.shape, strict=True)
        )
        if not inside:
            raise self.runtime.outside(self, index)
        return self.start + sum(i * s for i, s in zip(index, self.steps, strict=True))

    def address(self, at: int) -> int:
        """Address of element `at` of `flat`."""
        return self.memory.base + at * self.itemsize

    def __getitem__(self, index):
        index = self._axes(index)
        if len(index) < self.ndim or any(isinstance(i, slice) or i is Ellipsis for i in index):
            return self.view(index)
        index = tuple(i + n if i < 0 else i for i, n in zip(index, self.shape, strict=True))
        return self.get(*index, self.runtime.code(LOAD))

    def __setitem__(self, index, value):
        index = self._axes(index)
        if len(index) < self.ndim or any(isinstance(i, slice) for i in index):
            view: Any = self.view(index)
            many = isinstance(value, Array | tuple | list)
            one: Any
            for one in itertools.product(*map(range, view.shape)):
                view[one] = value[one if len(one) > 1 else one[0]] if many else value
            return
        index = tuple(i + n if i < 0 else i for i, n in zip(index, self.shape, strict=True))
        self.set(value, *index, self.runtime.code(STORE))

    def _axes(self, index) -> tuple:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > self.ndim + (Ellipsis in index):
            raise self.runtime.outside(self, index)
        return index

    def view(self, index) -> Array:
        """The part that integers and slices choose; nothing is accessed."""
        if Ellipsis in index:
            cut = index.index(Ellipsis)
            fill = (slice(None),) * (self.ndim - len(index) + 1)
            index = index[:cut] + fill + index[cut + 1 :]
        shape, steps, start = [], [], self.start
        for axis, (n, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            one = index[axis] if axis < len(index) else slice(None)
            if isinstance(one, slice):
                first, size, stride = chosen(one, n)
                shape.append(size)
                steps.append(step * stride)
                start += first * step
            else:
                if not -n <= one < n:
                    raise self.runtime.outside(self, index)
                start += (one % n) * step
        return self.part(tuple(shape), tuple(steps), start)

    def part(self, shape, steps, start) -> Array:
        """An array over the same memory; the same one for the same part."""
        if start.__class__ is PerBlock:
            return Array(self.runtime, self.memory, self.dtype, shape, steps, start)
        key = (shape, steps, start)
        if key not in self.parts:
            self.parts[key] = Array(self.runtime, self.memory, self.dtype, shape, steps, start)
        return self.parts[key]

    @property
    def T(self) -> Array:
        """The array with its axes in reverse order."""
        return self.part(self.shape[::-1], self.steps[::-1], self.start)

    def reshape(self, *shape) -> Array:
        """Another shape of the same C-ordered elements."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if self.steps != c_steps(self.shape):
            raise NotImplementedError("reshape of an array that is not C-ordered")
        if -1 in shape:
            known = -math.prod(shape)
            shape = tuple(self.size // known if n == -1 else n for n in shape)
        if math.prod(shape) != self.size:
            raise ValueError(f"cannot reshape {self.shape} into {shape}")
        return self.part(tuple(shape), c_steps(shape), self.start)

    def load_vector(self, index, n: int) -> tuple:
        """`n` neighbours of the last axis from `index` on, in one access."""
        at, _ = self._vector(index, n, LOAD)
        values = self.flat()[at : at + n]
        self.check_written(at, n)
        convert = from_memory(dtype_name(self.dtype))
        return tuple(values) if convert is None else tuple(map(convert, values))

    def store_vector(self, index, values) -> None:
        """Write `values` to neighbours of the last axis from `index` on, in one access."""
        values = tuple(values)
        at, size = self._vector(index, len(values), STORE)
        self.flat()[at : at + len(values)] = values
        memory, first = self.memory, at * self.itemsize
        if memory.valid is not None:
            cells = slice(first // memory.granule, -(-(first + size) // memory.granule))
            memory.valid[cells] = b"\1" * (cells.stop - cells.start)
        if self.runtime.counting:
            self.runtime.log.stored.append(values)

    def add_vector(self, index, values) -> None:
        """Add `values` to neighbours of the last axis from `index` on, each one atomically."""
        at, _ = self._vector(index, len(values), ATOMIC)
        self.check_written(at, len(values))
        self.flat()[at : at + len(values)] += np.array(values, self.dtype)

    def check_written(self, at: int, n: int) -> None:
        """Note elements from `at` of `flat` on that are read with a byte that nobody wrote."""
        valid, per = self.memory.valid, self.itemsize // self.memory.granule
        if valid is None or all(valid[at * per : (at + n) * per]):
            return
        for one in range(at, at + n):
            if not all(valid[one * per : (one + 1) * per]):
                self.runtime.unset(self, one)

    def _vector(self, index, n, operation):
        """Check a vector access and log it: first element and bytes."""
        index = index if isinstance(index, tuple) else (index,)
        at = self.place(index)
        if index[-1] + n > self.shape[-1]:
            raise self.runtime.outside(self, (*index[:-1], index[-1] + n - 1))
        if n > 1 and self.steps[-1] != 1:
            raise self.runtime.error(
                "misaligned access", f"{self.memory.name}: neighbours of the last axis lie apart"
            )
        size = n * self.itemsize
        if self.address(at) % size:
            raise self.runtime.error(
                "misaligned access",
                f"a {size}-byte access of {self.memory.name}{list(index)} starts at byte "
                f"{self.address(at) - self.memory.base}, which is no multiple of {size}",
            )
        if self.runtime.counting:
            code = self.runtime.code(operation, size)
            if self.runtime.alike is not None:
                at = self.runtime.alike.element(self, at, code)
                if operation != LOAD:
                    self.runtime.alike.stored(self, at, size)
            self.runtime.append(self.address(at) << 16 | code)
        return at, size


def items(array: Array, code: int):
    """What a loop over `array` runs over: elements, each loaded in its turn, or rows."""
    for i in range(array.shape[0]):
        yield array.get(i, code) if array.ndim == 1 else array.view((i,))


def c_steps(shape) -> tuple[int, ...]:
    """Elements from one index to the next, by axis, in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def atomic_update(array: Array, index, update):
    """Apply ``update(old) -> new`` to one element atomically; returns the old value."""
    runtime = array.runtime
    index = index if isinstance(index, tuple) else (index,)
    at = array.place(tuple(index))
    code = runtime.code(ATOMIC, array.itemsize) if runtime.counting else 0
    if runtime.alike is not None:
        at = runtime.alike.element(array, at, code)
        runtime.alike.stored(array, at, array.itemsize)
    array.check_written(at, 1)
    convert = from_memory(dtype_name(array.dtype))
    old = array.flat()[at]
    old = old if convert is None else convert(old)
    if runtime.counting:
        runtime.append(array.address(at) << 16 | code)
    array.flat()[at] = update(old)
    return old
