"""The puzzles on tiles about the backward pass by recomputation."""

from __future__ import annotations

from .cases import SHAPES
from .tile_limits import (
    backward_registers,
    backward_sram,
    form,
    larger,
    matmuls,
    unscaled_scores,
    without_delta,
)
from .tile_puzzles import TilePuzzle

BACKWARD_PUZZLES = (
    TilePuzzle(
        name="delta",
        statement="""The backward pass begins with a number a row: delta = rowsum(dO ∘ O). Write
delta, reading dO and O once.""",
        hints=(
            "One block per query tile; no key is needed.",
            "Load both tiles, multiply element by element, sum along the row.",
            "gpu.compute('delta', (r,), (sO, sdO), lambda O, dO: (O * dO).sum(axis=1))",
        ),
        given=("O", "dO"),
        wanted=("delta",),
        reads=lambda c: {"O": c.N * c.d, "dO": c.N * c.d},
        writes=lambda c: {"delta": c.N},
        sram=lambda c: 2 * c.B_r * c.d + c.B_r,
        registers=lambda c: 2 * c.B_r,
        mistakes={
            "it is rowsum(dO) without O": lambda c, t: {"delta": t["dO"].sum(axis=2)},
        },
    ),
    TilePuzzle(
        name="recompute_dv",
        statement="""P was never stored, so the backward pass makes it again: P = exp(S - LSE).
Write dV = Pᵀ dO from Q, K, dO and LSE. One block per key tile (`gpu.key_tile_grid()` gives
(n_block, cols)) keeps dV_j while the query tiles pass by (`gpu.all_query_tiles(0)` gives
(m_block, rows)).""",
        hints=(
            "The loops are turned around: K_j stays, Q_i, dO_i and LSE_i come and go.",
            "S = scale Q_i K_jᵀ as always; P needs no maximum and no sum, LSE has both.",
            "gpu.product('dV += Pᵀ dO', acc, rP.T, sdO, add=True); store dV[cols] after the loop.",
        ),
        given=("Q", "K", "dO", "LSE"),
        wanted=("dV",),
        reads=lambda c: {
            "K": c.M * c.d,
            "Q": c.T_c * c.N * c.d,
            "dO": c.T_c * c.N * c.d,
            "LSE": c.T_c * c.N,
        },
        writes=lambda c: {"dV": c.M * c.d},
        sram=backward_sram,
        registers=backward_registers,
        product_flops=matmuls(2),
        mistakes={"it is what one gets without softmax_scale (gpu.scale)": unscaled_scores},
    ),
    TilePuzzle(
        name="backward",
        statement="""Write dQ, dK and dV from Q, K, V, O, LSE and dO with no more traffic than
FlashAttention-2's backward pass, in either of its two forms: dQ added up in HBM by the blocks of
key tiles (fill it with zeros first, then `gpu.accumulate`), or in a kernel of its own.
`gpu.kernel(name)` begins a kernel; what one kernel stores, the next may load. delta may lie in
HBM.""",
        hints=(
            "First a kernel for delta. Then dK and dV by key tiles, as in recompute_dv.",
            "dP = dO Vᵀ; dS = scale P ∘ (dP - delta); dK = dSᵀ Q; dQ = dS K.",
            "A second kernel for dQ walks by query tiles and makes S, P, dP and dS once more: "
            "dQ_i then stays in registers and nothing has to be added up in HBM.",
        ),
        given=("Q", "K", "V", "O", "LSE", "dO"),
        wanted=("dQ", "dK", "dV"),
        reads=lambda c: larger(c, "reads"),
        writes=lambda c: larger(c, "writes"),
        sram=backward_sram,
        registers=backward_registers,
        product_flops=lambda c: form("flash2", c, "backward").matmul_flops,
        cases=SHAPES,
        mistakes={
            "it is what one gets without softmax_scale (gpu.scale)": unscaled_scores,
            "it is what one gets if dS forgets delta": without_delta,
        },
    ),
)
