"""Every kernel of a rung as something that can be compiled without a GPU.

A `Build` names one kernel for one kind of problem and one compute capability; `listed_builds` are
those that the guarded table covers.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import masks
from ..arrays import DeviceArray
from ..device.hopper.tensor_map import TensorMap
from ..ladder import RUNGS
from ..launch import argument_types, shared_limit, upload
from ..problem import Problem
from ..sequences import Sequences
from . import (
    flash1,
    flash1_backward,
    flash2,
    flash2_backward,
    hopper,
    hopper_backward,
    standard,
    standard_backward,
    tensor_core,
    tensor_core_backward_tiles,
    tensor_core_dkv,
    tensor_core_dq,
    tensor_core_gradients,
    tensor_core_tiles,
)
from .arguments import extra_values
from .hopper_backward_tiles import hopper_backward_tiles
from .hopper_tiles import hopper_tiles
from .offline import Resources, assemble, compile_ptx
from .spec import Spec, backward_tiles, forward_tiles
from .standard_products import make_column_blocks, make_row_blocks
from .standard_tiles import square_tiles
from .tensor_core_gradients_tiles import gradient_tiles

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
PACKED = {"packed full": {}, "packed causal": {"causal": True}}
"""Kinds of problems of the rungs that take packed batches, besides `PROBLEMS`."""


class Build(NamedTuple):
    """One kernel to compile.

    Attributes
    ----------
    rung, direction : str
        Name of a rung; "forward" or "backward", with the kernel's name where there are more:
        "forward S".
    dtype : str
        A key of `problem.DTYPES`.
    head_dim : int
    kind : str
        A key of `PROBLEMS` or `PACKED`.
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


STANDARD = ("forward S", "forward softmax", "forward O")
STANDARD += ("backward S", "backward dV", "backward dP", "backward dS", "backward dQ")
"""Kernels of the standard rung; dK is dV's, without dropout."""


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
    yield from _hopper_builds()
    yield from _tensor_core_builds()
    yield from _simple_builds()


TENSOR_CORE = "forward", "backward", "backward dQ", "backward dKdV"
"""Kernels of the tensor-core rung; the second makes all gradients, where it is made at all."""


def _is_made(build: Build) -> bool:
    """Whether the rung has a kernel for the build."""
    if build[:2] != ("tensor_core", "backward"):
        return True
    options = PROBLEMS[build.kind.removeprefix("packed ")]
    problem = Problem(256, 256, build.head_dim, dtype=build.dtype, **options)
    spec, cc = Spec.of(problem, True), build.cc[:2]
    return gradient_tiles(spec, cc, shared_limit(cc)) is not None


def _tensor_core_builds() -> Iterator[Build]:
    """Those of `_tensor_core_candidates` that there are."""
    yield from filter(_is_made, _tensor_core_candidates())


def _tensor_core_candidates() -> Iterator[Build]:
    """Both element types where they are timed, one elsewhere, and the least regular problems."""
    for name in TENSOR_CORE:
        for cc in ARCHITECTURES:
            if cc >= (8, 0):
                for head_dim in (64, 128, 256):
                    yield Build("tensor_core", name, "bf16", head_dim, "causal", cc)
        for head_dim in (64, 128, 192, 256):
            yield Build("tensor_core", name, "fp16", head_dim, "causal", (7, 5))
            for kind in ("full", "causal"):
                yield Build("tensor_core", name, "fp16", head_dim, kind, (9, 0, "a"))
        for head_dim in (64, 128):
            yield Build("tensor_core", name, "bf16", head_dim, "full", (9, 0, "a"))
            for kind in ("window and key lengths", "ALiBi and dropout", *PACKED):
                yield Build("tensor_core", name, "fp16", head_dim, kind, (9, 0, "a"))


HOPPER = "forward", "forward long", "backward", "backward fast"
"""Kernels of the Hopper rung; the second is for long sequences, the last adds to dQ as it comes."""


def _hopper_builds() -> Iterator[Build]:
    """Every depth of a tile, both element types where they are timed, and the least regular."""
    for head_dim in (64, 96, 128, 192, 256):
        for kind in ("full", "causal"):
            yield Build("hopper", "forward", "fp16", head_dim, kind, (9, 0, "a"))
    for head_dim in (64, 128):
        for kind in PROBLEMS:
            for direction in ("forward", "backward"):
                yield Build("hopper", direction, "bf16", head_dim, kind, (9, 0, "a"))
        for kind in ("full", "causal"):
            for direction in HOPPER[2:]:
                yield Build("hopper", direction, "fp16", head_dim, kind, (9, 0, "a"))
    for head_dim in (192, 256):
        for kind in PROBLEMS:
            yield Build("hopper", "backward", "fp16", head_dim, kind, (9, 0, "a"))
    yield Build("hopper", "backward fast", "fp16", 256, "full", (9, 0, "a"))
    yield Build("hopper", "forward long", "fp16", 64, "causal", (9, 0, "a"))
    yield Build("hopper", "forward long", "bf16", 128, "full", (9, 0, "a"))


