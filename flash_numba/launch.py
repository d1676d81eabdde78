"""Compiling kernels and launching them: what the kernels' host functions call.

A kernel is compiled on first use for the argument types at hand and kept, on disk too (see
`kernel_store`). Handed a `Plan` in place of a stream, a launch is recorded in it.
"""

import gc
from functools import cache
from typing import Any

import numpy as np

from . import kernel_store
from .addresses import owner_of
from .arrays import DeviceArray, dtype_of
from .device.hopper.tensor_map import TensorMap, tensor_map_type
from .device.numba_cuda import cuda, types
from .driver import Function, Shape
from .fingerprint import Unknown, fingerprint
from .packing import ITEMSIZE, pack
from .plan import FillStep, KernelStep, Noted, Plan

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


def allows_vectors(array: DeviceArray) -> bool:
    """Whether four neighbours of the last axis can be read or written at once in every row."""
    itemsize = ITEMSIZE[array.dtype]
    *outer, last = array.strides
    steps = [step for step, size in zip(outer, array.shape, strict=False) if size > 1]
    return (
        (last == itemsize or array.shape[-1] == 1)
        and array.shape[-1] % 4 == 0
        and all(step % (4 * itemsize) == 0 for step in (array.pointer, *steps))
    )


def argument_types(arguments):
    """Numba types of what `packing.pack` packs."""
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


@cache
def _function(dispatcher, signature, shared_bytes: int, device: int):
    """The kernel for one signature and device, and its key in `kernel_store`."""
    cc = compute_capability()
    limit = shared_limit(cc)
    if shared_bytes > limit:
        raise ValueError(
            f"tiles of {dispatcher.py_func.__name__} must fit {limit} bytes of shared memory "
            f"on this GPU, got {shared_bytes}"
        )
    key = kernel_key(dispatcher, signature, cc)
    if key is None:  # kept in memory only
        return Function(*_compile(dispatcher, signature), shared_bytes), None
    found = kernel_store.load_function(key, shared_bytes)
    if found is None:
        with kernel_store.alone(key):
            found = kernel_store.load_function(
                key, shared_bytes
            )  # another process may have compiled it meanwhile
            if found is None:
                cubin, name = _compile(dispatcher, signature)
                kernel_store.save_kernel(key, cubin, name)
                found = Function(cubin, name, shared_bytes)
    return found, key


def kernel_key(dispatcher, signature, cc: tuple[int, int]) -> str | None:
    """What `kernel_store` calls a kernel for argument types and a compute capability.

    None if what the kernel does cannot be said surely (see `fingerprint`).
    """
    try:
        return kernel_store.key_of("kernel", fingerprint((dispatcher, str(signature), cc)))
    except Unknown:
        return None


def keep_kernel(key: str, dispatcher, signature) -> bool:
    """Compile a kernel for the current GPU into `kernel_store`; False if it is there."""
    with kernel_store.alone(key):
        if kernel_store.load_kernel(key) is not None:
            return False
        kernel_store.save_kernel(key, *_compile(dispatcher, signature))
        return True


def _compile(dispatcher, signature) -> tuple[bytes, str]:
    """Machine code of a kernel, and its name in it."""
    collects = gc.isenabled()
    gc.disable()  # Numba makes objects that stay: looking for garbage takes a sixth of its time
    try:
        library = dispatcher.compile(signature)._codelibrary
    finally:
        if collects:
            gc.enable()
    return bytes(library.get_cubin().code), library._entry_name


def launch(
    dispatcher, blocks, threads, shared_bytes, arguments, stream: int | Plan = 0, cluster: int = 1
) -> Function | None:
    """Launch a kernel, compiled on first use.

    Parameters
    ----------
    dispatcher : numba kernel
    blocks, threads : int
        Blocks of the grid (one axis) and threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : tuple
        What `packing.pack` packs.
    stream : int or Plan
        Handle of a CUDA stream (0 is the default stream), or what records the launch.
    cluster : int
        Neighbouring blocks that form a cluster (cc 9.0 on); 1 = none.

    Returns
    -------
    Function
        None where there is no block to launch, or the launch is only noted.

    Raises
    ------
    ValueError
        If the grid or the shared memory is more than a launch can have.
    """
    if blocks == 0:
        return None
    if blocks >= 1 << 31:
        raise ValueError(f"a launch must have fewer than 2**31 blocks, got {blocks}")
    signature = tuple(argument_types(argument) for argument in arguments)
    if isinstance(stream, Noted):
        stream.kernels.append((dispatcher, signature))
        return None
    device = cuda.get_current_device().id
    function, key = _function(dispatcher, signature, shared_bytes, device)
    shape, packed = Shape(blocks, threads, shared_bytes, cluster), pack(arguments)
    if not isinstance(stream, Plan):
        packed = packed._replace(patches=())  # all is known: the seed's words are this call's
    _take(KernelStep(function, key, shape, packed), stream)
    return function


def fill_zero(pointer: int, size: int, stream: int | Plan = 0) -> None:
    """Set `size` bytes of GPU memory to zero, in the order of `stream`; see `launch`."""
    if size:
        _take(FillStep(*owner_of(pointer), size), stream)


def _take(step, stream: int | Plan) -> None:
    if isinstance(stream, Plan):
        stream.steps.append(step)
    else:
        step.ready(())((), stream)


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
            # A copy, for strides that are not 0: of those Numba would read the GPU's memory first.
            owners.append(copy(np.array(small, stored, order="C")))
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
