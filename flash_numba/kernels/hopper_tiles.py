"""Tile sizes of the Hopper kernels, and where things lie in a block's shared memory."""

from typing import NamedTuple

from ..device.hopper.layouts import SwizzledTile
from ..problem import Problem
from .spec import Spec, padded

ALIGNMENT = 1024
BARRIER_BYTES = 1024
"""Static shared memory (the barriers), rounded up to where the dynamic part can start."""
REGISTERS = {2: (24, 240), 3: (32, 160)}
"""Registers of a producer's and of a consumer's thread, by consumer warpgroups.

65,536 registers are there for all warpgroups together, the producer's included.
"""


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
    own_output : bool
        O has shared memory of its own; else it takes that of Q, and the next Q must wait for it.
    panel : int
        Columns of a line in shared memory, 64 or 32.
    """

    depth: int
    depth_v: int
    tile_n: int = 128
    warpgroups: int = 2
    stages: int = 2
    own_output: bool = True
    panel: int = 64

    @property
    def tile_m(self) -> int:
        """Query rows of a block."""
        return 64 * self.warpgroups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (1 + self.warpgroups)

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
    def o_words(self) -> tuple[int, int, int]:
        """Shape of a warpgroup's part of O as 32-bit words."""
        return self.o_tile.panels, 64, self.panel // 2

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Where K, V and O begin, in 16-bit elements; Q begins at 0."""
        k_at = self.warpgroups * self.q_tile.size
        if not self.own_output:
            k_at = self.warpgroups * max(self.q_tile.size, self.o_tile.size)
        v_at = k_at + self.stages * self.k_tile.size
        o_at = v_at + self.stages * self.v_tile.size if self.own_output else 0
        return k_at, v_at, o_at

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        _, v_at, o_at = self.offsets
        end = v_at + self.stages * self.v_tile.size
        if self.own_output:
            end = o_at + self.warpgroups * self.o_tile.size
        return 2 * end


def hopper_tiles(problem: Problem) -> HopperTiles:
    """The tiles of the forward kernel for a problem."""
    widest = max(problem.head_dim, problem.head_dim_v)
    panel = 32 if 64 < widest <= 96 else 64
    depth, depth_v = padded(problem.head_dim, panel), padded(problem.head_dim_v, panel)
    if widest <= 64:
        return HopperTiles(depth, depth_v, 128, 2, 2, True, panel)
    if widest <= 128:
        return HopperTiles(depth, depth_v, 128, 2, 2, True, panel)
    if widest <= 192:
        return HopperTiles(depth, depth_v, 96, 2, 2, False, panel)
    return HopperTiles(depth, depth_v, 80, 2, 2, False, panel)


def heads_together(problem: Problem, spec: Spec) -> int:
    """Heads whose query tiles are mixed in the order of work; see `persistent.make_work`."""
    if spec.key_range is None:
        return 1
    return max(problem.batch * problem.num_heads, 1)
