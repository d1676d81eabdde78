"""On chip: tiles, and the SRAM that holds them.

SRAM has a capacity in bytes; the tile that does not fit raises and lists what is resident.
Registers hold what a thread block keeps closest; they are tracked apart and never counted as SRAM.
"""

from __future__ import annotations

import warnings
from typing import Any

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


def extent(part: slice) -> int:
    """How many rows or columns a slice covers."""
    return part.stop - part.start


class Tile:
    """A block of values on chip.

    Attributes
    ----------
    name : str
        The tensor or value it holds, such as ``"K"`` or ``"S"``.
    space : str
        SRAM or REGISTERS.
    shape : tuple of one or two ints
    data : float32 array or None
    owner : Tile
        The tile whose memory this is: itself, or the one it is a view of.
    alive, used : bool
        Of the owner: not yet freed; read by at least one operation.
    """

    __slots__ = ("alive", "data", "itemsize", "name", "owner", "shape", "size", "space", "used")

    def __init__(self, name, space, shape, itemsize=4, data=None, owner=None):
        self.name, self.space, self.shape, self.itemsize = name, space, shape, itemsize
        self.size = shape[0] * shape[1] if len(shape) == 2 else shape[0]
        self.data: Any = data
        self.owner: Tile = owner or self
        self.alive, self.used = True, False

    def __str__(self) -> str:
        """As in an error: ``K (64x32)``."""
        return f"{self.name} ({describe(self.shape)})"

    @property
    def nbytes(self) -> int:
        """Bytes it occupies."""
        return self.size * self.itemsize

    @property
    def T(self) -> Tile:
        """The same tile read with rows and columns exchanged; costs nothing."""
        return self.view(None if self.data is None else self.data.T, self.shape[::-1])

    def view(self, data, shape: tuple[int, ...] | None = None) -> Tile:
        """The same memory read as `data`: each read counts, nothing else is occupied."""
        return Tile(self.name, self.space, shape or self.shape, self.itemsize, data, self.owner)

    def _refuse(self, _) -> Any:
        raise TypeError(
            f"tile {self} is multiplied by gpu.product and changed by gpu.compute, which count "
            "what that moves"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __matmul__ = __rmatmul__ = _refuse


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
            raise TileError(f"tile {tile} is freed but not resident")
        tile.alive = False
        self.used -= tile.nbytes
        if not tile.used:
            warnings.warn(
                f"tile {tile} was loaded but never used",
                UnusedTile,
                stacklevel=3,
            )

    def listing(self) -> str:
        """The resident tiles with their sizes."""
        tiles = self.resident.values()
        return ", ".join(f"{t.name} {describe(t.shape)} {t.nbytes:,} bytes" for t in tiles)
