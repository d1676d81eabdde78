"""What the thread runner says of wrong uses of Hopper's instructions, one fault a kernel."""

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("greenlet")

from flash_numba.device.hopper.layouts import SwizzledTile
from flash_numba.device.hopper.mbarrier import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_async,
    fence_barrier_init,
)
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.device.hopper.tma import (
    bulk_commit,
    bulk_wait_read,
    map_address,
    tensor_load,
    tensor_store,
)
from flash_numba.device.hopper.warpgroups import make_meeting, named_sync
from flash_numba.device.hopper.wgmma import make_add_product, make_multiply_tiles, make_wait
from flash_numba.device.numba_cuda import cuda, kernel, types
from flash_numba.device.ptx import shared_tile
from simulator.threads import KernelError, trace

TILE = SwizzledTile(64, 64)
SHAPE, SIZE, BYTES = TILE.shape, TILE.size, 2 * TILE.size


def make_kernel(fault: str):
    """Two tiles come in, the second where the first was; their products with themselves go out."""
    multiply = make_multiply_tiles("fp16", TILE, TILE)
    add = make_add_product("fp16", 64, TILE)
    wait, wait_both = make_wait(0, 32), make_wait(0, 32, 16)
    meet, _ = make_meeting(2, 128)
    start = 4 if fault == "misaligned" else 0
    announced = BYTES + {"missing": 16, "too many": -16}.get(fault, 0)

    @kernel(256)
    def faulty(source, out):
        bars = cuda.shared.array(2, types.uint64)
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        sA = shared_tile(memory, start, SHAPE)
        acc = cuda.local.array((2, 16), types.float32)
        rP = cuda.local.array((4, 4), types.uint32)
        tid = cuda.threadIdx.x
        if tid == 0 and fault != "no barrier":
            barrier_init(bars, 0, 1)
            barrier_init(bars, 1, 1)
        if tid == 0 and fault != "no fence":
            fence_barrier_init()
        cuda.syncthreads()
        if tid == 128:
            for tile in range(2):
                if tile == 1 and fault != "overwrites":
                    barrier_wait(bars, 1, 0)
                if fault != "not announced":
                    barrier_expect(bars, 0, announced)
                if fault == "arrives twice":
                    barrier_arrive(bars, 0)
                    barrier_arrive(bars, 0)
                tensor_load(sA[0], map_address(source), 0, 64 * tile, 0, 0, bars, 0)
        if tid >= 128:
            return
        for tile in range(2):
            if fault == "reads early":
                out[tile, tid, 0] = sA[0, 0, tid % 64]
            if fault == "mismatched":
                named_sync(1, 128 if tid < 64 else 96)
            if fault == "waits elsewhere":
                if tid < 64:
                    named_sync(1, 128)
                else:
                    named_sync(1, 128)
            if tid < 64:
                meet()
            else:
                meet()  # where barrier.sync stands does not matter
            if fault != "multiplies early":
                barrier_wait(bars, 0, tile)
            if fault == "views sums":
                row = acc[0]  # noqa: F841
            multiply(acc, sA, sA)
            if fault == "uses sums":
                out[tile, tid, 0] = acc[0, 0]
            if fault == "overwrites sums":
                acc[0, 0] = 0
            wait(acc)
            for k in range(4):
                for i in range(4):
                    rP[k, i] = 0
            add(acc, rP, sA)
            if fault == "overwrites weights":
                rP[0, 0] = 1
            if fault == "releases early" and tid == 0:
                barrier_arrive(bars, 1)
            wait_both(acc, rP)
            if fault not in ("releases early", "never releases") and tid == 0:
                barrier_arrive(bars, 1)
            out[tile, tid, 1] = acc[0, 0]

    return faulty


def run(fault, blocks=1):
    source = np.random.default_rng(0).standard_normal((1, 128, 1, 64)).astype(np.float16)
    out = np.full((2, 128, 2), np.nan, np.float32)
    arguments = TensorMap(source.view(np.uint16), 64, 64), out
    trace(make_kernel(fault))[blocks, 256, 0, BYTES + 16](*arguments)
    return source[0, :, 0].astype(np.float64), out


def test_the_sound_kernel():
    source, out = run("none")
    for tile in range(2):
        rows = source[64 * tile : 64 * tile + 64]
        exact = (rows @ rows.T)[[0, 1, 16], [0, 0, 16]]
        np.testing.assert_allclose(out[tile, [0, 4, 32], 1][:2], exact[:2], atol=1e-4)


