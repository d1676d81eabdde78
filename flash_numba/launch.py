"""Compiling and launching kernels: the only place that touches the CUDA driver.

A kernel is compiled on first use for the argument types at hand and kept. A launch packs its
arguments into a prebuilt block and calls ``cuLaunchKernel`` directly, which costs a few
microseconds; Numba's own launch costs tens.
"""

import ctypes
import struct
import sys
import threading
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from .arrays import DeviceArray, dtype_of
from .device.hopper.tensor_map import MAP_BYTES, TensorMap, encoded, tensor_map_type
from .device.numba_cuda import cuda, types

SHARED_LIMITS = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99}
SHARED_LIMITS |= {(9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99}
"""Shared memory that one block may use, in KB (1024 bytes), by compute capability.

CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

_STORED = {
    "fp32": types.float32,
    "fp16": types.uint16,
    "bf16": types.uint16,
    "float64": types.float64,
    "int64": types.int64,
    "int32": types.int32,
    "int8": types.int8,
    "bool": types.boolean,
}
_ITEMSIZE = {"fp32": 4, "fp16": 2, "bf16": 2, "float64": 8, "int64": 8, "int32": 4}
_ITEMSIZE |= {"int8": 1, "bool": 1}
_MAP_FORMAT = f"{MAP_BYTES}s"


def allows_vectors(array: DeviceArray) -> bool:
    """Whether four neighbours of the last axis can be read or written at once in every row."""
    itemsize = _ITEMSIZE[array.dtype]
    *outer, last = array.strides
    steps = [step for step, size in zip(outer, array.shape, strict=False) if size > 1]
    return (
        (last == itemsize or array.shape[-1] == 1)
        and array.shape[-1] % 4 == 0
        and all(step % (4 * itemsize) == 0 for step in (array.pointer, *steps))
    )


def argument_types(arguments):
    """Numba types of arguments: DeviceArrays, ints, floats (as float32) and nested tuples."""
    if isinstance(arguments, DeviceArray):
        return types.Array(_STORED[arguments.dtype], len(arguments.shape), "A")
    if isinstance(arguments, TensorMap):
        return tensor_map_type
    if isinstance(arguments, np.unsignedinteger):
        return types.uint64
    if isinstance(arguments, int):
        return types.int64
    if isinstance(arguments, float):
        return types.float32
    return types.BaseTuple.from_types(tuple(argument_types(part) for part in arguments))


def _flatten(argument, formats: list, values: list) -> None:
    """Append the slots of one argument as Numba's calling convention has them.

    A slot has 8 bytes; that of a tensor map has 128.
    """
    if isinstance(argument, DeviceArray):
        itemsize = _ITEMSIZE[argument.dtype]
        count = 1
        for size in argument.shape:
            count *= size
        formats.append("q" * (5 + 2 * len(argument.shape)))
        values += (0, 0, count, itemsize, argument.pointer, *argument.shape, *argument.strides)
    elif isinstance(argument, TensorMap):
        formats.append(_MAP_FORMAT)
        values.append(encoded(argument))
    elif isinstance(argument, np.unsignedinteger):
        formats.append("Q")
        values.append(int(argument))
    elif isinstance(argument, int):
        formats.append("q")
        values.append(argument)
    elif isinstance(argument, float):
        formats.append("f4x")
        values.append(argument)
    else:
        for part in argument:
            _flatten(part, formats, values)


@cache
def _driver():
    """The driver's own library."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def compute_capability() -> tuple[int, int]:
    """(major, minor) of the current device."""
    return tuple(cuda.get_current_device().compute_capability)


@cache
def _multiprocessors(device: int) -> int:
    return cuda.get_current_device().MULTIPROCESSOR_COUNT


def multiprocessors() -> int:
    """Multiprocessors of the current device."""
    return _multiprocessors(cuda.get_current_device().id)


def shared_limit(cc: tuple[int, int]) -> int:
    """Bytes of shared memory that one block may use on compute capability `cc`.

    Raises
    ------
    ValueError
        If the kernels do not support such a GPU.
    """
    if cc < (7, 5):
        raise ValueError(f"compute capability must be >= 7.5, got {cc[0]}.{cc[1]}")
    return 1024 * SHARED_LIMITS.get(cc, 99)


class CompiledKernel:
    """A kernel compiled for one device, one set of argument types and one amount of memory.

    Parameters
    ----------
    dispatcher : numba kernel
    signature : tuple of Numba types
    threads : int
        Threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    def __init__(self, dispatcher, signature, threads: int, shared_bytes: int):
        driver = import_module("cuda.bindings.driver")

        limit = shared_limit(compute_capability())
        if shared_bytes > limit:
            raise ValueError(
                f"tiles of {dispatcher.py_func.__name__} must fit {limit} bytes of shared memory "
                f"on this GPU, got {shared_bytes}"
            )
        self.compiled = dispatcher.compile(signature)
        self.function = self.compiled._codelibrary.get_cufunc()
        attribute = driver.CUfunction_attribute
        for name, value in (
            (attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
            (attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ):
            device = cuda.get_current_device().id
            (status,) = driver.cuKernelSetAttribute(name, value, self.function.handle, device)
            _check(int(status), "cuKernelSetAttribute")
        self.handle = ctypes.c_void_p(int(self.function.handle))
        self.threads, self.shared_bytes = threads, shared_bytes
        self.layout = None
        self.lock = threading.Lock()

    def __call__(self, blocks: int, arguments: tuple, stream: int = 0) -> None:
        """Launch on `blocks` blocks; does not wait for the GPU."""
        if blocks == 0:
            return
        if blocks >= 1 << 31:
            raise ValueError(f"a launch must have fewer than 2**31 blocks, got {blocks}")
        formats, values = [], []
        _flatten(arguments, formats, values)
        with self.lock:
            if self.layout is None:
                self.layout = struct.Struct("<" + "".join(formats))
                self.block = ctypes.create_string_buffer(self.layout.size)
                slots = _slots(formats, ctypes.addressof(self.block))
                self.pointers = (ctypes.c_void_p * len(slots))(*slots)
            self.layout.pack_into(self.block, 0, *values)
            status = _driver().cuLaunchKernel(
                self.handle,
                *(blocks, 1, 1),
                *(self.threads, 1, 1),
                self.shared_bytes,
                ctypes.c_void_p(stream),
                self.pointers,
                None,
            )
        _check(status, "cuLaunchKernel")

    def registers(self) -> int:
        """Registers of a thread."""
        return self.compiled.regs_per_thread

    def local_bytes(self) -> int:
        """Local memory of a thread (spills and arrays that are not in registers)."""
        return self.compiled.local_mem_per_thread


def _slots(formats: list, start: int) -> list[int]:
    """Addresses of the slots of a packed block of arguments that begins at `start`."""
    slots = []
    for one in formats:
        sizes = [MAP_BYTES] if one == _MAP_FORMAT else [8] * len(one.replace("4x", ""))
        for size in sizes:
            slots.append(start)
            start += size
    return slots


def _check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with CUDA error {status}")


@cache
def _compiled(dispatcher, signature, threads, shared_bytes, device) -> CompiledKernel:
    return CompiledKernel(dispatcher, signature, threads, shared_bytes)


def launch(dispatcher, blocks, threads, shared_bytes, arguments, stream=0) -> CompiledKernel:
    """Launch a kernel, compiled on first use.

    Parameters
    ----------
    dispatcher : numba kernel
    blocks, threads : int
        Blocks of the grid (one axis) and threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : tuple
        DeviceArrays, ints, floats and nested tuples of them.
    stream : int
        Handle of a CUDA stream; 0 is the default stream.

    Returns
    -------
    CompiledKernel
    """
    signature = tuple(argument_types(argument) for argument in arguments)
    device = cuda.get_current_device().id
    compiled = _compiled(dispatcher, signature, threads, shared_bytes, device)
    compiled(blocks, arguments, stream)
    return compiled


def upload(values, copy=None) -> tuple[Any, list]:
    """Numbers, NumPy arrays and nested tuples as kernel arguments, arrays copied to the GPU.

    Parameters
    ----------
    values : tuple
    copy : callable, optional
        What makes a device array of a contiguous NumPy array; default `cuda.to_device`.

    Returns
    -------
    arguments, owners : tuple, list
        `owners` keeps the copies alive.
    """
    owners, copy = [], copy or cuda.to_device

    def one(value) -> Any:
        if isinstance(value, DeviceArray | np.unsignedinteger):
            return value
        if isinstance(value, tuple | list):
            return tuple(one(part) for part in value)
        if isinstance(value, np.ndarray):
            steps = tuple(0 if step == 0 else None for step in value.strides)
            small = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
            stored = value.dtype
            if dtype_of(value) in ("float64", "fp16", "bf16"):
                stored = np.float32
            owners.append(copy(np.ascontiguousarray(small, stored)))
            view = DeviceArray.of(owners[-1])
            kept = tuple(0 if z == 0 else s for z, s in zip(steps, view.strides, strict=True))
            return DeviceArray(view.pointer, value.shape, kept, view.dtype)
        if hasattr(value, "data_ptr") or hasattr(value, "__cuda_array_interface__"):
            owners.append(value)
            view = DeviceArray.of(value)
            if view.dtype in ("fp16", "bf16"):
                raise TypeError(
                    "a tensor on a GPU that a mask or score change reads must have dtype float32 "
                    f"where it holds numbers, got {view.dtype}"
                )
            return view
        if isinstance(value, bool | int | np.integer):
            return int(value)
        return float(value)

    return one(values), owners


def fill_zero(pointer: int, size: int, stream: int = 0) -> None:
    """Set `size` bytes of GPU memory to zero, in the order of `stream`."""
    if size:
        status = _driver().cuMemsetD8Async(
            ctypes.c_uint64(pointer),
            ctypes.c_ubyte(0),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )
        _check(status, "cuMemsetD8Async")
