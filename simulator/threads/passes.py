"""What a warp instruction costs: sectors of global memory, passes over shared memory."""

from __future__ import annotations

import numpy as np

from .log import LOAD, Site

LANES, BANKS, BANK_BYTES, SECTOR_BYTES = 32, 32, 4, 32
LINE_BYTES = 128
COPY_PAST_L1 = 16
"""Bytes of a ``cp.async.cg``; smaller copies go through L1 (``.ca``), counted as loads are."""


def sectors(addresses: np.ndarray) -> np.ndarray:
    """32-byte sectors that each instruction touches.

    Parameters
    ----------
    addresses : int array (n, 32)
        Negative where a lane takes no part. Accesses are aligned to their size, so that none
        straddles two sectors.
    """
    return distinct(np.where(addresses < 0, -1, addresses // SECTOR_BYTES))


def goes_past_l1(site: Site) -> bool:
    """Whether an access is the load of a ``cp.async.cg``, whose sectors are `copy_sectors`."""
    return site.traffic == "cp.async" and site.operation == LOAD and site.size >= COPY_PAST_L1


def copy_sectors(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Load sectors that Nsight Compute counts for each warp instruction of ``cp.async.cg``.

    Parameters
    ----------
    sources, targets : int arrays (n, 32)
        First byte of each lane in global and in shared memory; not positive where nothing is read.

    Notes
    -----
    One for each 32-byte sector of shared memory that a 128-byte line of global memory is copied to:
    data that lies differently in its sectors there is counted more than once. An H200 counts so in
    each of the patterns of benchmarks/results/copy_sectors.json whose lanes have own targets.
    """
    pairs = sources // LINE_BYTES * (1 << 32) + targets // SECTOR_BYTES
    return distinct(np.where(sources <= 0, -1, pairs))


def bulk_sectors(start: int, size: int) -> int:
    """Sectors that Nsight Compute counts for a line of a bulk copy (TMA).

    Parameters
    ----------
    start, size : int
        First byte in global memory, and bytes. A line that is stored ends where its tensor does; a
        line that is loaded is a whole line of its box, zeros included, and starts at 0 where it
        begins beside its tensor. A row of numbers is cut where 128-byte lines of the shared memory
        that it comes to end.

    Notes
    -----
    As many as a line touches; lines share none. An H200 counts so in each case of
    benchmarks/results/bulk_sectors.json.
    """
    return -(-(start % SECTOR_BYTES + size) // SECTOR_BYTES)


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


def turns(places: np.ndarray) -> np.ndarray:
    """Most lanes of each row that want one place, negative where a lane takes no part."""
    ordered = np.sort(places, axis=1)
    longest = np.ones(len(ordered), np.int64)
    for lanes in range(1, ordered.shape[1]):
        same = (ordered[:, lanes:] == ordered[:, :-lanes]) & (ordered[:, lanes:] >= 0)
        longest += same.any(axis=1)
    return longest


def _agree(addresses: np.ndarray, bit: int) -> np.ndarray:
    """Whether every lane of a row wants what lane ^ bit wants (or either takes no part)."""
    lanes = np.arange(addresses.shape[1])
    partner = addresses[:, lanes ^ bit]
    return ((addresses == partner) | (addresses < 0) | (partner < 0)).all(axis=1)


def passes(addresses: np.ndarray, size: int, store: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Passes ("wavefronts") over shared memory, and how many of them bank conflicts cost.

    Parameters
    ----------
    addresses : int array (n, 32)
        First byte of each lane, negative where a lane takes no part.
    size : int
        Bytes a lane moves.
    store : bool
        Whether it writes.

    Notes
    -----
    Up to 4 bytes a lane: one pass serves any words that lie in different banks; equal words are
    free. 8 bytes go by halves of the warp, 16 bytes by quarters, a pass for each that has a lane in
    it. Two neighbouring parts are loaded in one pass if all their lanes want the same as lane ^ 1,
    or all the same as lane ^ 2; stores are never put together. A pass is repeated as often as
    different words share a bank. An H200 needs as many passes in each of the 600 patterns of
    benchmarks/results/shared_passes.json; its count of conflicts is one less in 2 of the 16-byte
    loads with absent lanes.
    """
    if size <= BANK_BYTES:
        words = np.where(addresses < 0, -1, addresses // BANK_BYTES)
        needed = _most_in_a_bank(words)
        return needed, np.maximum(needed - 1, 0)
    total = np.zeros(len(addresses), np.int64)
    ideal = np.zeros(len(addresses), np.int64)
    width = LANES * 2 * BANK_BYTES // size
    for first in range(0, LANES, width):
        both = addresses[:, first : first + width]
        together = (_agree(both, 1) | _agree(both, 2)) & (not store)
        whole = _most_in_a_bank(_words(both, size))
        parts = [_most_in_a_bank(_words(part, size)) for part in np.split(both, 2, axis=1)]
        total += np.where(together, whole, parts[0] + parts[1])
        ideal += np.where(together, whole > 0, (parts[0] > 0).astype(int) + (parts[1] > 0))
    return total, total - ideal


def _words(addresses: np.ndarray, size: int) -> np.ndarray:
    """All words that the lanes of a row want."""
    first = addresses // BANK_BYTES
    each = first[:, :, None] + np.arange(size // BANK_BYTES)
    return np.where(addresses[:, :, None] < 0, -1, each).reshape(
        len(addresses), addresses.shape[1] * each.shape[2]
    )
