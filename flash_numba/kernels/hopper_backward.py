"""Hopper backward: one kernel for dQ, dK and dV; a producer, two consumers, and keepers of turns.

A block takes one tile of 128 keys after another. K and V stay in shared memory and dK and dV in the
registers of two *consumers*, warpgroups with 64 keys each, while the queries come by: one thread,
the *producer*, keeps the copy engine busy with Q and dO, and with what the next key tile needs.
Scores are computed the other way round, S^T = K Q^T, so
that P^T and dS^T are left operands of dV += P^T dO and dK += dS^T Q where they stand; only dS goes
through shared memory, for dQ^T = K^T dS. dQ is added up in float32 in global memory, in turn.

References
----------
Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision",
NeurIPS 2024, Appendix B.1; Dao, "FlashAttention-2", 2023, Algorithm 2.
"""

from collections.abc import Sequence
from functools import cache

from ..arrays import DeviceArray, contiguous, is_copyable
from ..device.hopper.tensor_map import TensorMap
from ..device.hopper.tma import map_address
from ..device.hopper.warpgroups import make_set_registers
from ..device.numba_cuda import cuda, kernel, types
from ..device.ptx import shared_tile
from ..launch import launch, multiprocessors
from ..problem import Problem
from ..scores import check_differentiable
from ..tiling import ceil_div
from . import tensor_core_backward
from .arguments import extra_arguments
from .backward_call import asked_for, parts_of
from .hopper import factors
from .hopper_backward_consumer import make_consume
from .hopper_backward_heads import BACKWARDS_AT_ONCE, KEYS_AT_ONCE, heads_at_once
from .hopper_backward_producer import (
    BLOCK_NUMBERS,
    BLOCKS,
    KEY_TILES_OF_ALL,
    STEP_NUMBERS,
    make_produce,
)
from .hopper_backward_prologue import make_lay_out, make_start_barriers
from .hopper_backward_rows import THREADS, make_prepare, make_round
from .hopper_backward_tiles import (
    BackwardTiles,
    WideBackwardTiles,
    hopper_backward_tiles,
)
from .hopper_backward_turns import make_keep_turns
from .hopper_backward_wide import make_wide_backward
from .hopper_tiles import ALIGNMENT
from .spec import Spec, padded
from .tensor_core_tiles import allows_chunks

ALL = True, True, True
"""dQ, dK and dV are wanted."""


