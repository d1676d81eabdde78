"""Tile sizes of the tensor-core rung's backward kernels."""

from typing import NamedTuple

from .spec import Spec
from .tensor_core_tiles import TensorTiles, first_that_fits, padded_depths


class QueryGradientLayout(NamedTuple):
    """Where things lie in the block's shared memory, in 16-bit elements; Q begins at 0.

    Attributes
    ----------
    do, k, v : int
        Where dO, K and V begin. dQ takes the place of Q in the end.
    stage_k, stage_v : int
        From one stage of K, or of V, to the next.
    """

    do: int
    k: int
    v: int
    stage_k: int
    stage_v: int


class QueryGradientTiles(NamedTuple):
    """Tile sizes of the kernel that computes dQ; attributes as in `TensorTiles`."""

    depth: int
    depth_v: int
    row_blocks: int = 2
    warps: int = 4
    tile_n: int = 64
    blocks_per_sm: int = 2
    ampere: bool = True

    threads, tile_m = TensorTiles.threads, TensorTiles.tile_m
    pitch, pitch_v = TensorTiles.pitch, TensorTiles.pitch_v
    shared_bytes = TensorTiles.shared_bytes

    @property
    def layout(self) -> QueryGradientLayout:
        """Where things lie in shared memory."""
        do = self.tile_m * self.pitch
        k = do + self.tile_m * self.pitch_v
        stage_k, stage_v = self.tile_n * self.pitch, self.tile_n * self.pitch_v
        return QueryGradientLayout(do, k, k + 2 * stage_k, stage_k, stage_v)


class KeyGradientLayout(NamedTuple):
    """Where things lie in the block's shared memory; K begins at 0.

    Attributes
    ----------
    v, q, do : int
        Where V, Q and dO begin, in 16-bit elements. dK and dV take the places of K and V in the
        end.
    stage_q, stage_do : int
        From one stage of Q, or of dO, to the next, likewise.
    lse, delta : int
        Where they begin, in float32: two stages of `tile_m` numbers each.
    """

    v: int
    q: int
    do: int
    stage_q: int
    stage_do: int
    lse: int
    delta: int


class KeyGradientTiles(NamedTuple):
    """Tile sizes of the kernel that computes dK and dV.

    Attributes
    ----------
    depth, depth_v, warps, blocks_per_sm, ampere
        As in `TensorTiles`.
    row_blocks : int
        Blocks of 16 keys that a warp has.
    tile_m : int
        Queries of a tile, a multiple of 16.
    apart : bool
        dK and dV are computed by a launch each: together they do not fit in registers.
    """

    depth: int
    depth_v: int
    row_blocks: int = 1
    warps: int = 4
    tile_m: int = 64
    blocks_per_sm: int = 2
    ampere: bool = True
    apart: bool = False

    threads, pitch, pitch_v = TensorTiles.threads, TensorTiles.pitch, TensorTiles.pitch_v

    @property
    def tile_n(self) -> int:
        """Keys of a tile."""
        return 16 * self.row_blocks * self.warps

    @property
    def layout(self) -> KeyGradientLayout:
        """Where things lie in shared memory."""
        v = self.tile_n * self.pitch
        q = v + self.tile_n * self.pitch_v
        stage_q, stage_do = self.tile_m * self.pitch, self.tile_m * self.pitch_v
        do = q + 2 * stage_q
        lse = (do + 2 * stage_do) // 2
        return KeyGradientLayout(v, q, do, stage_q, stage_do, lse, lse + 2 * self.tile_m)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.layout.delta + 2 * self.tile_m)


def query_gradient_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> QueryGradientTiles:
    """The tiles of the dQ kernel; parameters and errors of `tensor_core_tiles.forward_tiles`."""
    depths = padded_depths(spec)
    tiles = QueryGradientTiles(*depths, ampere=cc >= (8, 0))
    wide = tiles._replace(tile_n=32)
    narrow = tiles._replace(row_blocks=1, blocks_per_sm=1)
    choices = [narrow._replace(tile_n=32), narrow._replace(tile_n=16)]
    choices += [narrow._replace(warps=2, tile_n=16)]
    if max(depths) <= 64:
        choices = [tiles, tiles._replace(blocks_per_sm=1), *choices]
    elif max(depths) <= 128:
        choices = [wide, wide._replace(blocks_per_sm=1), *choices]
    else:
        choices = [narrow._replace(warps=8, tile_n=32), *choices]
    return first_that_fits(spec, choices, shared_bytes)


def key_gradient_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> KeyGradientTiles:
    """The tiles of the dK, dV kernel; as `query_gradient_tiles`."""
    depths = padded_depths(spec)
    tiles = KeyGradientTiles(*depths, ampere=cc >= (8, 0), apart=max(depths) > 128)
    wide = tiles._replace(row_blocks=2, tile_m=32)
    narrow = tiles._replace(blocks_per_sm=1)
    choices = [narrow._replace(tile_m=32), narrow._replace(tile_m=16)]
    choices += [narrow._replace(warps=1, tile_m=16)]
    if max(depths) <= 64:
        choices = [wide, wide._replace(blocks_per_sm=1), *choices]
    elif max(depths) <= 128:
        choices = [tiles, narrow, *choices]
    else:
        choices = [narrow._replace(warps=8, tile_m=32), *choices]
    return first_that_fits(spec, choices, shared_bytes)
