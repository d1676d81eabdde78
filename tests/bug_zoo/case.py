"""What a kernel of the zoo is launched with and what must be found; `bug` and `sound` list them."""

from typing import Any, NamedTuple

import numpy as np


def vector(n: int = 64) -> np.ndarray:
    """0, 1, 2 ... in float32."""
    return np.arange(n, dtype=np.float32)


def empty(*shape: int) -> np.ndarray:
    """An output: NaN, as traced kernels are handed it."""
    return np.full(shape, np.nan, np.float32)


class Case(NamedTuple):
    """A launch, and of a broken kernel the kind of finding, the lines it names and its words."""

    kernel: Any
    grid: int
    block: int
    args: tuple
    shared_bytes: int
    kind: str = ""
    lines: tuple = ()
    says: str = ""


ZOO: list[Case] = []
SOUND: list[Case] = []


def bug(kind: str, *lines: str, says: str = "", **launch):
    """List a broken kernel: the kind of finding, the text of the lines that it must point at.

    `launch` is that of `sound`.
    """

    def listed(kernel):
        ZOO.append(_case(kernel, **launch)._replace(kind=kind, lines=lines, says=says))
        return kernel

    return listed


def sound(**launch):
    """List a kernel without a bug, launched as ``[grid, block, 0, shared_bytes](*args)``."""

    def listed(kernel):
        SOUND.append(_case(kernel, **launch))
        return kernel

    return listed


def _case(kernel, grid=1, block=32, args=None, shared_bytes=0):
    args = (vector(), empty(block)) if args is None else args
    return Case(kernel, grid, block, args, shared_bytes)
