"""HBM: the tensors of one run, and which thread block has written which part of them."""

from __future__ import annotations

import numpy as np

from .memory import TileError, describe

LAYOUT = {
    "Q": ("head", "q", "d"),
    "K": ("k", "d"),
    "V": ("k", "v"),
    "O": ("head", "q", "v"),
    "LSE": ("head", "q"),
    "m": ("head", "q"),
    "l": ("head", "q"),
    "S": ("head", "q", "k"),
    "P": ("head", "q", "k"),
    "mask": ("head", "q", "k"),
    "dropout": ("head", "q", "k"),
    "dO": ("head", "q", "v"),
    "dLSE": ("head", "q"),
    "delta": ("head", "q"),
    "dP": ("head", "q", "k"),
    "dS": ("head", "q", "k"),
    "dQ": ("head", "q", "d"),
    "dK": ("k", "d"),
    "dV": ("k", "v"),
}
"""Axes of the tensors in HBM: query heads that share one kv head, rows, columns."""

ITEMSIZE = {"LSE": 4, "m": 4, "l": 4, "dLSE": 4, "delta": 4, "mask": 1, "dropout": 1}
"""Bytes an element of the tensors that do not have the problem's dtype."""

_KERNEL = 32
"""Bits of a writer's mark below the kernel's number."""


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
    given : bool
        True if it was there before the run began.
    """

    __slots__ = ("data", "given", "itemsize", "name", "shape", "writers")

    def __init__(self, name, shape, itemsize, data=None, given=False):
        self.name, self.shape, self.itemsize = name, shape, itemsize
        self.data, self.given = data, given
        self.writers: np.ndarray | None = None

    def __getitem__(self, index) -> Region:
        return Region(self, index if isinstance(index, tuple) else (index,))


class Region:
    """Part of a tensor: whole numbers pick one entry of an axis, slices a range of it."""

    __slots__ = ("index", "shape", "size", "tensor")

    def __init__(self, tensor: Tensor, index: tuple):
        self.tensor, self.index = tensor, index
        shape = [s.stop - s.start for s in index if type(s) is slice]
        shape += tensor.shape[len(index) :]
        self.shape = tuple(shape)
        size = 1
        for extent in shape:
            size *= extent
        self.size = size

    def __str__(self) -> str:
        """As in an error: ``dQ[0, 64:128]``."""
        parts = (f"{i.start}:{i.stop}" if isinstance(i, slice) else str(i) for i in self.index)
        return f"{self.tensor.name}[{', '.join(parts)}]"


class Hbm:
    """The tensors by name, and the checks that blocks of one kernel do not race.

    Blocks of a kernel run in any order: none may store to, or read, what another one stores.

    Parameters
    ----------
    sizes : dict of str to int
        Length of each axis that `LAYOUT` names.
    default_itemsize : int
        Bytes of an element in the problem's dtype.
    data : dict of str to float32 array, optional
        Tensors that are there already, shaped as `LAYOUT` says; those that a program makes are
        added, filled with NaN. None = count only.
    """

    def __init__(self, sizes: dict[str, int], default_itemsize: int, data: dict | None):
        self.sizes, self.default_itemsize, self.data = sizes, default_itemsize, data
        self._tensors: dict[str, Tensor] = {}

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`; "dropped P" is a second tensor that counts as P."""
        found = self._tensors.get(name)
        if found is None:
            found = self._tensors[name] = self._made(name)
        return found

    def itemsize(self, name: str) -> int:
        """Bytes of an element of what is called `name`."""
        return ITEMSIZE.get(name, self.default_itemsize)

    def _made(self, name: str) -> Tensor:
        counted_as = name.split()[-1]
        if counted_as not in LAYOUT:
            raise TileError(f"tensor must be one of {', '.join(LAYOUT)}; got {name!r}")
        shape = tuple(self.sizes[axis] for axis in LAYOUT[counted_as])
        itemsize = self.itemsize(counted_as)
        if self.data is None:
            return Tensor(counted_as, shape, itemsize)
        given = name in self.data
        if not given:
            self.data[name] = np.full(shape, np.nan, np.float32)
        return Tensor(counted_as, shape, itemsize, self.data[name], given)

    def check_read(self, region: Region, kernel: int, block: int) -> None:
        """Raise unless the whole region was written, and not by another block of this kernel."""
        tensor = region.tensor
        writers = tensor.writers
        if writers is None:
            if tensor.data is None or tensor.given:
                return
            raise TileError(f"{region} is read but nothing has written it")
        before = writers[region.index[: writers.ndim]]
        if not tensor.given and (before == -1).any():
            raise TileError(f"{region} is read but nothing has written all of it")
        self._check_race(region, "reads", before, kernel, block)

    def note_write(self, region: Region, kernel: int, block: int) -> None:
        """Raise if another block of this kernel stores there too; else remember who did."""
        tensor, index = region.tensor, region.index
        writers = tensor.writers
        if writers is None:
            writers = tensor.writers = np.full(tensor.shape[: len(index)], -1, np.int64)
        index = index[: writers.ndim]
        self._check_race(region, "stores to", writers[index], kernel, block)
        writers[index] = (kernel << _KERNEL) + block

    def _check_race(self, region: Region, does: str, before, kernel: int, block: int) -> None:
        clash = (before >> _KERNEL == kernel) & (before != (kernel << _KERNEL) + block)
        if clash.any():
            other = int(before[clash].flat[0]) & ((1 << _KERNEL) - 1)
            raise TileError(
                f"block {block} {does} {region} ({describe(region.shape)}), which block {other} of "
                "the same kernel stores to: blocks run in any order; use accumulate to add up"
            )
