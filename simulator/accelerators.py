"""Accelerators of other makers than NVIDIA, as far as the roofline of a claim needs them.

The kernels do not run on them, so that no option names them; `hardware.GPUS` are those it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .counts import Counts
from .hardware import KIB, Roofline


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What one device can hold and do, by the documents of its maker.

    Parameters
    ----------
    name : str
    local_bytes : int or None
        Memory of a compute unit that its programs manage; None where no document says it.
    hbm_bytes_per_s : float
        Peak bandwidth of device memory.
    matmul_flops_per_s : float
        Peak of dense products of 16-bit elements.
    sources : mapping of str to str
        Document and table of every figure above, by field name.
    """

    name: str
    local_bytes: int | None
    hbm_bytes_per_s: float
    matmul_flops_per_s: float
    sources: Mapping[str, str]

    def least_time(self, counts: Counts) -> Roofline:
        """The roofline of counted work, without exponentials: no document gives their rate."""
        return Roofline(
            memory_s=counts.hbm_bytes / self.hbm_bytes_per_s,
            matmul_s=counts.matmul_flops / self.matmul_flops_per_s,
            exp_s=0.0,
        )


_ROCM = "ROCm documentation, AMD Instinct MI250 microarchitecture"

MI250_DIE = Accelerator(
    name="die of an MI250",
    local_bytes=64 * KIB,
    hbm_bytes_per_s=1638.4e9,
    matmul_flops_per_s=181.05e12,
    sources={
        "local_bytes": "ROCm documentation, AMD GPU specifications: LDS of 64 KiB a compute unit",
        "hbm_bytes_per_s": f"{_ROCM}: 1.6 TB/s a die, as 4096 bit at 3.2 Gbit/s give",
        "matmul_flops_per_s": "AMD Instinct MI250 product page: 362.1 TFLOP/s in fp16 and bf16 for "
        "both dies (208 compute units)",
    },
)
"""One of the two dies of a card: programs see two devices."""

TPU_V4 = Accelerator(
    name="TPU v4",
    local_bytes=None,
    hbm_bytes_per_s=1200e9,
    matmul_flops_per_s=275e12,
    sources=dict.fromkeys(
        ("hbm_bytes_per_s", "matmul_flops_per_s"),
        "Google Cloud TPU documentation, TPU v4, key specifications",
    ),
)
