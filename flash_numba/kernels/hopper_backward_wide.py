"""Hopper backward for wide heads: blocks of 64 keys, dV with one consumer and dK with the other.

As `hopper_backward`, but for what wide heads leave no room for: dK and dV of 64 keys are all that
the registers of two consumers hold, so one of them owns dV and the other one dK. Each computes one
of S and dP, and what the other one needs of it goes through shared memory.
"""

from functools import cache

from ..device.hopper.tma import map_address
from ..device.hopper.warpgroups import make_set_registers
from ..device.numba_cuda import cuda, kernel, types
from ..device.ptx import shared_tile
from .hopper_backward_producer import BLOCK_NUMBERS, BLOCKS, STEP_NUMBERS, make_produce
from .hopper_backward_prologue import make_lay_out, make_start_barriers
from .hopper_backward_tiles import WideBackwardTiles
from .hopper_backward_turns import make_keep_turns
from .hopper_tiles import ALIGNMENT
from .hopper_wide_keys import make_consume_keys
from .hopper_wide_values import make_consume_values
from .spec import Spec


@cache
def make_wide_backward(
    spec: Spec,
    tiles: WideBackwardTiles,
    scale_first: bool,
    wants: tuple[bool, bool, bool],
    ordered: bool,
):
    """The kernel for wide heads; parameters and result as of `hopper_backward.make_backward`."""
    threads, panel = tiles.threads, tiles.panel
    few, many = tiles.registers
    give_registers, take_registers = make_set_registers(few, False), make_set_registers(many, True)
    produce, keep_turns = make_produce(spec, tiles, ordered), make_keep_turns(tiles)
    asked = spec, tiles, scale_first, wants, ordered
    consume_values, consume_keys = make_consume_values(*asked), make_consume_keys(*asked)
    lay_out, start_barriers = make_lay_out(tiles), make_start_barriers(tiles, ordered)
    ds_at, p_at = tiles.offsets.ds, tiles.offsets.p
    p_shape = 8, 128, 4
    dv_shape = tiles.out_panels(tiles.v_tile), 64, panel // 2
    dk_shape = tiles.out_panels(tiles.k_tile), 64, panel // 2
    all_bars, step_shape = 1 + max(tiles.barriers.values()), (2 * tiles.stages, STEP_NUMBERS)
    blocks_shape = BLOCKS, BLOCK_NUMBERS

    @kernel(threads, 1)
    def hopper_backward_wide(
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
        sP = shared_tile(numbers, p_at // 2, p_shape)
        sdV, sdK = shared_tile(words, p_at // 2, dv_shape), shared_tile(words, ds_at // 2, dk_shape)
        start_barriers(bars, tid)

        # Mainloop of each role
        role, thread = cuda.shfl_sync(0xFFFFFFFF, tid // 128, 0), types.int32(tid & 127)
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
        elif role == 1:
            take_registers()
            consume_values(
                sQ, sdO, sK[0], sdS, sP, sNumbers, sdV, sSteps, sBlocks, bars, map_address(dv_map),
                Sums, dQ, sizes, scale, factor, thread, mask_aux, range_aux, score_aux,
                dropout,
            )  # fmt: skip
        else:
            take_registers()
            consume_keys(
                sQ, sdO, sK[0], sV[0], sdS, tS, sP, sNumbers, sdK, sSteps, sBlocks, bars,
                map_address(dk_map), Sums, dQ, sizes, scale, thread, dropout,
            )  # fmt: skip

    return hopper_backward_wide
