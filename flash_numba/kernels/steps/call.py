"""Launching a step on arrays in GPU memory."""

from typing import Any

from ...arrays import DeviceArray
from ...launch import allows_vectors, compute_capability, launch, shared_limit
from ...problem import Problem
from ...tiling import ceil_div
from ..arguments import extra_arguments
from ..spec import Spec, forward_tiles
from .layout import grouped_rows

FEATURES = ("mask", "score_mods", "key_lengths", "block_mask", "dropout_p")


def run_rows(make_forward, tiles_of, problem: Problem, arrays: tuple, stream: int) -> Any:
    """Run a step in which a thread owns a row.

    Parameters
    ----------
    make_forward, tiles_of : callable
        The step's own.
    problem : Problem
    arrays : tuple
        q, k, v, out and lse, device arrays as `flash2.forward` takes them.
    stream : int
        CUDA stream handle.

    Raises
    ------
    ValueError
        For what such a step cannot do.
    """
    check_rows(problem)
    tiles = tiles_of(problem.head_dim)
    blocks = ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    arguments = (*map(DeviceArray.of, arrays), problem.softmax_scale)
    kernel = make_forward(tiles, problem.causal)
    return launch(kernel, blocks, tiles.threads, tiles.layout.bytes, arguments, stream)


def check_rows(problem: Problem) -> None:
    """Whether steps 1 to 3 can compute `problem`: a ValueError if not."""
    p = problem
    if p.dtype != "fp32":
        raise ValueError(f"dtype must be fp32 for this step, got {p.dtype}")
    if p.head_dim != p.head_dim_v or p.head_dim % 32 or p.head_dim > 128:
        raise ValueError(
            f"head_dim and head_dim_v must be equal, a multiple of 32 and at most 128 for this "
            f"step, got {p.head_dim} and {p.head_dim_v}"
        )
    asked = [name for name in FEATURES if getattr(p, name) not in (None, (), 0)]
    asked += ["window"] if p.window != (None, None) else []
    if asked:
        raise ValueError(f"this step knows full and causal attention, got {', '.join(asked)}")


def run_tiles(make_forward, problem: Problem, arrays: tuple, stream: int) -> Any:
    """Run a step with register tiles; parameters and errors as `run_rows`."""
    if max(problem.head_dim, problem.head_dim_v) > 128:
        raise ValueError(
            f"head_dim and head_dim_v must be at most 128 for this step, "
            f"got {problem.head_dim} and {problem.head_dim_v}"
        )
    views = tuple(map(DeviceArray.of, arrays))
    spec = Spec.of(problem, all(map(allows_vectors, views[:4])))
    cc = compute_capability()
    tiles = forward_tiles(spec, cc, shared_limit(cc))
    blocks = ceil_div(problem.seqlen_q, tiles.tile_m) * problem.batch * problem.num_heads
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    arguments = (*views, problem.softmax_scale, *extra)
    kernel = make_forward(spec, tiles)
    return launch(kernel, blocks, tiles.threads, grouped_rows(tiles).bytes, arguments, stream)
