"""compute-sanitizer is shown a problem for every form of tiles that a rung chooses among.

Which problem gets which tiles the rungs' own functions say, on a grid of problems beside those of
`benchmarks/sanitized_problems.py`. A form is all of tiles but their sizes.
"""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import sanitized_problems as program

from flash_numba import ladder, masks
from flash_numba.arguments import pose
from flash_numba.kernels import (
    hopper_backward,
    hopper_backward_fast,
    standard_tiles,
    tensor_core_backward_tiles,
)
from flash_numba.kernels.hopper_backward_tiles import hopper_backward_tiles
from flash_numba.kernels.hopper_tiles import hopper_tiles
from flash_numba.kernels.spec import Spec, backward_tiles, forward_tiles
from flash_numba.kernels.tensor_core_gradients_tiles import gradient_tiles
from flash_numba.kernels.tensor_core_tiles import forward_tiles as fragment_tiles
from flash_numba.ladder import NoGpu
from flash_numba.problem import Problem

H200: Any = (9, 0), 227 * 1024
"""Compute capability, and bytes of shared memory a block."""

SIZES = {"depth", "depth_v", "tile_m", "tile_n", "panel", "o_panels", "thread_m", "thread_n"}
SIZES |= {"row_blocks", "warps", "threads", "blocks_per_sm", "heads_at_once", "lanes", "q_lanes"}
SIZES |= {"tile"}
"""Fields that say how large tiles are; every other one, also one to come, is of the form."""


def form_of(tiles) -> tuple:
    """What decides which instructions a kernel has, and not only how often."""
    fields = zip(tiles._fields, tiles, strict=True)
    found = [f"{name}={value}" for name, value in fields if name not in SIZES]
    name = type(tiles).__name__
    if name == "HopperTiles":
        found += [f"rows stored={tiles.store_rows}", f"O waits={tiles.depth_v <= 128}"]
    if name == "HopperBackwardTiles":
        found += [f"columns={tiles.depth}"]  # of dQ, which consumers share by columns or rows
    return name, *found


def tiles_of(rung: str, problem: Problem, backward: bool) -> list:
    """The tiles that a rung takes on an H200 for a pass, of each of its kernels."""
    spec = Spec.of(problem, vectors=True)
    if rung == "hopper":
        return [hopper_backward_tiles(problem) if backward else hopper_tiles(problem)]
    if rung == "standard":
        sizes = problem.head_dim, problem.head_dim_v
        return [standard_tiles.square_tiles(*sizes, H200[1])]
    if rung in ("flash1", "flash2"):
        return [(backward_tiles if backward else forward_tiles)(spec, *H200)]
    if not backward:
        return [fragment_tiles(spec, *H200)]
    two = tensor_core_backward_tiles
    one_kernel = gradient_tiles(spec, *H200)
    if one_kernel is not None:
        return [one_kernel]
    return [two.query_gradient_tiles(spec, *H200), two.key_gradient_tiles(spec, *H200)]


def adds_in_turn(problem: Problem, deterministic: bool | None) -> bool:
    """Whether Hopper's backward pass adds to dQ in order."""
    if deterministic is not False:
        return True
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper_backward, "backward", lambda _, ordered: found.append(ordered))
        hopper_backward_fast.backward(problem)
    return found[0]


def forms_of(rung: str, problem: Problem, deterministic=None, gradients=("q", "k", "v")) -> set:
    """Forms of the tiles of both passes."""
    found = {form_of(tiles) for tiles in tiles_of(rung, problem, False)}
    if not gradients or (rung == "hopper" and {"bias", "score_mod"} & set(gradients)):
        return found  # those are tensor_core's
    own = tiles_of(rung, problem, True)
    if rung != "hopper":
        return found | {form_of(tiles) for tiles in own}
    (tiles,) = own
    in_turn = adds_in_turn(problem, deterministic)
    if tiles.backwards and not in_turn:  # nobody follows another one
        tiles = tiles._replace(backwards=False)
    return found | {(*form_of(tiles), f"in turn={in_turn}")}


WAYS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"key_lengths": np.array([5])},
    {"causal": True, "key_lengths": np.array([5])},
    {"window": (9, 3)},
    {"mask": masks.boolean(np.ones((1, 1, 1, 1), bool))},
    {"dropout_p": 0.1, "seed": 1},
    {"score_mods": (masks.softcap(2.0),)},
]
LENGTHS = (100, 100), (2000, 2000), (100, 5000)
DEPTHS = 8, 40, 72, 104, 136, 200, 256


def chosen(rung: str) -> dict[tuple, Problem]:
    """Every form that a rung takes on the grid, with a problem that gets it."""
    found = {}
    grid: Any = product(program.TYPES[rung], LENGTHS, DEPTHS, DEPTHS, WAYS)
    for dtype, (n, m), d, dv, options in grid:
        problem = Problem(n, m, d, dv, dtype=dtype, **options)
        for deterministic in (None, False):
            found |= dict.fromkeys(forms_of(rung, problem, deterministic), problem)
    return found


def sanitized(rung: str, scale: int) -> set:
    """Every form that compute-sanitizer sees of a rung; packed batches aside."""
    found, n, m = set(), *program.lengths(scale)
    for one in (one for part in program.PROBLEMS[rung].values() for one in part):
        if one.kind != "packed":
            q, k, v, _ = program.tensors(rung, one, n, m + one.more_keys)
            options = program.options_of(one.kind, n, m + one.more_keys)
            problem = pose(q, k, v, **options, needs=one.gradients).problem
            found |= forms_of(rung, problem, one.deterministic, one.gradients)
    return found


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("rung", program.TYPES)
def test_each_form_is_sanitized(rung, scale):
    seen = sanitized(rung, scale)
    assert not {form: problem for form, problem in chosen(rung).items() if form not in seen}


def test_there_are_many_forms():
    """Those that other tests of this file rest on: what a grid does not reach it cannot miss."""
    forms = chosen("hopper") | chosen("tensor_core")
    text = " ".join(word for form in forms for word in form)
    for words in ("late_maxima=True", "in_turns=True", "rows stored=16", "backwards=True"):
        assert words in text
    for words in ("stages=3", "notes=False", "q_in_registers=True", "apart=True", "in turn=False"):
        assert words in text


@pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
@pytest.mark.parametrize("rung", program.TYPES)
def test_the_problems_run(rung, monkeypatch):
    """In the tile simulator, so that only kernels are new to a GPU."""
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))
    n, m = program.lengths(1)
    for one in (one for part in program.PROBLEMS[rung].values() for one in part):
        found = program.run(rung, one, n, m + one.more_keys)
        asked = [x for x in found if x is not None]
        assert len(asked) == 2 + len(one.gradients)
        assert all(np.isfinite(x.astype(np.float32)).all() for x in asked)
