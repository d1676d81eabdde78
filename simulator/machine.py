"""The machine that programs run on: HBM, one SRAM, registers, and a ledger that misses nothing.

A program says what happens (`load`, `product`, `compute`, `store`, `free`) while it walks over tiles
(`query_tile_grid`, `key_tiles`, ...); the machine moves the data, counts, checks and records.

Three ways to run the same program text:

- with data: every operation computes in float32;
- without data: counts alone;
- without data and without a log: neighbouring tiles of one size and class are walked once and
  counted as often as they occur, so a million tokens take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flash_numba.dropout import keep_mask
from flash_numba.problem import Problem
from flash_numba.scores import apply_scores, aux_totals, score_gradient
from flash_numba.tiling import FULL

from . import events as ev
from .memory import REGISTERS, SRAM, Region, Sram, Tensor, Tile, TileError, blank, describe
from .walk import Walk

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

FOUR_BYTES = ("LSE", "m", "l", "dLSE", "delta")
"""Tensors kept in fp32 whatever the problem's dtype."""


class Machine(Walk):
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
        Inputs in HBM by tensor name, shaped as `LAYOUT` says; None = count only.
    sram_bytes : int, optional
        Capacity of SRAM; None = unlimited.
    lse_gradient : bool
        True if lse has a gradient too, in tensor dLSE (backward).
    lines : dict of str to sequence of str
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
        heads=(0,),
        data: dict[str, np.ndarray] | None = None,
        sram_bytes: int | None = None,
        lse_gradient: bool = False,
        lines: dict[str, Sequence[str]] | None = None,
        log: ev.EventLog | None = None,
    ):
        super().__init__(problem, tile_m, tile_n, batch, heads, data is None and log is None)
        self.problem, self.batch = problem, batch
        self.scale, self.lse_gradient = problem.softmax_scale, lse_gradient
        self.d, self.v = problem.head_dim, problem.head_dim_v
        self.data, self.log = data, log
        self.sram = Sram(sram_bytes)
        self.registers: dict[str, int] = {}
        self.register_peak = 0
        self.tensors: dict[str, Tensor] = {}
        self.aux_totals = aux_totals(problem) if data is not None else None
        pairs = [(kernel, line) for kernel, group in (lines or {}).items() for line in group]
        self._line_index = {pair: number for number, pair in enumerate(pairs)}
        self._line = 0
        self._writers: dict[str, np.ndarray] = {}
        self._watching: dict[str, Tile] = {}

    # Tensors and tiles

    def tensor(self, name: str) -> Tensor:
        """The tensor `name` in HBM; one that was not handed in is made, filled with NaN."""
        found = self.tensors.get(name)
        if found is None:
            sizes = {
                "head": len(self.heads),
                "q": self.seqlen_q,
                "k": self.seqlen_k,
                "d": self.d,
                "v": self.v,
            }
            shape = tuple(sizes[axis] for axis in LAYOUT[name])
            itemsize = 4 if name in FOUR_BYTES else self.problem.itemsize
            data = None
            if self.data is not None:
                data = self.data.get(name)
                if data is None:
                    data = self.data[name] = blank(shape)
            found = self.tensors[name] = Tensor(name, shape, itemsize, data)
        return found

    def in_registers(self, name: str, shape: tuple[int, ...], fill: float | None = None) -> Tile:
        """A tile in registers (fp32), filled with a constant or left empty."""
        data = None
        if self.data is not None and fill is not None:
            data = np.full(shape, fill, np.float32)
        tile = Tile(name, REGISTERS, shape, 4, data)
        self.registers[name] = tile.nbytes
        if self.log is not None:
            self._record(ev.REGISTER, None, tile)
        return tile

    def in_sram(self, name: str, shape: tuple[int, ...], fill: float | None = None) -> Tile:
        """A tile in SRAM in the problem's dtype; a constant fill stores it once."""
        data = None
        if self.data is not None and fill is not None:
            data = np.full(shape, fill, np.float32)
        tile = Tile(name, SRAM, shape, self.problem.itemsize, data)
        self.sram.put(tile)
        stored = tile.size if fill is not None else 0
        self.ledger.sram_store += stored * self.ledger.times
        if self.log is not None:
            self._record(ev.FILL, None, tile, sram_store=stored)
        return tile

    # Operations

    def load(self, line: str, region: Region) -> Tile:
        """HBM -> SRAM: read once an element, stored once an element."""
        tensor = region.tensor
        data = None
        if tensor.data is not None:
            data = np.ascontiguousarray(tensor.data[region.index])
        tile = Tile(tensor.name, SRAM, region.shape, tensor.itemsize, data)
        self.sram.put(tile)
        self.ledger.read(tensor, region.size)
        self.ledger.sram_store += region.size * self.ledger.times
        if self.log is not None:
            self._record(ev.LOAD, line, tile, hbm_read=region.size, sram_store=region.size)
        return tile

    def store(self, line: str, region: Region, tile: Tile) -> None:
        """On chip -> HBM: written once an element (loaded once if the tile lives in SRAM)."""
        loaded = self._sram_read(tile)
        self._check_shapes(line, region, tile)
        self._claim(region)
        if region.tensor.data is not None:
            region.tensor.data[region.index] = tile.data
        self.ledger.write(region.tensor, region.size)
        if self.log is not None:
            self._record(ev.STORE, line, tile, region, hbm_write=region.size, sram_load=loaded)

    def fill(self, line: str, region: Region, value: float) -> None:
        """Store a constant from registers."""
        self._claim(region)
        if region.tensor.data is not None:
            region.tensor.data[region.index] = value
        self.ledger.write(region.tensor, region.size)
        if self.log is not None:
            self._record(ev.STORE, line, None, region, hbm_write=region.size)

    def accumulate(self, line: str, region: Region, tile: Tile) -> None:
        """Atomic add into HBM: read and written once an element; several blocks may do it."""
        loaded = self._sram_read(tile)
        self._check_shapes(line, region, tile)
        if region.tensor.data is not None:
            region.tensor.data[region.index] += tile.data
        self.ledger.read(region.tensor, region.size)
        self.ledger.write(region.tensor, region.size)
        self.ledger.add_flops += region.size * self.ledger.times
        if self.log is not None:
            self._record(
                ev.ACCUMULATE,
                line,
                tile,
                region,
                hbm_read=region.size,
                hbm_write=region.size,
                sram_load=loaded,
            )

    def product(
        self, line: str, into: Tile, a: Tile, b: Tile, *, scale: float = 1.0, add: bool = False
    ) -> None:
        """``into = scale * a @ b``, or ``into += ...`` with `add`."""
        if a.shape[1] != b.shape[0] or into.shape != (a.shape[0], b.shape[1]):
            raise TileError(
                f"{line}: {into.name} {describe(into.shape)} cannot hold the product of "
                f"{a.name} {describe(a.shape)} and {b.name} {describe(b.shape)}"
            )
        loaded = self._sram_read(a) + self._sram_read(b) + (self._sram_read(into) if add else 0)
        stored = self._sram_written(into)
        if self.data is not None:
            result = a.data @ b.data
            if scale != 1.0:
                result *= np.float32(scale)
            into.data = into.data + result if add else result
        flops = 2 * into.size * a.shape[1]
        self.ledger.matmul_flops += flops * self.ledger.times
        if self.log is not None:
            self._record(
                ev.PRODUCT, line, into, sram_load=loaded, sram_store=stored, matmul_flops=flops
            )

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
        loaded = 0
        for tile in of:
            loaded += self._sram_read(tile)
        stored = 0
        for tile in into:
            stored += self._sram_written(tile)
        if self.data is not None:
            results = function(*[tile.data for tile in of])
            for tile, result in zip(into, results if len(into) > 1 else (results,), strict=True):
                tile.data = result
        self.ledger.exp_count += exp * self.ledger.times
        if self.log is not None:
            self._record(
                ev.COMPUTE, line, into[0], sram_load=loaded, sram_store=stored, exp_count=exp
            )

    def free(self, *tiles: Tile) -> None:
        """Give SRAM back."""
        for tile in tiles:
            self.sram.free(tile)
            if self.log is not None:
                self._record(ev.FREE, None, tile)

    def watch(self, **tiles: Tile) -> None:
        """Keep the values of these tiles in the log at the end of every tile step of this block."""
        if self.log is not None and self.data is not None:
            self._watching = tiles

    # Score changes, masks and dropout of the tile at hand (they work in place and count nothing)

    def change_scores(self, line: str, rS: Tile, head: int, rows: slice, cols: slice) -> tuple:
        """Change and mask the scores of one tile; returns the chain for `score_gradient`."""
        masked = self._kind != FULL and self.problem.visibility is not None
        if not masked and not self.problem.score_mods:
            return ()
        chain = ()
        if self.data is not None:
            where = self.batch, self.heads[head], *positions(rows, cols)
            rS.data, chain = apply_scores(self.problem, *where, rS.data, masked=masked)
        if self.log is not None:
            self._record(ev.COMPUTE, line, rS)
        return chain

    def score_gradient(self, d_scores: np.ndarray, chain, head: int, rows: slice, cols: slice):
        """`flash_numba.scores.score_gradient` on one tile, softmax_scale included."""
        where = self.batch, self.heads[head], *positions(rows, cols)
        raw = score_gradient(self.problem, *where, d_scores, chain, self.aux_totals)
        return raw * np.float32(self.scale)

    def drop(self, tile: Tile, head: int, rows: slice, cols: slice) -> Tile:
        """The tile after dropout: dropped weights 0, the others times 1 / (1 - p)."""
        p = self.problem.dropout_p
        if p == 0:
            return tile
        kept = self.in_registers(tile.name, tile.shape)
        if self.data is not None:
            batch_head = self.batch * self.problem.num_heads + self.heads[head]
            keep = keep_mask(self.problem.seed, batch_head, *positions(rows, cols), p)
            kept.data = np.where(keep, tile.data / np.float32(1 - p), np.float32(0))
        return kept

    # Bookkeeping

    def _sram_read(self, tile: Tile) -> int:
        tile.read()
        if tile.space is not SRAM:
            return 0
        self.ledger.sram_load += tile.size * self.ledger.times
        return tile.size

    def _sram_written(self, tile: Tile) -> int:
        if tile.space is not SRAM:
            return 0
        if not tile.alive:
            raise TileError(
                f"tile {tile.name} ({describe(tile.shape)}) is written but not resident"
            )
        self.ledger.sram_store += tile.size * self.ledger.times
        return tile.size

    def _check_shapes(self, line: str, region: Region, tile: Tile) -> None:
        if tile.shape != region.shape:
            raise TileError(
                f"{line}: {tile.name} {describe(tile.shape)} does not fit the part "
                f"{describe(region.shape)} of {region.tensor.name}"
            )

    def _claim(self, region: Region) -> None:
        """Two blocks of one kernel that store to the same place would race."""
        if self.count_runs:
            return
        tensor, index = region.tensor, region.index
        writers = self._writers.get(tensor.name)
        if writers is None:
            writers = np.full(tensor.shape[: len(index)], -1, np.int32)
            self._writers[tensor.name] = writers
        before = writers[index]
        clash = (before != -1) & (before != self._block)
        if clash.any():
            raise TileError(
                f"blocks {int(before[clash][0])} and {self._block} of kernel {self.kernels[-1]!r} "
                f"both store to {tensor.name}{list(index)}; use accumulate"
            )
        writers[index] = self._block

    def kernel(self, name: str) -> None:
        """A new kernel begins: outputs of the one before may be overwritten."""
        super().kernel(name)
        self._writers.clear()

    def end_block(self) -> None:
        """Check that the block freed its tiles, and note its peaks."""
        if self.sram.resident:
            raise TileError(f"the block ends but tiles are not freed: {self.sram.listing()}")
        self.register_peak = max(self.register_peak, sum(self.registers.values()))
        self.registers.clear()
        self._watching = {}

    def end_step(self) -> None:
        """Keep the watched values."""
        if self._watching:
            self.log.watched[len(self.log) - 1] = {
                name: tile.data[:, : ev.WATCHED_COLUMNS].copy()
                if tile.data.ndim == 2
                else tile.data
                for name, tile in self._watching.items()
            }

    def _record(self, op, line, tile, region=None, **cost) -> None:
        if line is not None:
            self._line = self._line_index[self.kernels[-1], line]
        shape = region.shape if region is not None else tile.shape
        name = region.tensor.name if region is not None else tile.name
        self.log.append(
            (
                op,
                self._line,
                self.log.name_index(name),
                shape[0],
                shape[1] if len(shape) > 1 else 0,
                tile.nbytes if tile is not None else 0,
                int(tile is not None and tile.space is SRAM),
                len(self.kernels) - 1,
                self._block,
                self._head,
                self._m_block,
                self._n_block,
                cost.get("hbm_read", 0),
                cost.get("hbm_write", 0),
                cost.get("sram_load", 0),
                cost.get("sram_store", 0),
                cost.get("matmul_flops", 0),
                cost.get("exp_count", 0),
            )
        )


def positions(rows: slice, cols: slice) -> tuple[np.ndarray, np.ndarray]:
    """Index arrays q_idx of shape (rows, 1) and k_idx of shape (1, cols)."""
    return np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)[None, :]
