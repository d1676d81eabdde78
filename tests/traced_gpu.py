"""A GPU whose launches a CPU traces thread by thread: the public functions down to the kernels."""

import ctypes
import importlib

import numpy as np
from fake_gpu import Step, install, memory
from traced_attention import run, stored

from flash_numba import ladder
from flash_numba.arrays import DeviceArray, contiguous
from flash_numba.kernels.spec import padded

RUNGS = ladder.RUNGS
MODULES = ("flash1", "flash1_backward", "flash2", "flash2_backward", "standard")
MODULES += ("standard_backward", "backward_call", "aux_gradient", "aux_plan")
MODULES += ("tensor_core", "tensor_core_backward", "packed_tiles")
MODULES += ("tensor_core_gradients_launch",)


def padded_rows(view):
    """`view` with the gaps between the rows of a matrix, which a trace wants to be there."""
    if len(view.shape) == 4 and view.strides[3] == 4:
        whole = padded(view.shape[3], 4)
        if view.strides[2] == 4 * whole:
            return view._replace(shape=(*view.shape[:3], whole))
    return view


def on_host(argument):
    if isinstance(argument, DeviceArray):
        steps = zip(argument.shape, argument.strides, strict=True)
        own = argument._replace(shape=tuple(1 if step == 0 else size for size, step in steps))
        whole = stored(memory(padded_rows(own)))[..., : own.shape[-1]]
        if own == argument:
            return whole
        return np.ndarray(argument.shape, whole.dtype, whole, strides=argument.strides)
    if isinstance(argument, tuple):
        return tuple(map(on_host, argument))
    return np.float32(argument) if isinstance(argument, float) else argument


def install_traced(monkeypatch, shared_kb: int = 32) -> list[str]:
    """Run launches on the CPU; returns the names of the kernels that were launched, as they are.

    `shared_kb` of shared memory make tiles small.
    """
    install(monkeypatch)
    monkeypatch.setattr(ladder, "RUNGS", RUNGS)
    names = []

    def launch(kernel, blocks, threads, shared_bytes, arguments, plan):
        def launched(*arguments, stream):
            names.append(kernel.py_func.__name__)
            run(kernel, blocks, threads, shared_bytes, tuple(map(on_host, arguments)))

        plan.steps.append(Step(launched, *arguments))

    def fill_zero(pointer, size, plan):
        def filled(view, stream):
            assert view.pointer, "bytes that belong to no array"
            ctypes.memset(view.pointer, 0, size)

        plan.steps.append(Step(filled, contiguous(pointer, (size,), "int8")))

    for name in MODULES:
        module = importlib.import_module(f"flash_numba.kernels.{name}")
        for attribute, value in (
            ("launch", launch),
            ("fill_zero", fill_zero),
            ("compute_capability", lambda: (7, 5)),
            ("shared_limit", lambda cc: shared_kb * 1024),
        ):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, value)
    return names
