"""Which softmax weights dropout keeps: a pure function of seed, head, row and column.

The mask comes from the counter-based generator Philox4x32-10 with key = the 64-bit seed and
counter = (col // 4, row, batch * num_heads + head, 0); column `col` takes word ``col % 4`` and is
kept if the word is >= round(p * 2**32). So any tiling, the simulator and every GPU agree.

References
----------
Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (constants, Table 2).
"""

import numpy as np

PHILOX_M0, PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
PHILOX_W0, PHILOX_W1 = 0x9E3779B9, 0xBB67AE85
PHILOX_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter, key):
    """Philox4x32-10.

    Parameters
    ----------
    counter : four uint32-valued arrays or integers that broadcast
    key : two uint32-valued integers

    Returns
    -------
    tuple of four uint64 arrays holding 32-bit words
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (int(word) for word in key)
    for _ in range(PHILOX_ROUNDS):
        product_0 = c0 * np.uint64(PHILOX_M0)
        product_1 = c2 * np.uint64(PHILOX_M1)
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ np.uint64(k0),
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ np.uint64(k1),
            product_0 & _LOW,
        )
        k0 = (k0 + PHILOX_W0) & 0xFFFFFFFF
        k1 = (k1 + PHILOX_W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def threshold(p: float) -> int:
    """Words below this number drop their weight (32-bit words, so it may reach 2**32)."""
    return round(p * 2**32)


def keep_mask(seed: int, batch_head: int, q_idx, k_idx, p: float) -> np.ndarray:
    """Which weights of the rows `q_idx` and columns `k_idx` survive.

    Parameters
    ----------
    seed : int
        64-bit key.
    batch_head : int
        ``batch * num_heads + head`` with the query head.
    q_idx, k_idx : int arrays that broadcast against each other
    p : float
        Probability of dropping a weight.

    Returns
    -------
    bool array of the broadcast shape
    """
    q_idx, k_idx = np.broadcast_arrays(q_idx, k_idx)
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = philox((k_idx // 4, q_idx, batch_head, 0), key)
    return np.choose(k_idx % 4, words) >= threshold(p)
