"""The puzzles on kernels of tensor cores and of Hopper's copy engine."""

from __future__ import annotations

import numpy as np

from ..threads import tensor_map
from .cases import Case
from .formulas import Tensors
from .kernel_puzzles import KernelPuzzle

PLACES = 2
"""Tiles that the shared memory of `ring_kernel` holds."""

TILE = 64
"""Rows and columns of its tiles."""

LOCAL = 4 * 64
"""Bytes of a thread's own arrays: fragments, if they are put into arrays."""


def words(array: np.ndarray) -> np.ndarray:
    """fp16 numbers as kernels are handed them: 16-bit words."""
    return array.astype(np.float16).view(np.uint16)


def halves(array: np.ndarray) -> np.ndarray:
    """Rounded to fp16, in the type it came in."""
    return array.astype(np.float16).astype(array.dtype)


def scores(t: Tensors) -> np.ndarray:
    """Q Kᵀ of fp16 numbers."""
    return halves(t["Q"][0]) @ halves(t["K"]).T


def fragments(t: Tensors) -> np.ndarray:
    """Registers of ldmatrix_x4 for the four A fragments of 16 x 64, by step and lane."""
    X = words(t["Q"][0]).astype(np.uint32)
    registers, lane = np.empty((4, 32, 4), np.uint32), np.arange(32)
    for k, i in np.ndindex(4, 4):
        row, col = lane // 4 + 8 * (i % 2), 16 * k + 8 * (i // 2) + 2 * (lane % 4)
        registers[k, :, i] = X[row, col] | X[row, col + 1] << 16
    return registers


def weighted(t: Tensors, scale: float = 0.25, divided: bool = True) -> np.ndarray:
    """softmax(scale Q Kᵀ) V of fp16 numbers; in float32, P is rounded to fp16 as kernels do."""
    S = scores(t).dtype.type(scale) * scores(t)
    P = np.exp(S - S.max(axis=1, keepdims=True))
    if divided:
        P /= P.sum(axis=1, keepdims=True)
    return (halves(P) if P.dtype == np.float32 else P) @ halves(t["V"])


def tiles(t: Tensors) -> np.ndarray:
    """K as tiles of 64 x 64 words."""
    return words(t["K"]).reshape(-1, TILE, TILE)


