"""Launching the tensor-core rung's one-kernel backward pass, and what it needs besides results."""

from ..arrays import contiguous
from ..launch import fill_zero, launch
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .spec import Spec
from .tensor_core_gradients import make_gradients
from .tensor_core_gradients_tiles import GradientTiles


def query_tiles(problem: Problem, tile_m: int) -> int:
    """Query tiles of all heads; of a packed batch each sequence may waste one."""
    if problem.sequences is None:
        return problem.num_heads * problem.batch * ceil_div(problem.seqlen_q, tile_m)
    return problem.num_heads * (problem.sequences.total_q // tile_m + problem.batch + 1)


def workspace(problem: Problem, tiles: GradientTiles | None) -> tuple[int, ...]:
    """Bytes that the kernel needs: sums of dQ in float32, then turns with the ticket counter."""
    if tiles is None:
        return ()
    number = query_tiles(problem, tiles.tile_m)
    return 4 * number * tiles.tile_m * tiles.depth, 4 * (number + 1)


def launch_gradients(
    problem: Problem, spec: Spec, tiles: GradientTiles, inputs, gradients, factors, at, listed,
    stream,
) -> None:  # fmt: skip
    """Launch the kernel.

    `at` are the addresses of the parts of `workspace`, `listed` what `packed_tiles.list_tiles`
    gives of the key tiles.
    """
    number = query_tiles(problem, tiles.tile_m)
    sums = contiguous(at[0], (number, tiles.tile_m * tiles.depth), "fp32")
    turns = contiguous(at[1], (number,), "int32")
    size = workspace(problem, tiles)[1]
    ticket = contiguous(at[1] + size - 4, (1,), "int32")
    fill_zero(at[1], size, stream)
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n, listed[1])
    arguments = *inputs, sums, turns, ticket, *gradients, *factors, *extra
    kernel = make_gradients(spec, tiles)
    blocks = listed[0] * problem.num_kv_heads
    launch(kernel, blocks, tiles.threads, tiles.shared_bytes, arguments, stream)
