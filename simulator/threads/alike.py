"""Which blocks do the same as one that runs, so that one can be traced for many.

Two blocks are alike if each thread takes the same way through the source and each position in it
accesses each array at addresses that all differ by one multiple of 32 bytes (of 128, where a
``cp.async`` of 16 bytes reads, whose sectors depend on lines, `passes.copy_sectors`; by any number,
if it is one element for all threads; in shared memory: not at all). An address that does not depend
on the block differs by 0, and then so must those of all threads. With that, their warp
instructions, sectors, passes and conflicts are equal. This is followed exactly while a block runs:
every integer that comes from blockIdx, or from an array of integers, is known for all blocks
(`per_block`). If an index, a condition or a way through the source may depend on anything else -
floats and 16-bit numbers from memory, atomics, what an unknown function gives - every block runs
(`translate.following` finds that out beforehand). The last block of a class runs, too, and must
give the same counts. Floating-point operations alone may depend on data: a branch without accesses
is taken as in the first block of a class, and the report says that this is not proven.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .passes import LINE_BYTES, SECTOR_BYTES, goes_past_l1
from .per_block import PerBlock
from .thread import Dim3


class Sampled(NamedTuple):
    """A class of blocks that are alike.

    Attributes
    ----------
    block : tuple of 3 ints
        The one whose counts stand for all.
    checked : tuple of 3 ints or None
        Another one that ran and gave the same.
    times : int
        Blocks of the class.
    """

    block: tuple
    checked: tuple | None
    times: int

    def __str__(self):
        same = "" if self.checked is None else f"; {self.checked} ran too and accessed the same"
        return f"block {self.block} counted {self.times:,} times{same}"


class Unprovable(Exception):
    """Something that decides what a block does cannot be followed."""


class Alike:
    """What is known of the blocks of a launch while one of them runs.

    Attributes
    ----------
    left : bool array
        Blocks, in order of launch, that did the same so far.
    active : bool
        Whether anybody wants to know.
    by_numbers : bool
        Whether a branch without accesses depends on numbers from memory: operations may differ.
    known_stores : set of int
        Log codes of stores that write integers which are known in all blocks.
    """

    def __init__(self, grid: Dim3):
        self.grid = grid
        numbers = np.arange(grid.x * grid.y * grid.z)
        self.indices = (numbers % grid.x, numbers // grid.x % grid.y, numbers // grid.x // grid.y)
        self.left = np.ones(len(numbers), bool)
        self.number, self.active, self.by_numbers = 0, True, False
        self.known_stores: set[int] = set()
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._shifts: dict[tuple, tuple[int, np.ndarray]] = {}
        self._nowhere = np.zeros(len(numbers), np.int64)

    def begin(self, number: int, left: np.ndarray) -> Dim3:
        """Block `number` runs, for as many of those `left` as do the same; its index."""
        self.number, self.left = number, left.copy()
        self._shifts.clear()
        axes = [
            PerBlock(int(axis[number]), axis, self) if size > 1 else 0
            for axis, size in zip(self.indices, self.grid, strict=True)
        ]
        return Dim3(*axes)

    def index(self, number: int) -> Dim3:
        """Index of a block."""
        return Dim3(*(int(axis[number]) for axis in self.indices))

    def keep(self, same: np.ndarray) -> None:
        """Drop the blocks in which something is not as in the running one."""
        self.left &= same

    def decide(self, truth: bool, others: np.ndarray) -> bool:
        """A decision; the blocks that decide otherwise are dropped."""
        self.left &= others == truth
        return truth

    def alone(self) -> None:
        """No other block is known to be like the running one."""
        self.left[:] = False
        self.left[self.number] = True

    def leaked(self, what: str) -> None:
        """Something cannot be followed."""
        if self.active:
            raise Unprovable(what)

    def element(self, array, at, code) -> int:
        """Note an access at element `at` of `array.flat`; the element in the running block."""
        key = (code, array.memory.base)
        if at.__class__ is not PerBlock:
            if array.memory.space != "shared":
                _, known = self._shifts.setdefault(key, (at, self._nowhere))
                if known is not self._nowhere:
                    self.left &= known == 0
            return at
        shift = (at.others - at.plain) * array.itemsize
        if array.memory.space == "shared":
            self.left &= shift == 0
            return at.plain
        first, known = self._shifts.setdefault(key, (at.plain, shift))
        if known is not shift:
            self.left &= shift == known
        if first != at.plain:
            lines = goes_past_l1(array.runtime.log.sites[code])
            self.left &= shift % (LINE_BYTES if lines else SECTOR_BYTES) == 0
        return at.plain

    def loaded(self, array, at, value):
        """An integer read at element `at`, as it is in all blocks."""
        memory, first = array.memory, at * array.itemsize
        if memory.unknown is None:
            self._read.add(memory.base)
            self._orders(memory)
        elif any(memory.unknown[first : first + array.itemsize]):
            self.leaked(f"an integer that was written to {memory.name}")
        if at.__class__ is not PerBlock:
            return value
        everything = array.flat()
        others = everything[np.clip(at.others, 0, len(everything) - 1)].astype(np.int64)
        return PerBlock(value, others, self)

    def stored(self, array, at: int, size: int, code: int = 0, value=None) -> None:
        """Note what was written: in the running block, element `at` and `size` bytes from it on.

        Only known integers may be read again: from shared memory where they were written last, from
        global memory where no block writes.
        """
        memory = array.memory
        if memory.unknown is None:
            self._written.add(memory.base)
            self._orders(memory)
            return
        known = code in self.known_stores and value.__class__ is not PerBlock
        first = at * array.itemsize
        memory.unknown[first : first + size] = (b"\0" if known else b"\1") * size

    def _orders(self, memory) -> None:
        if memory.base in self._read and memory.base in self._written:
            self.leaked(f"integers of {memory.name}, which the kernel reads and writes,")
