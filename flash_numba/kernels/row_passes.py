"""The short passes around flash2's backward kernel: one reads rows before it, one writes after it.

References
----------
Dao, "FlashAttention-2", 2023, Algorithm 2, line 4 (D = rowsum(dO∘O), here delta).
"""

from functools import cache

from ..device.copies import LANES, make_read4
from ..device.elements import element
from ..device.numba_cuda import cuda, kernel, types
from ..device.online_softmax import ALL_LANES
from ..device.schedule import block_of

THREADS, ROWS = 128, 128
"""Threads of a block, and the rows that it handles."""
ROW_THREADS = 16
"""Threads that read a row together: four elements each, a whole line of 16-bit ones."""
ROWS_AT_ONCE = THREADS // ROW_THREADS


@cache
def make_delta(dtype: str, head_dim: int, head_dim_v: int, vectors: bool, has_dlse: bool):
    """The delta pass.

    Returns
    -------
    kernel
        ``delta_pass(O, dO, dLSE, Delta, dQ)``: O, dO (batch, seqlen_q, num_heads, head_dim_v);
        Delta (batch, num_heads, seqlen_q) float32 is written: rowsum(dO∘O), less the gradient of
        lse if `has_dlse`: ``dLSE`` is then ``(array like Delta,)``, else (). dQ (batch, seqlen_q,
        num_heads, head_dim) float32 is filled with zeros.

    Notes
    -----
    Reads O and dO once, writes Delta and dQ once.
    """
    read4 = make_read4(dtype, head_dim_v, vectors)

    @kernel(THREADS)
    def delta_pass(O, dO, dLSE, Delta, dQ):
        tid = types.uint32(cuda.threadIdx.x)
        seqlen_q, num_heads = O.shape[1], O.shape[2]
        batch_head, block = block_of(O.shape[0] * num_heads, (seqlen_q + ROWS - 1) // ROWS)
        batch, head = batch_head // num_heads, batch_head % num_heads
        gO, gdO, gdQ = O[batch, :, head], dO[batch, :, head], dQ[batch, :, head]
        row, stop = block * ROWS + tid, min((block + 1) * ROWS, seqlen_q)
        if row < stop:
            # In the order of the product dO Vᵀ: a row with one key then has dP - delta = 0.
            total = types.float32(0)
            column = 0
            while column < head_dim_v:
                a, b, c, d = read4(gO, row, column, seqlen_q)
                e, f, g, h = read4(gdO, row, column, seqlen_q)
                total += a * e
                total += b * f
                total += c * g
                total += d * h
                column += 4
            if has_dlse:
                total -= dLSE[0][batch, head, row]
            Delta[batch, head, row] = total
        row, lane = block * ROWS + tid // LANES, tid % LANES
        while row < stop:
            column = types.int64(lane)
            while column < head_dim:
                gdQ[row, column] = 0
                column += LANES
            row += THREADS // LANES

    return delta_pass


@cache
def make_row_dots(dtype: str, head_dim_v: int, vectors: bool, has_dlse: bool):
    """The delta pass of the rungs that need no particular order of the sum.

    Returns
    -------
    kernel
        ``row_dots(O, dO, dLSE, Delta)``: as `make_delta`, without dQ.

    Notes
    -----
    Reads O and dO once, 16 threads side by side in a row; writes Delta once.
    """
    read4 = make_read4(dtype, head_dim_v, vectors)

    @kernel(THREADS)
    def row_dots(O, dO, dLSE, Delta):
        tid = types.uint32(cuda.threadIdx.x)
        seqlen_q, num_heads = O.shape[1], O.shape[2]
        batch_head, block = block_of(O.shape[0] * num_heads, (seqlen_q + ROWS - 1) // ROWS)
        batch, head = batch_head // num_heads, batch_head % num_heads
        gO, gdO = O[batch, :, head], dO[batch, :, head]
        for p in range(ROWS // ROWS_AT_ONCE):
            row = block * ROWS + p * ROWS_AT_ONCE + tid // ROW_THREADS
            total = types.float32(0)
            column = types.int64(tid % ROW_THREADS * 4)
            while column < head_dim_v:
                a, b, c, d = read4(gO, row, column, seqlen_q)
                e, f, g, h = read4(gdO, row, column, seqlen_q)
                total += a * e + b * f + (c * g + d * h)
                column += 4 * ROW_THREADS
            for step in (8, 4, 2, 1):
                total += cuda.shfl_xor_sync(ALL_LANES, total, step)
            if tid % ROW_THREADS == 0 and row < seqlen_q:
                if has_dlse:
                    total -= dLSE[0][batch, head, row]
                Delta[batch, head, row] = total

    return row_dots


@cache
def make_round(dtype: str):
    """Kernel ``round_pass(Sum, dQ)``: float32 sums rounded to 16-bit elements, same shape."""
    convert = element(dtype).store

    @kernel(THREADS)
    def round_pass(Sum, dQ):
        tid = types.uint32(cuda.threadIdx.x)
        num_heads = dQ.shape[2]
        rows = (dQ.shape[1] + ROWS - 1) // ROWS
        batch_head, block = block_of(dQ.shape[0] * num_heads, rows)
        batch, head = batch_head // num_heads, batch_head % num_heads
        row, stop = block * ROWS + tid // LANES, min((block + 1) * ROWS, dQ.shape[1])
        while row < stop:
            column = types.int64(tid % LANES)
            while column < dQ.shape[3]:
                dQ[batch, row, head, column] = convert(Sum[batch, row, head, column])
                column += LANES
            row += THREADS // LANES

    return round_pass
