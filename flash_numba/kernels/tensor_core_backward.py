"""tensor_core backward: delta, then dQ by query tiles, then dK and dV by key tiles.

Each kernel owns what it writes, so nothing is added from outside and the same bits come out each
time. A gradient that nobody asks for is not computed.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

from collections.abc import Sequence

from ..arrays import DeviceArray, contiguous
from ..device.scores import LOG2_E
from ..launch import compute_capability, launch, shared_limit
from ..problem import Problem
from ..scores import check_differentiable
from ..tiling import ceil_div
from .arguments import extra_arguments
from .aux_gradient import launch_aux_gradients
from .aux_plan import workspace as aux_workspace
from .backward_call import asked_for, launch_row_dots, parts_of
from .spec import Spec, padded
from .tensor_core_backward_tiles import (
    KeyGradientTiles,
    QueryGradientTiles,
    key_gradient_tiles,
    query_gradient_tiles,
)
from .tensor_core_dkv import make_key_gradients
from .tensor_core_dq import make_query_gradient
from .tensor_core_tiles import allows_chunks, is_scale_folded


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    delta (batch, num_heads, seqlen_q) float32; sums for the gradients of the score changes
    `numbers`.
    """
    rows = problem.batch * problem.num_heads * problem.seqlen_q
    return padded(4 * rows, 16), padded(aux_workspace(problem, numbers), 16)


def chosen_tiles(spec: Spec) -> tuple[QueryGradientTiles, KeyGradientTiles]:
    """The tiles of both kernels on the current GPU."""
    gpu = compute_capability(), shared_limit(compute_capability())
    return query_gradient_tiles(spec, *gpu), key_gradient_tiles(spec, *gpu)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=()
):
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    check_differentiable(problem)
    q, k, v, out, lse, dout = map(DeviceArray.of, (q, k, v, out, lse, dout))
    dq, dk, dv = (None if x is None else DeviceArray.of(x) for x in (dq, dk, dv))
    at_delta, at_aux = parts_of(memory, workspace(problem, asked_for(d_aux)))
    used = [x for x in (q, k, v, dout, dq, dk, dv) if x is not None]
    spec = Spec.of(problem, all(map(allows_chunks, used)))
    delta = contiguous(at_delta, lse.shape, "fp32")
    given = () if dlse is None else (DeviceArray.of(dlse),)
    vectors = allows_chunks(out) and allows_chunks(dout)
    launch_row_dots(problem, out, dout, given, delta, vectors, stream)

    scale, folded = problem.softmax_scale, is_scale_folded(problem)
    factors = (scale * LOG2_E if folded else LOG2_E), scale
    inputs = q, k, v, dout, lse, delta
    q_tiles, k_tiles = chosen_tiles(spec)
    heads = problem.batch * problem.num_heads
    if dq is not None:
        kernel = make_query_gradient(spec, q_tiles, folded)
        extra = extra_arguments(problem, q_tiles.tile_m, q_tiles.tile_n)
        blocks = heads * ceil_div(problem.seqlen_q, q_tiles.tile_m)
        arguments = *inputs, dq, *factors, *extra
        launch(kernel, blocks, q_tiles.threads, q_tiles.shared_bytes, arguments, stream)
    for wants in _launches(k_tiles, dk is not None, dv is not None):
        kernel = make_key_gradients(spec, k_tiles, folded, wants)
        extra = extra_arguments(problem, k_tiles.tile_m, k_tiles.tile_n)
        key_heads = problem.batch * problem.num_kv_heads
        blocks = key_heads * ceil_div(problem.seqlen_k, k_tiles.tile_n)
        arguments = *inputs, dk or k, dv or v, *factors, *extra
        launch(kernel, blocks, k_tiles.threads, k_tiles.shared_bytes, arguments, stream)
    launch_aux_gradients(problem, q, k, v, dout, lse, delta, d_aux, at_aux, stream)


def _launches(tiles: KeyGradientTiles, wants_dk: bool, wants_dv: bool) -> list[tuple[bool, bool]]:
    """What each launch of the dK, dV kernel computes."""
    if tiles.apart:
        return [(True, False)] * wants_dk + [(False, True)] * wants_dv
    return [(wants_dk, wants_dv)] if wants_dk or wants_dv else []


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and the second kernel's tile_m and tile_n."""
    tiles = chosen_tiles(Spec.of(problem, True))[1]
    return "flash2_two_kernel", tiles.tile_m, tiles.tile_n
