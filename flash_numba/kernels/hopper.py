"""Hopper forward: a producer that copies, consumers that multiply, and nobody waits for long.

A block stays on its multiprocessor and takes one query tile after another. One thread, the
*producer*, walks over the tiles and keeps the copy engine busy with the next K and V. Each
*consumer*, a warpgroup with 64 query rows, starts the product S = Q K^T of the next key tile and
the product O += P V of this one, and does the softmax of the next while the tensor cores work on O.

References
----------
Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision",
NeurIPS 2024, Algorithms 1 and 2.
"""

from functools import cache

from ..arrays import DeviceArray
from ..device.hopper.mbarrier import barrier_init, fence_barrier_init
from ..device.hopper.tensor_map import TensorMap
from ..device.hopper.tma import map_address
from ..device.hopper.warpgroups import make_set_registers
from ..device.numba_cuda import cuda, kernel, types
from ..device.ptx import shared_tile
from ..device.scores import LOG2_E
from ..launch import launch, multiprocessors
from ..problem import Problem
from ..tiling import ceil_div
from .arguments import extra_arguments
from .hopper_consumer import make_consumer
from .hopper_notes import NOTES_SHAPE
from .hopper_producer import make_producer
from .hopper_tiles import ALIGNMENT, HopperTiles, hopper_tiles
from .spec import Spec
from .tensor_core_tiles import is_scale_folded


@cache
def make_forward(spec: Spec, tiles: HopperTiles, scale_first: bool):
    """The forward kernel of one specialisation.

    Parameters
    ----------
    scale_first : bool
        Scores are multiplied by `scale` before all else (score changes, or a scale that is not
        positive); else the softmax's `factor` takes it in.

    Returns
    -------
    kernel
        ``hopper_forward(q_map, k_map, v_map, o_map, LSE, sizes, scale, factor, mask_aux,
        range_aux, score_aux, lengths, listed, dropout)``: `TensorMap` of (batch, seqlen, heads,
        columns) tensors, LSE (batch, num_heads, seqlen_q) float32; `sizes` is (seqlen_k,
        query heads a kv head), `factor` what the exponents are multiplied by: log2(e), times the
        scale unless `scale_first`.

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once.
    """
    stages, warpgroups = tiles.stages, tiles.warpgroups
    few, many = tiles.registers
    give_registers, take_registers = make_set_registers(few, False), make_set_registers(many, True)
    produce = make_producer(spec, tiles)
    consume = make_consumer(spec, tiles, scale_first)
    k_at, v_at, o_at = tiles.offsets
    q_shape = (tiles.q_stages, warpgroups, *tiles.q_tile.shape)
    k_shape, v_shape = (stages, 1, *tiles.k_tile.shape), (stages, 1, *tiles.v_tile.shape)
    o_shape = (warpgroups, *tiles.o_words)
    here_bars = tiles.barriers["q"][1]
    all_bars = 2 * here_bars

    @kernel(tiles.threads, 1)
    def hopper_forward(
        q_map, k_map, v_map, o_map, LSE, sizes, scale, factor,
        mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        bars = cuda.shared.array(all_bars, types.uint64)
        sNotes = cuda.shared.array(NOTES_SHAPE, types.int32)
        memory = cuda.shared.array(0, types.uint16, alignment=ALIGNMENT)
        words = cuda.shared.array(0, types.uint32, alignment=ALIGNMENT)
        sQ, sK = shared_tile(memory, 0, q_shape), shared_tile(memory, k_at, k_shape)
        sV, sO = shared_tile(memory, v_at, v_shape), shared_tile(words, o_at // 2, o_shape)
        tid = cuda.threadIdx.x
        if tid == 0:
            for bar in range(here_bars):
                barrier_init(bars, bar, 1)
            for bar in range(here_bars, all_bars):
                barrier_init(bars, bar, 4 * warpgroups)  # a warp each
            fence_barrier_init()
        cuda.syncthreads()
        role = cuda.shfl_sync(0xFFFFFFFF, tid // 128, 0)
        if role == 0:
            give_registers()
            if tid == 0:
                produce(
                    sQ, sK, sV, sNotes, bars, map_address(q_map), map_address(k_map),
                    map_address(v_map), LSE, sizes, range_aux, lengths, listed,
                )  # fmt: skip
        else:
            take_registers()
            consume(
                sQ, sK, sV, sO, sNotes, bars, map_address(o_map), LSE, sizes, scale, factor,
                types.int32(role - 1), types.int32(tid & 127), mask_aux, range_aux, score_aux,
                lengths, listed, dropout,
            )  # fmt: skip

    return hopper_forward


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
    """Run the forward pass on arrays in GPU memory; parameters as in `flash2.forward`."""
    tiles = hopper_tiles(problem)
    return forward_with(tiles, problem, q, k, v, out, lse, stream)


def forward_with(tiles: HopperTiles, problem: Problem, q, k, v, out, lse, stream: int = 0):
    """As `forward`, with given tiles."""
    spec = forward_spec(problem)
    q, k, v, out, lse = (DeviceArray.of(x) for x in (q, k, v, out, lse))
    if problem.seqlen_k == 0:
        k = v = q  # no tile of theirs is ever asked for, but a map must be of something
    rows = 64, tiles.tile_n, tiles.tile_n, tiles.store_rows
    maps = [
        TensorMap(array._replace(dtype=problem.dtype), count, tiles.panel)
        for array, count in zip((q, k, v, out), rows, strict=True)
    ]
    heads = problem.batch * problem.num_heads
    work = ceil_div(problem.seqlen_q, tiles.tile_m) * heads
    if work == 0:
        return None
    scale_first, scale, factor = factors(problem)
    sizes = problem.seqlen_k, problem.group
    extra = extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    arguments = (*maps, lse, sizes, scale, factor, *extra)
    blocks = min(work, multiprocessors())
    kernel = make_forward(spec, tiles, scale_first)
    return launch(kernel, blocks, tiles.threads, tiles.shared_bytes, arguments, stream)


def forward_spec(problem: Problem) -> Spec:
    """What the forward kernel depends on; two problems with equal ones share it."""
    return Spec.of(problem, True)._replace(folded=True, derivatives=())


def factors(problem: Problem) -> tuple[bool, float, float]:
    """``(scale_first, scale, factor)`` as `make_forward` has them."""
    scale = problem.softmax_scale
    scale_first = not is_scale_folded(problem)
    return scale_first, scale, LOG2_E if scale_first else scale * LOG2_E
