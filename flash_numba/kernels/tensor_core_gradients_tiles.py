"""Tile sizes of the tensor-core rung's one-kernel backward pass."""

from typing import NamedTuple

from ..device.swizzle import pitch_of
from .spec import Spec, padded
from .tensor_core_tiles import TensorTiles, is_busy


class GradientLayout(NamedTuple):
    """Where things begin in a block's shared memory; K begins at 0.

    Attributes
    ----------
    v, q, do, ds, p : int
        In 16-bit elements. dK and dV take the places of K and V in the end.
    lse, delta : int
        In float32: of each of the stages `tile_m` numbers.
    """

    v: int
    q: int
    do: int
    ds: int
    p: int
    lse: int
    delta: int


class GradientTiles(NamedTuple):
    """Tile sizes of the kernel that computes dQ, dK and dV.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to multiples of ``16 * sharing``.
    row_blocks : int
        Blocks of 16 keys that a warp works on.
    warps, blocks_per_sm
        As in `TensorTiles`.
    sharing : int
        Warps that work on the same keys, 1 or 2: each has its part of a tile's queries for S and
        dP, and its part of the columns for dK and dV.
    tile_m : int
        Queries of a tile, a multiple of ``16 * sharing``.
    stages : int
        Places for tiles of Q and dO, 2 or 3. With 3 there are two places for P and dS too, and one
        barrier a tile does.
    heads_at_once : int
        Heads whose key tiles are worked on together: the more, the less a block waits for its turn
        to add to dQ, and the less of Q and dO is found in L2.
    uniform : bool
        As in `TensorTiles`; on the block's work too.
    late_p : bool
        P goes to shared memory between the products of dV, and not before them.
    notes : bool
        One thread looks at the mask for all (`visits.make_note_visit`); else there is no mask.
    """

    depth: int
    depth_v: int
    row_blocks: int = 2
    warps: int = 8
    sharing: int = 2
    tile_m: int = 64
    blocks_per_sm: int = 1
    stages: int = 2
    heads_at_once: int = 32
    uniform: bool = False
    late_p: bool = True
    notes: bool = True

    threads, pitch, pitch_v = TensorTiles.threads, TensorTiles.pitch, TensorTiles.pitch_v

    @property
    def tile_n(self) -> int:
        """Keys of a tile."""
        return 16 * self.row_blocks * self.warps // self.sharing

    @property
    def warp_m(self) -> int:
        """Queries of a tile for which a warp computes S and dP."""
        return self.tile_m // self.sharing

    @property
    def own_d(self) -> int:
        """Columns of dK that a warp has of its keys."""
        return self.depth // self.sharing

    @property
    def own_v(self) -> int:
        """Columns of dV that a warp has of its keys."""
        return self.depth_v // self.sharing

    @property
    def pitch_p(self) -> int:
        """Elements from one row of P or dS, a key's, to the next in shared memory."""
        return pitch_of(self.tile_m)

    @property
    def dq_spread(self) -> int:
        """Warps side by side along the columns of dQ; the others lie along its rows."""
        for spread in (4, 2, 1):
            columns, rows = 16 * spread, 16 * self.warps // spread
            if self.warps % spread == self.depth % columns == self.tile_m % rows == 0:
                return spread
        raise ValueError(f"{self.warps} warps must share dQ evenly, got tiles of {self}")

    @property
    def dq_blocks(self) -> int:
        """Blocks of 16 rows of dQ that a warp has."""
        return self.tile_m * self.dq_spread // (16 * self.warps)

    @property
    def layout(self) -> GradientLayout:
        """Where things lie in shared memory."""
        v = self.tile_n * self.pitch
        q = v + self.tile_n * self.pitch_v
        do = q + self.stages * self.tile_m * self.pitch
        ds = do + self.stages * self.tile_m * self.pitch_v
        exchanged = (self.stages - 1) * self.tile_n * self.pitch_p
        p = ds + exchanged
        lse = (p + (exchanged if self.sharing > 1 else 0)) // 2
        return GradientLayout(v, q, do, ds, p, lse, lse + self.stages * self.tile_m)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.layout.delta + self.stages * self.tile_m)


def gradient_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> GradientTiles | None:
    """The tiles of the one-kernel backward pass on a GPU with `shared_bytes` a block.

    None where no tiles fit, on GPUs without asynchronous copies, and where more is done to scores
    than to mask them: that takes registers which this kernel does not have.
    """
    widest = max(spec.head_dim, spec.head_dim_v)
    if cc < (8, 0) or is_busy(spec):
        return None
    masked = spec.key_range is not None or spec.keep is not None or spec.has_list
    # The largest tiles that fit: each costs barriers, a look at the mask and a turn. Above head_dim
    # 128 there are registers for 16 keys a warp, whose products read shared memory twice as often
    # as with 32.
    tiles = GradientTiles(padded(spec.head_dim, 32), padded(spec.head_dim_v, 32))
    choices = [tiles._replace(row_blocks=1)]
    if widest <= 64:
        choices = [tiles._replace(tile_m=128), tiles]
    elif widest <= 128:
        large = tiles._replace(stages=3, uniform=True, late_p=False, notes=masked)
        choices = [large, tiles, tiles._replace(warps=4, tile_m=32)]
    for tiles in choices:
        # 16 bytes more: the ticket; or 48: the work of a packed batch.
        more = 48 if spec.packed else 16
        if tiles.blocks_per_sm * (tiles.shared_bytes + more + 1024) <= shared_bytes + 1024:
            return tiles
    return None
