"""The puzzles on kernels, from a loop's tail to the backward pass."""

from __future__ import annotations

import numpy as np

from .cases import Case
from .kernel_puzzles import KernelPuzzle

D, TILE = 8, 16
"""Columns of a head and rows of every tile in the attention kernels."""

FACTOR = 2.5

SHEETS = (Case(8, 32), Case(40, 8), Case(13, 40))
"""Matrices of N rows and M columns, M a multiple of the 8 elements of a sector."""

HEADS = (
    Case(16, 16, D, TILE, TILE),
    Case(21, 37, D, TILE, TILE),
    Case(21, 37, D, TILE, TILE, scores="rising"),
)
LOW_AND_LARGE = tuple(Case(37, 21, D, TILE, TILE, scores=scores) for scores in ("low", "large"))


def matrix(tensors) -> np.ndarray:
    """A matrix of N x M."""
    return tensors["S"][0]


def padded_keys(case: Case, tensors) -> dict[str, np.ndarray]:
    """O, where the last key tile's rows beyond M have scores and values of 0."""
    l = tensors["l"][0] + (case.T_c * TILE - case.M) * np.exp(-tensors["m"][0])
    return {"gO": tensors["O"][0] * (tensors["l"][0] / l)[:, None]}


def coalesced(case: Case) -> int:
    """Sectors that warps touch which read the rows of `matrix` 32 neighbours at a time."""
    found = 0
    for row in range(case.N):
        for first in range(row * case.M, (row + 1) * case.M, 32):
            last = min(first + 32, (row + 1) * case.M) - 1
            found += last // 8 - first // 8 + 1
    return found


def size(case: Case) -> int:
    """Elements of `matrix`."""
    return case.N * case.M


