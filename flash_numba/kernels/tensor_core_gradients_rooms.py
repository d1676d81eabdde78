"""Rooms of the tensor-core rung's one-kernel backward pass: what its main loop is made of."""

from functools import cache

from ..device.fragment_exchange import (
    lane_of_words,
    make_multiply_add_shared,
    make_share_fragments,
)
from ..device.fragment_gradients import make_gradient_parts, make_load_vector
from ..device.fragment_products import (
    make_multiply_add,
    make_multiply_transposed,
    make_pack_weights,
)
from ..device.numba_cuda import cuda, room, types
from ..device.query_sums import make_query_sums, make_write_rounded
from ..device.scores import make_mask_scores, make_scale_scores
from ..device.swizzled_copies import make_load_tile, make_store_tile
from .spec import Spec
from .tensor_core_gradients_tiles import GradientTiles


@cache
def make_load_queries(spec: Spec, tiles: GradientTiles):
    """Room ``load_queries(memory, numbers, stage, tensors, visit, begin_q, seqlen_q, tid)``.

    Starts the copies of a visiting query tile into one of the stages, or fills it with zeros if
    there is no such `visits.Visit`: without a branch the compiler mixes the addresses' arithmetic
    with the products around it. `tensors` are views of one head's Q, dO, lse and delta, on whose
    axes of rows the sequence begins at `begin_q`.
    """
    layout = tiles.layout
    q_at, do_at, lse_at, delta_at = layout.q, layout.do, layout.lse, layout.delta
    tile_m, threads, pitch, pitch_v = tiles.tile_m, tiles.threads, tiles.pitch, tiles.pitch_v
    copies = tile_m, threads, spec.vectors
    load_q = make_load_tile(spec.head_dim, tiles.depth, *copies, pitch)
    load_do = make_load_tile(spec.head_dim_v, tiles.depth_v, *copies, pitch_v)
    load_vector = make_load_vector(tile_m, threads, True)

    @room
    def load_queries(memory, numbers, stage, tensors, visit, begin_q, seqlen_q, tid):
        gQ, gdO, gLSE, gDelta = tensors
        first, at = types.int32(begin_q + visit.m_block * tile_m), stage * tile_m
        stop = types.int32(begin_q + seqlen_q if visit.exists else first)
        load_q(memory, q_at + at * pitch, gQ, first, stop, tid)
        load_do(memory, do_at + at * pitch_v, gdO, first, stop, tid)
        load_vector(numbers, lse_at + at, gLSE, first, stop, tid)
        load_vector(numbers, delta_at + at, gDelta, first, stop, tid)

    return load_queries


@cache
def make_weights_and_gradients(spec: Spec, tiles: GradientTiles):
    """Room for S^T, P^T, dP^T and dS^T of a warp, and what its own queries add to dV.

    ``weights_and_gradients(registers, memory, numbers, places, row, side, positions, partial,
    mask_aux, factor, lane)``. Registers are `rS`, `rdP`, `rA`, `rP`, `rdS` and `acc_dv`; packed P
    and dS are left in two of them, and in shared memory for others, `side` elements after where P
    and dS begin. `row` of all stages' rows is the first of the warp's queries; lse and delta of it
    are in `numbers`. `places` are `Places`. Positions: first_q, first_k, seqlen_q, seqlen_k, batch,
    head.

    Notes
    -----
    Exponentials are written between the products of dP, and dS between those of dV: other work for
    the time in which the tensor cores are busy.
    """
    blocks, warp_m, pitch_p = tiles.row_blocks, tiles.warp_m, tiles.pitch_p
    pitch, pitch_v, own_v = tiles.pitch, tiles.pitch_v, tiles.own_v
    rows, columns, product = 2 * blocks, warp_m // 4, (spec.dtype, blocks, warp_m)
    layout = tiles.layout
    ds_at, p_at, lse_at, delta_at = layout.ds, layout.p, layout.lse, layout.delta
    shared, early = tiles.sharing > 1, not tiles.late_p

    scores = make_multiply_transposed(*product, tiles.depth, pitch, pitch, False, True)
    mask_scores = make_mask_scores(spec.keep, rows, columns, True, True)
    steps = tiles.depth_v // 16, warp_m // 16 * (own_v // 16)
    begin, weights, gradient = make_gradient_parts(
        *product[:2], columns, pitch_p, steps, shared and not early
    )
    over_v = *product, tiles.depth_v, pitch_v, pitch_v, False, True
    weights_meanwhile = make_multiply_transposed(*over_v, clears=False, meanwhile=weights)
    pack_weights = make_pack_weights(*product)
    share = make_share_fragments(blocks, warp_m, pitch_p)
    gradient_meanwhile = make_multiply_add(*product, own_v, pitch_v, True, tiles.sharing, gradient)

    @room
    def weights_and_gradients(
        registers, memory, numbers, places, row, side, positions, partial, mask_aux, factor, lane
    ):
        rS, rdP, rA, rP, rdS, acc_dv = registers
        first_q, first_k, seqlen_q, seqlen_k, batch, head = positions
        q_lane, do_lane = places.q + row * pitch, places.do + row * pitch_v
        p_place, ds_place = p_at + places.p + side, ds_at + places.p + side
        do_row_lane = places.do_row + row * pitch_v
        scores(rS, rA, memory, places.k, q_lane)
        if partial:
            mask_scores(rS, first_q, first_k, seqlen_q, seqlen_k, batch, head, mask_aux)
        begin(rdP, numbers, delta_at + row, lane)
        work = rS, numbers, lse_at + row, factor, lane
        weights_meanwhile(rdP, rA, memory, places.v, do_lane, work)
        pack_weights(rP, rS)
        if shared and early:
            share(memory, p_place, rP)
        gradient_meanwhile(
            acc_dv, rP, memory, do_row_lane, (rS, rdP, rdS, rP, memory, p_place, ds_place)
        )

    return weights_and_gradients


