"""A planned pass on torch tensors: makes its outputs, hands over addresses, launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards

from ..driver import NoContext, enter
from ..passes import Pass
from ..plan import SEED
from ..problem import DTYPES

DEVICE = "cuda"

NO_SEED = 0, 0
"""The words of dropout's seed where there is no dropout."""

UNREAD = 1 << 16
"""Elements of the memory on each device where an output goes that nobody reads."""

# Of a torch without CUDA, which lacks these, no call comes as far.
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_empty_strided: Any = getattr(guards, "_empty_strided_cuda", None)
"""How what `torch.compile` makes of a model gets tensors: in half the time of `torch.empty`."""
_address = Tensor.data_ptr


@cache
def _unread(device: torch.device) -> Tensor:
    """Where outputs go that nobody reads."""
    return torch.empty(UNREAD, dtype=torch.float32, device=device)


def unread(shape: Sequence[int], device: torch.device) -> Tensor | None:
    """Where an output of this shape goes that nobody reads; None if it has no room there."""
    return None if math.prod(shape) > UNREAD else _unread(device)


class TorchPass:
    """A planned pass on tensors of one device.

    Parameters
    ----------
    planned : Pass
    like : Tensor
        Of that device.
    forgets : str, optional
        Name of a float32 output of at most `UNREAD` elements that nobody reads.

    Attributes
    ----------
    make : list of functions
        Each makes one of the tensors that a run needs: the outputs that are read, and memory.
    more : tuple of int
        The address for the output that nobody reads, which `run` is handed behind theirs.
    """

    def __init__(self, planned: Pass, like: Tensor, forgets: str | None = None):
        self.planned, self.index = planned, like.get_device()
        made = [x for x in (*planned.outputs, *planned.memory) if x.name != forgets]
        names = [*planned.inputs, *(x.name for x in made)]
        self.more = ()
        if forgets is not None:
            names.append(forgets)
            self.more = (_unread(like.device).data_ptr(),)
        self.run = planned.plan.ready((*names, *SEED))
        self.make = [_maker(x.shape, getattr(torch, str(DTYPES[x.dtype]))) for x in made]
        self._results = len(made) - len(planned.memory)

    def without(self, name: str, like: Tensor) -> TorchPass:
        """The same pass for a caller who does not read output `name`."""
        (output,) = (x for x in self.planned.outputs if x.name == name)
        fits = unread(output.shape, like.device) is not None
        return TorchPass(self.planned, like, name) if fits else self

    def __call__(self, read: Sequence[Tensor], seed: tuple[int, int]) -> list[Tensor]:
        """Run on the plan's inputs and the current stream."""
        if current_device() != self.index:
            with torch.cuda.device(self.index):
                return self(read, seed)
        made, addresses = [], [*map(_address, read)]
        for make in self.make:
            tensor = make()
            made.append(tensor)
            addresses.append(tensor.data_ptr())
        addresses += self.more
        addresses += seed
        try:  # as `driver.in_context`, which would cost a call
            self.run(addresses, current_stream(self.index))
        except NoContext:
            enter(self.index)
            self.run(addresses, current_stream(self.index))
        return made[: self._results]


def _maker(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], Tensor]:
    """A function that makes contiguous tensors on the current device."""
    strides = torch.empty(shape, device="meta").stride()
    if _empty_strided is not None:
        return partial(_empty_strided, shape, strides, dtype)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=DEVICE)