WARP_PUZZLES = (
    KernelPuzzle(
        name="warp_scores_kernel",
        statement="""S = Q Kᵀ on the tensor cores: block (i, j) is one warp, and computes rows
16i to 16i + 15 and columns 8j to 8j + 7. gQ (N x d) and gK (M x d) hold fp16 numbers as 16-bit
words (uint16), gS is float32; N is a multiple of 16, M of 8, d of 16, at most 64. A block may
load each element of its rows once from global memory, and once from shared memory if it puts
them there: mma uses an operand for many products at once. flash_numba.device.ptx_matrix has
mma_m16n8k16_fp16, ldmatrix_x4 and ldmatrix_x2, and the picture of which lane holds what.""",
        hints=(
            "Bring 16 rows of Q and 8 of K into shared memory; for each 16 columns load the "
            "fragments a and b, and let c = mma_m16n8k16_fp16(a, b, c).",
            "ldmatrix_x4 wants the quarters of A in the order rows 0-7, rows 8-15 of the left "
            "half, then of the right; lane 8 i + r says where row r of quarter i begins.",
            "With p = lane // 8, r = lane % 8: a = ldmatrix_x4(sQ, d * (r + 8 * (p % 2)) + k + 8 "
            "* (p // 2)), b = ldmatrix_x2(sK, d * r + k + 8 * (p % 2)); c[0], c[1] are columns 2 "
            "* (lane % 4) and the next of row lane // 4, c[2], c[3] those of the row 8 below.",
        ),
        parameters=("gQ", "gK", "gS"),
        given=lambda t: {"gQ": words(t["Q"][0]), "gK": words(t["K"])},
        wanted=lambda t: {"gS": scores(t)},
        launch=lambda c: ((c.N // 16, c.M // 8), 32),
        loads=lambda c: {"gQ": c.N * c.d * (c.M // 8), "gK": c.M * c.d * (c.N // 16)},
        stores=lambda c: {"gS": c.N * c.M},
        shared=lambda c: 2 * (16 + 8) * 72,
        shared_loads=lambda c: (c.N // 16) * (c.M // 8) * 2 * (16 + 8) * c.d,
        local=lambda c: LOCAL,
        cases=(Case(16, 8, 16), Case(32, 24, 32), Case(16, 16, 64)),
        mistakes={
            "it is the product of the last 16 columns alone: hand c on": lambda c, t: {
                "gS": halves(t["Q"][0][:, -16:]) @ halves(t["K"][:, -16:]).T
            },
        },
    ),
    KernelPuzzle(
        name="swizzle_kernel",
        statement="""One warp brings 16 rows of 64 fp16 numbers (gX, 16-bit words) into 2,048
bytes of shared memory, and loads them from there as the A fragments of four products: gY[k,
lane, i] (uint32) is register i of ldmatrix_x4 for columns 16k to 16k + 15, as warp_scores_kernel
has it. No access to shared memory may meet a bank conflict, and there is no room for padding:
where a column lies must depend on its row. ldmatrix reads eight neighbours at once, which must
stay together.""",
        hints=(
            "A row is 128 bytes, all 32 banks: the same columns of eight rows are in the same "
            "banks. Give each of eight rows its own order of its eight chunks of eight.",
            "There are 8 chunks a row and 8 rows that are read together: chunk number xor row "
            "number, or chunk plus row modulo 8.",
            "Store column col of a row at 64 * row + (col ^ 8 * (row % 8)), and read it there.",
        ),
        parameters=("gX", "gY"),
        given=lambda t: {"gX": words(t["Q"][0])},
        wanted=lambda t: {"gY": fragments(t)},
        launch=lambda c: (1, 32),
        loads=lambda c: {"gX": 16 * 64},
        stores=lambda c: {"gY": 4 * 32 * 4},
        shared=lambda c: 2 * 16 * 64,
        shared_loads=lambda c: 2 * 16 * 64,
        local=lambda c: LOCAL,
        conflict_free=True,
        cases=(Case(16, 1, 64), Case(16, 2, 64)),
    ),
    KernelPuzzle(
        name="warp_attention_kernel",
        statement="""The step that FlashAttention lives on: O = softmax(scale Q Kᵀ) V for 16 keys
and 16 columns, one warp for each 16 queries, with P in registers. gQ, gK, gV hold fp16 numbers
as 16-bit words, gO is float32, scale a number; N is a multiple of 16. Four mma: two make S, and
what is left of S in a lane's registers, as fp16, is its part of the left operand of the other
two (flash_numba.device.ptx_matrix.pack_fp16 puts two numbers into one register). Shared memory
has room for the tiles of Q, K and V alone, and each element is read from it at most once. Scores
may be in the hundreds.""",
        hints=(
            "The two C fragments of S, keys 0-7 and 8-15, side by side are an A fragment: nothing "
            "is fetched from another lane.",
            "Four neighbouring lanes share a row: its maximum and sum want shfl_xor_sync with 1 "
            "and 2. V lies in rows of keys, and B wants its columns: ldmatrix_x4_trans.",
            "With s, u the results for keys 0-7 and 8-15 after exp: a = (pack_fp16(s[0], s[1]), "
            "pack_fp16(s[2], s[3]), pack_fp16(u[0], u[1]), pack_fp16(u[2], u[3])); divide rows "
            "lane // 4 and lane // 4 + 8 of O by their own sums.",
        ),
        parameters=("gQ", "gK", "gV", "gO", "scale"),
        given=lambda t: {
            "gQ": words(t["Q"][0]),
            "gK": words(t["K"]),
            "gV": words(t["V"]),
            "scale": 0.25,
        },
        wanted=lambda t: {"gO": weighted(t)},
        launch=lambda c: (c.N // 16, 32),
        loads=lambda c: {"gQ": c.N * 16, "gK": c.N * 16, "gV": c.N * 16},
        stores=lambda c: {"gO": c.N * 16},
        shared=lambda c: 2 * 3 * 16 * 24,
        shared_loads=lambda c: (c.N // 16) * 2 * 3 * 16 * 16,
        local=lambda c: LOCAL,
        cases=tuple(
            Case(N, 16, 16, scores=scores)
            for N, scores in ((16, "normal"), (32, "rising"), (16, "large"), (16, "low"))
        ),
        mistakes={
            "it is what one gets without the scale": lambda c, t: {"gO": weighted(t, 1.0)},
            "it is what one gets if O is never divided by the row sum": lambda c, t: {
                "gO": weighted(t, divided=False)
            },
        },
    ),
    KernelPuzzle(
        name="ring_kernel",
        statement="""Tiles of 64 x 64 words come by Hopper's copy engine, and leave through
threads: gY[n] (uint16) is tile n of x_map, a TensorMap over 64 columns and 64 rows for each
tile, in the order of the matrix. One block of 256 threads, launched with 16,384 bytes of dynamic
shared memory: two tiles (shared_tile(memory, 0, (2, 64, 64)), memory a cuda.shared.array(0,
types.uint16, alignment=1024)). A thread starts a copy by tensor_load(tile, map_address(x_map),
0, 64 * n, 0, 0, bars, i) once it has announced its bytes to barrier i with barrier_expect; each
tile is copied once, and nobody may overwrite a tile that others still read. The engine swizzles:
column c of row r lies at c xor 8 (r mod 8). Decorate with
flash_numba.device.numba_cuda.kernel(256).""",
        hints=(
            "One thread starts copies, 128 or more others wait for a tile and store it. A barrier "
            "of one arrival (the announcement) says that a tile is here.",
            "Tile n comes to place n % 2 for the (n // 2)-th time: wait for parity n // 2 % 2.",
            "A second barrier for each place, with an arrival of every reader, says that it may "
            "be filled again; the producer's first wait for it must pass at once: parity (n // 2 "
            "+ 1) % 2. Initialise barriers in one thread and call fence_barrier_init() there, then "
            "cuda.syncthreads().",
        ),
        parameters=("x_map", "gY"),
        given=lambda t: {
            "x_map": tensor_map(words(t["K"]).reshape(1, -1, 1, TILE), TILE, TILE),
        },
        wanted=lambda t: {"gY": tiles(t)},
        launch=lambda c: (1, 256, 0, PLACES * 2 * TILE * TILE),
        loads=lambda c: {"x_map": c.M * TILE},
        stores=lambda c: {"gY": c.M * TILE},
        shared=lambda c: PLACES * 2 * TILE * TILE + 256,
        local=lambda c: LOCAL,
        cases=(Case(1, TILE, TILE), Case(1, 5 * TILE, TILE)),
        mistakes={
            "rows and columns are exchanged": lambda c, t: {"gY": tiles(t).swapaxes(1, 2)},
        },
    ),
)
