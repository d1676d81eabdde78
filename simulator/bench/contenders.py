"""Who is timed: a rung's kernels on memory that is there already, and torch's own attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from flash_numba.arrays import DeviceArray
from flash_numba.ladder import Rung
from flash_numba.plan import Plan

from .cells import PEERS, Cell
from .truth import Truth

_TORCH_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Contender(NamedTuple):
    """A call to time, and the tensors that must live as long as it."""

    name: str
    run: Callable[[], Any]
    holds: tuple = ()


class Inputs(NamedTuple):
    """Random q, k, v and dO, torch tensors (batch, seqlen, heads, head_dim)."""

    q: Any
    k: Any
    v: Any
    do: Any

    @classmethod
    def draw(cls, cell: Cell, device: str, seed: int = 0) -> Inputs:
        """Standard normal numbers."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, _TORCH_TYPES[cell.dtype])
        options = {"generator": generator, "device": device, "dtype": dtype}
        return cls(*(torch.randn(_shape(cell), **options) for _ in range(4)))

    @classmethod
    def empty(cls, cell: Cell, device: str) -> Inputs:
        """Whatever is in memory, for calls that are never run."""
        import torch

        dtype = getattr(torch, _TORCH_TYPES[cell.dtype])
        return cls(*(torch.empty(_shape(cell), device=device, dtype=dtype) for _ in range(4)))


def _shape(cell: Cell) -> tuple[int, ...]:
    return cell.batch, cell.seqlen, cell.heads, cell.head_dim


class WrongResult(Exception):
    """A kernel's result is wrong; it gets no figure."""


class Call(NamedTuple):
    """A rung's kernels recorded for a cell: compiled, and not run yet.

    Attributes
    ----------
    plan : Plan
    results : dict of str to torch tensor
        What they write, NaN before.
    holds : tuple
        What must live as long.
    """

    plan: Plan
    results: dict[str, Any]
    holds: tuple

    def runner(self, stream: int) -> Callable[[], Any]:
        """A function that launches them, so fast that the GPU never waits for the host."""
        return partial(self.plan.ready(()), (), stream)


class OneModule(NamedTuple):
    """A module of GPU functions that is no rung: `ours` takes it for one.

    Attributes
    ----------
    label : str
    module : module, or what has its functions
    """

    label: str
    module: Any

    def functions(self, _: str) -> Any:
        """The module, whichever pass is asked for."""
        return self.module


def forward_call(rung: Rung | OneModule, cell: Cell, inputs: Inputs) -> Call:
    """The forward pass of a rung on `inputs`."""
    import torch

    problem, q = cell.problem, inputs.q
    o = torch.full_like(q, torch.nan)
    lse = torch.full(problem.shapes["lse"], torch.nan, device=q.device)
    views = [DeviceArray.of(x) for x in (*inputs[:3], o, lse)]
    functions, spaces = rung.functions("forward"), []
    if hasattr(functions, "forward_workspace"):
        spaces.append(_space(functions.forward_workspace(problem), q.device))
    plan = Plan()
    functions.forward(problem, *views, plan, *(DeviceArray.of(space) for space in spaces))
    return Call(plan, {"o": o, "lse": lse}, (inputs, *spaces))


def backward_call(rung: Rung | OneModule, cell: Cell, inputs: Inputs, o, lse) -> Call:
    """The backward pass of a rung on `inputs` and what its forward pass wrote."""
    import torch

    grads = {name: torch.full_like(inputs.q, torch.nan) for name in ("dq", "dk", "dv")}
    given = *inputs[:3], o, lse, inputs.do, *grads.values()
    back = rung.functions("backward")
    space = _space(back.workspace(cell.problem), inputs.q.device)
    views, plan = [DeviceArray.of(x) for x in (*given, space)], Plan()
    back.backward(cell.problem, *views, None, plan)
    return Call(plan, grads, (inputs, o, lse, space))


def ours(rung: Rung | OneModule, truth: Truth, stream: int) -> Contender:
    """The kernels of a rung for the cell and the inputs of `truth`, run once and found right.

    Raises
    ------
    WrongResult
        Saying what is wrong.
    """
    cell, inputs = truth.cell, truth.inputs
    call = forward_call(rung, cell, inputs)
    call.runner(stream)()
    _check(rung, truth, call.results)
    if cell.direction == "backward":
        o, lse = call.results["o"], call.results["lse"]
        del call  # S and P of standard attention are large
        call = backward_call(rung, cell, inputs, o, lse)
        call.runner(stream)()
        _check(rung, truth, call.results)
    return Contender(rung.label, call.runner(stream), (call,))


def _space(parts, device):
    """Memory of as many bytes as `parts` have together, NaN."""
    import torch

    return torch.full((-(-sum(parts) // 4),), torch.nan, device=device)


def _check(rung: Rung | OneModule, truth: Truth, results: dict) -> None:
    if reason := truth.why_wrong(results):
        raise WrongResult(f"{rung.label}, {truth.cell}: {reason}")


def peers(names: Iterable[str], cell: Cell, inputs: Inputs) -> list[Contender]:
    """Those of torch's backends that run for the cell, on tensors in torch's own layout.

    `names` are the keys of `PEERS` to try.

    Forward without a graph; backward alone, `torch.autograd.grad` on a graph that is kept.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, do = (x.transpose(1, 2).contiguous() for x in inputs)

    def contender(name: str, backend) -> Contender:
        def attend():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=cell.causal)

        def forward():
            with torch.no_grad():
                return attend()

        if cell.direction == "forward":
            return Contender(name, forward)
        o = attend()
        return Contender(name, lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True))

    if cell.direction == "backward":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    found = []
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch explains at length why a backend is out
                one = contender(name, getattr(SDPBackend, PEERS[name]))
                one.run()
        except (RuntimeError, AttributeError):
            continue
        found.append(one)
    return found
