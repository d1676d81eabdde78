"""The puzzles on tiles that add up to FlashAttention's forward pass."""

from __future__ import annotations

from .cases import CAUSAL, SHARED
from .tile_limits import (
    CAUSAL_MISTAKES,
    FORWARD_MISTAKES,
    form,
    forward_registers,
    forward_sram,
    matmuls,
    without_division,
    without_rescale,
    without_scale,
)
from .tile_puzzles import TilePuzzle

FLASH_PUZZLES = (
    TilePuzzle(
        name="fused_lse",
        statement="""Q and K lie in HBM. Write LSE of S = scale Q Kᵀ without ever writing S: a
tile of S is made, used and forgotten on chip.""",
        hints=(
            "Put scores and online_lse into one loop.",
            "S of one tile lives in registers: gpu.in_registers('S', (rows, cols)).",
            "product, then the running maximum and sum, then free K_j; LSE after the loop.",
        ),
        given=("Q", "K"),
        wanted=("LSE",),
        reads=lambda c: {"Q": c.N * c.d, "K": c.T_r * c.M * c.d},
        writes=lambda c: {"LSE": c.N},
        sram=lambda c: (c.B_r + c.B_c) * c.d,
        registers=forward_registers,
        product_flops=matmuls(1),
        mistakes={
            "it is what one gets without softmax_scale (gpu.scale)": without_scale,
            "it is what one gets if the sum is not rescaled when the maximum rises": (
                without_rescale
            ),
        },
    ),
    TilePuzzle(
        name="flash_forward",
        statement="""Write O and LSE of attention from Q, K and V with the traffic of
FlashAttention-2: Q read once, K and V once a query tile, O and LSE written once, S and P never.""",
        hints=(
            "fused_lse and weighted_values in one loop, with P made from S in registers.",
            "O is a sum too: when the maximum rises, it shrinks by the same exp(m - m_new).",
            "Per key tile: S, m_new, α = exp(m - m_new), P = exp(S - m_new), l = α l + rowsum "
            "P, O = α O + P V. After the loop: O / l and m + log l. Load V_j after S is done.",
        ),
        given=("Q", "K", "V"),
        wanted=("O", "LSE"),
        reads=lambda c: form("flash2", c).reads,
        writes=lambda c: form("flash2", c).writes,
        sram=forward_sram,
        registers=forward_registers,
        product_flops=lambda c: form("flash2", c).matmul_flops,
        mistakes=FORWARD_MISTAKES,
    ),
    TilePuzzle(
        name="flash_causal",
        statement="""flash_forward with a causal mask that is aligned to the bottom right: the
last query sees the last key. Skip the key tiles that no row of the query tile sees, and mask the
rest. Rows that see no key give O = 0 and LSE = -inf. `gpu.sees_keys(head, m_block)` and
`gpu.key_tiles(head, m_block)` know which tiles are left; `gpu.change_scores('mask', rS, head,
rows, cols)` masks.""",
        hints=(
            "A block whose tile sees no key at all must still write: gpu.fill('0', O[head, "
            "rows], 0.0), and -inf to LSE, without loading Q.",
            "Within a visited tile a row may still be wholly masked, as long as its maximum is "
            "-inf: -inf - -inf is NaN, so subtract 0 instead of an infinite maximum.",
            "safe = np.where(np.isneginf(m_new), 0, m_new); P = exp(S - safe); α = exp(m - "
            "safe). And divide by np.where(l == 0, 1, l).",
        ),
        given=("Q", "K", "V"),
        wanted=("O", "LSE"),
        reads=lambda c: form("flash2", c).reads,
        writes=lambda c: form("flash2", c).writes,
        sram=forward_sram,
        registers=forward_registers,
        product_flops=lambda c: form("flash2", c).matmul_flops,
        cases=CAUSAL,
        mistakes=FORWARD_MISTAKES | CAUSAL_MISTAKES,
    ),
    TilePuzzle(
        name="flash1_forward",
        statement="""The first FlashAttention turns the loops around: one block per head, key
tiles outside (`gpu.head_grid()`, `gpu.outer_key_tiles()`), query tiles inside
(`gpu.all_query_tiles(head)`). K and V are read once; O, m and l live in HBM and are read and
rewritten for every key tile. Write O, m and l; `gpu.fill` can begin them before the loops.""",
        hints=(
            "Before the loops: O = 0, l = 0, m = -inf, one gpu.fill each: m[head, gpu.all_rows].",
            "For a pair of tiles: load Q_i, O_i, m_i, l_i, update them, store O_i, m_i, l_i.",
            "O in HBM may be kept unnormalised until the last key tile, or normalised always: "
            "O_new = (l α O + P V) / l_new with P = exp(S - m_new).",
        ),
        given=("Q", "K", "V"),
        wanted=("O", "m", "l"),
        reads=lambda c: {
            "K": c.M * c.d,
            "V": c.M * c.d,
            "Q": c.T_c * c.N * c.d,
            "O": c.T_c * c.N * c.d,
            "m": c.T_c * c.N,
            "l": c.T_c * c.N,
        },
        writes=lambda c: {
            "O": (c.T_c + 1) * c.N * c.d,
            "m": (c.T_c + 1) * c.N,
            "l": (c.T_c + 1) * c.N,
        },
        sram=lambda c: (2 * c.B_c + 2 * c.B_r) * c.d + c.B_r * c.B_c + 2 * c.B_r,
        registers=forward_registers,
        product_flops=matmuls(2),
        mistakes={
            "it is what one gets without softmax_scale (gpu.scale)": without_scale,
            "it is what one gets if O is never divided by the row sum": without_division,
        },
    ),
    TilePuzzle(
        name="gqa_forward",
        statement="""Several query heads share one K and V (grouped-query attention). Write O and
LSE for all of them, reading K and V as often as one head alone would: a block owns query tile m
of *every* head. `gpu.kv_head_grid()` gives one block with the heads (a range); inside it
`gpu.all_query_tiles(head)` gives (m_block, rows), `gpu.all_key_tiles()` (n_block, cols).""",
        hints=(
            "Three loops in the one block: query tiles, key tiles, heads. Which one is innermost?",
            "Load K_j and V_j once a query tile, then use them for each head in turn.",
            "Each head keeps its own Q_i, m, l and O on chip: lists of tiles, a name each "
            "(f'O{head}'). gpu.all_query_tiles(0) has the rows of any head.",
        ),
        given=("Q", "K", "V"),
        wanted=("O", "LSE"),
        reads=lambda c: {
            "Q": c.heads * c.N * c.d,
            "K": c.T_r * c.M * c.d,
            "V": c.T_r * c.M * c.d,
        },
        writes=lambda c: {"O": c.heads * c.N * c.d, "LSE": c.heads * c.N},
        sram=lambda c: (c.heads * c.B_r + 2 * c.B_c) * c.d,
        registers=lambda c: c.heads * forward_registers(c),
        product_flops=matmuls(2),
        cases=SHARED,
        mistakes=FORWARD_MISTAKES,
    ),
)
