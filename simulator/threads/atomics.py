"""``cuda.atomic``: one read and write of memory that nothing comes between."""

from __future__ import annotations

from .arrays import atomic_update
from .mathematics import larger, smaller
from .runtime import Runtime
from .scalars import CASTS, dtype_name

INTEGERS = ("int32", "uint32", "int64", "uint64")
NUMBERS = (*INTEGERS, "float32", "float64")
UNSIGNED = ("uint32", "uint64")
"""Types of elements for which Numba has an atomic operation."""


class Atomics:
    """Part of `device.Device`."""

    runtime: Runtime

    def _atomic(self, position, array, index, update, allowed=INTEGERS):
        self.runtime.here = position
        name = dtype_name(array.dtype)
        if name not in allowed:
            text = f"Numba has this atomic operation for {', '.join(allowed)}, not for {name}"
            raise self.runtime.error("unsupported", text)
        kind = CASTS[name]
        return atomic_update(array, index, lambda old: kind(update(old)))

    def atomic_add(self, position, array, index, value):
        """Old value; memory gets the sum."""
        return self._atomic(position, array, index, lambda old: old + value, NUMBERS)

    def atomic_sub(self, position, array, index, value):
        """Old value; memory gets the difference."""
        return self._atomic(position, array, index, lambda old: old - value, NUMBERS)

    def atomic_max(self, position, array, index, value):
        """Old value; memory gets the larger."""
        return self._atomic(
            position, array, index, lambda old: old if old != old else larger(old, value), NUMBERS
        )

    def atomic_min(self, position, array, index, value):
        """Old value; memory gets the smaller."""
        return self._atomic(
            position, array, index, lambda old: old if old != old else smaller(old, value), NUMBERS
        )

    def atomic_nanmax(self, position, array, index, value):
        """Old value; memory gets the larger, a NaN losing."""
        return self._atomic(position, array, index, lambda old: larger(old, value), NUMBERS)

    def atomic_nanmin(self, position, array, index, value):
        """Old value; memory gets the smaller, a NaN losing."""
        return self._atomic(position, array, index, lambda old: smaller(old, value), NUMBERS)

    def atomic_and_(self, position, array, index, value):
        """Old value; memory gets the bitwise and."""
        return self._atomic(position, array, index, lambda old: int(old) & int(value))

    def atomic_or_(self, position, array, index, value):
        """Old value; memory gets the bitwise or."""
        return self._atomic(position, array, index, lambda old: int(old) | int(value))

    def atomic_xor(self, position, array, index, value):
        """Old value; memory gets the bitwise exclusive or."""
        return self._atomic(position, array, index, lambda old: int(old) ^ int(value))

    def atomic_inc(self, position, array, index, value):
        """Old value; memory gets it plus 1, or 0 past `value`."""
        return self._atomic(
            position, array, index, lambda old: 0 if old >= value else old + 1, UNSIGNED
        )

    def atomic_dec(self, position, array, index, value):
        """Old value; memory gets it minus 1, or `value` at 0 and above `value`."""
        return self._atomic(
            position,
            array,
            index,
            lambda old: value if old == 0 or old > value else old - 1,
            UNSIGNED,
        )

    def atomic_exch(self, position, array, index, value):
        """Old value; memory gets `value`."""
        return self._atomic(position, array, index, lambda old: value)

    def atomic_cas(self, position, array, index, old, value):
        """Old value; memory gets `value` if it held `old`."""
        return self._atomic(position, array, index, lambda now: value if now == old else now)

    def atomic_compare_and_swap(self, position, array, old, value):
        """`atomic_cas` of element 0."""
        return self.atomic_cas(position, array, 0, old, value)
