"""Plans: what a run writes into packed arguments and hands to the driver."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

import fake_driver

from flash_numba import driver, kernel_store, packing, plan_store
from flash_numba.addresses import NAMES, known_as, owner_of, unknown
from flash_numba.arrays import DeviceArray
from flash_numba.device.hopper.tensor_map import TensorMap
from flash_numba.driver import Shape
from flash_numba.packing import SeedWord, pack
from flash_numba.passes import Output, Pass
from flash_numba.plan import SEED, FillStep, KernelStep, Plan

Q = DeviceArray(4096 + 8, (2, 5, 3, 4), (240, 48, 16, 4), "fp32")
FUNCTION: Any = SimpleNamespace(handle=ctypes.c_void_p(77))


@pytest.fixture
def fake(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    driver.enter(0)
    return fake


@pytest.fixture
def encoded_at(monkeypatch):
    """Addresses that tensor maps are encoded with."""
    found = []

    def encoded(tensor_map):
        found.append(tensor_map.array.pointer)
        return bytes(range(128))

    monkeypatch.setattr(packing, "encoded", encoded)
    return found


SHAPE: Any = Shape(6, 128, 1000)


def step(*arguments, shape=SHAPE, key: str | None = "kernel-1"):
    return KernelStep(FUNCTION, key, shape, pack(arguments))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("address", [0, 4096, 4104, 2**57 + 12])
@pytest.mark.parametrize("offset", [0, 4, 48, 2**40])
def test_an_unknown_address_says_whose_it_is(name, address, offset):
    there = unknown(name, address)
    assert owner_of(there + offset) == (name, offset)
    assert there % 16 == address % 16
    assert owner_of(address) == (None, address)


def test_a_run_writes_addresses_and_nothing_else(fake):
    k = known_as(Q, "k")
    behind = k._replace(pointer=k.pointer + 64, shape=(4,), strides=(4,))
    run = Plan([step(known_as(Q, "q"), 3, (k, behind), 0.5)]).ready(("k", "q"))
    for addresses, stream in (((8200, 808), 0), ((80, 160), 2**45)):
        run(addresses, stream)
        handle, shape, at, words = fake.launches[-1]
        assert (handle, shape, at or 0) == (77, ([6, 1, 1], [128, 1, 1], 1000, None), stream)
        assert words[:13] == [0, 0, 120, 4, addresses[1], *Q.shape, *Q.strides]
        assert words[13] == 3
        assert words[14:27] == [0, 0, 120, 4, addresses[0], *Q.shape, *Q.strides]
        assert words[27:34] == [0, 0, 4, 4, addresses[0] + 64, 4, 4]
        assert words[34] == np.float32(0.5).view(np.uint32)


def test_an_array_whose_address_is_known_keeps_it(fake):
    Plan([step(Q)]).ready(())((), 0)
    assert fake.launches[0][3][4] == Q.pointer


def test_the_words_of_the_seed_are_each_calls_own(fake):
    run = Plan([step(*SeedWord.pair(2**33 + 5), np.uint64(9))]).ready(SEED)
    run((7, 8), 0)
    assert fake.launches[0][3] == [7, 8, 9]
    Plan([step(*map(np.uint64, SeedWord.pair(2**33 + 5)))]).ready(())((), 0)
    assert fake.launches[1][3] == [5, 2]


HALVES = DeviceArray(4096, (2, 5, 3, 64), (1920, 384, 128, 2), "fp16")


def test_a_tensor_map_goes_by_value_and_follows_its_array(fake, encoded_at):
    tensor_map = TensorMap(known_as(HALVES, "q"), 64, 64)
    packed = pack((1, tensor_map, 2))
    assert packed.starts == (0, 64, 192)
    assert packed.data[64:192] == bytes(range(128))
    assert encoded_at == [1 << 32]
    run = Plan([step(1, tensor_map, 2)]).ready(("q",))
    run((4242,), 0)
    _, _, _, words = fake.launches[0]
    assert words == [1, 4242, 2]
    assert fake.starts[1] % 64 == 0
    for address in (4242, 16, 16, 4242):
        run((address,), 0)
        assert fake.launches[-1][3] == [1, address, 2]
    assert fake.moved == [4242, 16, 4242]
    pack(TensorMap(HALVES, 64, 64))
    assert encoded_at[-1] == HALVES.pointer


def test_clusters_and_fills(fake):
    memory = unknown("memory")
    steps = [FillStep(*owner_of(memory + 16), 40), step(5, shape=Shape(4, 32, 0, 2))]
    Plan(steps).ready(("memory",))((1000,), 3)
    assert fake.fills == [(1016, 0, 40, 3)]
    assert fake.launches[0][1] == ([4, 1, 1], [32, 1, 1], 0, [2, 1, 1])


def test_a_failed_launch_is_an_error(fake, monkeypatch):
    fake.cuLaunchKernelEx = lambda *arguments: 701
    fake.cuGetErrorName = lambda status, name: 0
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with CUDA error 701"):
        Plan([step(1)]).ready(())((), 0)


def test_a_thread_without_a_context_is_told_apart(fake):
    run, raised = Plan([step(1)]).ready(()), []

    def launch():
        with pytest.raises(driver.NoContext, match="cuLaunchKernelEx failed with CUDA error 201"):
            run((), 0)
        driver.enter(2)
        assert fake.context == 1002
        driver.enter(0)  # it has one
        assert fake.context == 1002
        run((), 0)
        raised.append(True)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert raised
    assert len(fake.launches) == 1


def test_threads_share_a_plan(fake):
    run = Plan([step(known_as(Q, "q"), known_as(Q, "k"))]).ready(("q", "k"))

    def repeat(n):
        driver.enter(0)
        for _ in range(200):
            run((n, 1000 + n), n)

    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 800
    assert all(words[17] == 1000 + words[4] == 1000 + at for *_, at, words in fake.launches)


# On disk


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path))
    loaded = []

    class Loaded:
        handle = ctypes.c_void_p(78)

        def __init__(self, cubin, name, shared_bytes):
            if cubin == b"of another driver":
                raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")
            loaded.append((cubin, name, shared_bytes))

    monkeypatch.setattr(kernel_store, "Function", Loaded)
    plan_store._function.cache_clear()
    yield loaded
    plan_store._function.cache_clear()


def planned(*steps):
    outputs = [Output("o", (2, 3), "bf16"), Output("dbias", (4,), "fp32")]
    return Pass.of(Plan(steps), ("k", "q"), outputs, [Output("memory", (9,), "fp32")])


def test_a_plan_from_disk_launches_the_same(fake, place, encoded_at):
    kernel_store.save_kernel("kernel-1", b"code", "name")
    fill = FillStep("memory", 8, 16)
    tensor_map = TensorMap(known_as(HALVES, "o"), 64, 64)
    arguments = known_as(Q, "q"), *SeedWord.pair(1), tensor_map
    first = planned(step(*arguments), fill, step(known_as(Q, "k"), shape=Shape(1, 32, 0, 2)))
    plan_store.save("a call", first)
    second = plan_store.load("a call", 0)
    assert second is not None
    assert second[1:4] == first[1:4] == (("q", "k"), first.outputs, first.memory)
    assert place == [(b"code", "name", 1000), (b"code", "name", 0)]
    addresses = range(100, 100 + 7 * 16, 16)
    first.run(addresses, 5)
    second.run(addresses, 5)
    (one, two, *others) = (launch[1:] for launch in fake.launches)
    assert [one, two] == others
    assert len(set(fake.fills)) == 1


def test_a_plan_is_not_there(fake, place):
    assert plan_store.load("a call", 0) is None
    plan_store.save("a call", planned(step(1)))
    assert plan_store.load("a call", 0) is None  # its kernel is not
    plan_store._function.cache_clear()
    kernel_store.save_kernel("kernel-1", b"of another driver", "name")
    assert plan_store.load("a call", 0) is None
    plan_store._function.cache_clear()
    kernel_store.save_kernel("kernel-1", b"code", "name")
    assert plan_store.load("a call", 0) is not None
    assert plan_store.load("another call", 0) is None


class Other:
    def ready(self, names):
        return None


@pytest.mark.parametrize("other", [step(1, key=None), FillStep(None, 4096, 8), Other()])
def test_what_holds_for_this_process_only_is_not_kept(other, fake, place):
    kernel_store.save_kernel("kernel-1", b"code", "name")
    plan_store.save("a call", planned(step(1), other))
    assert plan_store.load("a call", 0) is None
