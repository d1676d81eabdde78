"""Attention as formulas, in any float type, of the heads that share one kv head.

In float64 it is the truth that answers are held to; in float32, with the inputs that answers get,
it is the twin that says how far from the truth they may be (`flash_numba.budget`).
"""

from __future__ import annotations

import numpy as np

Tensors = dict[str, np.ndarray]


def attention(
    given: Tensors, scale: float, dtype: type, hidden: np.ndarray | None = None
) -> Tensors:
    """Every tensor of the forward and the backward pass, by the names of `simulator.hbm.LAYOUT`.

    Parameters
    ----------
    given : dict
        Q, dO of shape (heads, queries, d), K, V of shape (keys, d).
    scale : float
    dtype : type
        np.float64 or np.float32.
    hidden : bool array of shape (queries, keys), optional
        True where a query does not see a key.

    Returns
    -------
    dict
        The four, and S, P, O, LSE, m, l, delta, dP, dS, dQ, dK, dV. A row that sees no key has
        O = 0 and LSE = -inf.
    """
    Q, K, V, dO = (given[name].astype(dtype) for name in ("Q", "K", "V", "dO"))
    S = (Q @ K.T) * dtype(scale)
    if hidden is not None:
        S = np.where(hidden, dtype(-np.inf), S)
    m = S.max(axis=2)
    weights = np.exp(S - np.where(np.isneginf(m), 0, m)[..., None])
    l = weights.sum(axis=2)
    with np.errstate(divide="ignore"):
        LSE = m + np.log(l)
    # As a backward pass has P; a little less exact in float32 than weights / l.
    P = np.exp(S - np.where(np.isneginf(LSE), 0, LSE)[..., None])
    O = P @ V
    delta = (dO * O).sum(axis=2)
    dP = dO @ V.T
    dS = P * (dP - delta[..., None]) * dtype(scale)
    named = {"Q": Q, "K": K, "V": V, "dO": dO, "S": S, "P": P, "O": O, "LSE": LSE}
    named |= {"m": m, "l": l, "delta": delta, "dP": dP, "dS": dS}
    gradients = {
        "dQ": dS @ K,
        "dK": (dS.swapaxes(1, 2) @ Q).sum(axis=0),
        "dV": (P.swapaxes(1, 2) @ dO).sum(axis=0),
    }
    return named | gradients
