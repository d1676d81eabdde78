"""Numbers to predict in the later notebooks: rings of tiles, masks, padding, training, energy."""

from __future__ import annotations

from flash_numba.problem import Problem
from flash_numba.tiling import ceil_div

from ..hardware import A100, H100, T4
from ..theory import counts
from .formula_puzzles import FormulaPuzzle


def ring_stages(d: int, tile_m: int, tile_n: int, sram_bytes: int) -> int:
    """Pairs of a tile of K and one of V that fit beside Q and O, fp16."""
    left = sram_bytes - 2 * (tile_m * d + tile_m * d)
    return max(0, left // (2 * (tile_n * d + tile_n * d)))


def causal_tiles(N: int, B: int) -> int:
    """Visited tiles of a causal mask, from the closed form's products of one column."""
    problem = Problem(N, N, 1, causal=True)
    reads = counts("flash2", problem, B, B, direction="forward").reads["K"]
    whole, tail = divmod(reads, B)
    return whole + (1 if tail else 0)


def attention_flops(B: int, H: int, N: int, M: int, d: int, backward: int) -> int:
    """FLOPs of the products of flash2, all heads."""
    direction = "backward" if backward else "forward"
    found = counts("flash2", Problem(N, M, d), 64, 64, direction=direction)
    return B * H * found.matmul_flops


def kept(layers: int, B: int, H: int, N: int, d: int, *, columns: int = 4, lse: int = 4) -> int:
    """Bytes of so many fp16 tensors of N x d, and `lse` bytes a row."""
    return layers * B * H * (2 * columns * N * d + lse * N)


def energy(N: int, d: int, B_r: int, pj_byte: int, pj_flop: int, program: str = "flash2") -> int:
    """Picojoules of one head's forward pass by the closed form."""
    found = counts(program, Problem(N, N, d, dtype="fp16"), B_r, 64, direction="forward")
    return found.hbm_bytes * pj_byte + found.matmul_flops * pj_flop


def _moved(N: int, d: int, T_r: float, size: int = 2, lse: int = 4) -> float:
    """Bytes that flash2 moves with so many query tiles, and so large elements."""
    return size * (2 * N * d + T_r * 2 * N * d) + lse * N


LATER_FORMULAS = (
    FormulaPuzzle(
        name="wait_parity",
        statement="""Tiles of keys pass through a ring of `stages` places in SRAM: tile n (n = 0,
1, 2, ...) comes to place n mod stages. Each place has an mbarrier that says "is here"; its first
phase has parity 0, the next 1, then 0 again. With which parity does a consumer wait for tile n?""",
        hints=(
            "A place's barrier completes a phase for each tile that comes to that place.",
            "How many tiles came to the place of tile n before it?",
            "The ring has gone round n // stages times: take that modulo 2.",
        ),
        cases=tuple(
            {"n": n, "stages": stages}
            for n, stages in ((0, 2), (1, 2), (2, 2), (5, 2), (4, 3), (17, 3), (3, 1), (8, 4))
        ),
        expected=lambda n, stages: n // stages % 2,
        mistakes={
            "that is for the tile's own number; a place is used once a round of the ring": (
                lambda n, stages: n % 2
            ),
            "that is the place; the phase's parity is 0 or 1": lambda n, stages: n % stages,
            "that is the round; a parity is 0 or 1, even or odd": lambda n, stages: n // stages,
            "that is what a producer waits for, whose first wait must not block at phase 0": (
                lambda n, stages: (n // stages + 1) % 2
            ),
        },
        nudge="count how often the ring has gone round when tile n comes to its place",
    ),
    FormulaPuzzle(
        name="ring_stages",
        statement="""How many stages may the ring have? In SRAM lie a tile of Q and one of O
(through which O leaves), tile_m rows each, and for each stage a tile of K and one of V, tile_n
rows each; d columns, fp16, two bytes an element. Barriers take next to nothing. If not even Q
and O fit, 0.""",
        hints=(
            "Add up the bytes of Q and O; what is left is for the ring.",
            "A stage takes 2 · 2 · tile_n · d bytes: two tiles of two-byte elements.",
            "(sram_bytes - 4 · tile_m · d) // (4 · tile_n · d), and at least 0.",
        ),
        cases=tuple(
            {"d": d, "tile_m": m, "tile_n": n, "sram_bytes": gpu.shared_bytes_per_block}
            for d, m, n, gpu in (
                (128, 64, 128, H100),
                (128, 128, 128, H100),
                (64, 192, 128, H100),
                (64, 128, 96, A100),
                (256, 128, 64, T4),
            )
        ),
        expected=ring_stages,
        mistakes={
            "O takes as much as Q": lambda d, tile_m, tile_n, sram_bytes: max(
                0, (sram_bytes - 2 * tile_m * d) // (4 * tile_n * d)
            ),
            "a stage has a tile of V, too": lambda d, tile_m, tile_n, sram_bytes: max(
                0, (sram_bytes - 4 * tile_m * d) // (2 * tile_n * d)
            ),
            "four bytes an element is fp32; these are two bytes": (
                lambda d, tile_m, tile_n, sram_bytes: ring_stages(2 * d, tile_m, tile_n, sram_bytes)
            ),
            "half a stage does not fit: round down": lambda d, tile_m, tile_n, sram_bytes: max(
                0, -(-(sram_bytes - 4 * tile_m * d) // (4 * tile_n * d))
            ),
            "where Q and O do not fit there are 0 stages, not fewer": (
                lambda d, tile_m, tile_n, sram_bytes: (
                    (sram_bytes - 4 * tile_m * d) // (4 * tile_n * d)
                )
            ),
            "these look like one byte an element, or one tile where there are two": (
                lambda d, tile_m, tile_n, sram_bytes: max(
                    0, (sram_bytes - 2 * tile_m * d) // (2 * tile_n * d)
                )
            ),
        },
        nudge="add up the bytes of Q and O, and see how often K and V fit into the rest",
    ),
    FormulaPuzzle(
        name="attention_flops",
        statement="""How many FLOPs are the products of tiles, without a mask? A multiply-add is
two. B sequences, H heads, N queries, M keys, d columns; `backward` is 0 for the forward pass, 1
for the backward pass alone, as FlashAttention does it: S is made again.""",
        hints=(
            "One product of N x d with d x M: how many multiply-adds?",
            "Forward has S = Q Kᵀ and O = P V. Which does backward have?",
            "S, dP, dV, dQ, dK: five products of 2NMd, where forward has two; times B · H.",
        ),
        cases=(
            {"B": 1, "H": 1, "N": 1024, "M": 1024, "d": 64, "backward": 0},
            {"B": 1, "H": 1, "N": 128, "M": 128, "d": 64, "backward": 1},
            {"B": 1, "H": 1, "N": 100, "M": 300, "d": 32, "backward": 1},
            {"B": 8, "H": 16, "N": 200, "M": 50, "d": 128, "backward": 0},
        ),
        expected=attention_flops,
        mistakes={
            "a multiply-add is two operations": lambda B, H, N, M, d, backward: (
                attention_flops(B, H, N, M, d, backward) // 2
            ),
            "with P stored that would be four products; here S is made again, which is the fifth": (
                lambda B, H, N, M, d, backward: B * H * N * M * d * (8 if backward else 4)
            ),
            "there are N queries and M keys": lambda B, H, N, M, d, backward: attention_flops(
                B, H, N, N, d, backward
            ),
            "that is both passes together; the backward pass alone is asked for": (
                lambda B, H, N, M, d, backward: B * H * N * M * d * (14 if backward else 4)
            ),
            "that is one product, S; O = PV is another": lambda B, H, N, M, d, backward: (
                2 * B * H * N * M * d
            ),
            "that is one head of one sequence": lambda B, H, N, M, d, backward: attention_flops(
                1, 1, N, M, d, backward
            ),
        },
        nudge="count the products of each pass again",
    ),
    FormulaPuzzle(
        name="predict_energy",
        statement="""How many picojoules does FlashAttention-2's forward pass take for one head
of N queries and N keys in fp16, if each byte between HBM and the chip costs pj_byte and each
FLOP of the two products pj_flop? Q, K, V and O have two bytes an element, LSE four; query tiles
have B_r rows, the last may have fewer.""",
        hints=(
            "Two sums: bytes times pj_byte, and FLOPs times pj_flop.",
            "Elements are those of predict_flash2: Nd, T_r · 2Nd, Nd of two bytes, N of four.",
            "pj_byte · (2 · (2Nd + ⌈N / B_r⌉ · 2Nd) + 4N) + pj_flop · 4N²d.",
        ),
        cases=tuple(
            dict(zip(("N", "d", "B_r", "pj_byte", "pj_flop"), one, strict=True))
            for one in ((1024, 64, 128, 32, 1), (1000, 128, 192, 31, 2), (70, 32, 64, 5, 3))
        ),
        expected=energy,
        mistakes={
            "LSE has four bytes a row": lambda N, d, B_r, pj_byte, pj_flop: (
                pj_byte * _moved(N, d, ceil_div(N, B_r), lse=2) + pj_flop * 4 * N * N * d
            ),
            "these are elements; pj_byte is for bytes": lambda N, d, B_r, pj_byte, pj_flop: (
                pj_byte * _moved(N, d, ceil_div(N, B_r), size=1, lse=1) + pj_flop * 4 * N * N * d
            ),
            "K and V come anew for every query tile": lambda N, d, B_r, pj_byte, pj_flop: (
                pj_byte * _moved(N, d, 1) + pj_flop * 4 * N * N * d
            ),
            "the FLOPs of the products cost energy, too": lambda N, d, B_r, pj_byte, pj_flop: (
                pj_byte * _moved(N, d, ceil_div(N, B_r))
            ),
            "there are two products, S and PV": lambda N, d, B_r, pj_byte, pj_flop: (
                pj_byte * _moved(N, d, ceil_div(N, B_r)) + pj_flop * 2 * N * N * d
            ),
            "that is standard attention, which moves S and P": (
                lambda N, d, B_r, pj_byte, pj_flop: energy(
                    N, d, B_r, pj_byte, pj_flop, "algorithm0"
                )
            ),
            "a last tile that is not whole is a tile too: round up": (
                lambda N, d, B_r, pj_byte, pj_flop: (
                    pj_byte * _moved(N, d, N // B_r) + pj_flop * 4 * N * N * d
                )
            ),
        },
        nudge="count bytes and FLOPs apart, as predict_flash2 and attention_flops do",
    ),
    FormulaPuzzle(
        name="predict_kept",
        statement="""How many bytes do the attention layers of a model keep from the forward to
the backward pass with FlashAttention? Per layer, sequence and head: Q, K, V and O of N x d in
fp16, and LSE of N in fp32. `layers` layers, B sequences, H heads.""",
        hints=(
            "Four tensors of N x d, two bytes an element.",
            "And one number of four bytes a row; nothing of N x N.",
            "layers · B · H · (8 · N · d + 4 · N)",
        ),
        cases=tuple(
            dict(zip(("layers", "B", "H", "N", "d"), one, strict=True))
            for one in ((1, 1, 1, 1024, 64), (2, 8, 2, 32, 16), (12, 3, 8, 500, 128))
        ),
        expected=kept,
        mistakes={
            "O is kept, too: delta is made of it": lambda layers, B, H, N, d: kept(
                layers, B, H, N, d, columns=3
            ),
            "LSE is kept, too: P is made again from it": lambda layers, B, H, N, d: kept(
                layers, B, H, N, d, lse=0
            ),
            "LSE is fp32, four bytes": lambda layers, B, H, N, d: kept(layers, B, H, N, d, lse=2),
            "m and l are put together: LSE is one number a row": lambda layers, B, H, N, d: kept(
                layers, B, H, N, d, lse=8
            ),
            "P is not kept: that is the point": lambda layers, B, H, N, d: (
                kept(layers, B, H, N, d) + layers * B * H * 2 * N * N
            ),
            "LSE is kept in place of P: that is the point": lambda layers, B, H, N, d: (
                kept(layers, B, H, N, d, lse=0) + layers * B * H * 2 * N * N
            ),
            "every layer keeps its own": lambda layers, B, H, N, d: kept(1, B, H, N, d),
            "these are elements; bytes are asked for": lambda layers, B, H, N, d: (
                layers * B * H * N * (4 * d + 1)
            ),
        },
        nudge="add up what one head of one layer keeps",
    ),
    FormulaPuzzle(
        name="causal_tiles",
        statement="""How many tiles of B x B of an N x N matrix of scores must be computed under
a causal mask, where query i sees keys 0 to i? A tile with one visible score is computed whole;
the last tile of each side may have fewer rows or columns.""",
        hints=(
            "How many tiles does the i-th row of tiles see, i = 0, 1, ...?",
            "i + 1 of them: those on the diagonal are half masked, and computed.",
            "T (T + 1) / 2 with T = ⌈N / B⌉.",
        ),
        cases=({"N": 1024, "B": 128}, {"N": 1000, "B": 64}, {"N": 65, "B": 64}, {"N": 5, "B": 8}),
        expected=causal_tiles,
        mistakes={
            "half of the tiles would leave out half of the diagonal, whose tiles are computed": (
                lambda N, B: ceil_div(N, B) ** 2 // 2
            ),
            "tiles are computed whole, those on the diagonal, too": lambda N, B: N * N / 2 / B / B,
            "those on the diagonal have visible scores": lambda N, B: (
                ceil_div(N, B) * (ceil_div(N, B) - 1) // 2
            ),
            "a last tile that is not whole is a tile too: round up": lambda N, B: (
                N // B * (N // B + 1) // 2
            ),
            "above the diagonal no query sees anything: those are skipped": lambda N, B: (
                ceil_div(N, B) ** 2
            ),
        },
        nudge="count the tiles of each row of tiles that have a visible score",
    ),
    FormulaPuzzle(
        name="padding_waste",
        statement="""Three sequences of L1, L2 and L3 tokens are padded to the longest of them,
and each attends to itself, without a mask. How many scores are computed for nothing, because
their query or their key is padding?""",
        hints=(
            "How many scores has one padded sequence, and how many are real?",
            "longest² against L²: scores grow with the square.",
            "3 · longest² - (L1² + L2² + L3²)",
        ),
        cases=tuple(
            dict(zip(("L1", "L2", "L3"), one, strict=True))
            for one in ((1024, 100, 500), (7, 30, 64), (50, 90, 20))
        ),
        expected=lambda L1, L2, L3: sum(max(L1, L2, L3) ** 2 - L * L for L in (L1, L2, L3)),
        mistakes={
            "these are rows; scores are asked for, a square of them": lambda L1, L2, L3: (
                3 * max(L1, L2, L3) - L1 - L2 - L3
            ),
            "padded queries have rows of scores, too": lambda L1, L2, L3: sum(
                L * (max(L1, L2, L3) - L) for L in (L1, L2, L3)
            ),
            "that is where query and key are both padding; a strip of rows and one of columns are "
            "missing": lambda L1, L2, L3: sum((max(L1, L2, L3) - L) ** 2 for L in (L1, L2, L3)),
            "each sequence has a square of its own": lambda L1, L2, L3: (
                3 * max(L1, L2, L3) ** 2 - (L1 + L2 + L3) ** 2
            ),
            "the first need not be the longest": lambda L1, L2, L3: (
                3 * L1**2 - L1**2 - L2**2 - L3**2
            ),
            "those are padded queries; padded keys cost real rows their columns": (
                lambda L1, L2, L3: max(L1, L2, L3) * (3 * max(L1, L2, L3) - L1 - L2 - L3)
            ),
        },
        nudge="draw the square of scores of one sequence, and what of it is real",
    ),
)
