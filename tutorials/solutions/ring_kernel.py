from flash_numba.device.hopper.mbarrier import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.tma import map_address, tensor_load
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile


@kernel(256)
def ring_kernel(x_map, gY):
    """Barriers 0 and 1 say "is here" of a place, 2 and 3 "may go"."""
    bars = cuda.shared.array(4, types.uint64)
    memory = cuda.shared.array(0, types.uint16, alignment=1024)
    sX = shared_tile(memory, 0, (2, 64, 64))
    tid = cuda.threadIdx.x
    if tid == 0:
        for place in range(2):
            barrier_init(bars, place, 1)
            barrier_init(bars, 2 + place, 128)
        fence_barrier_init()
    cuda.syncthreads()
    if tid == 128:
        for n in range(gY.shape[0]):
            place, turn = n % 2, n // 2
            barrier_wait(bars, 2 + place, (turn + 1) % 2)
            barrier_expect(bars, place, 8192)
            tensor_load(sX[place], map_address(x_map), 0, 64 * n, 0, 0, bars, place)
    if tid < 128:
        for n in range(gY.shape[0]):
            place, turn = n % 2, n // 2
            barrier_wait(bars, place, turn % 2)
            for i in range(tid, 64 * 64, 128):
                row, col = i // 64, i % 64
                gY[n, row, col] = sX[place, row, col ^ 8 * (row % 8)]
            barrier_arrive(bars, 2 + place)
