"""Traffic of global memory by tile step: what a trace moved, in the terms of the tile simulator.

With ``trace(kernel, tiles=True)`` a report keeps which elements each block touched between two
barriers, and `steps` sorts them by tensor, query tile and key tile. An access knows the tile of its
own tensor from its address. The tile of the other axis is the last one that the block touched: so
far for loads, before the last barrier for stores. Where a block sees a tile beside one other only,
that other is left out (-1), as for Q in a kernel whose block owns a query tile. `logged` sorts the
events of the tile simulator in the same way.

An element that several threads load at one position of the source between two barriers counts once:
loads of rows beyond the end that are pointed at a row within it move nothing new.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import NamedTuple

import numpy as np

from ..events import EventLog
from .arrays import Array
from .log import ATOMIC, CODE_BITS, LOAD, STORE

READ, WRITE = "read", "write"


class Step(NamedTuple):
    """A tensor's traffic in one tile step.

    Attributes
    ----------
    tensor : str
    direction : "read" or "write"
    m_block, n_block : int
        Query tile and key tile; -1 where it belongs to no single one.
    """

    tensor: str
    direction: str
    m_block: int
    n_block: int


class Phase(NamedTuple):
    """What a block touched in global memory between two barriers.

    Attributes
    ----------
    block : int
        Number of the block.
    elements : dict of (array name, "load", "store" or "atomic", log code) to int array
        Places of the elements in the array's memory, each once a position in the source.
    """

    block: int
    elements: dict[tuple[str, str, int], np.ndarray]


def phase(block: int, words, segments, sites, arrays: dict[str, Array]) -> Phase:
    """The phase that the log since the last barrier is."""
    fresh = np.ones(len(words), bool)
    for one in segments:
        if one.carried:
            fresh[one.start : one.stop] = False
    codes, addresses = words & ((1 << CODE_BITS) - 1), words >> CODE_BITS
    found: dict[tuple[str, str, int], np.ndarray] = {}
    for code in np.unique(codes[fresh & (codes > 0)]).tolist():
        site, at = sites[code], addresses[fresh & (codes == code)]
        for name, array in arrays.items():
            memory = array.memory
            inside = (at >= memory.base) & (at < memory.base + len(memory.data))
            if inside.any():
                first = (at[inside] - memory.base) // array.itemsize
                many = max(site.size // array.itemsize, 1)
                places = first[:, None] + np.arange(many)
                found[name, site.operation, code] = np.unique(places)
    return Phase(block, found)


def steps(
    phases: list[Phase],
    arrays: dict[str, Array],
    axes: dict[str, str],
    tile_m: int,
    tile_n: int,
) -> Tally:
    """Elements moved in each `Step`, over all blocks and heads.

    Parameters
    ----------
    phases, arrays
        As a report keeps them.
    axes : dict of str to str
        For each array to look at, a letter an axis: ``m`` query rows, ``n`` keys, any other letter
        for the rest. ``{"Q": "bmhd", "K": "bnhd", "LSE": "bhm", "S": "bhmn"}``.
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    """
    total: Tally = Tally()
    for block in sorted({one.block for one in phases}):
        mine = [one for one in phases if one.block == block]
        found = _of_block(mine, arrays, axes, {"m": tile_m, "n": tile_n})
        total += _single(found, axes)
    return total


def _of_block(phases, arrays, axes, sizes) -> Tally:
    found: Tally = Tally()
    last = {"m": -1, "n": -1}
    for one in phases:
        before, pieces = dict(last), []
        for (name, operation, _), places in one.elements.items():
            if name in axes:
                pieces += _by_tile(name, operation, places, arrays[name], axes[name], sizes)
        for _, operation, where, _ in pieces:
            if operation == LOAD:
                last |= where
        for name, operation, where, count in pieces:
            other = last if operation == LOAD else before
            tile = [where.get(axis, other[axis]) for axis in "mn"]
            if operation in (LOAD, ATOMIC):
                found[Step(name, READ, *tile)] += count
            if operation in (STORE, ATOMIC):
                found[Step(name, WRITE, *tile)] += count
    return found


def _by_tile(name, operation, places, array: Array, letters: str, sizes):
    """(name, operation, {axis: tile}, elements) of each tile that elements lie in."""
    rest, index = places - array.start, {}
    for axis in sorted(range(array.ndim), key=lambda axis: -array.steps[axis]):
        if array.shape[axis] > 1:
            index[letters[axis]] = rest // array.steps[axis]
            rest = rest % array.steps[axis]
    tiles = {axis: index.get(axis, np.zeros_like(places)) // sizes[axis] for axis in "mn"}
    own = [axis for axis in "mn" if axis in letters]
    table = np.stack([tiles[axis] for axis in own] or [np.zeros_like(places)])
    values, counts = np.unique(table, axis=1, return_counts=True)
    return [
        (name, operation, dict(zip(own, column, strict=False)), count)
        for column, count in zip(values.T.tolist(), counts.tolist(), strict=True)
    ]


def _single(found: Tally, axes: dict[str, str]) -> Tally:
    """Leave out the tile of the other axis where a tensor's tile goes with one of them only."""
    beside: dict[tuple, set] = {}
    for step in found:
        own, other = _own_and_other(step, axes)
        beside.setdefault((step.tensor, step.direction, own), set()).add(other)
    total: Tally = Tally()
    for step, count in found.items():
        own, _ = _own_and_other(step, axes)
        if len(beside[step.tensor, step.direction, own]) == 1 and not _has_both(step, axes):
            other_axis = "n_block" if "m" in axes[step.tensor] else "m_block"
            step = step._replace(**{other_axis: -1})
        total[step] += count
    return total


def _has_both(step: Step, axes) -> bool:
    return {"m", "n"} <= set(axes[step.tensor])


def _own_and_other(step: Step, axes):
    pair = step.m_block, step.n_block
    return pair if "m" in axes[step.tensor] else pair[::-1]


def logged(log: EventLog, axes: dict[str, str]) -> Tally:
    """Elements moved in each `Step` of a run of the tile simulator (one head); see `steps`."""
    total: Tally = Tally()
    columns = log.columns
    places = np.stack([columns["kernel"], columns["block"]])
    for place in np.unique(places, axis=1).T:
        total += _single(_of_events(log, (place == places.T).all(axis=1), axes), axes)
    return total


def _of_events(log: EventLog, chosen, axes) -> Tally:
    found: Tally = Tally()
    last = {"m": -1, "n": -1}
    names = ("name", "m_block", "n_block", "hbm_read", "hbm_write")
    for row in zip(*(log.columns[name][chosen].tolist() for name in names), strict=True):
        name, tile, read, written = (
            log.names[row[0]],
            dict(zip("mn", row[1:3], strict=True)),
            *row[3:],
        )
        if name not in axes or not (read or written):
            continue
        own = {axis: tile[axis] for axis in "mn" if axis in axes[name]}
        if read:
            last |= own
        step = Step(name, READ, *(last | own).values())
        found[step] += read
        found[step._replace(direction=WRITE)] += written
    return +found
