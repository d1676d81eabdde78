"""Figure 2 and Theorem 2 of the FlashAttention paper, recomputed from the closed forms.

Every function states the reading it takes of the paper's numbers and returns plain data;
docs/papers.md tells the outcome.

References
----------
Dao et al., "FlashAttention", 2022, Figure 2: arXiv 2205.14135 and the NeurIPS 2022 version, whose
table differs in four of its six numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from flash_numba.problem import Problem

from ..counts import Counts
from .asymptotics import block_sizes, flash_accesses
from .closed_form import counts

SEQLEN, HEAD_DIM, HEADS, BATCH = 1024, 64, 16, 64
"""The setting of Figure 2, left and middle: GPT-2 medium's attention."""

A100_SRAM_BYTES = 192 * 1024
"""SRAM of one streaming multiprocessor as the paper states it (section 2.1)."""

A100_BYTES_PER_SECOND = 1.555e12
A100_FLOPS_PER_SECOND = 312e12
"""A100 40 GB: memory bandwidth and dense fp16 tensor-core rate (NVIDIA A100 data sheet)."""


@dataclass(frozen=True)
class Printed:
    """One version of the table of Figure 2, left; pairs are (standard, FlashAttention)."""

    gflops: tuple[float, float]
    gigabytes: tuple[float, float]
    milliseconds: tuple[float, float]


ARXIV = Printed((66.6, 75.2), (40.3, 4.4), (41.7, 7.3))
NEURIPS = Printed((66.6, 75.2), (35.3, 4.4), (35.1, 11.7))
"""Its caption adds: key-padding mask and no dropout."""


@dataclass(frozen=True)
class Traffic:
    """HBM traffic of forward + backward, all sequences and heads, under one reading."""

    reading: str
    program: str
    dtype: str
    gigabytes: float
    tile_m: int | None = None
    tile_n: int | None = None

    def prints(self, number: float) -> bool:
        """True if the reading gives `number` when printed with one decimal, as the paper does."""
        return f"{self.gigabytes:.1f}" == f"{number:.1f}"


def both_passes(
    program: str, tile_m: int = 1, tile_n: int = 1, *, dtype: str = "fp16", causal: bool = False
) -> Counts:
    """Forward + backward in the setting of Figure 2, all sequences and heads."""
    problem = _figure_2(dtype, causal)
    forward, backward = (
        counts(program, problem, tile_m, tile_n, direction=direction, all_heads=True)
        for direction in ("forward", "backward")
    )
    return forward + backward


def figure_2_standard() -> list[Traffic]:
    """Readings of the printed 40.3 GB (arXiv) and 35.3 GB (NeurIPS) of standard attention.

    Mask and dropout add the same traffic, so a baseline with one of the two lies halfway between
    `algorithm0` and `with_mask_and_dropout`.
    """
    rows = []
    for dtype in ("fp16", "fp32"):
        plain = both_passes("algorithm0", dtype=dtype).hbm_bytes
        masked = both_passes("with_mask_and_dropout", dtype=dtype).hbm_bytes
        fused = both_passes("fused_softmax", dtype=dtype).hbm_bytes
        for reading, program, moved in (
            ("S and softmax fused", "fused_softmax", fused),
            ("each operand moved once", "algorithm0", plain),
            ("passes for mask or dropout", "with_mask_and_dropout", (plain + masked) / 2),
            ("passes for mask and dropout", "with_mask_and_dropout", masked),
        ):
            rows.append(Traffic(reading, program, dtype, moved / 1e9))
        tiled = both_passes("tiled", 128, 128, dtype=dtype).hbm_bytes
        rows.append(Traffic("products tiled", "tiled", dtype, tiled / 1e9, 128, 128))
    return rows


def figure_2_flash() -> list[Traffic]:
    """Readings of the printed 4.4 GB of FlashAttention: Algorithms 1 and 4, same tiles in both."""
    rows = []
    for dtype in ("fp16", "fp32"):
        sizes = [(f"tiles of {n}", (HEAD_DIM, n)) for n in (64, 128, 256, 512)]
        elements = A100_SRAM_BYTES // _figure_2(dtype).itemsize
        rule = block_sizes(elements, HEAD_DIM)
        sizes.append(("the paper's tiles for 192 KB of SRAM", rule))
        for reading, tiles in sizes:
            moved = both_passes("flash1", *tiles, dtype=dtype).hbm_bytes / 1e9
            rows.append(Traffic(reading, "flash1", dtype, moved, *tiles))
    return rows


