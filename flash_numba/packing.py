"""A kernel's arguments as the bytes that a launch hands over."""

from __future__ import annotations

import struct

import numpy as np

from .addresses import owner_of
from .arrays import DeviceArray
from .device.hopper.tensor_map import TensorMap, encoded
from .plan import SEED, Packed, Patch

ITEMSIZE = {"fp32": 4, "fp16": 2, "bf16": 2, "float64": 8, "int64": 8, "int32": 4}
ITEMSIZE |= {"int8": 1, "bool": 1}

_WORD, _MAP_ALIGNMENT = 8, 64
_SOMEWHERE = 1 << 32
"""An address to encode a tensor map with whose own is not known yet."""


class SeedWord(np.uint64):
    """A word of dropout's seed as a kernel's argument; each run of a plan has its own."""

    name: str

    @classmethod
    def pair(cls, seed: int) -> tuple[SeedWord, SeedWord]:
        """Both words of a seed."""
        low, high = cls(seed & 0xFFFFFFFF), cls(seed >> 32)
        low.name, high.name = SEED
        return low, high


class _Block:
    """Parameters one after the other."""

    def __init__(self):
        self.data = bytearray()
        self.starts: list[int] = []
        self.patches: list[Patch] = []

    def add(self, content: bytes, alignment: int = _WORD) -> int:
        """Append a parameter; returns the word that it begins at."""
        self.data += bytes(-len(self.data) % alignment)
        self.starts.append(len(self.data))
        self.data += content
        return self.starts[-1] // _WORD

    def pack(self, argument) -> None:
        """Append an argument, which may have several parameters."""
        if isinstance(argument, DeviceArray):
            count = 1
            for size in argument.shape:
                count *= size
            name, offset = owner_of(argument.pointer)
            words = 0, 0, count, ITEMSIZE[argument.dtype], offset, *argument.shape
            first, *_ = [self.add(struct.pack("<q", x)) for x in (*words, *argument.strides)]
            if name is not None:
                self.patches.append(Patch(first + 4, name, offset))
        elif isinstance(argument, TensorMap):
            array = argument.array
            name, offset = owner_of(array.pointer)
            if name is not None:
                low = array.pointer % _SOMEWHERE
                argument = argument._replace(array=array._replace(pointer=_SOMEWHERE + low))
            word = self.add(encoded(argument), _MAP_ALIGNMENT)
            if name is not None:
                self.patches.append(Patch(word, name, offset, True))
        elif isinstance(argument, np.unsignedinteger):
            word = self.add(struct.pack("<Q", int(argument)))
            if isinstance(argument, SeedWord):
                self.patches.append(Patch(word, argument.name, 0))
        elif isinstance(argument, int):
            self.add(struct.pack("<q", argument))
        elif isinstance(argument, float):
            self.add(struct.pack("<f4x", argument))
        else:
            for part in argument:
                self.pack(part)


def pack(arguments) -> Packed:
    """Pack DeviceArrays, ints, floats (as float32), tensor maps and nested tuples of them."""
    block = _Block()
    block.pack(arguments)
    block.data += bytes(-len(block.data) % _WORD)
    return Packed(bytes(block.data), tuple(block.starts), tuple(block.patches))