KERNEL_PUZZLES = (
    KernelPuzzle(
        name="scale_kernel",
        statement="""A first kernel: y = a x for vectors of any length n. Blocks have 64 threads,
one an element, and the grid has ⌈n / 64⌉ of them: the last block has threads too many.""",
        hints=(
            "A thread's element is cuda.grid(1).",
            "What do the threads of the last block do whose element does not exist?",
            "i = cuda.grid(1); if i < x.shape[0]: y[i] = a * x[i]",
        ),
        parameters=("x", "y", "a"),
        given=lambda t: {"x": matrix(t).ravel(), "a": FACTOR},
        wanted=lambda t: {"y": FACTOR * matrix(t).ravel()},
        launch=lambda c: (-(-size(c) // 64), 64),
        loads=lambda c: {"x": size(c)},
        stores=lambda c: {"y": size(c)},
        shared=lambda c: 4 * 64,
        cases=(Case(8, 16), Case(5, 13), Case(1, 3)),
        mistakes={"it is x itself, not a x": lambda c, t: {"y": matrix(t).ravel()}},
    ),
    KernelPuzzle(
        name="copy_kernel",
        statement="""Copy a matrix of N x M with coalesced accesses: blocks of (32, 8) threads, a
grid of (⌈M / 32⌉, ⌈N / 8⌉), one element a thread. A warp is the 32 threads with neighbouring
threadIdx.x; memory is fetched in sectors of 32 bytes, and each may be touched only once for
reading and once for writing.""",
        hints=(
            "cuda.grid(2) gives two numbers, the first of which differs within a warp.",
            "In memory the columns of a row are neighbours: which of the two numbers is the "
            "column?",
            "col, row = cuda.grid(2); guard both; y[row, col] = x[row, col]",
        ),
        parameters=("x", "y"),
        given=lambda t: {"x": matrix(t)},
        wanted=lambda t: {"y": matrix(t)},
        launch=lambda c: ((-(-c.M // 32), -(-c.N // 8)), (32, 8)),
        loads=lambda c: {"x": size(c)},
        stores=lambda c: {"y": size(c)},
        sectors=lambda c: {"x": size(c) // 8, "y": size(c) // 8},
        shared=lambda c: 4 * 8 * 33,
        cases=SHEETS,
    ),
    KernelPuzzle(
        name="transpose_kernel",
        statement="""y = xᵀ for a matrix of N x M, reading and writing every sector once - and
without bank conflicts. Blocks of (32, 8) threads, a grid of (⌈M / 32⌉, ⌈N / 32⌉): a block turns a
tile of 32 x 32 around in shared memory, four rows a thread. N and M are multiples of 8. Shared
memory has 32 banks of 4 bytes; lanes that meet in one bank at different addresses wait for each
other.""",
        hints=(
            "Load rows of x into the tile, wait for all threads, store rows of y from its columns.",
            "Reading a column of a 32 x 32 tile, all 32 lanes meet in one bank. What if a row "
            "of the tile were one element longer?",
            "tile = cuda.shared.array((32, 33), float32); load tile[ty + k, tx] for k in 0, 8, "
            "16, 24; syncthreads; y[32 * blockIdx.x + ty + k, 32 * blockIdx.y + tx] = tile[tx, "
            "ty + k]",
        ),
        parameters=("x", "y"),
        given=lambda t: {"x": matrix(t)},
        wanted=lambda t: {"y": matrix(t).T},
        launch=lambda c: ((-(-c.M // 32), -(-c.N // 32)), (32, 8)),
        loads=lambda c: {"x": size(c)},
        stores=lambda c: {"y": size(c)},
        sectors=lambda c: {"x": size(c) // 8, "y": size(c) // 8},
        shared=lambda c: 4 * 32 * 40,
        conflict_free=True,
        cases=(Case(32, 32), Case(40, 8), Case(8, 48)),
    ),
    KernelPuzzle(
        name="row_sum_kernel",
        statement="""y[row] = sum of x[row, :] for a matrix of N x M: one block of 64 threads a
row, each element loaded once, by all the threads and coalesced: the lanes of a warp take
neighbouring elements. The threads must put their parts together, through shared memory or
shuffles.""",
        hints=(
            "Each thread adds up every 64th element; that leaves 64 parts.",
            "Put the parts into shared memory and wait for all threads before reading them.",
            "Halve: for step in 32, 16, ... 1: if i < step: parts[i] += parts[i + step], and a "
            "cuda.syncthreads() after each, outside the if. Then thread 0 stores.",
        ),
        parameters=("x", "y"),
        given=lambda t: {"x": matrix(t)},
        wanted=lambda t: {"y": matrix(t).sum(axis=1)},
        launch=lambda c: (c.N, 64),
        loads=lambda c: {"x": size(c)},
        stores=lambda c: {"y": c.N},
        sectors=lambda c: {"x": coalesced(c)},
        loading_warps=lambda c: min(2, -(-c.M // 32)),
        shared=lambda c: 4 * 64,
        cases=(Case(2, 64), Case(3, 150), Case(2, 7)),
        mistakes={
            "it is the part of the first 32 elements of each 64": lambda c, t: {
                "y": np.where(np.arange(c.M) % 64 < 32, matrix(t), 0).sum(axis=1)
            },
        },
    ),
    KernelPuzzle(
        name="row_lse_kernel",
        statement="""y[row] = log(sum(exp(x[row, :]))) for a matrix of N x M: one warp (32
threads, one block) a row, each element loaded *once*, by all the lanes and coalesced, whatever M
is. Scores may be in the hundreds. This is the online softmax, first within a lane and then across
the lanes.""",
        hints=(
            "A lane keeps its own maximum and sum over every 32nd element, as in online_lse.",
            "Two pairs (m, l) merge into m_new = max(m_a, m_b), l = l_a exp(m_a - m_new) + l_b "
            "exp(m_b - m_new); cuda.shfl_xor_sync(0xFFFFFFFF, value, step) fetches another "
            "lane's.",
            "A lane that had no element has m = -inf, and two of them give -inf - -inf: start "
            "with a large negative number only if no score can be as low, or skip the empty "
            "lane.",
        ),
        parameters=("x", "y"),
        given=lambda t: {"x": matrix(t)},
        wanted=lambda t: {"y": t["LSE"][0]},
        launch=lambda c: (c.N, 32),
        loads=lambda c: {"x": size(c)},
        stores=lambda c: {"y": c.N},
        sectors=lambda c: {"x": coalesced(c)},
        requests=lambda c: c.N * -(-c.M // 32),
        shared=lambda c: 4 * 64,
        cases=(
            Case(3, 64),
            Case(3, 75, scores="rising"),
            Case(3, 7),
            Case(4, 40, scores="low"),
            Case(4, 40, scores="large"),
        ),
        mistakes={
            "it is log(sum) without the maximum: LSE = m + log(l)": lambda c, t: {
                "y": np.log(t["l"][0])
            },
        },
    ),
    KernelPuzzle(
        name="flash_kernel",
        statement=f"""FlashAttention-2's forward pass as a kernel, for one head of d = {D}
columns: gO and gLSE from gQ, gK, gV. Blocks of {TILE} threads, ⌈N / {TILE}⌉ of them: a thread
owns a query row, a block a query tile. Tiles of {TILE} keys come through shared memory, each
loaded once a block; N and M need not be multiples of {TILE}. Q and O of a row live in
cuda.local.array({D}, float32).""",
        hints=(
            "A thread loads its own row of Q; then for each key tile: all threads load one row "
            "of K and V each into shared memory, wait, use all rows, and wait again before the "
            "next.",
            "Threads beyond N must still take part in loading and in every syncthreads; keys "
            "beyond M must not count.",
            "Per key: s = scale * dot(q, sK[j]); m_new = max(m, s); a = exp(m - m_new); p = "
            "exp(s - m_new); l = l * a + p; o = o * a + p * sV[j]. At the end o / l and m + "
            "log(l).",
        ),
        parameters=("gQ", "gK", "gV", "gO", "gLSE", "scale"),
        given=lambda t: {"gQ": t["Q"][0], "gK": t["K"], "gV": t["V"], "scale": D**-0.5},
        wanted=lambda t: {"gO": t["O"][0], "gLSE": t["LSE"][0]},
        launch=lambda c: (c.T_r, TILE),
        loads=lambda c: {"gQ": c.N * D, "gK": c.T_r * c.M * D, "gV": c.T_r * c.M * D},
        stores=lambda c: {"gO": c.N * D, "gLSE": c.N},
        shared=lambda c: 4 * (3 * TILE * (D + 1) + TILE * (TILE + 1)),
        local=lambda c: 4 * (2 * D + 2 * TILE),
        cases=(*HEADS, *LOW_AND_LARGE),
        mistakes={
            "it is what one gets if O is never divided by the row sum": lambda c, t: {
                "gO": (t["O"] * t["l"][..., None])[0]
            },
            "it is what one gets if keys beyond M count as keys of zeros": padded_keys,
        },
    ),
    KernelPuzzle(
        name="dkdv_kernel",
        statement=f"""The half of the backward pass that owns keys: gdK and gdV from gQ, gK, gV,
gdO, gLSE and gDelta, for one head of d = {D} columns. Blocks of {TILE} threads, ⌈M / {TILE}⌉ of
them: a thread owns a key row and keeps its k, v, dK and dV in local arrays of {D}; tiles of
{TILE} query rows come through shared memory, each loaded once a block.""",
        hints=(
            "As flash_kernel with the roles of queries and keys exchanged, and no running maximum.",
            "Per query row: s = scale * dot(q, k); p = exp(s - lse); dp = dot(dO, v); ds = "
            "scale * p * (dp - delta).",
            "dv += p * dO, dk += ds * q. Rows beyond N must not count, threads beyond M must "
            "still load and wait.",
        ),
        parameters=("gQ", "gK", "gV", "gdO", "gLSE", "gDelta", "gdK", "gdV", "scale"),
        given=lambda t: {
            "gQ": t["Q"][0],
            "gK": t["K"],
            "gV": t["V"],
            "gdO": t["dO"][0],
            "gLSE": t["LSE"][0],
            "gDelta": t["delta"][0],
            "scale": D**-0.5,
        },
        wanted=lambda t: {"gdK": t["dK"], "gdV": t["dV"]},
        launch=lambda c: (c.T_c, TILE),
        loads=lambda c: {
            "gK": c.M * D,
            "gV": c.M * D,
            "gQ": c.T_c * c.N * D,
            "gdO": c.T_c * c.N * D,
            "gLSE": c.T_c * c.N,
            "gDelta": c.T_c * c.N,
        },
        stores=lambda c: {"gdK": c.M * D, "gdV": c.M * D},
        shared=lambda c: 4 * (2 * TILE * (D + 1) + 2 * TILE),
        local=lambda c: 4 * (4 * D + 2 * TILE),
        cases=HEADS,
        mistakes={
            "it is what one gets if dS forgets delta": lambda c, t: {
                "gdK": ((t["P"] * t["dP"]).swapaxes(1, 2) @ t["Q"] * np.float32(D**-0.5)).sum(
                    axis=0
                )
            },
        },
    ),
)
