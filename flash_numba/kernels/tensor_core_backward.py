"""tensor_core backward: delta, then one kernel for all gradients, or a kernel for some.

Where all are asked for and the GPU has room, `tensor_core_gradients` computes them with five
products, adding to dQ in turns. Else `tensor_core_dq` and `tensor_core_dkv` own what they write;
they compute S and dP once each, and no gradient that nobody asks for. Either way the same bits come
out each time.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 2.
"""

import math
from collections.abc import Sequence

from ..arrays import DeviceArray, contiguous
from ..device.scores import LOG2_E
from ..launch import compute_capability, launch, shared_limit
from ..problem import Problem
from ..scores import check_differentiable
from ..sequences import Packed
from . import packed_tiles
from .arguments import extra_arguments
from .aux_gradient import launch_aux_gradients
from .aux_plan import workspace as aux_workspace
from .backward_call import asked_for, launch_row_dots, parts_of
from .packed_tiles import as_batches, list_tiles
from .spec import Spec, padded
from .tensor_core_backward_tiles import (
    KeyGradientTiles,
    QueryGradientTiles,
    key_gradient_tiles,
    query_gradient_tiles,
)
from .tensor_core_dkv import make_key_gradients
from .tensor_core_dq import make_query_gradient
from .tensor_core_gradients_launch import launch_gradients
from .tensor_core_gradients_launch import workspace as gradients_workspace
from .tensor_core_gradients_tiles import GradientTiles, gradient_tiles
from .tensor_core_tiles import allows_chunks, is_scale_folded


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    What `packed_tiles.workspace` says; delta, a float32 for each of lse; sums for the gradients of
    the score changes `numbers`; what `tensor_core_gradients_launch.workspace` says.
    """
    tiles, lists = one_kernel_tiles(problem), (0, 0, 0)
    if problem.sequences is not None:
        q_tiles, k_tiles = chosen_tiles(Spec.of(problem, True))
        tile_n = min(k_tiles.tile_n, tiles.tile_n) if tiles else k_tiles.tile_n
        lists = packed_tiles.workspace(problem, q_tiles.tile_m, tile_n)
    rows = math.prod(problem.shapes["lse"])
    sizes = padded(4 * rows, 16), padded(aux_workspace(problem, numbers), 16)
    return *lists, *sizes, *gradients_workspace(problem, tiles)


def one_kernel_tiles(problem: Problem) -> GradientTiles | None:
    """The tiles of the kernel of all gradients on the current GPU; None where there are two."""
    cc = compute_capability()
    if problem.seqlen_k == 0 or not is_scale_folded(problem):
        return None
    return gradient_tiles(Spec.of(problem, True), cc, shared_limit(cc))


def chosen_tiles(spec: Spec) -> tuple[QueryGradientTiles, KeyGradientTiles]:
    """The tiles of both kernels on the current GPU."""
    gpu = compute_capability(), shared_limit(compute_capability())
    return query_gradient_tiles(spec, *gpu), key_gradient_tiles(spec, *gpu)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=(),
    packed: Packed | None = None,
):  # fmt: skip
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    check_differentiable(problem)
    parts = parts_of(memory, workspace(problem, asked_for(d_aux)))
    at_shift, at_queries, at_keys, at_delta, at_aux, *at_sums = parts
    arrays = q, k, v, out, lse, dout, dq, dk, dv, dlse
    arrays = [None if x is None else DeviceArray.of(x) for x in arrays]
    arrays.append(contiguous(at_delta, problem.shapes["lse"], "fp32"))
    rows = arrays
    if packed is not None:  # delta is that of every row, whatever its sequence
        rows, arrays = as_batches(arrays, 1), as_batches(arrays, max(problem.batch, 1))
    _launch_delta(problem, rows[3], rows[5], rows[-2], rows[-1], stream)
    q, k, v, _, lse, dout, dq, dk, dv, _, delta = arrays
    used = [x for x in (q, k, v, dout, dq, dk, dv) if x is not None]
    spec = Spec.of(problem, all(map(allows_chunks, used)))

    scale, folded = problem.softmax_scale, is_scale_folded(problem)
    factors = (scale * LOG2_E if folded else LOG2_E), scale
    inputs = q, k, v, dout, lse, delta
    tiles = one_kernel_tiles(problem)
    if tiles is not None and None not in (dq, dk, dv):
        grads, places = (dq, dk, dv), (at_shift, at_keys, tiles.tile_n, True)
        listed = list_tiles(problem, packed, *places, stream)
        launch_gradients(problem, spec, tiles, inputs, grads, factors, at_sums, listed, stream)
        launch_aux_gradients(problem, q, k, v, dout, lse, delta, d_aux, at_aux, stream)
        return
    q_tiles, k_tiles = chosen_tiles(spec)
    if dq is not None:
        kernel = make_query_gradient(spec, q_tiles, folded)
        places = at_shift, at_queries, q_tiles.tile_m, False
        blocks, listed = list_tiles(problem, packed, *places, stream)
        extra = extra_arguments(problem, q_tiles.tile_m, q_tiles.tile_n, listed)
        arguments, blocks = (*inputs, dq, *factors, *extra), blocks * problem.num_heads
        launch(kernel, blocks, q_tiles.threads, q_tiles.shared_bytes, arguments, stream)
    blocks, listed = 0, ()
    if dk is not None or dv is not None:
        places = at_shift, at_keys, k_tiles.tile_n, True
        blocks, listed = list_tiles(problem, packed, *places, stream)
        blocks *= problem.num_kv_heads
    for wants in _launches(k_tiles, dk is not None, dv is not None):
        kernel = make_key_gradients(spec, k_tiles, folded, wants)
        extra = extra_arguments(problem, k_tiles.tile_m, k_tiles.tile_n, listed)
        arguments = *inputs, dk or k, dv or v, *factors, *extra
        launch(kernel, blocks, k_tiles.threads, k_tiles.shared_bytes, arguments, stream)
    launch_aux_gradients(problem, q, k, v, dout, lse, delta, d_aux, at_aux, stream)


def _launch_delta(problem: Problem, out, dout, dlse, delta, stream) -> None:
    vectors = allows_chunks(out) and allows_chunks(dout)
    given = () if dlse is None else (dlse,)
    launch_row_dots(problem, out, dout, given, delta, vectors, stream)


def _launches(tiles: KeyGradientTiles, wants_dk: bool, wants_dv: bool) -> list[tuple[bool, bool]]:
    """What each launch of the dK, dV kernel computes."""
    if tiles.apart:
        return [(True, False)] * wants_dk + [(False, True)] * wants_dv
    return [(wants_dk, wants_dv)] if wants_dk or wants_dv else []


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and the second kernel's tile_m and tile_n."""
    tiles = one_kernel_tiles(problem)
    if tiles is not None:
        return "flash2", tiles.tile_m, tiles.tile_n
    tiles = chosen_tiles(Spec.of(problem, True))[1]
    return "flash2_two_kernel", tiles.tile_m, tiles.tile_n
