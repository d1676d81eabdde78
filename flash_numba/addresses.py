"""Addresses that are not known yet: what a plan is recorded with in place of arrays' own.

A rung's functions compute launches from addresses. Given these, the launches they compute serve any
arrays of the same shapes, strides and alignment: each address says whose it is.
"""

from .arrays import DeviceArray

ALIGNMENT = 16
"""All that a rung may ask of an address is its remainder by this, in bytes."""

NAMES = ("q", "k", "v", "mask", "bias", "alibi_slopes")
NAMES += ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "o", "lse", "memory")
NAMES += ("do", "dlse", "dq", "dk", "dv", "dbias", "dscore_mod")
"""The arrays of a call, by their names in `attention` and `problem.Problem.shapes`."""

_WORD = 64


def unknown(name: str, address: int = 0) -> int:
    """The address of array `name`, of which only the remainder of `address` is known.

    Above 64 bits, where no real address is; sums with it stay the array's.
    """
    remainder = address % ALIGNMENT
    return (((NAMES.index(name) + 1) * ALIGNMENT + remainder) << _WORD) + remainder


def known_as(view: DeviceArray, name: str) -> DeviceArray:
    """`view` at the address of array `name`."""
    return view._replace(pointer=unknown(name, view.pointer))


def owner_of(address: int) -> tuple[str | None, int]:
    """Name of the array that an address belongs to, and bytes from its first element.

    A real address belongs to None, and is itself the offset.
    """
    high, low = address >> _WORD, address % (1 << _WORD)
    if not high:
        return None, address
    return NAMES[high // ALIGNMENT - 1], low - high % ALIGNMENT
