"""How a warpgroup's part of O leaves: registers, shared memory, copy engine."""

from functools import cache

from ..device.fragments import ROWS
from ..device.hopper.layouts import CHUNK_BYTES
from ..device.hopper.mbarrier import fence_async
from ..device.hopper.tma import bulk_commit, bulk_wait_read, tensor_store
from ..device.hopper.warpgroups import named_sync
from ..device.numba_cuda import room, types
from ..device.ptx_matrix import pack_bf16, pack_fp16
from ..device.unroll import unroll_full
from .hopper_tiles import HopperTiles


@cache
def make_store_output(dtype: str, tiles: HopperTiles):
    """Room ``store_output(sO, acc_o, o_map, first_row, head, batch, barrier, tid)``.

    Parameters
    ----------
    dtype : "fp16" or "bf16"
    tiles : HopperTiles

    Notes
    -----
    `sO` is the warpgroup's part of shared memory as 32-bit words of shape (panels, 64, panel // 2),
    `barrier` the number of a named barrier of its 128 threads. A quad of lanes writes a 16-byte
    chunk, and the swizzle keeps the eight rows of a warp's store on different banks. The copy runs
    on; the next store waits until it has read shared memory.
    """
    pack = {"fp16": pack_fp16, "bf16": pack_bf16}[dtype]
    panel, panels, line_bytes = tiles.panel, tiles.o_tile.panels, tiles.o_tile.line_bytes
    chunks = line_bytes // CHUNK_BYTES
    shift = {128: 0, 64: 1}[line_bytes]

    @room
    def store_output(sO, acc_o, o_map, first_row, head, batch, barrier, tid):
        if tid == 0:
            bulk_wait_read()
        named_sync(barrier, 128)
        lane = types.uint32(tid % 32)
        row = types.int32(tid // 32 * 16) + types.int32(lane >> types.uint32(2))
        word = types.int32(lane & types.uint32(3))
        swizzle = (row >> shift) & (chunks - 1)
        for c in range(panels * chunks):
            unroll_full()
            for i in range(ROWS):
                unroll_full()
                pair = pack(acc_o[i, 2 * c], acc_o[i, 2 * c + 1])
                place = ((c % chunks) ^ swizzle) * 4 + word
                sO[c // chunks, row + 8 * i, place] = pair
        fence_async()
        named_sync(barrier, 128)
        if tid == 0:
            for p in range(panels):
                tensor_store(sO[p], panel * p, first_row, head, batch, o_map)
            bulk_commit()

    return store_output
