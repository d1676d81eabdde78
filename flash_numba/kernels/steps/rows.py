"""What the steps share in which a thread owns a row of queries."""

from functools import cache
from typing import NamedTuple

from ...device.numba_cuda import room, types
from ...device.online_softmax import LOG2_E, LOWEST
from ...device.ptx import exp2, larger
from .layout import Layout


class RowTiles(NamedTuple):
    """Tiles of a step whose threads own a query row each.

    Attributes
    ----------
    head_dim : int
    tile_m : int
        Query rows of a tile, and threads of a block.
    pad_q, pad_k : int
        Floats between rows of the Q and of the K tile in shared memory.
    """

    head_dim: int
    tile_m: int = 32
    pad_q: int = 0
    pad_k: int = 0
    tile_n: int = 32

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile_m

    @property
    def layout(self) -> Layout:
        """sQ, sK and sV."""
        d = self.head_dim
        padded_q, padded_k = d + self.pad_q, d + self.pad_k
        return Layout.of((self.tile_m, padded_q), (self.tile_n, padded_k), (self.tile_n, d))


@cache
def make_keys_seen(causal: bool):
    """Room ``keys_seen(q_idx, seqlen_q, seqlen_k)``: how many keys a query sees, from the first."""

    @room
    def keys_seen(q_idx, seqlen_q, seqlen_k):
        if causal:
            return max(0, min(seqlen_k, q_idx + 1 + seqlen_k - seqlen_q))
        return seqlen_k

    return keys_seen


@cache
def make_copy_rows(head_dim: int, rows: int, threads: int):
    """Rooms ``load_rows(sX, gX, first_row, row_stop, tid)`` and ``store_rows(gX, sX, ...)``.

    A tile of `rows` rows of a 2-D view of global memory, element by element; neighbouring threads
    take neighbouring columns, so that a warp moves whole lines. Rows from `row_stop` on are zeros.
    """

    @room
    def load_rows(sX, gX, first_row, row_stop, tid):
        at = tid
        while at < rows * head_dim:
            row, column = at // head_dim, at % head_dim
            inside = first_row + row < row_stop
            sX[row, column] = gX[first_row + row, column] if inside else types.float32(0)
            at += threads

    @room
    def store_rows(gX, sX, first_row, row_stop, tid):
        at = tid
        while at < rows * head_dim:
            row, column = at // head_dim, at % head_dim
            if first_row + row < row_stop:
                gX[first_row + row, column] = sX[row, column]
            at += threads

    return load_rows, store_rows


@room
def exponential(x, shift):
    """``exp(x - shift)``, also if both are -inf."""
    return exp2((x - larger(shift, types.float32(LOWEST))) * types.float32(LOG2_E))
