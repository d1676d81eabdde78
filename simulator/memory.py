"""The two memories of a GPU that matter here: HBM holds tensors, SRAM holds tiles.

SRAM has a capacity in bytes; the tile that does not fit raises and lists what is resident.
Registers hold what a thread block keeps closest; they are tracked apart and never counted as SRAM.
"""

from __future__ import annotations

import warnings

import numpy as np

SRAM, REGISTERS = "sram", "registers"


class SramOverflow(ValueError):
    """A tile did not fit into SRAM."""


class TileError(RuntimeError):
    """A program used a tile or tensor in a way that real memory would not survive."""


class UnusedTile(UserWarning):
    """A tile was loaded and freed without ever being used."""


def describe(shape) -> str:
    """A shape as people write it: (128, 64) -> 128x64."""
    return "x".join(str(size) for size in shape)


class Tensor:
    """A tensor in HBM; indexing it gives the `Region` that a tile is loaded from or stored to.

    Parameters
    ----------
    name : str
    shape : tuple of int
    itemsize : int
        Bytes an element, for the byte counts.
    data : float32 array of `shape`, optional
        None when only accesses are counted.
    """

    __slots__ = ("name", "shape", "itemsize", "data")

    def __init__(self, name, shape, itemsize, data=None):
        self.name, self.shape, self.itemsize, self.data = name, shape, itemsize, data

    def __getitem__(self, index) -> Region:
        return Region(self, index if isinstance(index, tuple) else (index,))


class Region:
    """Part of a tensor: whole numbers pick one entry of an axis, slices a range of it."""

    __slots__ = ("tensor", "index", "shape", "size")

    def __init__(self, tensor, index):
        self.tensor, self.index = tensor, index
        shape = [s.stop - s.start for s in index if type(s) is slice]
        shape += tensor.shape[len(index) :]
        self.shape = tuple(shape)
        size = 1
        for extent in shape:
            size *= extent
        self.size = size


class Tile:
    """A block of values on chip.

    Attributes
    ----------
    name : str
        The tensor or value it holds, such as ``"K"`` or ``"S"``.
    space : str
        SRAM or REGISTERS.
    data : float32 array or None
    alive, used : bool
        Not yet freed; read by at least one operation.
    """

    __slots__ = ("name", "space", "shape", "size", "itemsize", "data", "alive", "used", "origin")

    def __init__(self, name, space, shape, itemsize=4, data=None, origin=None):
        self.name, self.space, self.shape, self.itemsize = name, space, shape, itemsize
        self.size = shape[0] * shape[1] if len(shape) == 2 else shape[0]
        self.data = data
        self.alive, self.used = True, False
        self.origin = origin

    @property
    def nbytes(self) -> int:
        """Bytes it occupies."""
        return self.size * self.itemsize

    @property
    def T(self) -> Tile:
        """The same tile read with rows and columns exchanged; costs nothing."""
        data = None if self.data is None else self.data.T
        return Tile(
            self.name, self.space, self.shape[::-1], self.itemsize, data, self.origin or self
        )

    def read(self) -> Tile:
        """Note that an operation reads the tile; an error if it is no longer on chip."""
        owner = self.origin or self
        if not owner.alive:
            raise TileError(f"tile {self.name} ({describe(self.shape)}) is read but not resident")
        owner.used = True
        return self


class Sram:
    """Shared memory of one thread block.

    Parameters
    ----------
    capacity : int or None
        Bytes; None = no limit.
    """

    def __init__(self, capacity: int | None):
        self.capacity = capacity
        self.resident: dict[int, Tile] = {}
        self.used = 0
        self.peak = 0

    def put(self, tile: Tile) -> None:
        """Make `tile` resident."""
        used = self.used + tile.nbytes
        if self.capacity is not None and used > self.capacity:
            raise SramOverflow(
                f"tile {tile.name} ({describe(tile.shape)}, {tile.nbytes:,} bytes) does not fit: "
                f"{self.capacity - self.used:,} of {self.capacity:,} bytes of SRAM are free; "
                f"resident: {self.listing() or 'nothing'}"
            )
        self.used = used
        self.resident[id(tile)] = tile
        if used > self.peak:
            self.peak = used

    def free(self, tile: Tile) -> None:
        """Give a tile's bytes back."""
        if self.resident.pop(id(tile), None) is None:
            raise TileError(f"tile {tile.name} ({describe(tile.shape)}) is freed but not resident")
        tile.alive = False
        self.used -= tile.nbytes
        if not tile.used:
            warnings.warn(
                f"tile {tile.name} ({describe(tile.shape)}) was loaded but never used",
                UnusedTile,
                stacklevel=3,
            )

    def listing(self) -> str:
        """The resident tiles with their sizes."""
        tiles = self.resident.values()
        return ", ".join(f"{t.name} {describe(t.shape)} {t.nbytes:,} bytes" for t in tiles)


def blank(shape) -> np.ndarray:
    """A float32 array that shows where nothing was written: all NaN."""
    return np.full(shape, np.nan, np.float32)
