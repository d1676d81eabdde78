"""Plans on disk: a process that finds one launches without loading Numba or any kernel's source."""

from __future__ import annotations

from functools import cache
from typing import Any

from . import driver, kernel_store
from .driver import Function, Shape
from .passes import Output, Pass
from .plan import FillStep, KernelStep, Packed, Patch, Plan


def save(what: str, planned: Pass) -> None:
    """Keep a pass under all that it depends on, if its launches can be kept."""
    steps = [_written(step) for step in planned.plan.steps]
    if None not in steps:
        arrays = {"outputs": planned.outputs, "memory": planned.memory}
        content = {"inputs": planned.inputs, **arrays, "steps": steps}
        kernel_store.save_json(kernel_store.key_of("plan", what), content)


def _written(step) -> Any:
    if isinstance(step, FillStep) and step.name is not None:
        return {"fill": step}
    if isinstance(step, KernelStep) and step.key is not None:
        data, starts, patches = step.packed
        return {"kernel": step.key, "shape": step.shape, "packed": (data.hex(), starts, patches)}
    return None


def load(what: str, device: int) -> Pass | None:
    """The pass that was kept under `what`, for the current GPU, which is number `device`."""
    found = kernel_store.load_json(kernel_store.key_of("plan", what))
    if found is None:
        return None
    driver.enter(device)
    steps = [_read(step, device) for step in found["steps"]]
    if None in steps:
        return None
    outputs, memory = (
        [Output(name, tuple(shape), dtype) for name, shape, dtype in found[which]]
        for which in ("outputs", "memory")
    )
    return Pass.of(Plan(steps), found["inputs"], outputs, memory)


def _read(step: dict, device: int) -> Any:
    if "fill" in step:
        return FillStep(*step["fill"])
    shape = Shape(*step["shape"])
    function = _function(step["kernel"], shape.shared_bytes, device)
    data, starts, patches = step["packed"]
    packed = Packed(bytes.fromhex(data), tuple(starts), tuple(Patch(*patch) for patch in patches))
    return None if function is None else KernelStep(function, step["kernel"], shape, packed)


@cache
def _function(key: str, shared_bytes: int, device: int) -> Function | None:
    return kernel_store.load_function(key, shared_bytes)
