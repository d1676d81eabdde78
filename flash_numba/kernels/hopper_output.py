"""How a warpgroup's part of a query tile leaves: O by the copy engine, LSE by its lanes."""

from functools import cache

from ..device.hopper.layouts import CHUNK_BYTES
from ..device.hopper.mbarrier import fence_async
from ..device.hopper.tma import bulk_commit, bulk_wait_read, tensor_store
from ..device.hopper.warpgroups import made_here, named_sync
from ..device.numba_cuda import cuda, room, types
from ..device.ptx_matrix import pack_bf16, pack_fp16
from ..device.unroll import unroll_full
from .hopper_tiles import HopperTiles
from .hopper_walk import make_walk
from .spec import Spec

ROWS = 2
"""Rows of a lane's part, eight apart."""


@room
def row_of(tid):
    """The first of a thread's rows in its warpgroup's 64."""
    return (tid >> 5) * 16 + ((tid & 31) >> 2)


@cache
def make_leave(dtype: str, tiles: HopperTiles, finish, barrier: int):
    """Room ``leave(sO, acc_o, row_max, row_sum, o_map, LSE, factor, place, w, tid)``.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    tiles : HopperTiles
    finish : room
        Of `fragments.make_fragment_softmax`.
    barrier : int
        Number of warpgroup 0's named barrier.

    Notes
    -----
    O and LSE of warpgroup `w`'s rows of query tile ``place = (batch, head, m_block)``.
    """
    tile_m, store_output = tiles.tile_m, make_store_output(dtype, tiles)

    @room
    def leave(sO, acc_o, row_max, row_sum, o_map, LSE, factor, place, w, tid):
        batch, head, m_block = place
        rLse = cuda.local.array(ROWS, types.float32)
        first = types.int32(m_block * tile_m + 64 * w)
        finish(row_max, row_sum, acc_o, rLse, factor)
        store_output(sO, acc_o, o_map, first, head, batch, barrier + w, tid)
        for i in range(ROWS):  # last: the fence in `store_output` waits for all stores before it
            q_idx = types.int32(first + row_of(tid) + 8 * i)
            if tid & 3 == 0 and q_idx < LSE.shape[2]:
                LSE[types.uint32(batch), types.uint32(head), types.uint32(q_idx)] = rLse[i]

    return leave


@cache
def make_leave_empty(spec: Spec, tiles: HopperTiles, leave):
    """Room ``leave_empty(sO, acc_o, row_max, row_sum, o_map, LSE, keys, factor, w, tid, ...)``.

    The block's query tiles that see no key, which the producer passes over, leave by `leave` of
    `make_leave` with what the arguments hold.
    """
    turns_of, tile_of, step_of, _, _, _ = make_walk(spec, tiles.tile_m, tiles.tile_n)

    @room
    def leave_empty(
        sO, acc_o, row_max, row_sum, o_map, LSE, keys, factor, w, tid, range_aux, lengths, listed
    ):
        start = turn = types.int32(0)
        turns = turns_of(LSE)
        while turn < turns:
            seeing = step_of(turn, turns, start, LSE, keys, range_aux, lengths, listed)
            while turn < seeing.turn:
                place = tile_of(turn, LSE)
                if place[0] < LSE.shape[0]:
                    leave(sO, acc_o, row_max, row_sum, o_map, LSE, factor, place, w, tid)
                turn = types.int32(turn + 1)
            turn = types.int32(seeing.turn + 1)

    return leave_empty


@cache
def make_store_output(dtype: str, tiles: HopperTiles):
    """Room ``store_output(sO, acc_o, o_map, first_row, head, batch, barrier, tid)``.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    tiles : HopperTiles

    Notes
    -----
    `sO` is the warpgroup's part of shared memory, 32-bit words of shape `HopperTiles.o_words`, and
    `barrier` the number of a named barrier of its 128 threads. A quad of lanes writes a 16-byte
    chunk, and the swizzle keeps the eight rows of a warp's store on different banks. The copy runs
    on; the next store waits until it has read shared memory. With `store_rows` = 16 a warp stores
    its own rows as soon as it has them, and only its own lanes meet.
    """
    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]
    panel, panels, line_bytes = tiles.panel, tiles.o_tile.panels, tiles.o_tile.line_bytes
    at_once, rows = tiles.o_panels, tiles.store_rows
    by_warp = rows == 16
    chunks, storing = line_bytes // CHUNK_BYTES, 2 * rows  # threads whose first one stores
    shift = {128: 0, 64: 1}[line_bytes]

    @room
    def meet(barrier):
        if by_warp:
            cuda.syncwarp()
        else:
            named_sync(barrier, 128)

    @room
    def store_output(sO, acc_o, o_map, first_row, head, batch, barrier, tid):
        thread = types.int32(made_here(tid) & 127)
        row, word = (thread >> 5) * 16 + ((thread & 31) >> 2), thread & 3
        swizzle = (row >> shift) & (chunks - 1)
        above = types.int32((thread >> 5) * 16 if by_warp else 0)
        for first in range(0, panels, at_once):
            unroll_full()
            if tid % storing == 0:
                bulk_wait_read()
            meet(barrier)
            for c in range(at_once * chunks):
                unroll_full()
                place = ((c % chunks) ^ swizzle) * 4 + word
                j = 2 * (first * chunks + c)
                sO[c // chunks, row, place] = pack(acc_o[0, j], acc_o[0, j + 1])
                sO[c // chunks, row + 8, place] = pack(acc_o[1, j], acc_o[1, j + 1])
            fence_async()
            meet(barrier)
            if tid % storing == 0:
                for p in range(at_once):
                    own, column = sO[p, above : above + rows], panel * (first + p)
                    tensor_store(own, column, first_row + above, head, batch, o_map)
                bulk_commit()

    return store_output
