"""Tile sizes of the tensor-core rung's backward kernels."""

from typing import NamedTuple

from .spec import Spec
from .tensor_core_tiles import TensorTiles, first_that_fits, padded_depths


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
    def layout(self) -> tuple[int, int, int, int, int]:
        """Elements: where dO, K and V begin, and from one stage of K and of V to the next.

        Q begins at 0; dQ takes its place in the end.
        """
        k_at = self.tile_m * (self.pitch + self.pitch_v)
        stage_k, stage_v = self.tile_n * self.pitch, self.tile_n * self.pitch_v
        return self.tile_m * self.pitch, k_at, k_at + 2 * stage_k, stage_k, stage_v


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
    def layout(self) -> tuple[int, int, int, int, int, int, int]:
        """Where things lie in shared memory.

        In elements: where V, Q and dO begin, and from one stage of Q and of dO to the next; in
        float32: where lse and delta begin, two stages of `tile_m` numbers each. K begins at 0; dK
        and dV take the places of K and V in the end.
        """
        v_at = self.tile_n * self.pitch
        q_at = v_at + self.tile_n * self.pitch_v
        stage_q, stage_do = self.tile_m * self.pitch, self.tile_m * self.pitch_v
        do_at = q_at + 2 * stage_q
        lse_at = (do_at + 2 * stage_do) // 2
        return v_at, q_at, do_at, stage_q, stage_do, lse_at, lse_at + 2 * self.tile_m

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.layout[-1] + 2 * self.tile_m)


def query_gradient_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> QueryGradientTiles:
    """The tiles of the dQ kernel; parameters and errors of `tensor_core_tiles.forward_tiles`."""
    depths = padded_depths(spec)
    choices = [(1, 4, 32, 1), (1, 4, 16, 1), (1, 2, 16, 1)]
    if max(depths) <= 64:
        choices = [(2, 4, 64, 2), (2, 4, 64, 1), *choices]
    elif max(depths) <= 128:
        choices = [(2, 4, 32, 2), (2, 4, 32, 1), *choices]
    else:
        choices = [(1, 8, 32, 1), *choices]
    tiles = [QueryGradientTiles(*depths, *choice, cc >= (8, 0)) for choice in choices]
    return first_that_fits(spec, tiles, shared_bytes)


def key_gradient_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> KeyGradientTiles:
    """The tiles of the dK, dV kernel; as `query_gradient_tiles`."""
    depths = padded_depths(spec)
    choices = [(1, 4, 32, 1), (1, 4, 16, 1), (1, 1, 16, 1)]
    if max(depths) <= 64:
        choices = [(2, 4, 32, 2), (2, 4, 32, 1), *choices]
    elif max(depths) <= 128:
        choices = [(1, 4, 64, 2), (1, 4, 64, 1), *choices]
    else:
        choices = [(1, 8, 32, 1), *choices]
    apart = max(depths) > 128
    tiles = [KeyGradientTiles(*depths, *choice, cc >= (8, 0), apart) for choice in choices]
    return first_that_fits(spec, tiles, shared_bytes)
