"""The kinds of arrays that callers bring, and what the front door needs to know of each.

An array on the host is seen through NumPy, one on a GPU through `DeviceArray`; neither is copied.
No array library but NumPy is imported here: a caller who brings an array has its library loaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from .problem import DTYPES

_NAMES = {str(dtype): name for name, dtype in DTYPES.items()}


class DeviceArray(NamedTuple):
    """An array in GPU memory, without owning it.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    shape, strides : tuple of int
        Sizes, and bytes from one element to the next, of each axis.
    dtype : str
        A key of `problem.DTYPES`, or the name of another NumPy dtype.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array) -> DeviceArray:
        """A view of a torch tensor or of anything with ``__cuda_array_interface__``."""
        if isinstance(array, DeviceArray):
            return array
        if hasattr(array, "data_ptr"):
            itemsize = array.element_size()
            strides = tuple(step * itemsize for step in array.stride())
            return cls(array.data_ptr(), tuple(array.shape), strides, dtype_of(array))
        interface = array.__cuda_array_interface__
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        if strides is None:
            itemsize = np.dtype(interface["typestr"]).itemsize
            strides = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(interface["data"][0], shape, tuple(strides), dtype_of(array))


def is_copyable(array: DeviceArray) -> bool:
    """Whether Hopper's copy engine can address the tensor: 16-bit neighbours, rows on 16 bytes."""
    *outer, last = array.strides
    steps = [step for step, size in zip(outer, array.shape, strict=False) if size > 1]
    return (
        (last == 2 or array.shape[-1] == 1)
        and array.pointer % 16 == 0
        and all(step % 16 == 0 and 0 < step < 1 << 40 for step in steps)
    )


