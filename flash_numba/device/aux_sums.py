"""Sums of a thread that become the gradient of a score change's tensor (see `masks.ScoreMod`)."""

from functools import cache

from .functions import chain_aux_derivative, chain_derivative
from .numba_cuda import room, types
from .scores import make_position
from .unroll import unroll_full, unroll_none


@cache
def make_aux_sums(
    changes: tuple,
    derivatives: tuple,
    number: int,
    aux_derivative,
    tile_rows: int,
    tile_columns: int,
    row_groups: int,
    lanes: int,
    own_keys: bool,
    own_queries: bool,
):
    """The shape of the sums in shared memory, and three rooms; rows of a tile are keys.

    Parameters
    ----------
    changes, derivatives : tuples of callables
        As in `make_change_scores_backward`.
    number : int
        Which of the changes has the tensor.
    aux_derivative : callable
        As in `masks.ScoreMod`.
    tile_rows, tile_columns : int
        Shape of a thread's part of the scores.
    row_groups, lanes : int
        The grid of threads.
    own_keys, own_queries : bool
        Whether keys and queries have elements of their own; else the sums run over them.

    Returns
    -------
    shape : tuple of int
        (terms, keys, queries, threads): each thread has as many sums as scores, and nobody else
        adds to them. What keys and queries do not need is there for more terms at once.
    clear : room
        ``clear(sSums, thread)``.
    add : room
        ``add(sSums, rS, rdS, first_q, first_k, seqlen_q, seqlen_k, batch, head, first_term,
        last_term, aux, thread)``: what a tile of scores gives. `rS` are the scaled scores before
        any change, `rdS` the gradient of those after the last.
    total : room
        ``total(sSums, term, key, query)``: an element's sum over threads, in order.
    """
    keys, queries = tile_rows if own_keys else 1, tile_columns if own_queries else 1
    terms, threads = tile_rows * tile_columns // (keys * queries), row_groups * lanes
    later = chain_derivative(changes, derivatives, number + 1)
    derivative = chain_aux_derivative(changes, number, aux_derivative)
    position = make_position(True)

    @room
    def clear(sSums, thread):
        for term in range(terms):
            for i in range(keys):
                for j in range(queries):
                    sSums[term, i, j, thread] = 0

    @room
    def add_score(
        sSums, i, j, score, gradient, batch, head, q_idx, k_idx, first_term, last_term, aux, thread
    ):
        gradient *= types.float32(later(score, batch, head, q_idx, k_idx, aux))
        for term in range(min(terms, last_term - first_term)):
            unroll_none()
            slope = derivative(score, batch, head, q_idx, k_idx, first_term + term, aux)
            sSums[term, i, j, thread] += gradient * types.float32(slope)

    @room
    def add(
        sSums, rS, rdS, first_q, first_k, seqlen_q, seqlen_k, batch, head, first_term, last_term,
        aux, thread,
    ):  # fmt: skip
        for i in range(tile_rows):
            unroll_full()
            for j in range(tile_columns):
                unroll_full()
                q_idx, k_idx = position(first_q, first_k, i, j)
                # Zero it stays, whatever a derivative says there; and outside it is zero.
                if rdS[i, j] != 0:
                    add_score(
                        sSums, i if own_keys else 0, j if own_queries else 0, rS[i, j], rdS[i, j],
                        batch, head, q_idx, k_idx, first_term, last_term, aux, thread,
                    )  # fmt: skip

    @room
    def total(sSums, term, key, query):
        first_group = key // tile_rows if own_keys else 0
        last_group = first_group + 1 if own_keys else row_groups
        first_lane = query // tile_columns if own_queries else 0
        last_lane = first_lane + 1 if own_queries else lanes
        i, j = key % tile_rows if own_keys else 0, query % tile_columns if own_queries else 0
        found = types.float32(0)
        for group in range(first_group, last_group):
            for lane in range(first_lane, last_lane):
                found += sSums[term, i, j, group * lanes + lane]
        return found

    return (terms, keys, queries, threads), clear, add, total
