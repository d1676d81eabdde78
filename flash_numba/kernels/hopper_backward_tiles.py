"""Tile sizes of the Hopper backward kernel, and where things lie in a block's shared memory."""

from typing import NamedTuple

from ..device.hopper.layouts import SwizzledTile
from ..problem import Problem
from .spec import padded

NARROW = 128
"""Up to this head dimension dK and dV of 64 keys fit into the registers of a warpgroup."""

FULL_TILES = {128: {80: 1.0, 64: 1.02}, 64: {128: 1.0, 96: 1.1}}
"""Queries of a tile without a mask, and what a query costs in it; by the wider head dimension."""

BACKWARDS_FROM = 4096
"""Keys from which on wide heads under a causal mask walk the queries from the last one back."""


class BackwardOffsets(NamedTuple):
    """Where things begin in a block's shared memory, in 16-bit elements; K begins at 0.

    Attributes
    ----------
    v, q, do, ds : int
        `stages` tiles of Q and dO, `ds_places` of dS.
    rows : int
        lse and delta of the queries, in float32.
    p : int
        P in float32, in the order of registers, where consumers exchange it; else nothing.
    """

    v: int
    q: int
    do: int
    ds: int
    rows: int
    p: int = 0


class HopperBackwardTiles(NamedTuple):
    """How a block of one producer and two consumer warpgroups of 64 keys each works.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to 64 or 128; the copy engine fills in zeros.
    tile_m : int
        Queries of a tile, a multiple of 16.
    stages : int
        Q tiles, and dO tiles, that may be in shared memory: two.
    """

    depth: int
    depth_v: int
    tile_m: int = 64
    stages: int = 2

    warpgroups, tile_n, threads, panel, backwards = 2, 128, 384, 64, False
    asks_ahead = True
    """Whether keepers of turns ask for the next one while a consumer adds."""
    ds_places = 3
    """Tiles of dS in shared memory: one that is written, and two that may still be read."""

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread of the producer's warpgroup, and of a consumer's."""
        wide = self.tile_m > (64 if self.depth == 128 else 96)
        return (24, 240) if wide else (40, 232)

    @property
    def k_tile(self) -> SwizzledTile:
        """A consumer's part of K, and of dK."""
        return SwizzledTile(64, self.depth)

    @property
    def v_tile(self) -> SwizzledTile:
        """A consumer's part of V, and of dV."""
        return SwizzledTile(64, self.depth_v)

    @property
    def q_tile(self) -> SwizzledTile:
        """One stage of Q."""
        return SwizzledTile(self.tile_m, self.depth)

    @property
    def do_tile(self) -> SwizzledTile:
        """One stage of dO."""
        return SwizzledTile(self.tile_m, self.depth_v)

    @property
    def ds_tile(self) -> SwizzledTile:
        """dS: rows are queries, a panel is a consumer's keys. dK and dV leave through its place."""
        return SwizzledTile(max(self.tile_m, 64), self.tile_n)

    @property
    def q_columns(self) -> int:
        """Queries of a consumer's part of dQ transposed; 64 columns of Q are its rows.

        With 128 columns each consumer has half of them, with 64 half of the queries.
        """
        return self.tile_m if self.depth == 128 else self.tile_m // 2

    @property
    def offsets(self) -> BackwardOffsets:
        """Where things lie in shared memory."""
        v = 2 * self.k_tile.size
        q = v + 2 * self.v_tile.size
        do = q + self.stages * self.q_tile.size
        ds = do + self.stages * self.do_tile.size
        return BackwardOffsets(v, q, do, ds, rows=ds + self.ds_places * self.ds_tile.size)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 2 * self.offsets.rows + 4 * self.stages * 2 * self.tile_m

    @property
    def barriers(self) -> dict[str, int]:
        """The first barrier of each kind: a tile "is here", or we are "done" with it."""
        stages = self.stages
        return {
            "k": 0,
            "v": 1,
            "q": 2,
            "do": 2 + stages,
            "q done": 2 + 2 * stages,
            "do done": 2 + 3 * stages,
            "keys done": 2 + 4 * stages,
        }


