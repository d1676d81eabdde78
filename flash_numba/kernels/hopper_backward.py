"""Hopper backward: one kernel for dQ, dK and dV; a producer, two consumers, and a keeper of turns.

A block owns 128 keys. K and V stay in shared memory and dK and dV in the registers of two
*consumers*, warpgroups with 64 keys each, while the queries come by: one thread, the *producer*,
keeps the copy engine busy with Q and dO. Scores are computed the other way round, S^T = K Q^T, so
that P^T and dS^T are left operands of dV += P^T dO and dK += dS^T Q where they stand; only dS goes
through shared memory, for dQ^T = K^T dS. dQ is added up in float32 in global memory, in turn.

References
----------
Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision",
NeurIPS 2024, Appendix B.1; Dao, "FlashAttention-2", 2023, Algorithm 2.
"""

from collections.abc import Sequence
from functools import cache

from ..arrays import DeviceArray, contiguous
from ..device.hopper.mbarrier import barrier_init, fence_barrier_init
from ..device.hopper.tensor_map import TensorMap
from ..device.hopper.tma import map_address
from ..device.hopper.warpgroups import make_set_registers
from ..device.numba_cuda import cuda, kernel, types
from ..device.ptx import shared_tile
from ..device.schedule import make_keys_of
from ..launch import fill_zero, launch, multiprocessors
from ..problem import Problem
from ..scores import check_differentiable
from ..tiling import ceil_div
from . import tensor_core_backward
from .arguments import extra_arguments
from .backward_call import asked_for, parts_of
from .hopper import factors
from .hopper_backward_consumer import make_consume
from .hopper_backward_producer import (
    BATCH,
    KV_HEAD,
    N_BLOCK,
    SEQLEN_K,
    STEP_NUMBERS,
    make_produce,
)
from .hopper_backward_rows import THREADS, make_prepare, make_round
from .hopper_backward_tiles import HopperBackwardTiles, fits, hopper_backward_tiles
from .hopper_backward_turns import make_keep_turns, take_ticket
from .hopper_tiles import ALIGNMENT, REGISTERS
from .spec import Spec, padded
from .tensor_core_tiles import allows_chunks

ALL = True, True, True
"""dQ, dK and dV are wanted."""
KEY_TILES_AT_ONCE = 8
"""Key tiles of one head that should be worked on at a time: they share Q and dO in L2, and none
waits long for its turn."""


