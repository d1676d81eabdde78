"""What the 2022 paper proves about memory accesses, its tile sizes, and when tiling pays at all.

M is the SRAM in elements, as in the paper. Constants come from the exact forms, by arithmetic.

References
----------
Dao et al., "FlashAttention", 2022: Theorem 1 (FLOPs), Theorem 2 (forward), Proposition 3 (lower
bound), Theorem 5 (backward), Algorithm 1, line 1 (block sizes).
"""

from bisect import bisect_left
from fractions import Fraction
from functools import cache

from flash_numba.problem import Problem

from .closed_form import counts

PRODUCTS = {
    "algorithm0": (2, 4),
    "fused_softmax": (2, 4),
    "with_mask_and_dropout": (2, 4),
    "tiled": (2, 4),
    "flash1": (2, 5),
    "flash2": (2, 5),
    "flash2_two_kernel": (2, 7),
}
"""Products of N x d tiles that each program forms, forward and backward: 2·N²·d FLOPs each."""


def standard_accesses(seqlen: int, head_dim: int) -> int:
    """Nd + N²: the order of standard attention's HBM accesses (Theorems 2 and 5)."""
    return seqlen * head_dim + seqlen**2


def flash_accesses(seqlen: int, head_dim: int, sram: int) -> Fraction:
    """N²d²/M: the order of FlashAttention's HBM accesses, both passes (Theorems 2 and 5).

    Raises
    ------
    ValueError
        Unless head_dim <= sram <= seqlen * head_dim, outside which the theorems say nothing.
    """
    if not head_dim <= sram <= seqlen * head_dim:
        raise ValueError(
            f"sram must lie in {head_dim}..{seqlen * head_dim} elements (d..Nd), got {sram!r}"
        )
    return Fraction(seqlen**2 * head_dim**2, sram)


def least_accesses(seqlen: int, head_dim: int) -> int:
    """4Nd: Q, K and V must be read and O written, whatever the SRAM.

    At M = Nd this is the order of N²d²/M, so no exact algorithm is o(N²d²/M) for every M in
    d..Nd: Proposition 3 and its proof. It rules out nothing at one given smaller M.
    """
    return 4 * seqlen * head_dim


def block_sizes(sram: int, head_dim: int) -> tuple[int, int]:
    """The paper's (B_r, B_c): B_c = ceil(M / 4d), B_r = min(B_c, d)."""
    b_c = -(-sram // (4 * head_dim))
    return min(b_c, head_dim), b_c


def block_rule_needs(sram: int, head_dim: int, direction: str = "forward") -> int:
    """Elements that flash1 holds at once with the paper's tile sizes: S, l and m included.

    A quarter of M each for Q, K, V and O leaves nothing for S. The rule fits only where
    B_r = d is so much smaller than B_c that Q and O leave room: forward from about
    M = 8d(d + 1), and never in the backward pass, which holds dO, dQ, dK, dV and dP besides.
    """
    tile_m, tile_n = block_sizes(sram, head_dim)
    problem = Problem(tile_m, tile_n, head_dim, dtype="fp32")
    peak = counts("flash1", problem, tile_m, tile_n, direction=direction).sram_peak_bytes
    assert peak is not None
    return peak // problem.itemsize


@cache
def square_coefficient(program: str, tile: int, head_dim: int) -> Fraction:
    """The exact factor of N² in a forward pass's HBM accesses (full attention, square tiles).

    At multiples of the tile the closed form is a polynomial of degree 2 in N, so its second
    difference is the factor: 4 for algorithm0, (3d + 4)/B_c for flash1, 2d/B_r for flash2.
    """

    def accesses(tiles: int) -> int:
        problem = Problem(tiles * tile, tiles * tile, head_dim)
        return counts(program, problem, tile, tile, direction="forward").hbm_elements

    second_difference = accesses(3) - 2 * accesses(2) + accesses(1)
    return Fraction(second_difference, 2 * tile**2)


def break_even_tile(program: str, head_dim: int, baseline: str = "algorithm0") -> int:
    """The smallest tile with which `program` moves less than `baseline` for long sequences.

    The tile that matters is B_c for flash1, B_r for flash2. Against algorithm0 the answer is
    B_c > (3d + 4)/4 and B_r > d/2 (at equality the terms in N² tie).
    """
    least = square_coefficient(baseline, 1, head_dim)
    tiles = range(1, 8 * head_dim + 8)
    return tiles[
        bisect_left(tiles, True, key=lambda t: square_coefficient(program, t, head_dim) < least)
    ]