class WideBackwardTiles(NamedTuple):
    """How a block of one producer and two consumers with the same 64 keys works.

    dK and dV of 64 keys and 256 columns fill the registers of two warpgroups.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to multiples of 64; the copy engine fills in zeros.
    stages : int
        As in `HopperBackwardTiles`.
    backwards : bool
        If parts of dQ are added in order, key tiles are taken, and add, from the first one on, and
        each begins with the last query tile.
    """

    depth: int
    depth_v: int
    stages: int = 2
    backwards: bool = False

    tile_m, tile_n, threads = 64, 64, 384
    registers = 24, 240
    asks_ahead = False
    ds_places = 2
    """Tiles of dS in shared memory: one that is written, and one that may still be read."""

    @property
    def panel(self) -> int:
        """Columns of a panel: each consumer has half of the panels of dQ."""
        return 64 if self.depth % 128 == 0 else 32

    @property
    def k_tile(self) -> SwizzledTile:
        """K, and dK."""
        return SwizzledTile(64, self.depth, self.panel)

    @property
    def v_tile(self) -> SwizzledTile:
        """V, and dV."""
        return SwizzledTile(64, self.depth_v, self.panel)

    @property
    def half_tile(self) -> SwizzledTile:
        """The columns of K that are those of a consumer's part of dQ."""
        return SwizzledTile(64, self.depth // 2, self.panel)

    @property
    def q_tile(self) -> SwizzledTile:
        """One stage of Q."""
        return self.k_tile

    @property
    def do_tile(self) -> SwizzledTile:
        """One stage of dO."""
        return self.v_tile

    @property
    def ds_tile(self) -> SwizzledTile:
        """dS: rows are queries, columns keys."""
        return SwizzledTile(64, 64)

    @property
    def q_columns(self) -> int:
        """Columns of a consumer's part of dQ."""
        return self.depth // 2

    @property
    def offsets(self) -> BackwardOffsets:
        """Where things lie in shared memory.

        P is as large as two places of dS. Afterwards dV and dK leave through them.
        """
        v = self.k_tile.size
        q = v + self.v_tile.size
        do = q + self.stages * self.q_tile.size
        ds = do + self.stages * self.do_tile.size
        p = ds + self.ds_places * self.ds_tile.size
        return BackwardOffsets(v, q, do, ds, rows=p + 2 * self.ds_tile.size, p=p)

    shared_bytes, barriers = HopperBackwardTiles.shared_bytes, HopperBackwardTiles.barriers

    def out_panels(self, tile: SwizzledTile) -> int:
        """Panels of dK or dV that leave at a time: as many as fit into the place of P, or of dS."""
        fit = 4 * self.ds_tile.size // (64 * 2 * self.panel)
        return max(n for n in range(1, fit + 1) if tile.panels % n == 0)


BackwardTiles = HopperBackwardTiles | WideBackwardTiles


def hopper_backward_tiles(problem: Problem) -> BackwardTiles:
    """The tiles of the backward kernel."""
    depth, depth_v = padded(problem.head_dim, 64), padded(problem.head_dim_v, 64)
    widest = max(depth, depth_v)
    if widest > NARROW:
        return WideBackwardTiles(
            depth, depth_v, backwards=problem.causal and problem.seqlen_k >= BACKWARDS_FROM
        )
    busy = problem.dropout_p > 0 or problem.score_mods or problem.softmax_scale <= 0
    if busy:  # their registers want smaller tiles
        return HopperBackwardTiles(depth, depth_v, 32 if widest == 128 else 64)
    if is_masked(problem):
        return HopperBackwardTiles(depth, depth_v, 64 if widest == 128 else 128)
    # A tile counts whole, also where the sequence ends within it.
    choices = FULL_TILES[widest]
    tile_m = min(choices, key=lambda rows: padded(problem.seqlen_q, rows) * choices[rows])
    return HopperBackwardTiles(depth, depth_v, tile_m)


def is_masked(problem: Problem) -> bool:
    """Whether key tiles may be of different lengths, or cut."""
    return problem.visibility is not None or problem.block_mask is not None