FAULTS = {
    "no barrier": ("barrier", "used before barrier_init"),
    "no fence": ("missing fence", r"bars\[0\] and may .* call fence_barrier_init"),
    "not announced": ("deadlock", "0 of 1 arrivals, 8192 bytes more than announced"),
    "missing": ("deadlock", "1 of 1 arrivals, 16 announced bytes missing"),
    "too many": ("deadlock", "1 of 1 arrivals, 16 bytes more than announced"),
    "never releases": ("deadlock", r"bars\[1\], phase 0: 0 of 1 arrivals"),
    "arrives twice": ("barrier", "one arrival too many"),
    "mismatched": ("barrier", "is used for 96 threads while"),
    "waits elsewhere": ("barrier", "threads wait in barrier 1 at different places"),
    "misaligned": ("misaligned access", "multiple of 1024"),
    "reads early": ("race", "tensor_load"),
    "multiplies early": ("asynchronous copy", "tensor_load"),
    "overwrites": ("deadlock", "phase 2: 0 of 1 arrivals"),  # two phases on, nobody saw the first
    "releases early": ("race", "tensor_load"),
    "uses sums": ("asynchronous copy", "used while the product runs"),
    "overwrites sums": ("asynchronous copy", "overwritten while the product runs"),
    "overwrites weights": ("asynchronous copy", "overwritten while the product runs"),
    "views sums": ("unsupported", "a view of a row of a product's local array"),
}


USED = {
    "uses sums": ["out[tile, tid, 0] = acc[0, 0]", "multiply(acc, sA, sA)"],
    "overwrites sums": ["acc[0, 0] = 0", "multiply(acc, sA, sA)"],
    "overwrites weights": ["rP[0, 0] = 1", "add(acc, rP, sA)"],
}
"""Who touches registers in flight, and the product that holds them."""


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault):
    kind, message = FAULTS[fault]
    with pytest.raises(KernelError, match=message) as caught:
        run(fault)
    assert caught.value.finding.kind == kind
    found = [place.text for place in caught.value.finding.places]
    assert found
    if fault in USED:
        assert found == USED[fault]


# Ways of its own: what threads write, and what the copy engine and the tensor cores read


def make_storing(fault: str):
    """Threads fill a tile; one of them lets the copy engine take it out."""

    @kernel(128)
    def storing(target):
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        tile = shared_tile(memory, 0, (64, 64))
        tid = cuda.threadIdx.x
        if fault == "fence before the write":
            fence_async()
        for i in range(tid, SIZE, 128):
            memory[i] = i
        if fault not in ("no fence", "fence before the write", "fence after the barrier"):
            fence_async()
        if fault != "no barrier":
            cuda.syncthreads()
        if tid == 0:
            if fault == "fence after the barrier":
                fence_async()
            tensor_store(tile, 0, 0, 0, 0, map_address(target))
            if fault != "no commit":
                bulk_commit()
            if fault != "no wait":
                bulk_wait_read()
        if fault == "written again":
            memory[tid] = 0

    return storing


def make_multiplying(fenced: bool):
    """A tile that threads wrote is multiplied with itself."""
    multiply, wait = make_multiply_tiles("fp16", TILE, TILE), make_wait(0, 32)

    @kernel(128)
    def multiplying(out):
        memory = cuda.shared.array(0, types.uint16, alignment=1024)
        tile = shared_tile(memory, 0, SHAPE)
        tid = cuda.threadIdx.x
        for i in range(tid, SIZE, 128):
            memory[i] = 0x3C00
        if fenced:
            fence_async()
        cuda.syncthreads()
        acc = cuda.local.array((2, 16), types.float32)
        multiply(acc, tile, tile)
        wait(acc)
        out[tid] = acc[0, 0]

    return multiplying


def store(fault):
    target = np.zeros((1, 64, 1, 64), np.uint16)
    trace(make_storing(fault))[1, 128, 0, BYTES](TensorMap(target, 64, 64))
    return target


@pytest.mark.parametrize("fault", ["none", "fence after the barrier"])
def test_fence_anywhere_between_write_and_read(fault):
    assert len(np.unique(store(fault))) == SIZE


STORE_FAULTS = {
    "no fence": ("missing fence", "memory[i] = i", "tensor_store("),
    "fence before the write": ("missing fence", "memory[i] = i", "tensor_store("),
    "no barrier": ("race", "memory[i] = i", "tensor_store("),
    "no commit": ("asynchronous copy", "tensor_store(", "bulk_wait_read()"),
    "no wait": ("asynchronous copy", "tensor_store("),
    "written again": ("race", "memory[tid] = 0", "tensor_store("),
}


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_fault_of_a_bulk_store_names_its_lines(fault):
    kind, *lines = STORE_FAULTS[fault]
    with pytest.raises(KernelError) as caught:
        store(fault)
    finding = caught.value.finding
    assert finding.kind == kind
    found = sorted(place.text.split("(")[0] for place in finding.places)
    assert found == sorted(line.split("(")[0] for line in lines)


def test_product_of_what_threads_wrote_needs_a_fence():
    out = np.full(128, np.nan, np.float32)
    trace(make_multiplying(True))[1, 128, 0, BYTES](out)
    np.testing.assert_array_equal(out, 64)
    with pytest.raises(KernelError, match="a wgmma product of thread 0 reads it") as caught:
        trace(make_multiplying(False))[1, 128, 0, BYTES](out)
    assert caught.value.finding.kind == "missing fence"
    assert [place.text for place in caught.value.finding.places] == [
        "memory[i] = 0x3C00",
        "multiply(acc, tile, tile)",
    ]
