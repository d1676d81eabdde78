"""Step 1, naive: FlashAttention-2 forward as one first writes it.

A thread owns a query row, a warp a tile of 32; K and V come in tiles of 32 keys. It is right, and
it is slow: 32 lanes read the same column of 32 rows of sQ, which lie in one bank of shared memory
unless rows are padded - and it is the wrong array that is padded here, as all lanes read the same
word of sK. The scores are indexed at run time, so they live in local memory.

References
----------
Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
Algorithm 1.
"""

import math
from functools import cache

from ...device.numba_cuda import cuda, kernel, types
from ...device.ptx import larger, shared_tile
from ...device.schedule import block_of
from ...problem import Problem
from .call import run_rows
from .rows import RowTiles, exponential, make_copy_rows, make_keys_seen


def tiles_of(head_dim: int) -> RowTiles:
    """Tiles of this step."""
    return RowTiles(head_dim, pad_k=1)


@cache
def make_forward(tiles: RowTiles, causal: bool):
    """Kernel ``rows_forward(Q, K, V, O, LSE, scale)``.

    Q, K, V, O of shape (batch, seqlen, heads, head_dim) float32 in global memory with any strides,
    LSE (batch, num_heads, seqlen_q) float32.

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once,
    O a row a lane: every 4 bytes written cost a sector of 32.
    """
    head_dim, tile_m, tile_n, threads = tiles.head_dim, tiles.tile_m, tiles.tile_n, tiles.threads
    (q_shape, k_shape, v_shape), (_, k_at, v_at), _ = tiles.layout
    keys_seen = make_keys_seen(causal)
    load_q, _ = make_copy_rows(head_dim, tile_m, threads)
    load_rows, _ = make_copy_rows(head_dim, tile_n, threads)

    @kernel(threads)
    def rows_forward(Q, K, V, O, LSE, scale):
        # Schedule
        row = types.int64(cuda.threadIdx.x)
        seqlen_q, seqlen_k, num_heads = Q.shape[1], K.shape[1], Q.shape[2]
        batch_head, m_block = block_of(Q.shape[0] * num_heads, (seqlen_q + tile_m - 1) // tile_m)
        batch, head = batch_head // num_heads, batch_head % num_heads
        kv_head = head // (num_heads // K.shape[2])
        gQ, gO = Q[batch, :, head], O[batch, :, head]
        gK, gV = K[batch, :, kv_head], V[batch, :, kv_head]
        first_q = m_block * tile_m
        stop = keys_seen(min(first_q + tile_m, seqlen_q) - 1, seqlen_q, seqlen_k)
        seen = keys_seen(first_q + row, seqlen_q, seqlen_k)

        # Prologue
        memory = cuda.shared.array(0, types.float32)
        sQ, sK = shared_tile(memory, 0, q_shape), shared_tile(memory, k_at, k_shape)
        sV = shared_tile(memory, v_at, v_shape)
        acc_o = cuda.local.array(head_dim, types.float32)
        rS = cuda.local.array(tile_n, types.float32)
        load_q(sQ, gQ, first_q, seqlen_q, row)
        row_max, row_sum = types.float32(-math.inf), types.float32(0)
        for c in range(head_dim):
            acc_o[c] = 0

        # Mainloop
        for first_k in range(0, stop, tile_n):
            cuda.syncthreads()  # nobody reads the tiles before any more
            load_rows(sK, gK, first_k, seqlen_k, row)
            load_rows(sV, gV, first_k, seqlen_k, row)
            cuda.syncthreads()  # K_j and V_j are here for all
            new_max = row_max
            for r in range(tile_n):
                score = types.float32(0)
                for c in range(head_dim):
                    score += sQ[row, c] * sK[r, c]
                rS[r] = score * scale if first_k + r < seen else types.float32(-math.inf)
                new_max = larger(new_max, rS[r])
            rescale = exponential(row_max, new_max)
            row_max = new_max
            row_sum *= rescale
            for c in range(head_dim):
                acc_o[c] *= rescale
            for r in range(tile_n):
                p = exponential(rS[r], row_max)
                row_sum += p
                for c in range(head_dim):
                    acc_o[c] += p * sV[r, c]

        # Epilogue
        if first_q + row < seqlen_q:
            divisor = row_sum if row_sum > 0 else types.float32(1)
            for c in range(head_dim):
                gO[first_q + row, c] = acc_o[c] / divisor
            LSE[batch, head, first_q + row] = row_max + math.log(divisor)

    return rows_forward


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
    """Run the step; parameters as `flash2.forward`, what it cannot do is a ValueError."""
    return run_rows(make_forward, tiles_of, problem, (q, k, v, out, lse), stream)
