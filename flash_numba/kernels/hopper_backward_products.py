"""The five products of a step: which tiles they multiply, and how they are read.

Consumer w's own 64 keys are rows of S, dP, dK and dV. Its part of dQ^T is 64 columns of Q, over the
keys of both consumers: at 128 columns each has half of them, at 64 each has half of the queries.
"""

from functools import cache
from typing import Any, NamedTuple

from ..device.hopper.operands import make_operands
from ..device.hopper.wgmma import (
    make_add_product,
    make_multiply_columns,
    make_multiply_tiles,
)
from ..device.numba_cuda import room
from .hopper_backward_tiles import HopperBackwardTiles


class Operands(NamedTuple):
    """Where a consumer's operands begin: K, V, the first stage of Q and of dO, the first dS.

    `_rows` are multiplied row by row, `_columns` column by column: `operands.make_operands`.
    """

    k_rows: Any
    v_rows: Any
    q_rows: Any
    do_rows: Any
    do_columns: Any
    k_columns: Any
    ds_rows: Any
    q_columns: Any


@cache
def make_products(dtype: str, tiles: HopperBackwardTiles):
    """Room ``find_operands(sQ, sdO, sK, sV, sdS, w) -> Operands``, and five that start products.

    Returns
    -------
    find_operands
    start_scores : ``(rS, at, stage)``, rS = K Q^T
    start_weight_gradients : ``(rdP, at, stage)``, rdP = V dO^T
    add_dv : ``(acc_dv, rP, at, stage)``, acc_dv += P dO
    start_dq : ``(rdQ, at, place)``, rdQ = K^T dS, with the dS in `place`
    add_dk : ``(acc_dk, rdS, at, stage)``, acc_dk += dS Q
    """
    k, v, q, do, ds = tiles.k_tile, tiles.v_tile, tiles.q_tile, tiles.do_tile, tiles.ds_tile
    wide, q_columns = tiles.depth == 128, tiles.q_columns
    first_k, k_rows = make_operands(k.by_rows())
    first_v, v_rows = make_operands(v.by_rows())
    first_q, q_rows = make_operands(q.by_rows(), q.bytes)
    first_do, do_rows = make_operands(do.by_rows(), do.bytes)
    first_do_column, do_columns = make_operands(do.by_columns(), do.bytes)
    first_k_column, k_columns = make_operands(k.by_columns())
    first_ds, ds_rows = make_operands(ds.by_rows(), ds.bytes)
    first_q_column, q_columns_of = make_operands(q.by_columns(), q.bytes)
    multiply_scores, multiply_values = (
        make_multiply_tiles(dtype, a, b) for a, b in ((k, q), (v, do))
    )
    multiply_dq = make_multiply_columns(dtype, k, 2, ds, q_columns)
    add_to_dv, add_to_dk = (make_add_product(dtype, tiles.tile_m, b) for b in (do, q))

    @room
    def find_operands(sQ, sdO, sK, sV, sdS, w):
        if wide:
            k_column, ds_row = first_k_column(sK[:, w]), first_ds(sdS)
        else:
            k_column, ds_row = first_k_column(sK[:, 0]), first_ds(sdS[:, :, q_columns * w :])
        return Operands(
            first_k(sK[w]),
            first_v(sV[w]),
            first_q(sQ),
            first_do(sdO),
            first_do_column(sdO),
            k_column,
            ds_row,
            first_q_column(sQ),
        )

    @room
    def start_scores(rS, at, stage):
        multiply_scores(rS, k_rows(at.k_rows, 0), q_rows(at.q_rows, stage))

    @room
    def start_weight_gradients(rdP, at, stage):
        multiply_values(rdP, v_rows(at.v_rows, 0), do_rows(at.do_rows, stage))

    @room
    def add_dv(acc_dv, rP, at, stage):
        add_to_dv(acc_dv, rP, do_columns(at.do_columns, stage))

    @room
    def start_dq(rdQ, at, place):
        multiply_dq(rdQ, k_columns(at.k_columns, 0), ds_rows(at.ds_rows, place))

    @room
    def add_dk(acc_dk, rdS, at, stage):
        add_to_dk(acc_dk, rdS, q_columns_of(at.q_columns, stage))

    return find_operands, start_scores, start_weight_gradients, add_dv, start_dq, add_dk
