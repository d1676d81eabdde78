"""What one compiled kernel is made for: element type, sizes, functions, tiles.

Everything here is hashable; equal specifications share one compiled kernel.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from ..device.column_copies import column_shape
from ..device.scores import is_power_of_two
from ..masks import of_one_sequence
from ..problem import Problem
from ..tiling import ceil_div


class Spec(NamedTuple):
    """The part of an attention problem that a kernel is compiled for.

    Attributes
    ----------
    dtype : str
        Element type of Q, K, V, O: "fp32", "fp16" or "bf16".
    head_dim, head_dim_v : int
        Columns of Q and K, and of V and O.
    vectors : bool
        All rows allow 16-byte (16-bit types: 8-byte) accesses.
    keep, key_range, exact
        The mask, as in `masks.Mask`.
    changes, derivatives : tuple of callables
        Score changes, as in `masks.ScoreMod`.
    folded : bool
        The scale is a power of two, so that a factor of the scores can take it in exactly.
    has_lengths, has_list, has_dropout : bool
        Whether key lengths, a block list and dropout numbers are handed over.
    packed : bool
        Whether sequences lie behind each other (`sequences.Sequences`).
    """

    dtype: str
    head_dim: int
    head_dim_v: int
    vectors: bool = True
    keep: Callable | None = None
    key_range: Callable | None = None
    exact: bool = True
    changes: tuple = ()
    derivatives: tuple = ()
    folded: bool = True
    has_lengths: bool = False
    has_list: bool = False
    has_dropout: bool = False
    packed: bool = False

    @classmethod
    def of(cls, problem: Problem, vectors: bool) -> "Spec":
        """The specification of `problem`."""
        mask = problem.visibility
        ranges = problem.range_mask
        return cls(
            problem.dtype,
            problem.head_dim,
            problem.head_dim_v,
            vectors,
            mask.keep if mask else None,
            ranges.key_range if ranges else None,
            ranges.exact if ranges else True,
            tuple(mod.apply for mod in problem.score_mods),
            tuple(mod.derivative for mod in problem.score_mods),
            is_power_of_two(problem.softmax_scale),
            problem.key_lengths is not None,
            problem.block_mask is not None,
            problem.dropout_p > 0,
            problem.sequences is not None,
        )

    def of_one_sequence(self) -> "Spec":
        """For a kernel whose blocks know their sequence: see `masks.of_one_sequence`."""
        if not self.packed:
            return self
        keep, key_range = of_one_sequence(self.keep), of_one_sequence(self.key_range)
        return self._replace(keep=keep, key_range=key_range)


class ForwardTiles(NamedTuple):
    """Tile sizes of flash2's forward kernel and how threads share them.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded: multiples of 32, and of ``4 * lanes`` for V.
    thread_m, thread_n : int
        Rows and columns of a thread's part of the scores; multiples of 4.
    lanes : int
        Threads side by side in a row of the scores, 8 or 16.
    threads : int
        Threads of a block.
    blocks_per_sm : int
        Blocks that should share a multiprocessor.
    asynchronous : bool
        Copies by cp.async: cc 8.0, fp32, 16-byte rows.
    """

    depth: int
    depth_v: int
    thread_m: int = 8
    thread_n: int = 8
    lanes: int = 8
    threads: int = 128
    blocks_per_sm: int = 2
    asynchronous: bool = True

    @property
    def tile_m(self) -> int:
        """Query rows of a tile."""
        return self.threads // self.lanes * self.thread_m

    @property
    def tile_n(self) -> int:
        """Keys of a tile."""
        return self.lanes * self.thread_n

    @property
    def columns_of_k(self) -> bool:
        """K lies in columns; else, for threads with one or two keys, in grouped rows."""
        return self.thread_n >= 4

    @property
    def k_shape(self) -> tuple[int, int]:
        """Shape of sK."""
        if self.columns_of_k:
            return column_shape(self.depth, self.tile_n, self.thread_n)
        return self.lanes, self.thread_n * self.depth + 4

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Where sK, sV and sP begin, in floats; sQ begins at 0."""
        k_at = self.depth * self.tile_m
        v_at = k_at + math.prod(self.k_shape)
        return k_at, v_at, v_at + self.lanes * (self.thread_n * self.depth_v + 4)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.offsets[-1] + self.lanes * (self.thread_n * self.tile_m + 4))


