"""Instructions that start a unit of the multiprocessor, which moves all of their data by itself.

A bulk copy of the copy engine is one instruction, however many accesses its emulation makes; a
product of the tensor cores that reads shared memory (wgmma) is one for each 16 of its depth. Each
such call says where its accesses stand in the log (`Call`), and `counted` adds them up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .grouping import CODE, LANES
from .log import CODE_BITS, NOWHERE
from .passes import SECTOR_BYTES

ENGINES = ("bulk", "wgmma")
"""Traffic of such instructions. An emulation of one must not wait between its accesses."""


class Call(NamedTuple):
    """A call of an operation.

    Attributes
    ----------
    start, stop : int
        Where in the log.
    thread, threads : int
        The first thread that takes part, numbered over the blocks that run at once, and how many.
    instructions : int
        How many each of them executes.
    """

    start: int
    stop: int
    thread: int
    threads: int
    instructions: int


class Parts(NamedTuple):
    """What calls did to one array each, at one position and with one operation: `n` of them.

    Attributes
    ----------
    keys : int array (n)
        Code and array.
    instructions, lanes, bytes, sectors, ideal_sectors : int array (n)
        As in `counts.Count`. Each warp that takes part executes the instructions; sectors are those
        that the call touches, each once.
    first : int array (n)
        The lowest address.
    warp, warps : int array (n)
        The first warp, and how many.
    """

    keys: np.ndarray
    instructions: np.ndarray
    lanes: np.ndarray
    bytes: np.ndarray
    sectors: np.ndarray
    ideal_sectors: np.ndarray
    first: np.ndarray
    warp: np.ndarray
    warps: np.ndarray


def accesses(words: np.ndarray, calls: list[Call]):
    """Of all accesses of the calls: which call, code and address."""
    starts, stops = np.array(calls)[:, :2].T
    sizes = stops - starts
    call_of = np.repeat(np.arange(len(calls)), sizes)
    offset = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    found = words[offset + np.arange(len(call_of))]
    codes, addresses = found & CODE, found >> CODE_BITS
    real = (codes != 0) & (addresses != NOWHERE)
    return call_of[real], codes[real], addresses[real]


def counted(calls: list[Call], call_of, keys, addresses, sizes, in_global) -> Parts:
    """Add up accesses by call and key.

    Parameters
    ----------
    calls : list of Call
    call_of, keys, addresses, sizes : int arrays
        Of each access: its call, what it counts for, first byte, and bytes.
    in_global : bool array
        Whether it is one of global memory, whose accesses lie within a sector each.
    """
    pairs, part_of = np.unique(np.stack([call_of, keys]), axis=1, return_inverse=True)
    part_of, n = part_of.reshape(-1), pairs.shape[1]
    size = np.bincount(part_of, weights=sizes, minlength=n).astype(np.int64)
    touched = np.stack([part_of, addresses // SECTOR_BYTES])[:, in_global]
    sectors = np.bincount(np.unique(touched, axis=1)[0], minlength=n)
    first = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(first, part_of, addresses)
    thread, threads, instructions = np.array(calls)[pairs[0], 2:].T
    warps = -(-threads // LANES)
    ideal = np.where(sectors > 0, -(-size // SECTOR_BYTES), 0)
    of_all = warps * instructions, threads * instructions
    return Parts(pairs[1], *of_all, size, sectors, ideal, first, thread // LANES, warps)
