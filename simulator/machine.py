"""The machine that programs run on: HBM, one SRAM, registers, and a ledger that misses nothing.

A program says what happens (`load`, `product`, `compute`, `store`, `free`) while it walks over
tiles (`query_tile_grid`, `key_tiles`, ...); the machine moves the data, counts, checks and records.

Three ways to run the same program text:

- with data: every operation computes in float32;
- without data: counts alone;
- without data and without a log: neighbouring tiles of one size and class are walked once and
  counted as often as they occur, so a million tokens take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flash_numba.problem import Problem
from flash_numba.scores import aux_totals

from . import events as ev
from .hbm import Hbm, Region, Tensor
from .memory import REGISTERS, SRAM, Sram, Tile, TileError, describe
from .recorder import Recorder
from .scoring import Scoring

NOTHING: Mapping[str, int] = {}


class Machine(Scoring):
    """One kv head of one sequence on one simulated GPU.

    Parameters
    ----------
    problem : Problem
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    batch : int
        Which sequence.
    heads : sequence of int
        Query heads that share the kv head.
    data : dict of str to float32 array, optional
        Tensors in HBM by name, shaped as `hbm.LAYOUT` says; the program's own are added. None =
        count only.
    sram_bytes : int, optional
        Capacity of SRAM; None = unlimited.
    lse_gradient : bool
        True if lse has a gradient too, in tensor dLSE (backward).
    lines : mapping of str to sequence of str
        The program's kernels, each with the lines of its algorithm.
    log : EventLog, optional
        Filled with every event.
    """

    def __init__(
        self,
        problem: Problem,
        tile_m: int,
        tile_n: int,
        *,
        batch: int = 0,
        heads: Sequence[int] = (0,),
        data: dict[str, np.ndarray] | None = None,
        sram_bytes: int | None = None,
        lse_gradient: bool = False,
        lines: Mapping[str, Sequence[str]] | None = None,
        log: ev.EventLog | None = None,
    ):
        super().__init__(problem, tile_m, tile_n, batch, heads, data is None and log is None)
        self.scale, self.lse_gradient = problem.softmax_scale, lse_gradient
        self.d, self.v = problem.head_dim, problem.head_dim_v
        self.data = data
        sizes = {
            "head": len(self.heads),
            "q": self.seqlen_q,
            "k": self.seqlen_k,
            "d": self.d,
            "v": self.v,
        }
        self.hbm = Hbm(sizes, problem.itemsize, data)
        self.sram = Sram(sram_bytes)
        self.registers: dict[str, int] = {}
        self.register_peak = 0
        self.aux_totals = aux_totals(problem) if data is not None else None
        self.recorder = None if log is None else Recorder(log, lines or {})

    # Tensors and tiles

    def tensor(self, name: str) -> Tensor:
        """The tensor `name` in HBM; one that was not handed in is made, filled with NaN."""
        tensor = self.hbm.tensor(name)
        if name == "mask" and tensor.data is not None and not tensor.given:
            for head in range(len(self.heads)):
                tensor.data[head] = self.visible(head, self.all_rows, self.all_cols)
            tensor.given = True
        return tensor

    def in_registers(self, name: str, shape: tuple[int, ...], fill: float | None = None) -> Tile:
        """A tile in registers (fp32), filled with a constant or left empty."""
        tile = Tile(name, REGISTERS, shape, 4, self._filled(shape, fill))
        self.registers[name] = tile.nbytes
        if self.recorder is not None:
            self._record(ev.REGISTER, None, tile)
        return tile

    def in_sram(self, name: str, shape: tuple[int, ...], fill: float | None = None) -> Tile:
        """A tile in SRAM in the tensor's element type; a constant fill stores it once."""
        tile = Tile(name, SRAM, shape, self.hbm.itemsize(name), self._filled(shape, fill))
        self.sram.put(tile)
        stored = tile.size if fill is not None else 0
        self.ledger.sram_store += stored * self.ledger.times
        if self.recorder is not None:
            self._record(ev.FILL, None, tile, cost={"sram_store": stored})
        return tile

    def _filled(self, shape: tuple[int, ...], fill: float | None) -> np.ndarray | None:
        if self.data is None or fill is None:
            return None
        return np.full(shape, fill, np.float32)

    # Operations

    def load(self, line: str, region: Region) -> Tile:
        """HBM -> SRAM: read once an element, stored once an element."""
        tensor = region.tensor
        self._check_read(region)
        data = None if tensor.data is None else tensor.data[region.index].copy()
        tile = Tile(tensor.name, SRAM, region.shape, tensor.itemsize, data)
        self.sram.put(tile)
        self.ledger.read(tensor, region.size)
        self.ledger.sram_store += region.size * self.ledger.times
        if self.recorder is not None:
            cost = {"hbm_read": region.size, "sram_store": region.size}
            self._record(ev.LOAD, line, tile, cost=cost)
        return tile

    def store(self, line: str, region: Region, tile: Tile) -> None:
        """On chip -> HBM: written once an element (loaded once if the tile lives in SRAM)."""
        loaded = self._read(line, tile)
        self._check_shapes(line, region, tile)
        self._note_write(region)
        if region.tensor.data is not None:
            region.tensor.data[region.index] = tile.data
        self.ledger.write(region.tensor, region.size)
        if self.recorder is not None:
            cost = {"hbm_write": region.size, "sram_load": loaded}
            self._record(ev.STORE, line, tile, region, cost)

    def fill(self, line: str, region: Region, value: float) -> None:
        """Store a constant from registers."""
        self._note_write(region)
        if region.tensor.data is not None:
            region.tensor.data[region.index] = value
        self.ledger.write(region.tensor, region.size)
        if self.recorder is not None:
            self._record(ev.STORE, line, None, region, {"hbm_write": region.size})

    def accumulate(self, line: str, region: Region, tile: Tile) -> None:
        """Atomic add into HBM: read and written once an element; several blocks may do it."""
        size = region.size
        loaded = self._read(line, tile)
        self._check_shapes(line, region, tile)
        self._check_read(region)
        if region.tensor.data is not None:
            region.tensor.data[region.index] += tile.data
        self.ledger.read(region.tensor, size)
        self.ledger.write(region.tensor, size)
        self.ledger.add_flops += size * self.ledger.times
        if self.recorder is not None:
            cost = {"hbm_read": size, "hbm_write": size, "sram_load": loaded}
            self._record(ev.ACCUMULATE, line, tile, region, cost)

    def product(
        self, line: str, into: Tile, a: Tile, b: Tile, *, scale: float = 1.0, add: bool = False
    ) -> None:
        """``into = scale * a @ b``, or ``into += ...`` with `add`."""
        if a.shape[1] != b.shape[0] or into.shape != (a.shape[0], b.shape[1]):
            raise TileError(f"{line}: {into} cannot hold the product of {a} and {b}")
        loaded = self._read(line, a) + self._read(line, b) + (self._read(line, into) if add else 0)
        stored = self._written(line, into)
        if a.data is not None and b.data is not None:
            result = a.data @ b.data
            if scale != 1.0:
                result *= np.float32(scale)
            if add:
                into.data += result
            else:
                into.data = result
        flops = 2 * into.size * a.shape[1]
        self.ledger.matmul_flops += flops * self.ledger.times
        if self.recorder is not None:
            cost = {"sram_load": loaded, "sram_store": stored, "matmul_flops": flops}
            self._record(ev.PRODUCT, line, into, cost=cost)

    def compute(
        self,
        line: str,
        into: tuple[Tile, ...],
        of: tuple[Tile, ...],
        function: Callable,
        exp: int = 0,
    ) -> None:
        """Elementwise work or row reductions: ``into = function(*of)``.

        Operands in SRAM are loaded once, results in SRAM stored once; `exp` exponentials.
        """
        loaded = stored = 0
        for tile in of:
            loaded += self._read(line, tile)
        for tile in into:
            stored += self._written(line, tile)
        if self.data is not None:
            results = function(*[tile.data for tile in of])
            for tile, result in zip(
                into, results if type(results) is tuple else (results,), strict=True
            ):
                tile.data = result
        self.ledger.exp_count += exp * self.ledger.times
        if self.recorder is not None:
            cost = {"sram_load": loaded, "sram_store": stored, "exp_count": exp}
            self._record(ev.COMPUTE, line, into[0], cost=cost)

    def change_scores(
        self, line: str, rS: Tile, head: int, rows: slice, cols: slice, *, masked: bool = True
    ) -> tuple:
        """Change and mask the scores of one tile in place; the chain for `score_gradient`."""
        if not self.changes(masked):
            return ()
        chain = ()
        if rS.data is not None:
            rS.data, chain = self.changed(rS.data, head, rows, cols, masked)
        if self.recorder is not None:
            self._record(ev.COMPUTE, line, rS)
        return chain

    def free(self, *tiles: Tile) -> None:
        """Give SRAM back."""
        for tile in tiles:
            self.sram.free(tile)
            if self.recorder is not None:
                self._record(ev.FREE, None, tile)

    def watch(self, **tiles: Tile) -> None:
        """Keep the values of these tiles in the log at the end of every tile step of this block."""
        if self.recorder is not None and self.data is not None:
            self.recorder.watch(tiles)

    # Checks and bookkeeping

    def _read(self, line: str, tile: Tile) -> int:
        """Elements that reading `tile` loads from SRAM."""
        owner = tile.owner
        if not owner.alive:
            raise TileError(f"{line}: tile {tile} is read but not resident")
        if tile.data is None and self.data is not None:
            raise TileError(f"{line}: tile {tile} is read but nothing has been put into it")
        owner.used = True
        if tile.space is not SRAM:
            return 0
        self.ledger.sram_load += tile.size * self.ledger.times
        return tile.size

    def _written(self, line: str, tile: Tile) -> int:
        """Elements that writing `tile` stores to SRAM."""
        if tile.space is not SRAM:
            return 0
        if not tile.owner.alive:
            raise TileError(f"{line}: tile {tile} is written but not resident")
        self.ledger.sram_store += tile.size * self.ledger.times
        return tile.size

    def _check_shapes(self, line: str, region: Region, tile: Tile) -> None:
        if tile.shape != region.shape:
            raise TileError(
                f"{line}: tile {tile} does not fit {region}, which is {describe(region.shape)}"
            )

    def _check_read(self, region: Region) -> None:
        if not self.count_runs:
            self.hbm.check_read(region, len(self.kernels), self._block)

    def _note_write(self, region: Region) -> None:
        if not self.count_runs:
            self.hbm.note_write(region, len(self.kernels), self._block)

    def end_block(self) -> None:
        """Check that the block freed its tiles, and note its peaks."""
        if self.sram.resident:
            raise TileError(f"the block ends but tiles are not freed: {self.sram.listing()}")
        self.register_peak = max(self.register_peak, sum(self.registers.values()))
        self.registers.clear()
        self.watch()

    def end_step(self) -> None:
        """Keep the watched values."""
        if self.recorder is not None:
            self.recorder.end_step()

    def _record(
        self,
        op: int,
        line: str | None,
        tile: Tile | None,
        region: Region | None = None,
        cost: Mapping[str, int] = NOTHING,
    ) -> None:
        assert self.recorder is not None
        kernel_line = None if line is None else (self.kernels[-1], line)
        place = len(self.kernels) - 1, self._block, self._head, self._m_block, self._n_block
        self.recorder.event(place, kernel_line, op, tile, region, cost)
