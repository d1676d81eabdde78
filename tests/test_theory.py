"""Closed forms: equal to a brute-force walk on random problems, and what they say at the limits."""

import ast
import inspect
import time
from pathlib import Path

import brute_force
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator.theory
from flash_numba import masks
from flash_numba.problem import Problem
from flash_numba.tiling import SKIPPED, BlockMask, Schedule
from simulator.counts import Counts
from simulator.theory import BASELINES, PROGRAMS, counts

PASSES = [(name, way) for name in PROGRAMS for way in ("forward", "backward")]
PASS_IDS = [f"{name}-{way}" for name, way in PASSES]
FLASH = [(name, way) for name, way in PASSES if name.startswith("flash")]
FLASH_IDS = [f"{name}-{way}" for name, way in FLASH]
LENGTH = st.one_of(st.sampled_from([0, 1, 7, 8, 9]), st.integers(0, 30))
SIDE = st.one_of(st.none(), st.integers(0, 20), st.just(10**30))


@st.composite
def problems(draw):
    batch = draw(st.integers(0, 2))
    seqlen_k = draw(LENGTH)
    kv_heads = draw(st.integers(1, 2))
    key_lengths = None
    if draw(st.booleans()):
        key_lengths = np.array([draw(st.integers(0, seqlen_k)) for _ in range(batch)], np.int64)
    return Problem(
        draw(LENGTH),
        seqlen_k,
        head_dim=draw(st.integers(1, 5)),
        head_dim_v=draw(st.integers(1, 5)),
        batch=batch,
        num_kv_heads=kv_heads,
        num_heads=kv_heads * draw(st.integers(1, 3)),
        dtype=draw(st.sampled_from(["fp32", "fp16", "fp8"])),
        causal=draw(st.booleans()),
        window=(draw(SIDE), draw(SIDE)) if draw(st.booleans()) else (None, None),
        key_lengths=key_lengths,
    )


TILE = st.one_of(st.sampled_from([1, 4, 8, 40]), st.integers(1, 12))


@pytest.mark.parametrize(("program", "direction"), PASSES, ids=PASS_IDS)
@settings(max_examples=500)
@given(problem=problems(), tile_m=TILE, tile_n=TILE, dlse=st.booleans(), data=st.data())
def test_closed_form_equals_brute_force(program, direction, problem, tile_m, tile_n, dlse, data):
    dlse = dlse and program not in BASELINES
    options = {"direction": direction, "dlse": dlse}
    found = counts(program, problem, tile_m, tile_n, all_heads=True, **options)
    assert found == brute_force.count(program, problem, tile_m, tile_n, direction, dlse)
    if problem.batch:
        batch = data.draw(st.integers(0, problem.batch - 1))
        head = data.draw(st.integers(0, problem.num_heads - 1))
        found = counts(program, problem, tile_m, tile_n, batch=batch, head=head, **options)
        walked = brute_force.count(
            program, problem, tile_m, tile_n, direction, dlse, only=(batch, head)
        )
        assert found == walked