@cache
def make_backward(
    spec: Spec,
    tiles: BackwardTiles,
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
        Key tiles add to dQ in turn, from the last one on (from the first one if `tiles` say
        `backwards`), so that it has the same bits each time, and the last one to add rounds it;
        else they add as they come, and another kernel rounds.

    Returns
    -------
    kernel
        ``hopper_backward(q_map, do_map, k_map, v_map, dk_map, dv_map, Rows, Sums, dQ, Turns,
        Ticket, sizes, scale, factor, mask_aux, range_aux, score_aux, lengths, listed, dropout)``:
        `TensorMap` of (batch, seqlen, heads, columns) tensors, boxes of tile_m queries and of 64
        keys; `Rows` and `Sums` as `hopper_backward_rows.make_prepare` leaves them; dQ (batch,
        seqlen_q, num_heads, head_dim) is written if `ordered`; `Turns` (batch, num_heads,
        2 * query tiles) and `Ticket` (1,) int32, zero; `sizes` as `sizes_of` says.

    Notes
    -----
    Reads each K and V tile once, each visiting Q and dO tile once a key tile; reads and writes
    dQ once a key tile, in float32; writes dK and dV once.
    """
    if isinstance(tiles, WideBackwardTiles):
        return make_wide_backward(spec, tiles, scale_first, wants, ordered)
    threads = tiles.threads
    few, many = tiles.registers
    give_registers, take_registers = make_set_registers(few, False), make_set_registers(many, True)
    produce, keep_turns = make_produce(spec, tiles, ordered), make_keep_turns(tiles)
    consume = make_consume(spec, tiles, scale_first, wants, ordered)
    lay_out, start_barriers = make_lay_out(tiles), make_start_barriers(tiles, ordered)
    ds_at = tiles.offsets.ds
    out_shape, blocks_shape = (2, 2, tiles.ds_tile.rows, 32), (BLOCKS, BLOCK_NUMBERS)
    all_bars, step_shape = 1 + max(tiles.barriers.values()), (2 * tiles.stages, STEP_NUMBERS)

    @kernel(threads, 1)
    def hopper_backward(
        q_map, do_map, k_map, v_map, dk_map, dv_map, Rows, Sums, dQ, Turns, Ticket, sizes, scale,
        factor, mask_aux, range_aux, score_aux, lengths, listed, dropout,
    ):  # fmt: skip
        tid = types.int32(cuda.threadIdx.x)

        # Prologue
        bars = cuda.shared.array(all_bars, types.uint64)
        sSteps = cuda.shared.array(step_shape, types.int32)
        sBlocks = cuda.shared.array(blocks_shape, types.int32)
        memory = cuda.shared.array(0, types.uint16, alignment=ALIGNMENT)
        words = cuda.shared.array(0, types.uint32, alignment=ALIGNMENT)
        numbers = cuda.shared.array(0, types.float32, alignment=ALIGNMENT)
        sK, sV, sQ, sdO, sdS, tS, sRows, sNumbers = lay_out(memory, numbers)
        sOut = shared_tile(words, ds_at // 2, out_shape)
        start_barriers(bars, tid)

        # Mainloop of each role
        role = cuda.shfl_sync(0xFFFFFFFF, tid // 128, 0)
        if role == 0:
            give_registers()
            if tid == 0:
                produce(
                    sQ, sdO, sK, sV, sRows, sSteps, sBlocks, bars, map_address(q_map),
                    map_address(do_map), map_address(k_map), map_address(v_map), Rows, Ticket,
                    sizes, range_aux, lengths, listed,
                )  # fmt: skip
            if ordered and 32 <= tid < 96:
                keep_turns(sSteps, sBlocks, bars, Turns, types.int32((tid >> 5) - 1), tid & 31)
        else:
            take_registers()
            consume(
                sQ, sdO, sK, sV, sdS, tS, sNumbers, sOut, sSteps, sBlocks, bars,
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
    if numbers:
        return borrowed
    own = workspace_with(hopper_backward_tiles(problem), problem)
    return *own, max(0, sum(borrowed) - sum(own))


def workspace_with(tiles: BackwardTiles, problem: Problem) -> tuple[int, int, int]:
    """The parts that the kernel itself needs, with given tiles."""
    blocks = _query_tiles(problem, tiles)
    rows, sums = 8 * blocks * tiles.tile_m, 4 * blocks * tiles.tile_m * tiles.depth
    return padded(rows, 16), padded(sums, 16), padded(4 * (2 * blocks + 1), 16)


def _query_tiles(problem: Problem, tiles: BackwardTiles) -> int:
    heads = problem.batch * problem.num_heads
    return heads * ceil_div(problem.seqlen_q, tiles.tile_m)


def backward(
    problem, q, k, v, out, lse, dout, dq, dk, dv, memory, dlse=None, stream: int = 0, d_aux=(),
    *, ordered: bool = True,
):  # fmt: skip
    """Run the backward pass on arrays in GPU memory; `ladder.Rung` says what is handed over.

    `ordered` is as in `make_backward`.

    What the kernel cannot do the tensor-core rung's backward does: gradients of tensors that score
    changes read, and a dO that the copy engine cannot read, as it cannot read a tensor without
    rows.

    Raises
    ------
    ValueError
        If a score change has no derivative.
    """
    given = q, k, v, out, lse, dout, dq, dk, dv, memory, dlse, stream, d_aux
    copied = [DeviceArray.of(x) for x in (q, k, v, dout, dq, dk, dv) if x is not None]
    readable = problem.seqlen_q > 0 and all(allows_chunks(x) and is_copyable(x) for x in copied)
    if asked_for(d_aux) or not readable:
        return tensor_core_backward.backward(problem, *given)
    return backward_with(hopper_backward_tiles(problem), ordered, problem, *given[:-1])


def backward_with(
    tiles: BackwardTiles,
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
    turns = problem.batch, problem.num_heads, 2 * ceil_div(problem.seqlen_q, tiles.tile_m)
    turns = contiguous(at_turns, turns, "int32")
    ticket = contiguous(at_turns + 8 * blocks, (1,), "int32")

    given = () if dlse is None else (DeviceArray.of(dlse),)
    kinds = allows_chunks(out) and allows_chunks(dout), dlse is not None, ordered
    prepare = make_prepare(problem.dtype, problem.head_dim_v, tiles, *kinds)
    dq_given = () if dq is None else (dq,)
    arguments = out, dout, lse, given, rows, sums, dq_given, turns, ticket
    launch(prepare, blocks, THREADS, 0, arguments, stream)

    boxes = (q, tiles.tile_m), (dout, tiles.tile_m), (k, 64), (v, 64), (dk or k, 64), (dv or v, 64)
    maps = [TensorMap(x._replace(dtype=problem.dtype), count, tiles.panel) for x, count in boxes]
    scale_first, scale, factor = factors(problem)
    keys = BACKWARDS_AT_ONCE if tiles.backwards and ordered else KEYS_AT_ONCE
    at_once = heads_at_once(problem, tiles.tile_n, multiprocessors(), keys)
    sizes = sizes_of(problem, tiles, at_once)
    arguments = (*maps, rows, sums, dq or q, turns, ticket, sizes, scale, factor)
    arguments += extra_arguments(problem, tiles.tile_m, tiles.tile_n)
    kernel = make_backward(backward_spec(problem), tiles, scale_first, wants, ordered)
    blocks_at_once = min(sizes[KEY_TILES_OF_ALL], multiprocessors())
    launch(kernel, blocks_at_once, tiles.threads, tiles.shared_bytes, arguments, stream)
    if dq is not None and not ordered:
        rounding = make_round(problem.dtype, tiles)
        launch(rounding, blocks, THREADS, 0, (sums, dq, scale), stream)


def backward_spec(problem: Problem) -> Spec:
    """What the kernel depends on; two problems with equal ones share it."""
    return Spec.of(problem, True)._replace(folded=True)


def sizes_of(problem: Problem, tiles: BackwardTiles, at_once: int) -> tuple[int, ...]:
    """The kernel's `sizes`, with `at_once` kv heads at a time; the producer's file names them."""
    query_tiles = ceil_div(problem.seqlen_q, tiles.tile_m)
    key_tiles = ceil_div(problem.seqlen_k, tiles.tile_n)
    all_heads = problem.batch * problem.num_kv_heads
    sizes = all_heads * key_tiles, problem.num_heads, problem.num_kv_heads, problem.group
    sizes += problem.seqlen_q, problem.seqlen_k, all_heads, at_once
    return *sizes, query_tiles, key_tiles


def counted_as(problem: Problem) -> tuple[str, int, int]:
    """The simulator's program of this schedule, and its tile_m and tile_n."""
    tiles = hopper_backward_tiles(problem)
    return "flash2", tiles.tile_m, tiles.tile_n