def whole_matrix_passes(gigabytes: float) -> float:
    """Passes over N x N fp16 matrices that a printed traffic stands for, besides 12 over N x d.

    algorithm0 makes 11 and 12; mask and dropout add 4 each, and byte tensors 1 each.
    """
    heads = BATCH * HEADS
    elements = gigabytes * 1e9 / 2 / heads
    return (elements - 12 * SEQLEN * HEAD_DIM) / SEQLEN**2


def least_milliseconds(gigabytes: float) -> float:
    """The time that an A100 needs for this HBM traffic alone: a bound, not a prediction."""
    return 1e12 * gigabytes / A100_BYTES_PER_SECOND


@dataclass(frozen=True)
class FlopReading:
    """One way to count the FLOPs of Figure 2, left, and what it gives in GFLOPs."""

    flops_per_multiply_add: int
    matrices: int
    layers: int
    causal: bool
    passes: str
    flash_backward_products: int
    other_per_score: int
    standard: float
    flash: float

    def prints(self, printed: tuple[float, float]) -> bool:
        """True if both numbers come out as printed, to one decimal."""
        found = f"{self.standard:.1f}", f"{self.flash:.1f}"
        return found == tuple(f"{number:.1f}" for number in printed)

    def miss(self, printed: tuple[float, float]) -> float:
        """The larger relative error of the two numbers."""
        return max(abs(self.standard / printed[0] - 1), abs(self.flash / printed[1] - 1))


def flop_readings(other_per_score: range = range(41)) -> Iterator[FlopReading]:
    """All combinations of what might have been counted.

    A multiply-add as 1 or 2; one N x N matrix, 16 (a sequence), 64 (a head) or all 1024; one layer
    or 24; all scores or the causal ones; forward, backward or both; a flash backward of 5 products
    or of 7; and `other_per_score` further FLOPs a score (scale, mask, exp, dropout ...).
    """
    for per_add, matrices, layers, causal, passes, flash_products, other in product(
        (1, 2),
        (1, HEADS, BATCH, BATCH * HEADS),
        (1, 24),
        (False, True),
        ("forward", "backward", "both"),
        (5, 7),
        other_per_score,
    ):
        scores = SEQLEN * (SEQLEN + 1) // 2 if causal else SEQLEN**2
        forward = 0 if passes == "backward" else 2
        standard, flash = (
            (forward + (0 if passes == "forward" else backward)) * per_add * HEAD_DIM + other
            for backward in (4, flash_products)
        )
        unit = scores * matrices * layers / 1e9
        settings = per_add, matrices, layers, causal, passes, flash_products, other
        yield FlopReading(*settings, standard * unit, flash * unit)


@dataclass(frozen=True)
class BlockSize:
    """One block size of Figure 2, middle: flash1 forward, fp16, B_r = 64."""

    tile_n: int
    gigabytes: float
    sram_bytes: int
    memory_milliseconds: float
    product_milliseconds: float


def figure_2_middle() -> list[BlockSize]:
    """HBM traffic of the forward pass against B_c, and the least time that an A100 needs for it.

    The paper prints a curve without numbers; what can be checked is its shape.
    """
    rows = []
    for tile_n in (64, 128, 256, 512):
        found = counts(
            "flash1", _figure_2("fp16"), HEAD_DIM, tile_n, direction="forward", all_heads=True
        )
        rows.append(
            BlockSize(
                tile_n,
                found.hbm_bytes / 1e9,
                found.sram_peak_bytes or 0,
                least_milliseconds(found.hbm_bytes / 1e9),
                1e3 * found.matmul_flops / A100_FLOPS_PER_SECOND,
            )
        )
    return rows


@dataclass(frozen=True)
class CurvePoint:
    """Exact accesses of one pass of flash1 with the paper's tiles, and the theorem's N²d²/M."""

    sram: int
    tile_m: int
    tile_n: int
    accesses: int
    theorem: Fraction

    @property
    def ratio(self) -> float:
        """Exact accesses over the theorem's order: a constant if the theorem holds."""
        return float(self.accesses / self.theorem)


def theorem_2_curve(
    seqlen: int, head_dim: int, srams: list[int], direction: str = "forward"
) -> list[CurvePoint]:
    """Theorem 2 (or 5, backward) against the exact form, for SRAM sizes in elements."""
    problem = Problem(seqlen, seqlen, head_dim)
    points = []
    for sram in srams:
        tiles = block_sizes(sram, head_dim)
        accesses = counts("flash1", problem, *tiles, direction=direction).hbm_elements
        points.append(CurvePoint(sram, *tiles, accesses, flash_accesses(seqlen, head_dim, sram)))
    return points


def _figure_2(dtype: str, causal: bool = False) -> Problem:
    return Problem(
        SEQLEN, SEQLEN, HEAD_DIM, batch=BATCH, num_heads=HEADS, dtype=dtype, causal=causal
    )