def all_builds() -> Iterator[Build]:
    """Every kernel of every rung: each element type, kind of problem and architecture it is for."""
    for rung in RUNGS:
        own = {"standard": STANDARD, "tensor_core": TENSOR_CORE, "hopper": HOPPER}
        kernels = own.get(rung.name, ("forward", "backward"))
        depths = [depth for depth in (64, 128, 256) if depth <= rung.max_head_dim]
        kinds = [*PROBLEMS, *([] if "packed sequences" in rung.kernels_lack else PACKED)]
        axes: Any = kernels, rung.dtypes, depths, kinds, ARCHITECTURES
        for axis in itertools.product(*axes) if rung.name in _PREPARE else ():
            build = Build(rung.name, *axis)
            cc, needed = build.cc, rung.needed_capability(build.dtype)
            if cc >= needed and (not rung.majors or cc[0] in rung.majors) and _is_made(build):
                yield build


def _simple_builds() -> Iterator[Build]:
    """flash1 and standard: every kernel for the oldest architecture and the one that is run."""
    wide = "window and key lengths", "ALiBi and dropout"
    for direction in ("forward", "backward"):
        for cc in ((7, 5), (9, 0, "a")):
            for head_dim in (64, 128, 256):
                yield Build("flash1", direction, "fp32", head_dim, "causal", cc)
        yield Build("flash1", direction, "bf16", 64, "causal", (9, 0, "a"))
        for kind in wide:
            yield Build("flash1", direction, "fp32", 64, kind, (9, 0, "a"))
    for kernel in STANDARD:
        for cc in ((7, 5), (9, 0, "a")):
            yield Build("standard", kernel, "fp32", 128, "causal", cc)
        yield Build("standard", kernel, "fp16", 64, "ALiBi and dropout", (9, 0, "a"))
    for kernel in ("forward S", "forward O", "backward dV", "backward dP"):
        yield Build("standard", kernel, "fp32", 256, "full", (9, 0, "a"))


def prepare(build: Build):
    """Kernel, signature and dynamic shared memory of a build."""
    options: dict[str, Any] = (PROBLEMS | PACKED)[build.kind]
    if build.kind in PACKED:
        options = options | {"sequences": Sequences(256, 256, on_gpu=_array("int64", 1))}
    problem = Problem(256, 256, build.head_dim, dtype=build.dtype, **options)
    kernel, tiles, shared_bytes, arguments, used = _PREPARE[build.rung](problem, build)
    values = extra_values(problem, *tiles)
    extra, _ = upload(values, lambda array: _Nowhere(array.shape, array.dtype.str))
    if build.kind in PACKED:
        extra = (*extra[:3], (_array("int32", 2),), *extra[4:])
    arguments = (*arguments, *(extra[_EXTRA.index(name)] for name in used))
    return kernel, tuple(map(argument_types, arguments)), shared_bytes


_EXTRA = ("mask_aux", "range_aux", "score_aux", "lengths", "listed", "dropout")


def _flash2(problem: Problem, build: Build):
    spec, cc = Spec.of(problem, True), build.cc[:2]
    four, vector = _array(build.dtype, 4), _array("fp32", 3)
    if build.direction == "forward":
        tiles = forward_tiles(spec, cc, shared_limit(cc))
        kernel = flash2.make_forward(spec, tiles)
        arguments = (four, four, four, four, vector, 1.0, 1.0)
    else:
        tiles = backward_tiles(spec, cc, shared_limit(cc))
        kernel = flash2_backward.make_backward(spec, tiles)
        turns = _array("int32", 3), _array("int32", 1)
        arguments = (four, four, four, four, vector, vector, _array("fp32", 4), four, four, *turns)
        arguments += (1.0, 1.0, 1.0)
    return kernel, (tiles.tile_m, tiles.tile_n), tiles.shared_bytes, arguments, _EXTRA


def _tensor_core(problem: Problem, build: Build):
    spec, cc = Spec.of(problem, True), build.cc[:2]
    four, vector = _array(build.dtype, 4), _array("fp32", 3)
    folded, limit = tensor_core_tiles.is_scale_folded(problem), shared_limit(cc)
    tiles: Any
    if build.direction == "forward":
        tiles = tensor_core_tiles.forward_tiles(spec, cc, limit)
        kernel = tensor_core.make_forward(spec, tiles, folded)
        arguments = (four, four, four, four, vector, 1.0, 1.0)
    elif build.direction == "backward":
        tiles = gradient_tiles(spec, cc, limit)
        assert tiles is not None
        kernel = tensor_core_gradients.make_gradients(spec, tiles)
        turns = _array("fp32", 2), _array("int32", 1), _array("int32", 1)
        arguments = (four, four, four, four, vector, vector, *turns, four, four, four, 1.0, 1.0)
    elif build.direction == "backward dQ":
        tiles = tensor_core_backward_tiles.query_gradient_tiles(spec, cc, limit)
        kernel = tensor_core_dq.make_query_gradient(spec, tiles, folded)
        arguments = (four, four, four, four, vector, vector, four, 1.0, 1.0)
    else:
        tiles = tensor_core_backward_tiles.key_gradient_tiles(spec, cc, limit)
        wants = (True, not tiles.apart)
        kernel = tensor_core_dkv.make_key_gradients(spec, tiles, folded, wants)
        arguments = (four, four, four, four, vector, vector, four, four, 1.0, 1.0)
    return kernel, (tiles.tile_m, tiles.tile_n), tiles.shared_bytes, arguments, _EXTRA


