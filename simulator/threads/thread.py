"""Threads of a block, and why they wait."""

from __future__ import annotations

import math
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


EVERYBODY = -1
"""All threads of the grid."""


class Wait(NamedTuple):
    """Why a thread stopped.

    Attributes
    ----------
    operation : str
        The function called, such as ``syncthreads``.
    position : int
        Where (`Runtime.positions`).
    members : int or None
        Threads that take part, as bits by `Thread.tid`; None for all of the block, `EVERYBODY` for
        all of the grid.
    payload : object
        What this thread brings.
    resolve : function
        ``{thread: payload} -> {thread: result}`` once all are there.
    detail : str or function that gives one
        What else to say about it in the report of a deadlock.
    condition : function or None
        What this thread alone waits for, if it waits for no threads.
    """

    operation: str
    position: int
    members: int | None
    payload: Any
    resolve: Callable[[dict], dict]
    detail: Any = ""
    condition: Callable[[], bool] | None = None

    def __str__(self):
        """How it is called in a report."""
        detail = self.detail() if callable(self.detail) else self.detail
        return self.operation + (f"({detail})" if detail else "")


class Thread:
    """One thread of a block.

    Attributes
    ----------
    block, index : tuple of 3 ints
        blockIdx and threadIdx.
    slot : int
        Which of the blocks that run at once its block is.
    tid, number : int
        Its number among the threads that run at once, and within its block; `warp` and `lane`
        follow from `tid`.
    place : int
        How the thread came to where it is (`Runtime.turn`).
    counts : dict
        How often it was at each branch, by place.
    moment, view : int
        When it is, and what it knows of others (`order.Order`).
    turns : int
        Turns of unbounded loops.
    acquired : tuple or None
        The `order.Sync` of the element that it acquired last, and the value found there.
    left_at : int or None
        Line of the return statement by which it left the kernel early.
    at_end : dict of functions
        What to look at when it returns (`context.Context.at_end`).
    last_view : int
        Its view when it returned.
    """

    __slots__ = (
        "acquired",
        "at_end",
        "block",
        "counts",
        "greenlet",
        "index",
        "lane",
        "last_view",
        "left_at",
        "moment",
        "number",
        "place",
        "result",
        "slot",
        "tid",
        "turns",
        "view",
        "waiting",
        "warp",
        "x",
        "y",
        "z",
    )

    def __init__(self, tid: int, shape: tuple[int, int, int], block: Dim3, slot: int = 0):
        self.tid, self.block, self.slot = tid, block, slot
        self.number = tid - slot * math.prod(shape)
        self.x, self.y, self.z = (
            self.number % shape[0],
            self.number // shape[0] % shape[1],
            self.number // shape[0] // shape[1],
        )
        self.index = (self.x, self.y, self.z)
        self.warp, self.lane = divmod(tid, 32)
        self.place, self.counts, self.turns = 0, {}, 0
        self.moment, self.view, self.last_view = 1, 0, 0
        self.at_end: dict[str, Callable[[], None]] = {}
        self.result: Any = None
        self.waiting: Any = None
        self.left_at: int | None = None
        self.acquired: tuple | None = None
        self.greenlet: greenlet
