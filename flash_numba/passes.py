"""The forward or backward pass of a rung as a plan: what it reads and writes, and its launches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .addresses import NAMES, known_as, unknown
from .arrays import DeviceArray, contiguous
from .ladder import Rung
from .plan import SEED, Plan
from .problem import Problem
from .scores import aux_shape
from .sequences import Packed


class Output(NamedTuple):
    """An array that a pass writes.

    Attributes
    ----------
    name : str
        Of `addresses.NAMES`.
    shape : tuple of int
    dtype : str
        A key of `problem.DTYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def view(self) -> DeviceArray:
        """The array, contiguous, at an address that is not known yet."""
        return contiguous(unknown(self.name), self.shape, self.dtype)


class Pass(NamedTuple):
    """A forward or backward pass on any arrays of certain shapes, strides and alignment.

    Attributes
    ----------
    plan : Plan
    inputs : tuple of str
        Names of the arrays it reads, in the order of `addresses.NAMES`.
    outputs : tuple of Output
    memory : tuple of Output
        What it needs for its own use: one array, or none.
    run : callable
        ``run(addresses, stream)`` with the addresses of inputs, outputs and memory, in this order,
        and the words of the seed behind them.
    problem : Problem or None
        Keeps alive what the plan's launches read besides.
    """

    plan: Plan
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    memory: tuple[Output, ...]
    run: Callable[[Sequence[int], int], None]
    problem: Problem | None = None

    @classmethod
    def of(cls, plan: Plan, inputs, outputs, memory, problem: Problem | None = None) -> Pass:
        """The pass of a recorded plan."""
        inputs = tuple(sorted(inputs, key=NAMES.index))
        outputs, memory = tuple(outputs), tuple(memory)
        names = (*inputs, *(output.name for output in (*outputs, *memory)), *SEED)
        return cls(plan, inputs, outputs, memory, plan.ready(names), problem)


def plan_forward(
    rung: Rung, problem: Problem, views: Mapping[str, DeviceArray], plan: Plan | None = None
) -> Pass:
    """The forward pass of a rung.

    Parameters
    ----------
    rung : Rung
    problem : Problem
    views : dict of str to DeviceArray
        What it reads: "q", "k", "v" and arrays that the problem's functions read. Of their
        addresses, only the alignment matters.
    plan : Plan, optional
        An empty one, to record it in.
    """
    functions, plan = rung.functions("forward"), plan or Plan()
    parts = getattr(functions, "forward_workspace", lambda problem: ())(problem)
    outputs = [Output("o", problem.shapes["o"], problem.dtype)]
    outputs.append(Output("lse", problem.shapes["lse"], "fp32"))
    memory = _workspace(parts)
    inputs = (known_as(views[name], name) for name in ("q", "k", "v"))
    written = (output.view() for output in outputs)
    spaces = (space.view() for space in memory)
    with _naming_functions(problem):
        functions.forward(problem, *inputs, *written, plan, *spaces, **_packed(problem, views))
    return Pass.of(plan, views, outputs, memory, problem)


def plan_backward(
    rung: Rung,
    problem: Problem,
    views: Mapping[str, DeviceArray],
    needs: Sequence[str],
    at: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    plan: Plan | None = None,
) -> Pass:
    """The backward pass of a rung.

    Parameters
    ----------
    rung, problem
        As for `plan_forward`.
    views : dict of str to DeviceArray
        What it reads: beside that of the forward pass "o", "lse", "do" and, if there is one,
        "dlse".
    needs : sequence of str
        Which gradients it writes.
    at : dict of str to int
        As in `Posed`.
    shapes : dict of str to tuple of int
        The tensors' own, under the names in `at`.
    plan : Plan, optional
        As for `plan_forward`.
    """
    functions, plan = rung.functions("backward"), plan or Plan()
    outputs, written = [], {}
    d_aux: list[DeviceArray | None] = [None] * len(problem.score_mods)
    for name in needs:
        if name in at:
            # The caller's shape, seen by the rung in the shape of its own view of the tensor.
            output = Output(f"d{name}", shapes[name], "fp32")
            shape = aux_shape(problem, problem.score_mods[at[name]])
            if math.prod(output.shape):  # strides of an empty tensor do not say what is broadcast
                d_aux[at[name]] = contiguous(unknown(output.name), shape, "fp32")
        else:
            output = Output(f"d{name}", problem.shapes[f"d{name}"], problem.dtype)
            written[name] = output.view()
        outputs.append(output)
    numbers = [number for number, total in enumerate(d_aux) if total is not None]
    memory = _workspace(functions.workspace(problem, numbers))
    inputs = (known_as(views[name], name) for name in ("q", "k", "v", "o", "lse", "do"))
    dlse = known_as(views["dlse"], "dlse") if "dlse" in views else None
    gradients = (written.get(name) for name in ("q", "k", "v"))
    rest = dlse, plan, *([d_aux] if numbers else [])
    space = memory[0].view()
    with _naming_functions(problem):
        functions.backward(problem, *inputs, *gradients, space, *rest, **_packed(problem, views))
    return Pass.of(plan, views, outputs, memory, problem)


@contextmanager
def _naming_functions(problem: Problem) -> Iterator[None]:
    """Turn Numba's error into a TypeError where a kernel with a caller's functions is compiled."""
    functions = [f"score_mod {mod.name!r}" for mod in problem.score_mods]
    functions += [f"mask {mask.name!r}" for mask in (problem.mask,) if mask is not None]
    try:
        yield
    except Exception as error:
        numba: Any = sys.modules.get("numba.core.errors")
        if not functions or numba is None or not isinstance(error, numba.NumbaError):
            raise
        reason = next((line for line in str(error).splitlines() if line.strip()), "nothing")
        raise TypeError(
            f"{' and '.join(functions)} must be such that Numba compiles a kernel with it: "
            f"operators, & | ~ and flash_numba.fn on numbers; got {type(error).__name__}: {reason}"
        ) from error


def _packed(problem: Problem, views: Mapping[str, DeviceArray]) -> dict[str, Any]:
    """What a rung's functions are handed besides of a packed batch."""
    if problem.sequences is None:
        return {}
    cu_q, cu_k, used_q, used_k = (
        known_as(views[name], name) if name in views else None for name in Packed._fields[:4]
    )
    return {"packed": Packed(cu_q, cu_k, used_q, used_k)}


def _workspace(parts: Sequence[int]) -> list[Output]:
    return [Output("memory", (-(-sum(parts) // 4),), "fp32")] if parts else []