def contiguous(pointer: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """A part of GPU memory as an array without gaps."""
    itemsize = (DTYPES.get(dtype) or np.dtype(dtype)).itemsize
    strides = tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return DeviceArray(pointer, shape, strides, dtype)


def is_torch(array) -> bool:
    """Whether `array` is a torch tensor; imports nothing, and torch.compile can trace it."""
    return hasattr(array, "requires_grad") and hasattr(array, "data_ptr")


def dtype_of(array) -> str:
    """Name of an array's element type: a key of `problem.DTYPES`, else the library's own."""
    if hasattr(array, "dtype"):
        name = str(array.dtype).removeprefix("torch.")
    else:
        name = str(np.dtype(array.__cuda_array_interface__["typestr"]))
    return _NAMES.get(name, name)


def broadcast(array, shape: tuple[int, ...]):
    """`array` with axes of stride 0 where it is repeated (NumPy's rules); nothing is copied."""
    if isinstance(array, np.ndarray):
        return np.broadcast_to(array, shape)
    lead = len(shape) - len(array.shape)
    pairs = zip(array.shape, array.strides, shape[lead:], strict=True)
    kept = tuple(step if size == wanted else 0 for size, step, wanted in pairs)
    return array._replace(shape=tuple(shape), strides=(0,) * lead + kept)


class Kind:
    """How arrays of one library are read and made.

    Attributes
    ----------
    name : str
        What errors call such an array.
    """

    name: str

    def __eq__(self, other) -> bool:
        return type(self) is type(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def device(self, array) -> str:
        """Where the array lives: "cpu" or "cuda:0"."""
        raise NotImplementedError

    def host(self, array) -> np.ndarray:
        """A NumPy view of an array on the host, or a copy of one on a GPU."""
        raise NotImplementedError

    def contiguous(self, array) -> Any:
        """The array without axes of stride 0: itself or a copy."""
        raise NotImplementedError

    def wrap(self, array: np.ndarray, like) -> Any:
        """An array of this kind on the host over `array`."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: str, like) -> Any:
        """A new array on the GPU of `like`, its elements unset."""
        raise NotImplementedError

    def current(self, like) -> AbstractContextManager:
        """A context in which the GPU of `like` is the current one."""
        return nullcontext()

    def cast(self, array, dtype: str) -> Any:
        """An array on the GPU in another element type."""
        raise NotImplementedError

    def stream(self, like) -> int:
        """Handle of the CUDA stream that the caller works on."""
        raise NotImplementedError

    def asks_for_same_bits(self) -> str:
        """What of the library asks all its operations for the same bits each time, or ""."""
        return ""


class _Numpy(Kind):
    """numpy.ndarray."""

    name = "NumPy array"

    def device(self, array) -> str:
        return "cpu"

    def host(self, array) -> np.ndarray:
        return array

    def contiguous(self, array):
        return np.asarray(array, order="C")

    def wrap(self, array, like):
        return array


class _Torch(Kind):
    """torch.Tensor, on the host or on a GPU."""

    name = "torch tensor"

    def device(self, array) -> str:
        return str(array.device)

    def host(self, array) -> np.ndarray:
        torch = sys.modules["torch"]
        array = array.detach().resolve_neg().cpu()
        if array.dtype == torch.bfloat16:
            return array.view(torch.int16).numpy().view(DTYPES["bf16"])
        return array.numpy()

    def contiguous(self, array):
        return array.contiguous()

    def wrap(self, array, like):
        torch = sys.modules["torch"]
        if array.dtype == DTYPES["bf16"]:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def empty(self, shape, dtype, like):
        torch = sys.modules["torch"]
        element = getattr(torch, str(DTYPES[dtype]))
        return torch.empty(shape, dtype=element, device=like.device)

    def current(self, like):
        return sys.modules["torch"].cuda.device(like.device) if like.is_cuda else nullcontext()

    def cast(self, array, dtype):
        return array.to(getattr(sys.modules["torch"], str(DTYPES[dtype])))

    def stream(self, like) -> int:
        return sys.modules["torch"].cuda.current_stream(like.device).cuda_stream

    def asks_for_same_bits(self) -> str:
        asked = sys.modules["torch"].are_deterministic_algorithms_enabled()
        return "torch.use_deterministic_algorithms" if asked else ""


class _Cupy(Kind):
    """cupy.ndarray."""

    name = "CuPy array"

    def device(self, array) -> str:
        return f"cuda:{array.device.id}"

    def host(self, array) -> np.ndarray:
        return array.get()

    def contiguous(self, array):
        return sys.modules["cupy"].ascontiguousarray(array)

    def empty(self, shape, dtype, like):
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, DTYPES[dtype])

    def current(self, like):
        return like.device

    def cast(self, array, dtype):
        return array.astype(DTYPES[dtype])

    def stream(self, like) -> int:
        return sys.modules["cupy"].cuda.get_current_stream().ptr


class _CudaInterface(Kind):
    """Numba device arrays, and any other object with ``__cuda_array_interface__``.

    What is made is a Numba device array. The interface names no device: it is the current one.
    """

    name = "CUDA array"

    def device(self, array) -> str:
        from numba import cuda

        return f"cuda:{cuda.get_current_device().id}"

    def host(self, array) -> np.ndarray:
        from numba import cuda

        return cuda.as_cuda_array(array).copy_to_host()

    def contiguous(self, array):
        strides = DeviceArray.of(array).strides
        if 0 in strides:
            raise ValueError(f"{self.name} must have no axis of stride 0 here, got {strides}")
        return array

    def empty(self, shape, dtype, like):
        from numba import cuda

        return cuda.device_array(shape, DTYPES[dtype])

    def cast(self, array, dtype):
        other = dtype if dtype_of(array) == "fp32" else dtype_of(array)
        raise TypeError(f"a bias that is a {self.name} must have dtype float32, got {other}")

    def stream(self, like) -> int:
        return like.__cuda_array_interface__.get("stream") or 0


class _Dlpack(Kind):
    """Any other object on the host with ``__dlpack__``.

    What is made comes back through the ``from_dlpack`` of the object's own array namespace; without
    one (see the Python array API standard) it is a NumPy array.
    """

    name = "DLPack array"

    def device(self, array) -> str:
        kind, index = array.__dlpack_device__()
        return {1: "cpu", 2: f"cuda:{index}"}.get(int(kind), f"DLPack device {int(kind)}")

    def host(self, array) -> np.ndarray:
        return np.from_dlpack(array)

    def contiguous(self, array):
        return np.asarray(self.host(array), order="C")

    def wrap(self, array, like):
        namespace = getattr(like, "__array_namespace__", None)
        return array if namespace is None else namespace().from_dlpack(array)


def kind_of(name: str, array) -> Kind:
    """The `Kind` of an array, or a TypeError that names the argument."""
    if is_torch(array):
        if array.is_nested or str(array.layout) != "torch.strided":
            kept = "nested" if array.is_nested else f"of layout {array.layout}"
            raise TypeError(f"{name} must be a dense torch tensor, got one that is {kept}")
        return _Torch()
    if isinstance(array, np.ndarray):
        if not isinstance(array, np.ma.MaskedArray):
            return _Numpy()
    elif type(array).__module__.startswith("cupy"):
        return _Cupy()
    elif hasattr(array, "__cuda_array_interface__"):
        return _CudaInterface()
    elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _Dlpack()
    raise TypeError(
        f"{name} must be an array (NumPy, torch, CuPy, Numba device array, or an object with "
        f"__cuda_array_interface__ or __dlpack__), got {type(array).__module__}."
        f"{type(array).__qualname__}"
    )


class Place(NamedTuple):
    """The one kind and device of all arrays of a call.

    Attributes
    ----------
    kind : Kind
    device : str
        "cpu" or "cuda:0".
    """

    kind: Kind
    device: str

    @property
    def on_host(self) -> bool:
        """Whether NumPy can see the arrays."""
        return self.device == "cpu"

    def wished(self, deterministic: bool | None) -> bool | None:
        """What a call's `deterministic` comes to: None is True where the arrays' library asks."""
        if deterministic is None and self.kind.asks_for_same_bits():
            return True
        return deterministic

    def view(self, array) -> Any:
        """The array as NumPy or as a `DeviceArray`; None stays None."""
        if array is None:
            return None
        return self.kind.host(array) if self.on_host else DeviceArray.of(array)


def one_place(optional: Collection[str] = (), **arrays) -> Place:
    """The kind and device that all arrays share.

    Parameters
    ----------
    optional : collection of str
        Names of arrays that may be None.
    **arrays
        The first is what errors compare with.

    Raises
    ------
    TypeError
        Naming the argument that is no array, or two arguments that differ.
    """
    first, like = next(iter(arrays.items()))
    kind = kind_of(first, like)
    device = kind.device(like)
    for name, array in arrays.items():
        if array is None and name in optional:
            continue
        other = kind_of(name, array)
        if other != kind:
            raise TypeError(
                f"all arrays must be of one kind, got {first} as a {kind.name} and {name} as a "
                f"{other.name}"
            )
        if other.device(array) != device:
            raise TypeError(
                f"all arrays must be on one device, got {first} on {device} and {name} on "
                f"{other.device(array)}"
            )
    readable = device == "cpu" or (device.startswith("cuda") and not isinstance(kind, _Dlpack))
    if not readable:
        raise TypeError(
            f"{first} must be on the host or, with __cuda_array_interface__, on a CUDA GPU; "
            f"got a {kind.name} on {device}"
        )
    return Place(kind, device)
