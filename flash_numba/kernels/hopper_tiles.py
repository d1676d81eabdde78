"""Tile sizes of the Hopper kernels, and where things lie in a block's shared memory."""

from typing import NamedTuple

from ..device.hopper.layouts import SwizzledTile
from ..problem import Problem
from .spec import padded

ALIGNMENT = 1024


class HopperTiles(NamedTuple):
    """How a block of one producer and two or three consumer warpgroups works.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to a multiple of `panel`; the copy engine fills in zeros.
    tile_n : int
        Keys of a tile, a multiple of 16 up to 256.
    warpgroups : int
        Consumers; each has 64 query rows.
    stages : int
        Key tiles, and value tiles, that may be in shared memory.
    q_stages : int
        Query tiles that may be there.
    o_panels : int
        Panels of O that leave at a time.
    panel : int
        Columns of a line in shared memory, 64 or 32.
    in_turns : bool
        Whether consumers start their products one after the other.
    late_maxima : bool
        Whether exponents take the maxima of the tiles before (`device.late_softmax`).
    """

    depth: int
    depth_v: int
    tile_n: int = 128
    warpgroups: int = 2
    stages: int = 2
    q_stages: int = 2
    o_panels: int = 1
    panel: int = 64
    in_turns: bool = False
    late_maxima: bool = False

    @property
    def tile_m(self) -> int:
        """Query rows of a block."""
        return 64 * self.warpgroups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (1 + self.warpgroups)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread; 65,536 are there for all."""
        if self.warpgroups == 3:
            return 32, 160
        return (40, 232) if self.tile_n <= 128 else (24, 240)

    @property
    def q_tile(self) -> SwizzledTile:
        """A warpgroup's part of Q."""
        return SwizzledTile(64, self.depth, self.panel)

    @property
    def k_tile(self) -> SwizzledTile:
        """One stage of K."""
        return SwizzledTile(self.tile_n, self.depth, self.panel)

    @property
    def v_tile(self) -> SwizzledTile:
        """One stage of V."""
        return SwizzledTile(self.tile_n, self.depth_v, self.panel)

    @property
    def o_tile(self) -> SwizzledTile:
        """A warpgroup's part of O."""
        return SwizzledTile(64, self.depth_v, self.panel)

    @property
    def store_rows(self) -> int:
        """Rows of O that leave together: a warp's 16, or the 64 of its warpgroup."""
        return 16 if self.depth_v == 128 else 64

    @property
    def o_words(self) -> tuple[int, int, int]:
        """Shape of what a warpgroup's part of O leaves through, as 32-bit words."""
        return self.o_panels, 64, self.panel // 2

    @property
    def barriers(self) -> dict[str, tuple[int, int]]:
        """For "q", "k", "v": the first of its barriers "is here", and of those "is done with"."""
        half = self.q_stages + 2 * self.stages
        first = {"q": 0, "k": self.q_stages, "v": self.q_stages + self.stages}
        return {name: (number, half + number) for name, number in first.items()}

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Where K, V and O begin, in 16-bit elements; Q begins at 0."""
        k_at = self.q_stages * self.warpgroups * self.q_tile.size
        v_at = k_at + self.stages * self.k_tile.size
        return k_at, v_at, v_at + self.stages * self.v_tile.size

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 2 * (self.offsets[-1] + self.warpgroups * self.o_panels * 64 * self.panel)


def hopper_tiles(problem: Problem) -> HopperTiles:
    """The tiles of the forward kernel for a problem."""
    widest = max(problem.head_dim, problem.head_dim_v)
    panel = 32 if 64 < widest <= 96 else 64
    depth, depth_v = padded(problem.head_dim, panel), padded(problem.head_dim_v, panel)
    panels = depth_v // panel
    wide = widest > 128
    tiles = HopperTiles(depth, depth_v, o_panels=panels, panel=panel)
    one_query_tile = tiles._replace(q_stages=1, o_panels=1, in_turns=wide)
    if problem.dropout_p > 0 or problem.score_mods:  # their registers want smaller tiles
        return one_query_tile._replace(tile_n=64)
    if widest <= 64 and problem.key_lengths is not None:
        return tiles
    # 192 query rows waste less of the exponentials' time, but more of a short causal triangle: a
    # third more scores than 128 at 1,024 queries, 11 % at 2,048, 9 % at 4,096, 3 % at 8,192. Tiles
    # of 64 columns are small: more of them under way bridge a short sequence's changes of head.
    if widest <= 64 and problem.range_mask is not None and problem.seqlen_q <= 1024:
        return tiles._replace(stages=4, in_turns=True, late_maxima=True)
    if widest <= 64:
        return tiles._replace(warpgroups=3, stages=3, in_turns=True)
    all_seen = problem.visibility is None and problem.key_lengths is None
    if 96 < widest <= 128 and all_seen:
        return tiles._replace(late_maxima=True)
    if widest <= 128:
        return tiles
    return one_query_tile._replace(tile_n=96 if widest <= 192 else 64)
