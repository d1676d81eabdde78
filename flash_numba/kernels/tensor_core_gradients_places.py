"""Where a lane of the tensor-core rung's one-kernel backward pass is in shared memory."""

from functools import cache
from typing import Any, NamedTuple

from ..device.fragment_exchange import lane_of_words
from ..device.numba_cuda import room
from ..device.swizzle import lane_of_columns, lane_of_rows
from .tensor_core_gradients_tiles import GradientTiles


class Places(NamedTuple):
    """A lane's places for all products but dQ's, in 16-bit elements; of Q and dO in stage 0.

    Attributes
    ----------
    k, v : int
        Rows of K and V, of the warp's keys: left operands of S^T and dP^T.
    q, do : int
        Rows of Q and dO, as columns of their transposes: right operands of S^T and dP^T.
    q_row, do_row : int
        Rows of Q and dO, in the warp's part of the columns: right operands of dK and dV.
    p : int
        Where the lane's words of P^T, or of dS^T, go: from where P, or dS, begins.
    p_row : int
        The partner's part of P^T, or of dS^T: left operand of dV, or of dK; counted likewise.
    """

    k: Any
    v: Any
    q: Any
    do: Any
    q_row: Any
    do_row: Any
    p: Any
    p_row: Any


@cache
def make_places_of(tiles: GradientTiles):
    """Rooms ``places_of(part, key_row, lane) -> Places`` and ``dq_places_of``.

    `part` is the warp's number among those with the same keys, of which row `key_row` of the tile
    is the first. ``dq_places_of(dq_row, dq_part, lane) -> (ds, k_row)``: columns of dS^T and rows
    of K, the operands of dQ, for its rows from `dq_row` on and part `dq_part` of its columns.
    """
    pitch, pitch_v, pitch_p, warp_m = tiles.pitch, tiles.pitch_v, tiles.pitch_p, tiles.warp_m
    layout = tiles.layout
    v_at, q_at, do_at, ds_at = layout.v, layout.q, layout.do, layout.ds

    @room
    def places_of(part, key_row, lane):
        k = key_row * pitch + lane_of_rows(lane, pitch)
        v = v_at + key_row * pitch_v + lane_of_rows(lane, pitch_v)
        q, do = q_at + lane_of_columns(lane, pitch), do_at + lane_of_columns(lane, pitch_v)
        q_row = q_at + (lane_of_rows(lane, pitch) ^ (16 * part))
        do_row = do_at + (lane_of_rows(lane, pitch_v) ^ (16 * part))
        p = key_row * pitch_p + (lane_of_words(lane, pitch_p) ^ (part * warp_m))
        p_row = key_row * pitch_p + (lane_of_rows(lane, pitch_p) ^ ((1 - part) * warp_m))
        return Places(k, v, q, do, q_row, do_row, p, p_row)

    @room
    def dq_places_of(dq_row, dq_part, lane):
        ds = ds_at + dq_row // 64 * 64 + (lane_of_columns(lane, pitch_p) ^ (dq_row % 64))
        return ds, lane_of_rows(lane, pitch) ^ (16 * dq_part)

    return places_of, dq_places_of
