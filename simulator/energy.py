"""What counted work costs in joules, by published energies a byte and a FLOP, and what bounds it.

An estimate, and a low one: it leaves out instructions, registers, caches and leakage. Its
use is to say which part of an algorithm the energy is in, and how a saving of traffic compares.
"""

from __future__ import annotations

from dataclasses import dataclass

from .counts import Counts

PICO = 1e-12

PJ_PER_BYTE = {"hbm": 8 * 6.0, "sram": 10.0 / 8}
"""Picojoules to move a byte between HBM and the chip, or in and out of a small SRAM."""

PJ_PER_FLOP = {"fp32": (0.9 + 3.7) / 2, "fp16": (0.4 + 1.1) / 2}
"""Picojoules of an addition and of a multiplication, halved: a multiply-add is two operations."""

ELEMENT_BYTES = {"fp32": 4, "fp16": 2}

BOARD_WATTS = {"A100": 400.0, "H100": 700.0, "H200": 700.0}
"""The most that a board may take, watts; modules of the SXM form."""

SOURCES = {
    "hbm": "Micron, Ultra-Bandwidth Solutions, memory comparison: HBM2E, average device power 6.0 "
    "pJ/bit",
    "sram": "Horowitz, Computing's Energy Problem, ISSCC 2014: 64 bits of an 8 KB cache, 10 pJ (45 "
    "nm, 0.9 V)",
    "fp32": "Horowitz 2014: addition 0.9 pJ, multiplication 3.7 pJ (45 nm)",
    "fp16": "Horowitz 2014: addition 0.4 pJ, multiplication 1.1 pJ (45 nm)",
    "A100": "NVIDIA A100 data sheet, A100 80GB SXM, max thermal design power",
    "H100": "NVIDIA H100 data sheet, H100 SXM, max thermal design power",
    "H200": "NVIDIA H200 data sheet, H200 SXM, max thermal design power",
}
"""Document of every figure above, by its key."""


@dataclass(frozen=True)
class Energy:
    """Joules by where they go.

    Attributes
    ----------
    hbm_j, sram_j, product_j : float
        For bytes to and from HBM, bytes in and out of SRAM, and products of tiles.
    """

    hbm_j: float
    sram_j: float
    product_j: float

    @property
    def total_j(self) -> float:
        """All of it."""
        return self.hbm_j + self.sram_j + self.product_j


def energy(counts: Counts, dtype: str) -> Energy:
    """Joules that counted work takes.

    Parameters
    ----------
    counts : Counts
        Of one pass; elements in SRAM are taken to be as large as `dtype`.
    dtype : str
        Element type, a key of `ELEMENT_BYTES`.

    Raises
    ------
    ValueError
        If there is no figure for that type.
    """
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(ELEMENT_BYTES)}, got {dtype!r}")
    on_chip = (counts.sram_load_elements + counts.sram_store_elements) * ELEMENT_BYTES[dtype]
    return Energy(
        counts.hbm_bytes * PJ_PER_BYTE["hbm"] * PICO,
        on_chip * PJ_PER_BYTE["sram"] * PICO,
        counts.matmul_flops * PJ_PER_FLOP[dtype] * PICO,
    )


def at_most(gpu: str, seconds: float) -> float:
    """Joules that no run of that time can exceed, as the board takes no more.

    Parameters
    ----------
    gpu : str
        A key of `BOARD_WATTS`.
    seconds : float
    """
    if gpu not in BOARD_WATTS:
        raise ValueError(f"gpu must be one of {', '.join(BOARD_WATTS)}, got {gpu!r}")
    return BOARD_WATTS[gpu] * seconds