@cache
def make_backward(
    spec: Spec,
    tiles: HopperBackwardTiles,
    scale_first: bool,
    wants: tuple[bool, bool, bool] = ALL,
    ordered: bool = True,
):
    """The kernel that computes dQ, dK and dV of one specialisation.

    Parameters
    ----------
    scale_first : bool
        As in `hopper.make_forward`.
    wants : tuple of bool
        Whether dQ, dK and dV are computed; what belongs to the others is not touched.
    ordered : bool
        Key tiles add to dQ in ascending order, so that it has the same bits each time, and the
        last one rounds it; else they add as they come, and another kernel rounds.

    Returns
    -------
    kernel
        ``hopper_backward(q_map, do_map, k_map, v_map, dk_map, dv_map, Rows, Sums, dQ, Turns,
        Ticket, sizes, scale, factor, mask_aux, range_aux, score_aux, lengths, listed, dropout)``:
        `TensorMap` of (batch, seqlen, heads, columns) tensors, boxes of tile_m queries and of 64
        keys; `Rows` and `Sums` as `hopper_backward_rows.make_prepare` leaves them; dQ (batch,
        seqlen_q, num_heads, head_dim) is written if `ordered`; `Turns` (batch, num_heads, query
        tiles) and `Ticket` (1,) int32, zero; `sizes` is (batch, query heads, kv
        heads, query heads a kv head, seqlen_q, seqlen_k, kv heads at a time).

    Notes
    -----
    Reads each K and V tile once, each visiting Q and dO tile once a key tile; reads and writes
    dQ once a key tile, in float32; writes dK and dV once.
    """
    stages, tile_n, threads = tiles.stages, tiles.tile_n, tiles.threads
    few, many = REGISTERS[2]
    give_registers, take_registers = make_set_registers(few, False), make_set_registers(many, True)
    produce, keep_turns = make_produce(spec, tiles, ordered), make_keep_turns(tiles)
    consume = make_consume(spec, tiles, scale_first, wants, ordered)
    keys_of = make_keys_of(spec.has_lengths)
    v_at, q_at, do_at, ds_at, rows_at = tiles.offsets
    k_shape, v_shape = (2, *tiles.k_tile.shape), (2, *tiles.v_tile.shape)
    q_shape, do_shape = (stages, *tiles.q_tile.shape), (stages, *tiles.do_tile.shape)
    ds_shape, rows_shape = (2, *tiles.ds_tile.shape), (stages, 2 * tiles.tile_m)
    numbers_shape, t_shape = (
        (stages, 2, tiles.tile_m // 8, 4, 2),
        (2, 2, tiles.tile_m // 16, 16, 64),
    )
    wk_shape, wv_shape = ((*shape[:3], 32) for shape in (k_shape, v_shape))
    first_done = tiles.barriers["q done"]
    here_bars, all_bars, step_shape = first_done, first_done + 2 * stages, (stages, STEP_NUMBERS)
    readers = 3 if ordered else 2

    @kernel(threads, 1)
    def hopper_backward(
        q_map, do_map, k_map, v_map, dk_map, dv_map, Rows, Sums, dQ, Turns, Ticket, sizes, scale,
        factor, mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        # Schedule: kv heads side by side, key tiles in ascending order
        batches, heads, kv_heads, group, seqlen_q, keys, at_once = sizes
        tid = types.int32(cuda.threadIdx.x)
        sBlock = cuda.shared.array(4, types.int32)
        if tid == 0:
            work = types.uint32(take_ticket(Ticket) if ordered else cuda.blockIdx.x)
            tiles_of_head = types.uint32((keys + tile_n - 1) // tile_n)
            together = types.uint32(at_once) * tiles_of_head
            first_head = types.uint32(work // together * types.uint32(at_once))
            many_heads = types.uint32(min(at_once, batches * kv_heads - first_head))
            rest = types.uint32(work % together)
            batch_head = types.uint32(first_head + rest % many_heads)
            batch = types.int32(batch_head // types.uint32(kv_heads))
            sBlock[BATCH], sBlock[KV_HEAD] = batch, batch_head % types.uint32(kv_heads)
            sBlock[N_BLOCK], sBlock[SEQLEN_K] = rest // many_heads, keys_of(batch, keys, lengths)

        # Prologue
        bars = cuda.shared.array(all_bars, types.uint64)
        sSteps = cuda.shared.array(step_shape, types.int32)
        memory = cuda.shared.array(0, types.uint16, alignment=ALIGNMENT)
        words = cuda.shared.array(0, types.uint32, alignment=ALIGNMENT)
        numbers = cuda.shared.array(0, types.float32, alignment=ALIGNMENT)
        sK, sV = shared_tile(memory, 0, k_shape), shared_tile(memory, v_at, v_shape)
        sQ, sdO = shared_tile(memory, q_at, q_shape), shared_tile(memory, do_at, do_shape)
        sdS, tS = shared_tile(memory, ds_at, ds_shape), shared_tile(memory, ds_at, t_shape)
        sRows = shared_tile(numbers, rows_at // 2, rows_shape)
        sNumbers = shared_tile(numbers, rows_at // 2, numbers_shape)
        wK, wV = shared_tile(words, 0, wk_shape), shared_tile(words, v_at // 2, wv_shape)
        if tid == 0:
            for bar in range(here_bars):
                barrier_init(bars, bar, 1)
            for stage in range(stages):
                barrier_init(bars, first_done + stage, readers)
                barrier_init(bars, first_done + stages + stage, 2)
            fence_barrier_init()
        cuda.syncthreads()

        # Mainloop of each role
        role = cuda.shfl_sync(0xFFFFFFFF, tid // 128, 0)
        if role == 0:
            give_registers()
            if tid == 0:
                produce(
                    sQ, sdO, sK, sV, sRows, sSteps, sBlock, bars, map_address(q_map),
                    map_address(do_map), map_address(k_map), map_address(v_map), Rows,
                    types.int32(group), types.int32(heads), types.int32(seqlen_q),
                    range_aux, listed,
                )  # fmt: skip
            if ordered and tid // 32 == 1:
                keep_turns(sSteps, sBlock, bars, Turns, tid & 31)
        else:
            take_registers()
            consume(
                sQ, sdO, sK, sV, sdS, tS, sNumbers, wK, wV, sSteps, sBlock, bars,
                map_address(dk_map), map_address(dv_map), Sums, dQ, sizes, scale, factor,
                role - 1, types.int32(tid & 127), mask_aux, range_aux, score_aux, dropout,
            )  # fmt: skip

    return hopper_backward


def workspace(problem: Problem, numbers: Sequence[int] = ()) -> tuple[int, ...]:
    """Bytes that `backward` needs besides its results, in parts that follow one another.

    lse and delta by query tiles, and dQ, in float32; turns of all query tiles with the ticket; or
    what the tensor-core rung's backward needs, which takes over where this kernel does not fit.
    """
    borrowed = tensor_core_backward.workspace(problem, numbers)
    if not fits(problem) or numbers:
        return borrowed
    own = workspace_with(hopper_backward_tiles(problem), problem)
    return *own, max(0, sum(borrowed) - sum(own))


def workspace_with(tiles: HopperBackwardTiles, problem: Problem) -> tuple[int, int, int]:
    """The parts that the kernel itself needs, with given tiles."""
    blocks = _query_tiles(problem, tiles)
    rows, sums = 8 * blocks * tiles.tile_m, 4 * blocks * tiles.tile_m * tiles.depth
    return padded(rows, 16), padded(sums, 16), padded(4 * (blocks + 1), 16)


def _query_tiles(problem: Problem, tiles: HopperBackwardTiles) -> int:
    heads = problem.batch * problem.num_heads
    return heads * ceil_div(problem.seqlen_q, tiles.tile_m)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=(),
    *, ordered: bool = True,
):  # fmt: skip
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    `ordered` is as in `make_backward`.

    What the kernel cannot do the tensor-core rung's backward does: head dimensions above 128,
    gradients of tensors that score changes read, and a dO that the copy engine cannot read, as it
    cannot read a tensor without rows.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    given = q, k, v, out, lse, dout, dq, dk, dv, memory, dlse, stream, d_aux
    copied = [DeviceArray.of(x) for x in (q, k, v, dout, dq, dk, dv) if x is not None]
    readable = problem.seqlen_q > 0 and all(map(allows_chunks, copied))
    if not fits(problem) or asked_for(d_aux) or not readable:
        return tensor_core_backward.backward(problem, *given)
    return backward_with(hopper_backward_tiles(problem), ordered, problem, *given[:-1])


def backward_with(
    tiles: HopperBackwardTiles,
    ordered: bool,
    problem: Problem,
    q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0,
):  # fmt: skip
    """As `backward`, with given tiles; `ordered` as in `make_backward`."""
    check_differentiable(problem)
    q, k, v, out, lse, dout = map(DeviceArray.of, (q, k, v, out, lse, dout))
    dq, dk, dv = (None if x is None else DeviceArray.of(x) for x in (dq, dk, dv))
    wants = dq is not None, dk is not None, dv is not None
    ordered = ordered and dq is not None
    blocks = _query_tiles(problem, tiles)
    at_rows, at_sums, at_turns = parts_of(memory, workspace_with(tiles, problem))
    rows = contiguous(at_rows, (blocks, 2 * tiles.tile_m), "fp32")
    sums = contiguous(at_sums, (blocks, tiles.tile_m * tiles.depth), "fp32")
    turns = problem.batch, problem.num_heads, ceil_div(problem.seqlen_q, tiles.tile_m)
    turns = contiguous(at_turns, turns, "int32")
    ticket = contiguous(at_turns + 4 * blocks, (1,), "int32")
    fill_zero(at_turns, 4 * (blocks + 1), stream)

    given = () if dlse is None else (DeviceArray.of(dlse),)
    kinds = allows_chunks(out) and allows_chunks(dout), dlse is not None, ordered
    prepare = make_prepare(problem.dtype, problem.head_dim_v, tiles, *kinds)
    dq_given = () if dq is None else (dq,)
    launch(prepare, blocks, THREADS, 0, (out, dout, lse, given, rows, sums, dq_given), stream)

    boxes = (q, tiles.tile_m), (dout, tiles.tile_m), (k, 64), (v, 64), (dk or k, 64), (dv or v, 64)
    maps = [TensorMap(x._replace(dtype=problem.dtype), count, tiles.panel) for x, count in boxes]
    scale_first, scale, factor = factors(problem)
    key_blocks = ceil_div(problem.seqlen_k, tiles.tile_n)
    sizes = problem.batch, problem.num_heads, problem.num_kv_heads, problem.group
    sizes += problem.seqlen_q, problem.seqlen_k, heads_at_once(key_blocks)
    arguments = (*maps, rows, sums, dq or q, turns, ticket, sizes, scale, factor)
    arguments += extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    kernel = make_backward(backward_spec(problem), tiles, scale_first, wants, ordered)
    key_tiles = problem.batch * problem.num_kv_heads * key_blocks
    launch(kernel, key_tiles, tiles.threads, tiles.shared_bytes, arguments, stream)
    if dq is not None and not ordered:
        rounding = make_round(problem.dtype, tiles)
        launch(rounding, blocks, THREADS, 0, (sums, dq, scale), stream)


def backward_spec(problem: Problem) -> Spec:
    """What the kernel depends on; two problems with equal ones share it."""
    return Spec.of(problem, True)._replace(folded=True)


def heads_at_once(key_blocks: int) -> int:
    """kv heads that are worked on side by side, so that all multiprocessors have key tiles."""
    return ceil_div(multiprocessors(), max(1, min(key_blocks, KEY_TILES_AT_ONCE)))


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n."""
    if not fits(problem):
        return tensor_core_backward.counted_as(problem)
    tiles = hopper_backward_tiles(problem)
    return "flash2", tiles.tile_m, tiles.tile_n
