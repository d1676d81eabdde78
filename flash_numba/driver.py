"""The CUDA driver, called through ctypes: the only place that does. Needs neither numba nor torch.

References
----------
NVIDIA, "CUDA Driver API": library management, execution control, memory management.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

LOCAL_BYTES, REGISTERS, SHARED_BYTES, CARVEOUT = 3, 4, 8, 9
"""CUfunction_attribute: local memory and registers of a thread, allowed dynamic shared memory of a
block, and how much of an L1 cache is shared memory (percent)."""

_ALIGNMENT = 64
"""Of a CUtensorMap."""

_CLUSTER = 4
"""CUlaunchAttributeID: blocks of a cluster along each axis."""

_INVALID_CONTEXT = 201
"""CUresult of a call by a thread that has no current context."""


class NoContext(RuntimeError):
    """The calling thread has no current context; `enter` gives it one."""


@cache
def driver() -> Any:
    """The driver's library."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def check(status: int, call: str) -> None:
    """Raise a RuntimeError unless a call of the driver succeeded."""
    if status != 0:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(name))
        words = (name.value or b"unknown").decode()
        kind = NoContext if status == _INVALID_CONTEXT else RuntimeError
        raise kind(f"{call} failed with CUDA error {status} ({words})")


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    """The context of a GPU that CUDA's runtime and Numba use, kept alive from now on."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(driver().cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    status = driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    check(status, "cuDevicePrimaryCtxRetain")
    return context


def enter(device: int) -> None:
    """Give the calling thread a context on GPU number `device` if it has none on any.

    A new thread has none until CUDA's runtime makes one current, which it does late: the threads
    that torch computes gradients on come here without.
    """
    current = ctypes.c_void_p()
    check(driver().cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
    if current.value is None:
        check(driver().cuCtxSetCurrent(_primary_context(device)), "cuCtxSetCurrent")


def in_context(device: int, run: Callable[[Any, int], None], addresses, stream: int) -> None:
    """``run(addresses, stream)``, which launches on GPU number `device`, on any thread."""
    try:
        run(addresses, stream)
    except NoContext:  # of the first launch: nothing has run
        enter(device)
        run(addresses, stream)


class Function:
    """A kernel's machine code in the driver.

    Parameters
    ----------
    cubin : bytes
        A cubin.
    name : str
        The kernel's name in it.
    shared_bytes : int
        Dynamic shared memory of a block, also above 48 KB.

    Attributes
    ----------
    handle : ctypes.c_void_p
        A CUfunction of the context that is current when this is made.
    registers, local_bytes : int
        Of a thread; local memory holds spills and arrays that are not in registers.
    """

    def __init__(self, cubin: bytes, name: str, shared_bytes: int):
        library, kernel, self.handle = (ctypes.c_void_p() for _ in range(3))
        device = ctypes.c_int()
        none = (None, None, 0)
        status = driver().cuLibraryLoadData(ctypes.byref(library), cubin, *none, *none)
        check(status, "cuLibraryLoadData")
        status = driver().cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode())
        check(status, "cuLibraryGetKernel")
        check(driver().cuCtxGetDevice(ctypes.byref(device)), "cuCtxGetDevice")
        for attribute, value in ((SHARED_BYTES, shared_bytes), (CARVEOUT, 100)):
            status = driver().cuKernelSetAttribute(attribute, value, kernel, device)
            check(status, "cuKernelSetAttribute")
        status = driver().cuKernelGetFunction(ctypes.byref(self.handle), kernel)
        check(status, "cuKernelGetFunction")
        self.registers, self.local_bytes = map(self._attribute, (REGISTERS, LOCAL_BYTES))

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        status = driver().cuFuncGetAttribute(ctypes.byref(value), which, self.handle)
        check(status, "cuFuncGetAttribute")
        return value.value


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _Configuration(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Shape(NamedTuple):
    """How many threads a launch has.

    Attributes
    ----------
    blocks, threads : int
        Blocks of the grid (one axis) and threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    cluster : int
        Neighbouring blocks that form a cluster (cc 9.0 on); 1 = none.
    """

    blocks: int
    threads: int
    shared_bytes: int
    cluster: int = 1


class Launch:
    """A launch all but ready: the stream is missing, and parameters that change.

    Parameters
    ----------
    function : Function
    shape : Shape
    data : bytes
        The parameters.
    starts : sequence of int
        Where each begins in it.

    Attributes
    ----------
    parameters : array of ctypes.c_void_p
        Where each lies: in a copy of `data` on a 64-byte boundary, until a word that changes from
        launch to launch is put in its place.
    configuration : _Configuration
        Its field `stream` is to be set.
    go : callable
        Launches on that stream, does not wait for the GPU, and returns the driver's status.
    """

    def __init__(self, function: Function, shape: Shape, data: bytes, starts: Sequence[int]):
        self._room = (ctypes.c_char * (len(data) + _ALIGNMENT))()
        at = ctypes.addressof(self._room)
        at += -at % _ALIGNMENT
        ctypes.memmove(at, data, len(data))
        self.parameters = (ctypes.c_void_p * len(starts))(*(at + start for start in starts))
        self.configuration = _Configuration((shape.blocks, 1, 1), (shape.threads, 1, 1))
        self.configuration.shared_bytes = shape.shared_bytes
        if shape.cluster > 1:
            self._cluster = _Attribute(_CLUSTER, 0, (shape.cluster, 1, 1))
            self.configuration.attributes = ctypes.pointer(self._cluster)
            self.configuration.count = 1
        reference = ctypes.byref(self.configuration)
        launch = driver().cuLaunchKernelEx
        self.go = partial(launch, reference, function.handle, self.parameters, None)


def fill_zero(address: int, size: int, stream: int) -> None:
    """Set `size` bytes of GPU memory to zero, in the order of a stream."""
    status = driver().cuMemsetD8Async(
        ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
    )
    check(status, "cuMemsetD8Async")


class MovableMap:
    """A CUtensorMap at address `place` of the host, which can describe memory elsewhere."""

    def __init__(self, place: int):
        self._place, self._address = ctypes.c_void_p(place), ctypes.c_void_p()
        self._replace, self._described = driver().cuTensorMapReplaceAddress, None

    def move(self, address: int) -> None:
        """Let it describe memory at `address`, if it does not."""
        if address != self._described:
            self._address.value = address
            check(self._replace(self._place, self._address), "cuTensorMapReplaceAddress")
            self._described = address