class BackwardTiles(NamedTuple):
    """Tile sizes of flash2's backward kernel and how threads share them; rows are keys.

    Attributes
    ----------
    depth, depth_v : int
        head_dim and head_dim_v padded to multiples of ``4 * lanes`` and of 32.
    thread_n, thread_m : int
        Keys (a multiple of 4) and queries of a thread's part of the scores.
    lanes : int
        Threads side by side along the queries.
    q_lanes : int
        Threads side by side along the columns of dQ.
    threads, blocks_per_sm, asynchronous
        As in `ForwardTiles`.
    """

    depth: int
    depth_v: int
    thread_n: int = 8
    thread_m: int = 4
    lanes: int = 8
    q_lanes: int = 16
    threads: int = 128
    blocks_per_sm: int = 2
    asynchronous: bool = True

    @property
    def tile_n(self) -> int:
        """Keys of a tile."""
        return self.threads // self.lanes * self.thread_n

    @property
    def tile_m(self) -> int:
        """Query rows of a tile."""
        return self.lanes * self.thread_m

    @property
    def q_rows(self) -> int:
        """Query rows of a thread's part of dQ, a multiple of 4."""
        return self.tile_m * self.q_lanes // self.threads

    @property
    def q_parts(self) -> int:
        """Parts of dQ's columns, one after the other: a thread holds 32 elements at most."""
        return ceil_div(self.tile_m * self.depth, 32 * self.threads)

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Where sV, sQ, sdO and sP begin, in floats; sK begins at 0."""
        v_at = self.depth * (self.tile_n + 4)
        q_at = v_at + self.depth_v * self.tile_n
        do_at = q_at + self.lanes * (self.thread_m * self.depth + 4)
        return v_at, q_at, do_at, do_at + self.lanes * (self.thread_m * self.depth_v + 4)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.offsets[-1] + self.lanes * (self.thread_m * self.tile_n + 4))


def forward_tiles(spec: Spec, cc: tuple[int, int], shared_bytes: int) -> ForwardTiles:
    """The tiles of flash2's forward kernel on a GPU with `shared_bytes` a block.

    Raises
    ------
    ValueError
        If a head dimension is above 256.
    """
    depth, depth_v = padded(spec.head_dim, 32), padded(spec.head_dim_v, 32)
    asynchronous = cc >= (8, 0) and spec.dtype == "fp32" and spec.vectors
    widest = max(depth, depth_v)
    if widest > 256:
        raise ValueError(
            f"head_dim and head_dim_v must be at most 256, "
            f"got {spec.head_dim} and {spec.head_dim_v}"
        )
    if widest <= 64:
        choices = [(8, 8, 8, 128, 2), (8, 4, 8, 128, 2), (4, 4, 8, 128, 2)]
    elif widest <= 128:
        choices = [(8, 4, 8, 128, 2), (4, 4, 8, 128, 2), (4, 4, 8, 64, 2)]
    else:
        depth_v = padded(spec.head_dim_v, 64)
        choices = [(4, 4, 16, 256, 1), (4, 2, 16, 256, 1), (4, 1, 16, 128, 1), (4, 1, 16, 64, 1)]
    for thread_m, thread_n, lanes, threads, blocks in choices:
        tiles = ForwardTiles(
            depth, depth_v, thread_m, thread_n, lanes, threads, blocks, asynchronous
        )
        if tiles.shared_bytes <= shared_bytes:
            return tiles
    raise ValueError(
        f"head_dim={spec.head_dim} and head_dim_v={spec.head_dim_v} need "
        f"more shared memory a block than the {shared_bytes} bytes of this GPU"
    )


def padded(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


def backward_tiles(
    spec: Spec, cc: tuple[int, int], shared_bytes: int, most_keys: int = 8
) -> BackwardTiles:
    """The tiles of flash2's backward kernel on a GPU with `shared_bytes` a block.

    A thread has at most `most_keys` keys, 8 or 4.

    Raises
    ------
    ValueError
        If a head dimension is above 256.
    """
    widest = max(spec.head_dim, spec.head_dim_v)
    if widest > 256:
        raise ValueError(
            f"head_dim and head_dim_v must be at most 256, "
            f"got {spec.head_dim} and {spec.head_dim_v}"
        )
    asynchronous = cc >= (8, 0) and spec.dtype == "fp32" and spec.vectors
    if widest <= 64:
        # Numbers for changes, dropout and lengths live in registers too.
        more = spec.changes or spec.has_dropout or spec.has_lengths or spec.has_list
        choices = [(4 if more else most_keys, 4, 8, 16, 128, 2), (4, 4, 8, 8, 64, 2)]
    elif widest <= 128:
        # 32 lanes leave registers for key ranges; where there is none 16 are 1 % faster.
        q_lanes = 32 if spec.dtype == "fp32" and spec.key_range else 16
        choices = [
            (most_keys, 4, 16, q_lanes, 256, 1),
            (4, 4, 8, 16, 128, 1),
            (4, 2, 16, 16, 128, 1),
        ]
        choices += [(4, 2, 8, 16, 64, 1)]
    else:
        choices = [(4, 2, 16, 32, 256, 1), (4, 2, 16, 16, 128, 1)]
        choices += [(4, 1, 16, 16, 64, 1), (4, 1, 16, 8, 32, 1)]
    for thread_n, thread_m, lanes, q_lanes, threads, blocks in choices:
        step = max(32, 4 * lanes)
        depth, depth_v = padded(spec.head_dim, step), padded(spec.head_dim_v, step)
        tiles = BackwardTiles(
            depth, depth_v, thread_n, thread_m, lanes, q_lanes, threads, blocks, asynchronous
        )
        # 16 bytes more: the ticket.
        if tiles.shared_bytes + 16 <= shared_bytes:
            return tiles
    raise ValueError(
        f"head_dim={spec.head_dim} and head_dim_v={spec.head_dim_v} need "
        f"more shared memory a block than the {shared_bytes} bytes of this GPU"
    )


def flash2_tiles(gpu, problem, direction: str) -> tuple[int, int]:
    """Query rows and keys of the tiles that flash2's kernel takes on a GPU.

    Parameters
    ----------
    gpu : Gpu
        With `compute_capability` and `shared_bytes_per_block`, as `simulator.hardware` has them.
    problem : Problem
    direction : str
        "forward" or "backward".
    """
    choose = forward_tiles if direction == "forward" else backward_tiles
    spec = Spec.of(problem, vectors=True)
    tiles = choose(spec, gpu.compute_capability, gpu.shared_bytes_per_block)
    return tiles.tile_m, tiles.tile_n
