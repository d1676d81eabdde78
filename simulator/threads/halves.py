"""The functions of ``cuda.fp16``: operands are converted to float16, results are rounded once."""

from __future__ import annotations

from .mathematics import larger, smaller
from .scalars import F16, F64


class Halves:
    """Part of `device.Device`."""

    def fp16_hadd(self, position, a, b):
        """``a + b``."""
        return F16(a) + F16(b)

    def fp16_hsub(self, position, a, b):
        """``a - b``."""
        return F16(a) - F16(b)

    def fp16_hmul(self, position, a, b):
        """``a * b``."""
        return F16(a) * F16(b)

    def fp16_hdiv(self, position, a, b):
        """``a / b``."""
        return F16(a) / F16(b)

    def fp16_hfma(self, position, a, b, c):
        """``a * b + c`` rounded once: float64 holds the product, and of the sum all that counts."""
        return F16(F64(F16(a)) * F64(F16(b)) + F64(F16(c)))

    def fp16_hneg(self, position, a):
        """``-a``."""
        return -F16(a)

    def fp16_habs(self, position, a):
        """``|a|``."""
        return abs(F16(a))

    def fp16_hmax(self, position, a, b):
        """The larger one; a NaN loses to a number."""
        return larger(F16(a), F16(b))

    def fp16_hmin(self, position, a, b):
        """The smaller one; a NaN loses to a number."""
        return smaller(F16(a), F16(b))

    def fp16_heq(self, position, a, b):
        """``a == b``."""
        return bool(F16(a) == F16(b))

    def fp16_hne(self, position, a, b):
        """``a != b``, which does not hold where either is NaN (``setp.ne``)."""
        a, b = F16(a), F16(b)
        return bool(a < b or a > b)

    def fp16_hlt(self, position, a, b):
        """``a < b``."""
        return bool(F16(a) < F16(b))

    def fp16_hle(self, position, a, b):
        """``a <= b``."""
        return bool(F16(a) <= F16(b))

    def fp16_hgt(self, position, a, b):
        """``a > b``."""
        return bool(F16(a) > F16(b))

    def fp16_hge(self, position, a, b):
        """``a >= b``."""
        return bool(F16(a) >= F16(b))
