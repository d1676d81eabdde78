"""Turns what single threads logged into warp instructions.

Threads run one after another here, while the lanes of a warp run together. Which accesses were one
instruction is found again by this rule: lanes of a warp execute an access together if they stand
at the same position in the source, came there by the same way - the same arm of each branch and
the same turn of each loop at which lanes may part - and are there for the same time. It is
what a GPU does where lanes meet again right after the branch or loop that parted them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .log import CODE_BITS

LANES = 32
CODE = (1 << CODE_BITS) - 1
INACTIVE = -1


class Instructions(NamedTuple):
    """Warp instructions that access memory.

    Attributes
    ----------
    codes : int array (n)
        What they are (`Log.sites`).
    addresses : int array (n, 32)
        First byte that each lane accesses; `INACTIVE` where a lane takes no part.
    warps : int array (n)
    """

    codes: np.ndarray
    addresses: np.ndarray
    warps: np.ndarray


def group(words: np.ndarray, threads, segments, places_at_start) -> Instructions:
    """Warp instructions of all warps, from the log since the last barrier.

    Parameters
    ----------
    words : int64 array
        The log.
    threads : list of Thread
    segments : list of Segment
    places_at_start : list of int
        Place of each thread where the log begins.
    """
    pieces: list[list[np.ndarray]] = [[] for _ in threads]
    for segment in segments:
        if segment.carried:
            continue
        pieces[segment.thread.tid].append(words[segment.start : segment.stop])
    by_thread = [
        one[0] if len(one) == 1 else np.concatenate(one) if one else words[:0] for one in pieces
    ]
    codes, addresses, warps = [], [], []
    for first in range(0, len(threads), LANES):
        lanes = by_thread[first : first + LANES]
        found = _aligned(lanes)
        if found is None:
            found = _matched(lanes, places_at_start[first : first + LANES])
        codes.append(found[0])
        addresses.append(found[1])
        warps.append(np.full(len(found[0]), first // LANES))
    return Instructions(np.concatenate(codes), np.concatenate(addresses), np.concatenate(warps))


def _aligned(lanes):
    """The instructions of a warp whose active lanes all did the same, else None."""
    active = [lane for lane, words in enumerate(lanes) if len(words)]
    if not active:
        return np.empty(0, np.int64), np.empty((0, LANES), np.int64)
    if len({len(lanes[lane]) for lane in active}) > 1:
        return None
    rows = np.stack([lanes[lane] for lane in active])
    codes = rows[0] & CODE
    if ((rows & CODE) != codes).any():
        return None
    marks = codes == 0
    if marks.any():
        if (rows[:, marks] != rows[0, marks]).any():
            return None
        rows, codes = rows[:, ~marks], codes[~marks]
    addresses = np.full((len(codes), LANES), INACTIVE)
    addresses[:, active] = (rows >> CODE_BITS).T
    return codes, addresses


def _matched(lanes, places_at_start):
    """The instructions of a warp whose lanes parted."""
    lane_of = np.repeat(np.arange(len(lanes)), [len(words) for words in lanes])
    words = np.concatenate(lanes)
    codes = words & CODE
    places = _places(lanes, words, codes, places_at_start)
    real = codes != 0
    lane_of, codes, places = lane_of[real], codes[real], places[real]
    addresses_of = words[real] >> CODE_BITS
    order = np.lexsort((codes, places, lane_of))
    keys = np.stack([lane_of[order], places[order], codes[order]])
    starts = np.ones(len(order), bool)
    starts[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    positions = np.arange(len(order))
    time = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    rows = np.stack([places[order], codes[order], time], axis=1)
    unique, row_of = np.unique(rows, axis=0, return_inverse=True)
    addresses = np.full((len(unique), LANES), INACTIVE)
    addresses[row_of.reshape(-1), lane_of[order]] = addresses_of[order]
    return unique[:, 1], addresses


def _places(lanes, words, codes, places_at_start):
    """Place in which each word was logged: that of the last mark of its thread."""
    marks = codes == 0
    at = np.arange(len(words))
    starts = np.zeros(len(words), bool)
    first = 0
    begin = np.zeros(len(words), np.int64)
    for lane, one in enumerate(lanes):
        if len(one):
            starts[first] = True
            begin[first] = places_at_start[lane]
            first += len(one)
    held = np.where(marks, words >> CODE_BITS, begin)
    last = np.maximum.accumulate(np.where(marks | starts, at, 0))
    return held[last]