@cache
def make_add_own(spec: Spec, tiles: GradientTiles):
    """Room ``add_dk(acc_dk, rdS, memory, places, row)``: what the warp's own queries add to dK.

    `row` as for `make_weights_and_gradients`.
    """
    pitch, product = tiles.pitch, (spec.dtype, tiles.row_blocks, tiles.warp_m)
    multiply = make_multiply_add(*product, tiles.own_d, pitch, True, tiles.sharing)

    @room
    def add_dk(acc_dk, rdS, memory, places, row):
        multiply(acc_dk, rdS, memory, places.q_row + row * pitch)

    return add_dk


@cache
def make_add_of_partner(spec: Spec, tiles: GradientTiles):
    """Rooms ``add_dv`` and ``add_dk`` of ``(acc, memory, places, row, side)``.

    What the partner's queries, `row` being the first of them, add to the warp's dV and dK: its P^T
    and dS^T are in shared memory. Nothing where a warp has no partner.
    """
    pitch, pitch_v, pitch_p, sharing = tiles.pitch, tiles.pitch_v, tiles.pitch_p, tiles.sharing
    ds_at, p_at = tiles.layout.ds, tiles.layout.p
    product = spec.dtype, tiles.row_blocks, tiles.warp_m
    by_do = make_multiply_add_shared(*product, tiles.own_v, pitch_p, pitch_v, False, sharing)
    by_q = make_multiply_add_shared(*product, tiles.own_d, pitch_p, pitch, False, sharing)

    @room
    def add_dv(acc_dv, memory, places, row, side):
        if sharing > 1:
            by_do(acc_dv, memory, p_at + places.p_row + side, places.do_row + row * pitch_v)

    @room
    def add_dk(acc_dk, memory, places, row, side):
        if sharing > 1:
            by_q(acc_dk, memory, ds_at + places.p_row + side, places.q_row + row * pitch)

    return add_dv, add_dk


@cache
def make_add_queries(spec: Spec, tiles: GradientTiles):
    """Rooms ``read_sums``, ``add_dq``, ``write_sums`` and ``write_dq`` for a warp's part of dQ.

    ``add_dq(rdQ, memory, dq_places, side)``: dS K of the block's keys, dS being `side` elements
    after where its places begin; the others as `query_sums` makes them.
    """
    rows, columns = 2 * tiles.dq_blocks, tiles.depth // tiles.dq_spread // 4
    pitch, spread = tiles.pitch, tiles.dq_spread
    read_sums, write_sums = make_query_sums(rows, columns, tiles.threads)
    multiply = make_multiply_add_shared(
        spec.dtype, tiles.dq_blocks, tiles.tile_n, 4 * columns, tiles.pitch_p, pitch, True, spread
    )
    write_dq = make_write_rounded(spec.dtype, spec.head_dim, rows, columns, spread, spec.vectors)

    @room
    def add_dq(rdQ, memory, dq_places, side):
        ds, k_row = dq_places
        multiply(rdQ, memory, ds + side, k_row)

    return read_sums, add_dq, write_sums, write_dq


@cache
def make_store_gradients(spec: Spec, tiles: GradientTiles):
    """Room ``store_gradients(gdK, gdV, first_row, row_stop, memory, acc_dk, acc_dv, scale, tid)``.

    dK, times `scale`, and dV of the block's key tile, through K's and V's place in shared memory,
    to be stored in whole lines.
    """
    blocks, sharing, pitch, pitch_v = tiles.row_blocks, tiles.sharing, tiles.pitch, tiles.pitch_v
    own_d, own_v = tiles.own_d, tiles.own_v
    store_n = tiles.tile_n // tiles.warps
    v_at = tiles.layout.v
    scale_dk = make_scale_scores(False, 2 * blocks, own_d // 4)
    pack_dk = make_pack_weights(spec.dtype, blocks, own_d)
    pack_dv = make_pack_weights(spec.dtype, blocks, own_v)
    share_dk = make_share_fragments(blocks, own_d, pitch, sharing)
    share_dv = make_share_fragments(blocks, own_v, pitch_v, sharing)
    store_dk = make_store_tile(spec.head_dim, store_n, pitch, spec.vectors)
    store_dv = make_store_tile(spec.head_dim_v, store_n, pitch_v, spec.vectors)
    dk_shape, dv_shape = (own_d // 16, blocks, 4), (own_v // 16, blocks, 4)

    @room
    def store_gradients(gdK, gdV, first_row, row_stop, memory, acc_dk, acc_dv, scale, tid):
        rK = cuda.local.array(dk_shape, types.uint32)
        rV = cuda.local.array(dv_shape, types.uint32)
        warp, lane = tid // 32, tid % 32
        row, column = warp // sharing * 16 * blocks, warp % sharing * 16
        scale_dk(acc_dk, scale)
        pack_dk(rK, acc_dk)
        share_dk(memory, (row * pitch + lane_of_words(lane, pitch)) ^ column, rK)
        pack_dv(rV, acc_dv)
        share_dv(memory, v_at + ((row * pitch_v + lane_of_words(lane, pitch_v)) ^ column), rV)
        cuda.syncthreads()
        row = warp * store_n
        first = types.int32(first_row + row)
        store_dk(gdK, first, row_stop, memory, row * pitch, lane)
        store_dv(gdV, first, row_stop, memory, v_at + row * pitch_v, lane)

    return store_gradients
