"""A CUDA driver that launches nothing and keeps what it was asked for; see `flash_numba.driver`."""

import ctypes
import threading

import pytest

from flash_numba import driver

INVALID_CONTEXT = 201


class Driver:
    """What the package calls of the driver's library; a new thread has no context.

    Attributes
    ----------
    launches : list of (handle, shape, stream, words)
    fills : list of (address, value, size, stream)
    moved : list of int
        Addresses that tensor maps were given.
    loaded : list of bytes
        Machine code.
    starts : list of int
        Addresses of the parameters of the latest launch.
    """

    def __init__(self):
        self.launches, self.fills, self.moved, self.loaded = [], [], [], []
        self._thread = threading.local()

    @property
    def context(self) -> int | None:
        """The calling thread's."""
        return getattr(self._thread, "context", None)

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.context
        return 0

    def cuCtxSetCurrent(self, context):
        self._thread.context = context.value
        return 0

    def cuDeviceGet(self, device, number):
        device._obj.value = number
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1000 + device.value
        return 0

    def cuCtxGetDevice(self, device):
        if self.context is None:
            return INVALID_CONTEXT
        device._obj.value = self.context - 1000
        return 0

    def cuGetErrorName(self, status, name):
        return 0

    def cuLibraryLoadData(self, library, cubin, *options):
        self.loaded.append(cubin)
        library._obj.value = len(self.loaded)
        return 0

    def cuLibraryGetKernel(self, kernel, library, name):
        kernel._obj.value = library.value
        return 0

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        return 0

    def cuKernelGetFunction(self, function, kernel):
        function._obj.value = kernel.value
        return 0 if self.context is not None else INVALID_CONTEXT

    def cuFuncGetAttribute(self, value, attribute, function):
        value._obj.value = 0
        return 0

    def cuLaunchKernelEx(self, reference, handle, parameters, extra):
        if self.context is None:
            return INVALID_CONTEXT
        set_up = reference._obj
        self.starts = list(parameters)
        words = [ctypes.c_uint64.from_address(start).value for start in parameters]
        cluster = list(set_up.attributes[0].value[:3]) if set_up.count else None
        shape = set_up.grid[:], set_up.block[:], set_up.shared_bytes, cluster
        self.launches.append((handle.value, shape, set_up.stream, words))
        return 0

    def cuMemsetD8Async(self, address, value, size, stream):
        if self.context is None:
            return INVALID_CONTEXT
        self.fills.append((address.value, value.value, size.value, stream.value))
        return 0

    def cuTensorMapReplaceAddress(self, tensor_map, address):
        self.moved.append(address.value)
        ctypes.c_uint64.from_address(tensor_map.value).value = address.value
        return 0


def install(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Put the fake driver in place of this machine's."""
    fake = Driver()
    monkeypatch.setattr(driver, "driver", lambda: fake)
    driver._primary_context.cache_clear()
    return fake
