"""Which blocks run at once: one after the other, by clusters, or all of a grid that meets."""

from __future__ import annotations

from .errors import fail
from .thread import Dim3

MOST_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters can hold."""
MULTIPROCESSORS, MOST_RESIDENT_THREADS, MOST_RESIDENT_BLOCKS = 132, 2048, 32
"""Of an H200; the latter two a multiprocessor."""
WARP = 32


def cluster_size(cluster, grid: Dim3) -> int:
    """A checked number of blocks of a cluster."""
    if not isinstance(cluster, int) or cluster < 1:
        raise ValueError(f"cluster must be an int of at least 1, got {cluster!r}")
    if cluster > MOST_CLUSTER:
        raise fail(
            "launch",
            f"CUDA_ERROR_INVALID_CLUSTER_SIZE: a cluster has at most {MOST_CLUSTER} blocks, "
            f"got {cluster}",
        )
    if grid.x % cluster:
        raise fail(
            "launch",
            f"CUDA_ERROR_INVALID_VALUE: grid {grid} must be a multiple of the cluster's {cluster} "
            "blocks along x",
        )
    return cluster


def every_block(grid: Dim3) -> list[Dim3]:
    """Indices of all blocks, in order."""
    return [Dim3(x, y, z) for z in range(grid.z) for y in range(grid.y) for x in range(grid.x)]


def chosen_blocks(grid: Dim3, chosen) -> list[Dim3]:
    """Indices of the blocks that the caller names."""
    found = []
    for one in chosen:
        index = Dim3(*one, *(0,) * (3 - len(one))) if isinstance(one, tuple) else Dim3(one, 0, 0)
        if any(not 0 <= i < n for i, n in zip(index, grid, strict=True)):
            raise ValueError(f"blocks must lie within the grid {grid}, got {one}")
        found.append(index)
    return found


def teams(grid: Dim3, threads: int, chosen, cluster: int, meets: bool) -> list[list[Dim3]]:
    """Indices of the blocks that run at once, in the order in which they run.

    Parameters
    ----------
    grid : Dim3
    threads : int
        Of a block.
    chosen : sequence or None
        Blocks to run; None for all.
    cluster : int
        Blocks of a cluster.
    meets : bool
        Whether the kernel has a barrier of the grid.

    Raises
    ------
    ValueError
        If some of the blocks that run at once were not chosen.
    KernelError
        If so many blocks cannot run at once, as CUDA would say.
    """
    size = grid.x * grid.y * grid.z if meets else cluster
    if size == 1:
        every = every_block(grid) if chosen is None else chosen_blocks(grid, chosen)
        return [[one] for one in every]
    if chosen is not None and len(chosen):
        together = "all blocks of the grid" if meets else "the blocks of a cluster"
        raise ValueError(f"blocks must be None where {together} run at once, got {chosen!r}")
    if threads % WARP:
        raise fail(
            "unsupported",
            f"blocks of {threads} threads that run at once: only multiples of {WARP} are emulated",
        )
    most = MULTIPROCESSORS * min(MOST_RESIDENT_THREADS // threads, MOST_RESIDENT_BLOCKS)
    if meets and size > most:
        raise fail(
            "launch",
            f"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: a grid that meets in a barrier must fit "
            f"the GPU at once, {most} blocks of {threads} threads on an H200; got {size}",
        )
    every = every_block(grid) if chosen is None else []
    return [every[first : first + size] for first in range(0, len(every), size)]