def _hopper(problem: Problem, build: Build):
    if not build.direction.startswith("forward"):
        return _hopper_backward(problem, build)
    if build.direction == "forward long":
        problem = replace(problem, seqlen_q=1 << 14, seqlen_k=1 << 14)
    tiles, (scale_first, scale, factor) = hopper_tiles(problem), hopper.factors(problem)
    kernel = hopper.make_forward(hopper.forward_spec(problem), tiles, scale_first)
    tensor_map = TensorMap(_array(build.dtype, 4), tiles.tile_n, tiles.panel)
    arguments = (*[tensor_map] * 4, _array("fp32", 3), (1, 1), scale, factor)
    return kernel, (tiles.tile_m, tiles.tile_n), tiles.shared_bytes, arguments, _EXTRA


def _hopper_backward(problem: Problem, build: Build):
    tiles = hopper_backward_tiles(replace(problem, seqlen_q=1 << 14))
    scale_first, scale, factor = hopper.factors(problem)
    spec, ordered = hopper_backward.backward_spec(problem), build.direction == "backward"
    kernel = hopper_backward.make_backward(spec, tiles, scale_first, ordered=ordered)
    tensor_map, two = TensorMap(_array(build.dtype, 4), 64, tiles.panel), _array("fp32", 2)
    turns = _array("int32", 3), _array("int32", 1)
    arguments = (*[tensor_map] * 6, two, two, _array(build.dtype, 4), *turns)
    arguments += ((1,) * 10, scale, factor)
    return kernel, (tiles.tile_m, tiles.tile_n), tiles.shared_bytes, arguments, _EXTRA


def _flash1(problem: Problem, build: Build):
    spec, cc = Spec.of(problem, False), build.cc[:2]
    four, sums, vector = _array(build.dtype, 4), _array("fp32", 4), _array("fp32", 3)
    if build.direction == "forward":
        tiles = flash1.chosen_tiles(spec, cc)
        kernel = flash1.make_forward(spec, tiles)
        arguments = (four, four, four, sums, vector, vector, vector, 1.0)
    else:
        tiles = flash1_backward.chosen_tiles(spec, cc)
        kernel = flash1_backward.make_backward(spec, tiles, False)
        arguments = (four, four, four, four, four, vector, (), sums, four, four, 1.0)
    return kernel, (tiles.tile_m, tiles.tile_n), tiles.shared_bytes, arguments, _EXTRA


def _standard(problem: Problem, build: Build):
    spec, d = standard.plain_spec(problem, True), build.head_dim
    limit = shared_limit(build.cc[:2])
    tiles = square_tiles(d, d, limit)
    four, matrix, vector = _array(build.dtype, 4), _array("fp32", 4), _array("fp32", 3)
    name = build.direction.split()[1]
    shared_bytes = 0 if name in ("softmax", "dS") else tiles.shared_bytes(d)
    lengths, product = spec.has_lengths, (build.dtype, d, tiles, spec.has_lengths)
    used = ("lengths", "dropout")
    if name == "S":
        slopes = (matrix,) if build.direction == "backward S" else ()
        kernel = standard.make_scores(spec, tiles, bool(slopes))
        arguments, used = (four, four, matrix, slopes, 1.0), ("mask_aux", "score_aux", "lengths")
    elif name == "softmax":
        kernel = standard.make_softmax(tiles, lengths)
        arguments, used = (matrix, matrix, vector), ("lengths",)
    elif name == "O":
        kernel, arguments = make_row_blocks(*product, spec.has_dropout, True), (matrix, four, four)
    elif name == "dV":
        kernel, arguments = (
            make_column_blocks(*product, spec.has_dropout, True),
            (matrix, four, four),
        )
    elif name == "dP":
        kernel = standard_backward.make_weight_gradients(*product, spec.has_dropout, True)
        arguments = (four, four, matrix)
    elif name == "dS":
        kernel = standard_backward.make_score_gradients(
            tiles, lengths, True, bool(spec.changes), False
        )
        arguments, used = (matrix, matrix, matrix, (), (vector,), 1.0), ("lengths",)
    else:
        kernel, arguments = make_row_blocks(*product, False, True), (matrix, four, four)
    return kernel, (tiles.tile, tiles.tile), shared_bytes, arguments, used


_PREPARE = {
    "hopper": _hopper,
    "tensor_core": _tensor_core,
    "flash2": _flash2,
    "flash1": _flash1,
    "standard": _standard,
}


def resources(build: Build) -> Resources:
    """Compile and assemble a build."""
    kernel, signature, _ = prepare(build)
    return assemble(compile_ptx(kernel, signature, build.cc), build.cc)
