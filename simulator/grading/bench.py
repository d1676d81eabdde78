"""The machine that an answer runs on: it counts by source line, and keeps blocks apart."""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from .. import machine
from ..hbm import LAYOUT, Region, Tensor
from ..ledger import Ledger
from ..memory import Tile, TileError, describe
from .cases import Case

WHOLE_MATRIX = ("head", "q", "k")
_OWN = machine.__file__, __file__


def calling_line() -> tuple[str, int]:
    """File and line of the program that is calling the machine."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in _OWN:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def check_axes(line: str, region: Region) -> None:
    """Raise if a tensor is not indexed by head, rows and columns, as far as it has them."""
    name = region.tensor.name
    axes = LAYOUT[name]
    how = ["head"] * ("head" in axes) + ["rows"] * ("q" in axes) + ["cols"] * ("k" in axes)
    told = f"index it as {name}[{', '.join(how)}], with slices for all but the head"
    if ("head" in axes) == (type(region.index[0]) is slice):
        why = f"{name} has heads" if "head" in axes else f"the heads of a block share {name}"
        raise TileError(f"{line}: {why}: {told}")


class LineLedger(Ledger):
    """A ledger that also knows which line of the program moved what.

    Attributes
    ----------
    lines : dict of (direction, tensor) to dict of (file, line) to elements
    """

    def __init__(self):
        super().__init__()
        self.lines: dict[tuple[str, str], dict[tuple[str, int], int]] = {}

    def read(self, tensor, elements: int) -> None:
        """HBM read of `elements` elements of `tensor`."""
        super().read(tensor, elements)
        self._note("reads", tensor.name, elements)

    def write(self, tensor, elements: int) -> None:
        """HBM write of `elements` elements of `tensor`."""
        super().write(tensor, elements)
        self._note("writes", tensor.name, elements)

    def _note(self, direction: str, name: str, elements: int) -> None:
        places = self.lines.setdefault((direction, name), defaultdict(int))
        places[calling_line()] += elements

    def dearest(self, direction: str, name: str) -> tuple[str, int] | None:
        """The file and line that moved most of a tensor."""
        places = self.lines.get((direction, name))
        return max(places, key=lambda place: places[place]) if places else None


class Bench(machine.Machine):
    """`simulator.machine.Machine`, with two more rules.

    Nothing of N x M elements lies in HBM unless the puzzle gives or asks for it, and what is in
    registers or SRAM ends with its thread block.

    Parameters
    ----------
    case : Case
    data : dict of str to float32 array
        What is in HBM.
    allowed : collection of str
        Tensors of N x M elements that the puzzle has.
    sram_bytes : int
        Capacity of SRAM.
    """

    def __init__(self, case: Case, data, allowed, sram_bytes: int):
        super().__init__(
            case.problem,
            case.B_r,
            case.B_c,
            heads=range(case.heads),
            data=data,
            sram_bytes=sram_bytes,
        )
        self.ledger = self.by_line = LineLedger()
        self.allowed = allowed
        self.register_lines: dict[tuple[str, int], int] = {}
        self._homes: dict[int, tuple[Tile, tuple[int, int]]] = {}

    def tensor(self, name: str) -> Tensor:
        """The tensor `name` in HBM."""
        if LAYOUT.get(name) == WHOLE_MATRIX and name not in self.allowed:
            raise TileError(
                f"puts {name} into HBM, an intermediate of N x M elements: keep its tiles on chip"
            )
        return super().tensor(name)

    def load(self, line: str, region: Region) -> Tile:
        """HBM -> SRAM."""
        check_axes(line, region)
        return self._mine(super().load(line, region))

    def store(self, line: str, region: Region, tile: Tile) -> None:
        """On chip -> HBM."""
        check_axes(line, region)
        super().store(line, region, tile)

    def in_registers(self, name, shape, fill=None) -> Tile:
        """A tile in registers."""
        tile = self._mine(super().in_registers(name, shape, fill))
        place = calling_line()
        self.register_lines[place] = max(tile.nbytes, self.register_lines.get(place, 0))
        return tile

    def in_sram(self, name, shape, fill=None) -> Tile:
        """A tile in SRAM."""
        return self._mine(super().in_sram(name, shape, fill))

    def compute(self, line: str, into, of, function, exp: int = 0) -> None:
        """Elementwise work or row reductions, whose results must fill their tiles."""
        if isinstance(into, Tile) or isinstance(of, Tile):
            raise TileError(f"{line}: results and operands are tuples of tiles, as in (rO,)")
        super().compute(line, into, of, function, exp)
        for tile in into:
            if np.size(tile.data) not in (1, tile.size):
                raise TileError(f"{line}: tile {tile} is given {describe(tile.data.shape)} values")

    def _mine(self, tile: Tile) -> Tile:
        self._homes[id(tile)] = tile, (len(self.kernels), self._block)
        return tile

    def _read(self, line: str, tile: Tile) -> int:
        self._check_home(line, tile)
        return super()._read(line, tile)

    def _written(self, line: str, tile: Tile) -> int:
        self._check_home(line, tile)
        return super()._written(line, tile)

    def _check_home(self, line: str, tile: Tile) -> None:
        _, home = self._homes.get(id(tile.owner), (None, None))
        if home != (len(self.kernels), self._block):
            raise TileError(f"{line}: tile {tile} belongs to another thread block")
