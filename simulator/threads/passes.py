"""What a warp instruction costs: sectors of global memory, passes over shared memory."""

from __future__ import annotations

import numpy as np

BANKS, BANK_BYTES, SECTOR_BYTES = 32, 4, 32


def sectors(addresses: np.ndarray) -> np.ndarray:
    """32-byte sectors that each instruction touches.

    Parameters
    ----------
    addresses : int array (n, 32)
        Negative where a lane takes no part. Accesses are aligned to their size, so that none
        straddles two sectors.
    """
    return distinct(np.where(addresses < 0, -1, addresses // SECTOR_BYTES))


def distinct(values: np.ndarray) -> np.ndarray:
    """Distinct non-negative values of each row."""
    ordered = np.sort(values, axis=1)
    new = np.diff(ordered, axis=1) != 0
    return new.sum(axis=1) + 1 - (ordered[:, 0] < 0)


def _most_in_a_bank(words: np.ndarray) -> np.ndarray:
    """Distinct words in the fullest bank, by row; words are negative where there is none."""
    ordered = np.sort(words, axis=1)
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, _ = np.nonzero(new)
    cells = row * BANKS + ordered[new] % BANKS
    counts = np.bincount(cells, minlength=len(words) * BANKS)
    return counts.reshape(len(words), BANKS).max(axis=1)


def _agree(addresses: np.ndarray, bit: int) -> np.ndarray:
    """Whether every lane of a row wants what lane ^ bit wants (or either takes no part)."""
    lanes = np.arange(addresses.shape[1])
    partner = addresses[:, lanes ^ bit]
    return ((addresses == partner) | (addresses < 0) | (partner < 0)).all(axis=1)


def passes(addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Passes ("wavefronts") over shared memory, and how many of them bank conflicts cost.

    Parameters
    ----------
    addresses : int array (n, 32)
        First byte of each lane, negative where a lane takes no part.
    size : int
        Bytes a lane moves.

    Notes
    -----
    Up to 4 bytes a lane: one pass serves any words that lie in different banks; equal words are
    free. 16 bytes: each half of the warp goes by itself, in one pass if all its lanes want the same
    as lane ^ 1, or all the same as lane ^ 2, else in two (its quarters). 8 bytes: the same with the
    whole warp and its halves. A pass is repeated as often as different words share a bank. The
    rule for 4 and 16 bytes reproduces an H200's counters exactly.
    """
    if size <= BANK_BYTES:
        words = np.where(addresses < 0, -1, addresses // BANK_BYTES)
        needed = _most_in_a_bank(words)
        return needed, np.maximum(needed - 1, 0)
    total = np.zeros(len(addresses), np.int64)
    ideal = np.zeros(len(addresses), np.int64)
    width = 32 * 8 // size
    for first in range(0, 32, width):
        half = addresses[:, first : first + width]
        together = _agree(half, 1) | _agree(half, 2)
        whole = _most_in_a_bank(_words(half, size))
        parts = [_most_in_a_bank(_words(part, size)) for part in np.split(half, 2, axis=1)]
        total += np.where(together, whole, parts[0] + parts[1])
        ideal += np.where(together, whole > 0, (parts[0] > 0).astype(int) + (parts[1] > 0))
    return total, total - ideal


def _words(addresses: np.ndarray, size: int) -> np.ndarray:
    """All words that the lanes of a row want."""
    first = addresses // BANK_BYTES
    each = first[:, :, None] + np.arange(size // BANK_BYTES)
    return np.where(addresses[:, :, None] < 0, -1, each).reshape(len(addresses), -1)
