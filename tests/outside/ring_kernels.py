"""Kernels of Hopper's copy engine."""

from .variants import variant

RING = """
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
def ring(x_map, gY):
    here = cuda.shared.array(2, types.uint64)
    free = cuda.shared.array(2, types.uint64)
    memory = cuda.shared.array(0, types.uint16, alignment=1024)
    s = shared_tile(memory, 0, (2, 64, 64))
    t = cuda.threadIdx.x
    if t == 0:
        barrier_init(here, 0, 1)
        barrier_init(here, 1, 1)
        barrier_init(free, 0, 128)
        barrier_init(free, 1, 128)
        fence_barrier_init()
    cuda.syncthreads()
    tiles = gY.shape[0]
    if t == 0:
        for n in range(tiles):
            if n >= 2:
                barrier_wait(free, n & 1, (n // 2 - 1) & 1)
            barrier_expect(here, n & 1, 2 * 64 * 64)
            tensor_load(s[n & 1], map_address(x_map), 0, n * 64, 0, 0, here, n & 1)
    elif t >= 128:
        for n in range(tiles):
            barrier_wait(here, n & 1, n // 2 & 1)
            for e in range(t - 128, 4096, 128):
                r, c = e // 64, e % 64
                chunk = c // 8 ^ r % 8
                gY[n, r, c] = s[n & 1, r, 8 * chunk + c % 8]
            barrier_arrive(free, n & 1)
"""

ONE_PLACE = """
from flash_numba.device.hopper.mbarrier import (
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.tma import map_address, tensor_load
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile


@kernel(256)
def ring(x_map, gY):
    bar = cuda.shared.array(1, types.uint64)
    memory = cuda.shared.array(0, types.uint16, alignment=1024)
    s = shared_tile(memory, 0, (1, 64, 64))
    t = cuda.threadIdx.x
    if t == 0:
        barrier_init(bar, 0, 1)
        fence_barrier_init()
    cuda.syncthreads()
    for n in range(gY.shape[0]):
        if t == 0:
            barrier_expect(bar, 0, 8192)
            tensor_load(s[0], map_address(x_map), 0, 64 * n, 0, 0, bar, 0)
        barrier_wait(bar, 0, n % 2)
        for e in range(t, 4096, 256):
            gY[n, e // 64, e % 64] = s[0, e // 64, e % 64 ^ e // 64 % 8 * 8]
        cuda.syncthreads()
"""

TWO_WITHOUT_FREE = """
from flash_numba.device.hopper.mbarrier import (
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barrier_init,
)
from flash_numba.device.hopper.tma import map_address, tensor_load
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile


@kernel(256)
def ring(x_map, gY):
    bars = cuda.shared.array(2, types.uint64)
    memory = cuda.shared.array(0, types.uint16, alignment=1024)
    s = shared_tile(memory, 0, (2, 64, 64))
    t = cuda.threadIdx.x
    tiles = gY.shape[0]
    if t == 0:
        barrier_init(bars, 0, 1)
        barrier_init(bars, 1, 1)
        fence_barrier_init()
        for n in range(min(2, tiles)):
            barrier_expect(bars, n, 8192)
            tensor_load(s[n], map_address(x_map), 0, 64 * n, 0, 0, bars, n)
    cuda.syncthreads()
    for n in range(tiles):
        place = n % 2
        barrier_wait(bars, place, n // 2 % 2)
        for e in range(t, 4096, 256):
            gY[n, e // 64, e % 64] = s[place, e // 64, e % 64 ^ e // 64 % 8 * 8]
        cuda.syncthreads()
        if t == 0 and n + 2 < tiles:
            barrier_expect(bars, place, 8192)
            tensor_load(s[place], map_address(x_map), 0, 64 * (n + 2), 0, 0, bars, place)
"""


def ring(*changes, text=RING):
    return variant("ring", text, *changes)


ANSWERS = {
    "ring_kernel": {
        "right": [ring(), ring(text=ONE_PLACE), ring(text=TWO_WITHOUT_FREE)],
        "wrong": [
            (
                ring(
                    "                barrier_wait(free, n & 1, (n // 2 - 1) & 1)\n",
                    "",
                    "            if n >= 2:\n",
                    "",
                ),
                r"race|wait|gY|hang|deadlock|phase",
            ),
            (ring("n // 2 & 1)", "0)"), r"race|gY|hang|wait|phase"),
            (ring("n // 2 & 1)", "n & 1)"), r"race|gY|hang|wait|phase|deadlock|init|written"),
            (ring("2 * 64 * 64", "64 * 64"), r"bytes|race|hang|barrier|wait|gY"),
            (ring("2 * 64 * 64", "2 * 64 * 64 + 16"), r"bytes|hang|barrier|wait|deadlock"),
            (ring("8 * chunk + c % 8", "c"), r"gY"),
            (
                ring(
                    "elif t >= 128:\n        for n in range(tiles)",
                    "elif t >= 128:\n        for n in range(tiles - 1)",
                ),
                r"never|written|NaN",
            ),
            (ring("            barrier_arrive(free, n & 1)\n", ""), r"hang|wait|deadlock|barrier"),
            (ring("        fence_barrier_init()\n", ""), r"fence"),
            (ring("gY[n, r, c] =", "gY[n, c, r] ="), r"gY"),
            (
                ring(
                    "        if t == 0:\n            barrier_expect(bar, 0, 8192)\n",
                    "        if t == 0 or t == 128:\n            barrier_expect(bar, 0, 8192)\n",
                    "barrier_init(bar, 0, 1)",
                    "barrier_init(bar, 0, 2)",
                    text=ONE_PLACE,
                ),
                r"often|twice|once|race",
            ),
        ],
    },
}
