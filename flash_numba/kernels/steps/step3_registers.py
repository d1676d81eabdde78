"""Step 3, registers: a thread keeps its query row, its scores and its part of O in registers.

Indices into local arrays are constants once loops are unrolled, and only then do the arrays live
in registers; eight scores at a time leave room for the rows of Q and O. The tile of Q, read once,
later carries O out of the block, so that a warp writes whole lines of global memory. Four warps
share each K and V tile: a quarter of the traffic. All shared loads of the mainloop are broadcasts.
With 128 columns the two rows alone would take 256 registers: some are spilled.
"""

import math
from functools import cache

from ...device.numba_cuda import cuda, kernel, types
from ...device.ptx import larger, shared_tile
from ...device.schedule import block_of
from ...device.unroll import unroll_full, unroll_none
from ...problem import Problem
from .call import run_rows
from .rows import RowTiles, exponential, make_copy_rows, make_keys_seen

KEYS = 8
"""Scores that a thread holds at a time."""


def tiles_of(head_dim: int) -> RowTiles:
    """Tiles of this step."""
    return RowTiles(head_dim, tile_m=128, pad_q=1)


@cache
def make_forward(tiles: RowTiles, causal: bool):
    """Kernel ``registers_forward(Q, K, V, O, LSE, scale)``; arguments as in step 1.

    Notes
    -----
    Reads each Q tile once, and each visited K and V tile once a query tile; writes O and LSE once,
    O in whole lines.
    """
    head_dim, tile_m, tile_n, threads = tiles.head_dim, tiles.tile_m, tiles.tile_n, tiles.threads
    (q_shape, k_shape, v_shape), (_, k_at, v_at), _ = tiles.layout
    keys_seen = make_keys_seen(causal)
    load_q, store_o = make_copy_rows(head_dim, tile_m, threads)
    load_rows, _ = make_copy_rows(head_dim, tile_n, threads)

    @kernel(threads)
    def registers_forward(Q, K, V, O, LSE, scale):
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
        rQ = cuda.local.array(head_dim, types.float32)
        acc_o = cuda.local.array(head_dim, types.float32)
        rS = cuda.local.array(KEYS, types.float32)
        load_q(sQ, gQ, first_q, seqlen_q, row)
        cuda.syncthreads()
        row_max, row_sum = types.float32(-math.inf), types.float32(0)
        for c in range(head_dim):
            unroll_full()
            rQ[c] = sQ[row, c]
            acc_o[c] = 0

        # Mainloop
        first_k = 0
        while first_k < stop:
            cuda.syncthreads()  # nobody reads the tiles before any more
            load_rows(sK, gK, first_k, seqlen_k, row)
            load_rows(sV, gV, first_k, seqlen_k, row)
            cuda.syncthreads()  # K_j and V_j are here for all
            key = 0
            while key < tile_n:
                unroll_none()
                new_max = row_max
                for r in range(KEYS):
                    unroll_full()
                    score = types.float32(0)
                    for c in range(head_dim):
                        unroll_full()
                        score += rQ[c] * sK[key + r, c]
                    visible = first_k + key + r < seen
                    rS[r] = score * scale if visible else types.float32(-math.inf)
                    new_max = larger(new_max, rS[r])
                rescale = exponential(row_max, new_max)
                row_max = new_max
                row_sum *= rescale
                for c in range(head_dim):
                    unroll_full()
                    acc_o[c] *= rescale
                for r in range(KEYS):
                    unroll_full()
                    p = exponential(rS[r], row_max)
                    row_sum += p
                    for c in range(head_dim):
                        unroll_full()
                        acc_o[c] += p * sV[key + r, c]
                key += KEYS
            first_k += tile_n

        # Epilogue
        divisor = row_sum if row_sum > 0 else types.float32(1)
        for c in range(head_dim):
            unroll_full()
            sQ[row, c] = acc_o[c] / divisor
        if first_q + row < seqlen_q:
            LSE[batch, head, first_q + row] = row_max + math.log(divisor)
        cuda.syncthreads()
        store_o(gO, sQ, first_q, seqlen_q, row)

    return registers_forward


def forward(problem: Problem, q, k, v, out, lse, stream: int = 0):
    """Run the step; parameters as `flash2.forward`, what it cannot do is a ValueError."""
    return run_rows(make_forward, tiles_of, problem, (q, k, v, out, lse), stream)
