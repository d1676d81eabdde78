"""The grid of query and key tiles: who is done, who is at hand, who is skipped, at any zoom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_numba.tiling import FULL

from .replay import Replay
from .residency import NEVER

SKIP, TODO, MIXED, DONE, NOW = range(5)
"""A cell's state: skipped by the mask, to do, partly done, done, at hand."""


@dataclass(frozen=True)
class Grid:
    """States of cells of `zoom` x `zoom` tiles.

    Attributes
    ----------
    state : int8 array of shape (rows, cols)
        SKIP, TODO, MIXED, DONE or NOW.
    partial : bool array of the same shape
        The mask cuts into the cell.
    at_row, at_col : int
        The cell at hand; -1 where the program is at no single query or key tile.
    zoom : int
        Tiles along a side of a cell.
    axes : tuple of str
        "query tiles", "key tiles"; "" along an axis that the kernel does not have.
    """

    state: np.ndarray
    partial: np.ndarray
    at_row: int
    at_col: int
    zoom: int
    axes: tuple[str, str]


def grid_at(replay: Replay, event: int) -> Grid:
    """The grid of the kernel at hand after an event, one cell a tile."""
    step = replay.steps.at(event)
    first, last, (by_query, by_key) = replay.spans(step.kernel)
    visited = first != NEVER
    state = np.where(visited, TODO, SKIP).astype(np.int8)
    state[visited & (last <= event)] = DONE
    row, col = step.m_block if by_query else 0, step.n_block if by_key else 0
    if row >= 0 and col >= 0 and visited[row, col]:
        state[row, col] = NOW
    partial = np.zeros(first.shape, bool)
    if by_query and by_key:
        partial = visited & (replay.kinds < FULL)
    axes = ("query tiles" if by_query else "", "key tiles" if by_key else "")
    return Grid(state, partial, row, col, 1, axes)


def zoomed(grid: Grid, zoom: int) -> Grid:
    """The same grid with zoom x zoom tiles a cell."""
    if zoom <= 1:
        return grid
    rows, cols = grid.state.shape
    shape = -(-rows // zoom), -(-cols // zoom)
    padded = np.full((shape[0] * zoom, shape[1] * zoom), -1, np.int8)
    padded[:rows, :cols] = grid.state
    cells = padded.reshape(shape[0], zoom, shape[1], zoom)

    def some(value):
        return (cells == value).any(axis=(1, 3))

    todo, done, now = some(TODO) | some(MIXED), some(DONE) | some(MIXED), some(NOW)
    state = np.full(shape, SKIP, np.int8)
    state[todo] = TODO
    state[done] = DONE
    state[todo & done] = MIXED
    state[now] = NOW
    cut = np.zeros(padded.shape, bool)
    cut[:rows, :cols] = grid.partial
    cut = cut.reshape(cells.shape).any(axis=(1, 3)) | (some(SKIP) & (todo | done | now))
    row, col = (at // zoom if at >= 0 else -1 for at in (grid.at_row, grid.at_col))
    return Grid(state, cut & (state != SKIP), row, col, zoom * grid.zoom, grid.axes)


def fitting_zoom(grid: Grid, rows: int, cols: int, most: int = 64) -> int:
    """The smallest power of two at which the grid fits into rows x cols cells, up to `most`."""
    zoom = 1
    height, width = grid.state.shape
    while zoom < most and (-(-height // zoom) > rows or -(-width // zoom) > cols):
        zoom *= 2
    return zoom


def window(size: int, room: int, at: int) -> slice:
    """`room` of `size` cells, with the one at hand in the middle where possible."""
    start = min(max(at - room // 2, 0), max(size - room, 0))
    return slice(start, min(start + room, size))
