"""Every kernel of a rung as something that can be compiled without a GPU.

A `Build` names one kernel for one kind of problem and one compute capability; `listed_builds` are
those that the guarded table covers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .. import masks
from ..arrays import DeviceArray
from ..launch import argument_types, shared_limit, upload
from ..problem import Problem
from . import flash2, flash2_backward
from .arguments import extra_values
from .offline import Resources, assemble, compile_ptx
from .spec import Spec, backward_tiles, forward_tiles

ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0, "a"), (12, 0))
"""Compute capabilities that the kernels are built for."""

PROBLEMS = {
    "full": {},
    "causal": {"causal": True},
    "window and key lengths": {"window": (100, 0), "key_lengths": np.array([200])},
    "ALiBi and dropout": {
        "score_mods": (masks.alibi(np.ones((1, 1), np.float32), 0),),
        "dropout_p": 0.1,
    },
}


class Build(NamedTuple):
    """One kernel to compile.

    Attributes
    ----------
    rung, direction : str
        "flash2"; "forward" or "backward".
    dtype : str
        A key of `problem.DTYPES`.
    head_dim : int
    kind : str
        A key of `PROBLEMS`.
    cc : tuple
        One of `ARCHITECTURES`.
    """

    rung: str
    direction: str
    dtype: str
    head_dim: int
    kind: str
    cc: tuple


class _Nowhere(NamedTuple):
    """A device array at address 0, to describe an argument."""

    shape: tuple
    typestr: str

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.typestr, "data": (0, False), "version": 3}


def _array(dtype: str, axes: int) -> DeviceArray:
    return DeviceArray(0, (1,) * axes, (0,) * axes, dtype)


def listed_builds() -> Iterator[Build]:
    """The builds of the guarded table."""
    for direction in ("forward", "backward"):
        for cc in ARCHITECTURES:
            for head_dim in (64, 128):
                yield Build("flash2", direction, "fp32", head_dim, "causal", cc)
            yield Build("flash2", direction, "fp32", 256, "full", cc)
        for dtype in ("fp16", "bf16"):
            yield Build("flash2", direction, dtype, 128, "causal", (9, 0, "a"))
        for head_dim in (64, 128):
            yield Build("flash2", direction, "fp32", head_dim, "full", (9, 0, "a"))
        for kind in ("window and key lengths", "ALiBi and dropout"):
            yield Build("flash2", direction, "fp32", 64, kind, (9, 0, "a"))


def prepare(build: Build):
    """Kernel, signature and dynamic shared memory of a build."""
    problem = Problem(256, 256, build.head_dim, dtype=build.dtype, **PROBLEMS[build.kind])
    spec, capability = Spec.of(problem, True), build.cc[:2]
    four, vector = _array(build.dtype, 4), _array("fp32", 3)
    if build.direction == "forward":
        tiles = forward_tiles(spec, capability, shared_limit(capability))
        kernel = flash2.make_forward(spec, tiles)
        arguments = (four, four, four, four, vector, 1.0, 1.0)
    else:
        tiles = backward_tiles(spec, capability, shared_limit(capability))
        kernel = flash2_backward.make_backward(spec, tiles)
        turns = _array("int32", 3), _array("int32", 1)
        sums = _array("fp32", 4)
        arguments = (four, four, four, four, vector, vector, sums, four, four, *turns)
        arguments += (1.0, 1.0, 1.0)
    values = extra_values(problem, tiles.tile_m, tiles.tile_n)
    extra, _ = upload(values, lambda array: _Nowhere(array.shape, array.dtype.str))
    signature = tuple(argument_types(argument) for argument in (*arguments, *extra))
    return kernel, signature, tiles.shared_bytes


def resources(build: Build) -> Resources:
    """Compile and assemble a build."""
    kernel, signature, _ = prepare(build)
    return assemble(compile_ptx(kernel, signature, build.cc), build.cc)
