"""The arithmetic of one tile: small pure functions that the programs hand to the machine.

S, P are (rows, cols); m, l, lse, delta and the factors are (rows,); O is (rows, head_dim_v); all
float32. A row that has seen no key yet has m = -inf; it must give P = 0 and a factor of 0, never
-inf - -inf = NaN.
"""

import numpy as np


def finite(m):
    """`m` with -inf replaced by 0, so that subtracting it is safe: exp(-inf - 0) = 0."""
    return np.where(m == -np.inf, np.float32(0), m)


def running_max(S, m):
    """New row maximum, and the factor exp(m_old - m_new) that older sums are rescaled by."""
    m_new = np.maximum(m, S.max(axis=1))
    return m_new, np.exp(m - finite(m_new))


def exponentials(S, m):
    """P = exp(S - m)."""
    shifted = S - finite(m)[:, None]
    return np.exp(shifted, out=shifted)


def running_sum(P, alpha, l):
    """l = α l + rowsum P."""
    return alpha * l + P.sum(axis=1)


def rescaled(O, alpha):
    """O = α O."""
    return alpha[:, None] * O


def unscaled(O, alpha):
    """The bug that every first attempt has: O keeps the scale of an older maximum."""
    return O


def normalised(O, m, l):
    """O / l and lse = m + log l; a row without keys gives 0 and -inf."""
    return O / divisor(l)[:, None], log_sum_exp(m, l)


def log_sum_exp(m, l):
    """lse = m + log l; -inf for a row without keys."""
    return np.where(l == 0, np.float32(-np.inf), m + np.log(divisor(l)))


def divisor(l):
    """`l` with 0 replaced by 1: what a row without keys is divided by."""
    return np.where(l == 0, np.float32(1), l)


def tile_softmax(S):
    """FlashAttention-1: P̃ = exp(S - m̃) of one tile, m̃ = rowmax S and l̃ = rowsum P̃."""
    m = S.max(axis=1)
    P = exponentials(S, m)
    return P, m, P.sum(axis=1)


def merged(m_i, l_i, m_tile, l_tile):
    """FlashAttention-1: m and l of both, e^(m_i - m), and the shares of O_i and of P̃ V in O."""
    m = np.maximum(m_i, m_tile)
    alpha, beta = np.exp(m_i - finite(m)), np.exp(m_tile - finite(m))
    l = alpha * l_i + beta * l_tile
    return m, l, alpha, alpha * l_i / divisor(l), beta / divisor(l)


def weighted(A, B, a, b):
    """Row by row a A + b B."""
    return a[:, None] * A + b[:, None] * B


def running_softmax(S, m, l):
    """One tile's part of the row maximum and sum: m, l and the factor exp(m_old - m)."""
    m_new, alpha = running_max(S, m)
    return m_new, running_sum(exponentials(S, m_new), alpha, l), alpha


def weights(S, m, l):
    """P = exp(S - m) / l; a row without a visible key gives 0."""
    return exponentials(S, m) / divisor(l)[:, None]


def row_softmax(S):
    """P of whole rows."""
    P = exponentials(S, S.max(axis=1, initial=-np.inf))
    return P / divisor(P.sum(axis=1))[:, None]


def row_dot(A, B):
    """Row by row dot product: delta = rowsum(dO * O)."""
    return np.einsum("ij,ij->i", A, B)
