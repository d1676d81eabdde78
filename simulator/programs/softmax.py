"""The arithmetic of one tile: small pure functions that the programs hand to the machine.

S, P are (rows, cols); m, l, lse, delta and the factors are (rows,); O is (rows, head_dim_v); all
float32. A row that has seen no key yet has m = -inf; it must give P = 0 and a factor of 0, never
-inf - -inf = NaN.
"""

import numpy as np


def finite(m):
    """`m` with -inf replaced by 0, so that subtracting it is safe: exp(-inf - 0) = 0."""
    return np.where(np.isneginf(m), np.float32(0), m)


def running_max(S, m):
    """New row maximum, and the factor exp(m_old - m_new) that older sums are rescaled by."""
    m_new = np.maximum(m, S.max(axis=1))
    return m_new, np.exp(m - finite(m_new))


def exponentials(S, m):
    """P = exp(S - m)."""
    return np.exp(S - finite(m)[:, None])


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
    empty = l == 0
    divisor = np.where(empty, np.float32(1), l)
    lse = np.where(empty, np.float32(-np.inf), m + np.log(divisor))
    return O / divisor[:, None], lse


def log_sum_exp(m, l):
    """lse = m + log l; -inf for a row without keys."""
    empty = l == 0
    return np.where(empty, np.float32(-np.inf), m + np.log(np.where(empty, np.float32(1), l)))


def row_dot(A, B):
    """Row by row dot product: delta = rowsum(dO * O)."""
    return np.einsum("ij,ij->i", A, B)
