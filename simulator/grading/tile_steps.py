"""The first puzzles on tiles: one idea each."""

from __future__ import annotations

import numpy as np

from .tile_limits import matmuls, one_tile, without_rescale, without_scale, without_transpose
from .tile_puzzles import TilePuzzle

STEP_PUZZLES = (
    TilePuzzle(
        name="double_q",
        statement="""Write O = 2 Q, one query tile a thread block: load each tile of Q once and
store each tile of O once. `gpu.query_tile_grid()` gives (head, m_block, rows).""",
        hints=(
            "A block does three things: load its tile, compute, store.",
            "Index HBM with the block's rows: gpu.tensor('Q')[head, rows].",
            "gpu.compute('O = 2 Q', (rO,), (sQ,), lambda Q: 2 * Q) fills a tile made by "
            "gpu.in_registers('O', sQ.shape). Free what you loaded.",
        ),
        given=("Q",),
        wanted=("O",),
        reads=lambda c: {"Q": c.N * c.d},
        writes=lambda c: {"O": c.N * c.d},
        sram=lambda c: c.B_r * c.d,
        registers=lambda c: c.B_r * c.d,
        expected=lambda t: {"O": 2 * t["Q"]},
        mistakes={"it is Q itself, not doubled": lambda c, t: {"O": t["Q"]}},
    ),
    TilePuzzle(
        name="scores",
        statement="""Write S = scale Q Kᵀ, tile by tile, loading each tile of Q once: a block
keeps its query tile while the key tiles pass by. `gpu.all_key_tiles()` gives (n_block, cols)
inside a block of `gpu.query_tile_grid()`; the scale is `gpu.scale`.""",
        hints=(
            "Two loops: query tiles outside (the grid), key tiles inside.",
            "What is loaded in the outer loop is loaded once a block; K_j must come in the inner.",
            "gpu.product('S', rS, sQ, sK.T, scale=gpu.scale), then store to S[head, rows, cols].",
        ),
        given=("Q", "K"),
        wanted=("S",),
        reads=lambda c: {"Q": c.N * c.d, "K": c.T_r * c.M * c.d},
        writes=lambda c: {"S": c.N * c.M},
        sram=lambda c: (c.B_r + c.B_c) * c.d + c.B_r * c.B_c,
        registers=lambda c: 2 * c.B_r * c.B_c,
        product_flops=matmuls(1),
        mistakes={
            "it is Q Kᵀ without softmax_scale (gpu.scale)": without_scale,
            "it is Q K_j: the right operand is sK.T": without_transpose,
        },
    ),
    TilePuzzle(
        name="row_max",
        statement="""S lies in HBM. Write m, the maximum of each row of S, reading S once.""",
        hints=(
            "A row spans several tiles: the maximum so far must outlive one of them.",
            "Start row_max = gpu.in_registers('m', (rows of this tile,), -np.inf) and let it grow.",
            "gpu.compute('max', (row_max,), (sS, row_max), lambda S, m: np.maximum(m, "
            "S.max(axis=1))). The last tile may have fewer rows: rows.stop - rows.start.",
        ),
        given=("S",),
        wanted=("m",),
        reads=lambda c: {"S": c.N * c.M},
        writes=lambda c: {"m": c.N},
        sram=one_tile,
        registers=lambda c: 4 * c.B_r,
        mistakes={
            "it is the maximum of the last tile alone": lambda c, t: {
                "m": t["S"][..., (c.T_c - 1) * c.B_c :].max(axis=2)
            },
            "it is never below 0: a row of negative scores needs a start of -inf": lambda c, t: {
                "m": np.maximum(t["m"], 0)
            },
        },
    ),
    TilePuzzle(
        name="online_lse",
        statement="""S lies in HBM. Write LSE = log(sum(exp(S))) of each row, reading S once.
Scores may be in the hundreds: exp of such a score overflows. This is the online softmax.""",
        hints=(
            "Keep two numbers a row: the maximum so far, and the sum of exp(score - maximum).",
            "When the maximum rises from m to m_new, the sum so far shrinks by exp(m - m_new).",
            "l = l * exp(m - m_new) + sum(exp(S - m_new)); at the end LSE = m + log(l). At the "
            "first tile m is -inf, and exp(-inf - m_new) is 0: nothing special to do.",
        ),
        given=("S",),
        wanted=("LSE",),
        reads=lambda c: {"S": c.N * c.M},
        writes=lambda c: {"LSE": c.N},
        sram=one_tile,
        registers=lambda c: one_tile(c) + 6 * c.B_r,
        mistakes={
            "it is what one gets if the sum is not rescaled when the maximum rises": (
                without_rescale
            ),
            "it is log(sum) without the maximum: LSE = m + log(l)": lambda c, t: {
                "LSE": np.log(t["l"])
            },
        },
    ),
    TilePuzzle(
        name="softmax_rows",
        statement="""S lies in HBM. Write P = softmax of each row. A row does not fit on chip, and
P needs the whole row's maximum and sum: read S twice, once to learn them, once to use them.""",
        hints=(
            "The first pass is online_lse.",
            "The second pass walks over the same tiles again, within the same block.",
            "P = exp(S - LSE), or exp(S - m) / l; store each tile to P[head, rows, cols].",
        ),
        given=("S",),
        wanted=("P",),
        reads=lambda c: {"S": 2 * c.N * c.M},
        writes=lambda c: {"P": c.N * c.M},
        sram=one_tile,
        registers=lambda c: 2 * one_tile(c) + 6 * c.B_r,
        mistakes={
            "its rows do not sum to 1: divide by the whole row's sum": lambda c, t: {
                "P": t["P"] * t["l"][..., None]
            },
        },
    ),
    TilePuzzle(
        name="weighted_values",
        statement="""P lies in HBM. Write O = P V: read P once, V once a query tile, and write O
once. O stays in registers while the key tiles pass by.""",
        hints=(
            "An accumulator in registers, filled with 0, lives as long as the block.",
            "gpu.product('O += P V', acc, sP, sV, add=True)",
            "Store the accumulator after the loop over key tiles, not inside it.",
        ),
        given=("P", "V"),
        wanted=("O",),
        reads=lambda c: {"P": c.N * c.M, "V": c.T_r * c.M * c.d},
        writes=lambda c: {"O": c.N * c.d},
        sram=lambda c: c.B_r * c.B_c + c.B_c * c.d,
        registers=lambda c: 2 * c.B_r * c.d,
        product_flops=matmuls(1),
        mistakes={
            "it is the product with the last tile of V alone (add=True adds up)": lambda c, t: {
                "O": t["P"][..., (c.T_c - 1) * c.B_c :] @ t["V"][(c.T_c - 1) * c.B_c :]
            },
        },
    ),
)
