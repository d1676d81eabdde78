import numpy as np


def merge_parts(O_a, lse_a, O_b, lse_b):
    """Weights e^(lse - m) with the larger lse as m; a row that saw nothing keeps 0 and -inf."""
    m = np.maximum(lse_a, lse_b)
    m = np.where(np.isneginf(m), 0, m)
    w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)
    total = w_a + w_b
    with np.errstate(divide="ignore"):
        lse = m + np.log(total)
    share = np.where(total > 0, total, 1)[:, None]
    return (w_a[:, None] * O_a + w_b[:, None] * O_b) / share, lse
