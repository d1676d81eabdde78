"""Element types in memory: fp32 as it is, fp16 and bf16 as 16-bit words converted on the way.

Numba's own 16-bit floats go through slow shims, so the kernels hold such arrays as uint16 and
compute in fp32.
"""

from functools import cache
from typing import Any, NamedTuple

from . import numba_cuda
from .numba_cuda import room, types
from .ptx import bits_from_float, float_from_bits, float_from_half, half_from_float


class Element(NamedTuple):
    """How the elements of an array in global memory are held.

    Attributes
    ----------
    stored : Numba type
        float32 or uint16.
    load, store : device functions
        From `stored` to float32, and back rounded to nearest even.
    """

    stored: Any
    load: Any
    store: Any


@room
def _as_is(x):
    return x


@room
def _from_bfloat(x):
    return float_from_bits(types.uint32(x) << types.uint32(16))


@room
def _to_bfloat(x):
    bits = bits_from_float(x)
    if x != x:
        return types.uint16(0x7FFF)
    odd = (bits >> types.uint32(16)) & types.uint32(1)
    return types.uint16((bits + types.uint32(0x7FFF) + odd) >> types.uint32(16))


@room
def _from_half(x):
    return float_from_half(x)


@room
def _to_half(x):
    return half_from_float(x)


_ELEMENTS = {
    "fp32": Element(numba_cuda.types.float32, _as_is, _as_is),
    "fp16": Element(numba_cuda.types.uint16, _from_half, _to_half),
    "bf16": Element(numba_cuda.types.uint16, _from_bfloat, _to_bfloat),
}


@cache
def element(dtype: str) -> Element:
    """The `Element` of a name in `problem.DTYPES`.

    Raises
    ------
    TypeError
        If the fp32 kernels cannot read it.
    """
    if dtype not in _ELEMENTS:
        raise TypeError(f"dtype must be one of {', '.join(_ELEMENTS)} here, got {dtype!r}")
    return _ELEMENTS[dtype]
