"""Tile sizes of the tensor-core kernels, and what they need of arrays and problems."""

from typing import NamedTuple

from ..arrays import DeviceArray
from ..device.swizzle import pitch_of
from ..problem import Problem
from .spec import Spec, padded


class TensorLayout(NamedTuple):
    """Where things lie in the forward kernel's shared memory, in 16-bit elements; Q begins at 0.

    Attributes
    ----------
    pitch_q : int
        From one row of Q, and of O, which takes its place in the end, to the next.
    k, v : int
        Where K and V begin; there are two stages: one is worked on while the other arrives.
    stage_k, stage_v : int
        From one stage of K, or of V, to the next.
    """

    pitch_q: int
    k: int
    v: int
    stage_k: int
    stage_v: int


class TensorTiles(NamedTuple):
    """Tile sizes of the forward kernel and how warps share them.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to multiples of 16.
    row_blocks : int
        Blocks of 16 query rows that a warp has.
    warps : int
        Warps of a block.
    tile_n : int
        Keys of a tile, a multiple of 16.
    blocks_per_sm : int
        Blocks that should share a multiprocessor.
    q_in_registers : bool
        A warp keeps its rows of Q; else it reads them again for every tile.
    ampere : bool
        The GPU has cc 8.0: asynchronous copies, and products 16 deep. Else products are 8 deep.
    """

    depth: int
    depth_v: int
    row_blocks: int = 2
    warps: int = 4
    tile_n: int = 64
    blocks_per_sm: int = 2
    q_in_registers: bool = False
    ampere: bool = True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def tile_m(self) -> int:
        """Query rows of a tile."""
        return 16 * self.row_blocks * self.warps

    @property
    def pitch(self) -> int:
        """Elements from one row of K to the next in shared memory."""
        return pitch_of(self.depth)

    @property
    def pitch_v(self) -> int:
        """Elements from one row of V to the next in shared memory."""
        return pitch_of(self.depth_v)

    @property
    def layout(self) -> TensorLayout:
        """Where things lie in shared memory."""
        pitch_q = max(self.pitch, self.pitch_v)
        k = self.tile_m * pitch_q
        stage_k, stage_v = self.tile_n * self.pitch, self.tile_n * self.pitch_v
        return TensorLayout(pitch_q, k, k + 2 * stage_k, stage_k, stage_v)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 2 * (self.layout.v + 2 * self.layout.stage_v)


def forward_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> TensorTiles:
    """The tiles of the forward kernel on a GPU with `shared_bytes` a block.

    Raises
    ------
    ValueError
        If a head dimension is above 256.
    """
    depths = padded_depths(spec)
    widest = max(depths)
    # Up to head_dim 128, 128 rows, 32 a warp, are the fastest of benchmarks/tile_sizes.py; where
    # registers are left, twice the keys a tile mean half the votes and barriers.
    tiles = TensorTiles(*depths, ampere=cc >= (8, 0))
    narrow = tiles._replace(row_blocks=1, warps=8, blocks_per_sm=1)
    few = narrow._replace(warps=4)
    choices = [narrow._replace(tile_n=32), few._replace(tile_n=32), few._replace(tile_n=16)]
    if is_busy(spec) or widest > 128:
        choices.insert(0, narrow._replace(q_in_registers=widest <= 192 and not is_busy(spec)))
    else:
        choices = [tiles, tiles._replace(warps=8, blocks_per_sm=1), narrow, *choices]
    if widest <= 64 and not is_busy(spec):
        choices.insert(0, tiles._replace(tile_n=128))
    return first_that_fits(spec, choices, shared_bytes)


def padded_depths(spec: Spec) -> tuple[int, int]:
    """head_dim and head_dim_v padded to whole products, or a ValueError if one is above 256."""
    if max(spec.head_dim, spec.head_dim_v) > 256:
        raise ValueError(
            f"head_dim and head_dim_v must be at most 256, "
            f"got {spec.head_dim} and {spec.head_dim_v}"
        )
    return padded(spec.head_dim, 16), padded(spec.head_dim_v, 16)


def first_that_fits(spec: Spec, choices: list, shared_bytes: int):
    """The first tiles of which a multiprocessor holds as many blocks as they want.

    A multiprocessor has 1 KB more than a block may use, and keeps 1 KB for itself a block.
    """
    for tiles in choices:
        if tiles.blocks_per_sm * (tiles.shared_bytes + 1024) <= shared_bytes + 1024:
            return tiles
    raise ValueError(
        f"head_dim={spec.head_dim} and head_dim_v={spec.head_dim_v} need "
        f"more shared memory a block than the {shared_bytes} bytes of this GPU"
    )


def is_busy(spec: Spec) -> bool:
    """Whether so much is done to each score that only 16 rows a warp leave registers for it."""
    return bool(spec.changes) or spec.has_dropout


def allows_chunks(array: DeviceArray) -> bool:
    """Whether every row of 16-bit elements is whole 16-byte chunks on 16-byte boundaries."""
    *outer, last = array.strides
    steps = [step for step, size in zip(outer, array.shape, strict=False) if size > 1]
    aligned = all(step % 16 == 0 for step in (array.pointer, *steps))
    return aligned and last == 2 and array.shape[-1] % 8 == 0


def is_scale_folded(problem: Problem) -> bool:
    """Whether the softmax may take in the scale: nothing else changes scores, and it is positive.

    (So small a scale that ``scale * log2(e)`` is lost in float32 does not count as positive.)
    """
    return not problem.score_mods and problem.softmax_scale > 1e-30
