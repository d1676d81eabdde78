"""Threads of a block, and why they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from greenlet import greenlet


class Dim3(NamedTuple):
    """Three sizes or indices."""

    x: int
    y: int
    z: int

    def __str__(self):
        return f"({self.x}, {self.y}, {self.z})"


class Wait(NamedTuple):
    """Why a thread stopped.

    Attributes
    ----------
    operation : str
        The function called, such as ``syncthreads``.
    position : int
        Where (`Runtime.positions`).
    mask : int or None
        Lanes of the own warp that take part; None for the whole block.
    payload : object
        What this thread brings.
    resolve : function
        ``{thread: payload} -> {thread: result}`` once all are there.
    """

    operation: str
    position: int
    mask: int | None
    payload: Any
    resolve: Callable[[dict], dict]


class Thread:
    """One thread of a block.

    Attributes
    ----------
    index : tuple of 3 ints
        threadIdx; `tid` is its number, `warp` and `lane` follow from it.
    place : int
        How the thread came to where it is (`Runtime.turn`).
    counts : dict
        How often it was at each branch, by place.
    epoch : int
        Changes when its warp synchronises.
    turns : int
        Turns of unbounded loops.
    left_at : int or None
        Line of the return statement by which it left the kernel early.
    """

    __slots__ = (
        "counts",
        "epoch",
        "greenlet",
        "index",
        "lane",
        "left_at",
        "place",
        "result",
        "tid",
        "turns",
        "waiting",
        "warp",
        "x",
        "y",
        "z",
    )

    def __init__(self, tid: int, shape: tuple[int, int, int]):
        self.tid = tid
        self.x, self.y, self.z = (
            tid % shape[0],
            tid // shape[0] % shape[1],
            tid // shape[0] // shape[1],
        )
        self.index = (self.x, self.y, self.z)
        self.warp, self.lane = divmod(tid, 32)
        self.place, self.counts, self.epoch, self.turns = 0, {}, 0, 0
        self.result: Any = None
        self.waiting: Any = None
        self.left_at: int | None = None
        self.greenlet: greenlet
