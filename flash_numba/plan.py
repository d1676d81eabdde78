"""Launches recorded once and run again on other arrays of the same shapes, strides and alignment.

A rung's functions are handed a `Plan` in place of a stream, and addresses that are not known yet
(see `addresses`). What they would have launched is then in the plan, its arguments packed but for
those addresses: running it writes a few words and calls the driver.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import driver
from .driver import Function, Launch, MovableMap, Shape

SEED = ("seed_low", "seed_high")
"""Names of the two 32-bit words of dropout's seed, which a plan is handed like addresses."""


class Patch(NamedTuple):
    """A word of packed arguments that a run fills in.

    Attributes
    ----------
    word : int
        Which; of a tensor map the first.
    name : str
        Of `addresses.NAMES` or `SEED`.
    offset : int
        Bytes to add to the array's address.
    is_map : bool
        Whether the address belongs into a tensor map.
    """

    word: int
    name: str
    offset: int
    is_map: bool = False


class Packed(NamedTuple):
    """Arguments of a kernel as Numba's calling convention has them.

    Attributes
    ----------
    data : bytes
    starts : tuple of int
        Where each parameter begins in it, a multiple of 8; that of a tensor map, of 64.
    patches : tuple of Patch
    """

    data: bytes
    starts: tuple[int, ...]
    patches: tuple[Patch, ...]


class KernelStep(NamedTuple):
    """A launch of a plan.

    Attributes
    ----------
    function : Function
    key : str or None
        What `kernel_store` calls its machine code.
    shape : Shape
    packed : Packed
    """

    function: Function
    key: str | None
    shape: Shape
    packed: Packed

    def ready(self, names: Sequence[str]):
        """A function of (addresses, stream) that launches; `names` says whose the addresses are."""
        launch = Launch(self.function, self.shape, self.packed.data, self.packed.starts)
        given, lock = (ctypes.c_uint64 * len(names))(), threading.Lock()
        sums, maps = [], []
        for patch in self.packed.patches:
            parameter, which = self.packed.starts.index(8 * patch.word), names.index(patch.name)
            if patch.is_map:
                tensor_map = MovableMap(launch.parameters[parameter])
                maps.append((tensor_map, which, patch.offset))
            elif patch.offset:
                word = ctypes.c_uint64()
                launch.parameters[parameter] = ctypes.addressof(word)
                sums.append((word, which, patch.offset))
            else:
                launch.parameters[parameter] = ctypes.addressof(given) + 8 * which

        configuration = launch.configuration

        def run(addresses, stream):
            with lock:
                given[:] = addresses
                for word, which, offset in sums:
                    word.value = addresses[which] + offset
                for tensor_map, which, offset in maps:
                    tensor_map.move(addresses[which] + offset)
                configuration.stream = stream
                status = launch.go()
            if status:
                driver.check(status, "cuLaunchKernelEx")

        return run


class FillStep(NamedTuple):
    """Bytes of a plan that are set to zero.

    Attributes
    ----------
    name : str or None
        Whose they are; None: at the real address `offset`.
    offset, size : int
    """

    name: str | None
    offset: int
    size: int

    def ready(self, names: Sequence[str]):
        """As for `KernelStep`."""
        which = None if self.name is None else names.index(self.name)

        def run(addresses, stream):
            start = 0 if which is None else addresses[which]
            driver.fill_zero(start + self.offset, self.size, stream)

        return run


class Plan:
    """What was recorded, in order.

    Attributes
    ----------
    steps : list of KernelStep, FillStep or others with a method `ready`
    """

    def __init__(self, steps=()):
        self.steps: list[Any] = list(steps)

    def ready(self, names: Sequence[str]):
        """The plan as a function of ``(addresses, stream)``.

        Parameters
        ----------
        names : sequence of str
            Whose addresses a call hands over, in this order.

        Returns
        -------
        callable
            Threads may share it: one at a time writes a launch's arguments and launches.
        """
        runs = tuple(step.ready(names) for step in self.steps)
        if len(runs) == 1:
            return runs[0]

        def run(addresses: Sequence[int], stream: int) -> None:
            for step in runs:
                step(addresses, stream)

        return run


class Noted(Plan):
    """Notes the kernels that it is asked to launch, and neither compiles nor launches them.

    Attributes
    ----------
    kernels : list of (dispatcher, signature)
        In order, those asked for twice twice.
    """

    def __init__(self):
        super().__init__()
        self.kernels: list[tuple[Any, tuple]] = []
