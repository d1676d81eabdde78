"""Closed forms: equal to a brute-force walk on random problems, and what they say at the limits."""

import ast
from fractions import Fraction
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
from simulator.theory.asymptotics import (
    PRODUCTS,
    block_rule_needs,
    block_sizes,
    break_even_tile,
    flash_accesses,
    least_accesses,
    square_coefficient,
    standard_accesses,
)

PASSES = [(name, way) for name in PROGRAMS for way in ("forward", "backward")]
PASS_IDS = [f"{name}-{way}" for name, way in PASSES]
FLASH = [(name, way) for name, way in PASSES if name.startswith("flash")]
FLASH_IDS = [f"{name}-{way}" for name, way in FLASH]
LENGTH = st.sampled_from([*range(2, 19), 0, 1, 8, 9, 16])
SIDE = st.sampled_from([*range(20), None, None, 10**30])


@st.composite
def problems(draw):
    batch = draw(st.sampled_from([1, 2, 1, 2, 1, 2, 1, 2, 0]))
    seqlen_k = draw(LENGTH)
    kv_heads = draw(st.integers(1, 2))
    key_lengths = None
    if draw(st.booleans()):
        shorter = [draw(st.sampled_from(range(seqlen_k + 1))) for _ in range(batch)]
        key_lengths = np.array(shorter, np.int64)
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


TILE = st.sampled_from([*range(2, 10), 1, 4, 8, 40])


def forward(program, N, d, tile_m, tile_n, **options):
    return counts(program, Problem(N, N, d, **options), tile_m, tile_n, direction="forward")


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


@pytest.mark.parametrize(("program", "direction"), FLASH, ids=FLASH_IDS)
@settings(max_examples=200)
@given(problem=problems(), tile_m=TILE, tile_n=TILE, dlse=st.booleans(), data=st.data())
def test_listed_tiles_equal_brute_force(program, direction, problem, tile_m, tile_n, dlse, data):
    tiles = -(-problem.seqlen_q // tile_m), -(-problem.seqlen_k // tile_n)
    outer = (
        data.draw(st.sampled_from([problem.batch, 1])),
        data.draw(st.sampled_from([problem.num_heads, 1])),
    )
    seed, density = data.draw(st.integers(0, 1 << 30)), data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    visited = np.random.default_rng(seed).random((*outer, *tiles)) < density

    def visits(batch, head):
        one = visited[batch if outer[0] > 1 else 0, head if outer[1] > 1 else 0]
        return set(zip(*(found.tolist() for found in np.nonzero(one)), strict=True))

    options = {"direction": direction, "dlse": dlse, "visited": visited}
    sizes = program, problem, tile_m, tile_n
    found = counts(*sizes, all_heads=True, **options)
    assert found == brute_force.count(*sizes, direction, dlse, visits=visits)
    if problem.batch:
        only = problem.batch - 1, problem.num_heads - 1
        found = counts(*sizes, batch=only[0], head=only[1], **options)
        assert found == brute_force.count(*sizes, direction, dlse, only=only, visits=visits)


@settings(max_examples=200)
@given(problem=problems(), tile_m=TILE, tile_n=TILE)
def test_tiling_visits_the_tiles_where_some_query_sees_some_key(problem, tile_m, tile_n):
    for batch in range(problem.batch):
        kinds = Schedule(problem, tile_m, tile_n, batch, 0).kinds()
        found = set(zip(*(axis.tolist() for axis in np.nonzero(kinds != SKIPPED)), strict=True))
        assert found == brute_force.visited_pairs(problem, tile_m, tile_n, batch, 0)


@pytest.mark.parametrize(("program", "direction"), FLASH, ids=FLASH_IDS)
def test_block_mask_counts_from_its_own_tiles(program, direction):
    pattern = np.random.default_rng(7).random((2, 4, 37, 50)) < 0.02
    plain = Problem(37, 50, 8, batch=2, num_heads=4, num_kv_heads=2)
    mask = masks.boolean(pattern)
    block_mask = BlockMask.from_mask(mask, plain, 8, 4, batches=2, heads=4)
    problem = Problem(37, 50, 8, batch=2, num_heads=4, num_kv_heads=2, block_mask=block_mask)
    visited = block_mask.kinds != SKIPPED
    assert 0 < visited.mean() < 1
    found = counts(program, problem, 8, 4, direction=direction, all_heads=True, visited=visited)
    assert found == brute_force.count(program, problem, 8, 4, direction)
    with pytest.raises(ValueError, match="visited must be given"):
        counts(program, problem, 8, 4, direction=direction)


# The full-attention forms of one head, N queries and keys, T_r and T_c tiles, written out.


@pytest.mark.parametrize(("tile_m", "tile_n"), [(16, 16), (32, 8), (8, 64)])
@pytest.mark.parametrize("d", [16, 64])
def test_printed_full_attention_forms(tile_m, tile_n, d):
    N = 128
    T_r, T_c = N // tile_m, N // tile_n

    def moved(program, direction):
        found = counts(program, Problem(N, N, d), tile_m, tile_n, direction=direction)
        return found.hbm_read_elements, found.hbm_write_elements

    assert moved("algorithm0", "forward") == (2 * N * N + 3 * N * d, 2 * N * N + N * d)
    assert sum(moved("algorithm0", "forward")) == 4 * N * N + 4 * N * d
    assert sum(moved("fused_softmax", "forward")) == 2 * N * N + 4 * N * d
    assert sum(moved("with_mask_and_dropout", "forward")) == 8 * N * N + 4 * N * d + 2 * N * N
    assert moved("flash2", "forward") == (N * d + T_r * 2 * N * d, N * d + N)
    last_pass = 2 * N, N
    assert moved("flash1", "forward") == (
        T_c * (2 * N * d + 2 * N) + 2 * N * d + last_pass[0],
        N * d + 2 * N + T_c * (N * d + 2 * N) + last_pass[1],
    )
    delta = 2 * N * d, N
    assert moved("flash2", "backward") == (
        delta[0] + 2 * N * d + T_c * (3 * N * d + 2 * N),
        delta[1] + N * d + T_c * N * d + 2 * N * d,
    )
    dq_kernel = 2 * N * d + 2 * N + T_r * 2 * N * d, N * d
    dkv_kernel = 2 * N * d + T_c * (2 * N * d + 2 * N), 2 * N * d
    assert moved("flash2_two_kernel", "backward") == (
        delta[0] + dq_kernel[0] + dkv_kernel[0],
        delta[1] + dq_kernel[1] + dkv_kernel[1],
    )


def test_flash_attention_needs_more_products_backward_only():
    N, d = 96, 32
    for program, numbers in PRODUCTS.items():
        for direction, products in zip(("forward", "backward"), numbers, strict=True):
            found = counts(program, Problem(N, N, d), 32, 16, direction=direction)
            assert found.matmul_flops == products * 2 * N * N * d


def test_a_million_causal_keys_in_closed_form():
    N, tile, d = 1 << 20, 128, 128
    T = N // tile
    found = counts("flash2", Problem(N, N, d, causal=True), tile, tile, direction="forward")
    pairs = T * (T + 1) // 2
    assert found.reads == {"Q": N * d, "K": pairs * tile * d, "V": pairs * tile * d}
    assert found.matmul_flops == pairs * 4 * tile * tile * d


# Limits and orders.


def test_one_tile_moves_every_element_once():
    N, d = 100, 16
    found = counts("flash2", Problem(N, N, d), 128, 128, direction="forward")
    assert found.hbm_elements == least_accesses(N, d) + N


@pytest.mark.parametrize(("program", "direction"), FLASH, ids=FLASH_IDS)
def test_seeing_more_never_costs_less(program, direction):
    def moved(**options):
        found = counts(program, Problem(200, 200, 8, **options), 16, 32, direction=direction)
        return found.hbm_bytes, found.sram_load_elements, found.matmul_flops, found.exp_count

    windows = [moved(window=(side, side)) for side in (0, 1, 15, 16, 40, 199)]
    assert windows == sorted(windows)
    assert windows[0] < windows[-1] == moved()
    assert moved(causal=True) < moved()
    assert moved(window=(None, 0)) == moved(causal=True)
    lengths = [moved(key_lengths=np.array([n])) for n in (0, 1, 31, 32, 33, 200)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == moved()


@pytest.mark.parametrize("program", ["flash1", "flash2", "tiled"])
def test_doubled_tiles_move_less(program):
    sizes = [
        counts(program, Problem(256, 256, 16), tile, tile, direction="forward").hbm_elements
        for tile in (8, 16, 32, 64, 128, 256)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("d", [1, 16, 63, 64, 128, 256])
def test_break_even_tiles(d):
    assert square_coefficient("algorithm0", 4, d) == 4
    assert square_coefficient("flash1", 8, d) == Fraction(3 * d + 4, 8)
    assert square_coefficient("flash2", 8, d) == Fraction(2 * d, 8)
    assert break_even_tile("flash1", d) == (3 * d + 4) // 4 + 1
    assert break_even_tile("flash2", d) == d // 2 + 1


@pytest.mark.parametrize(("program", "tile"), [("flash1", 50), ("flash2", 33)])
def test_break_even_holds_at_a_finite_length(program, tile):
    N, d = 100_000, 64
    limit = forward("algorithm0", N, d, 1, 1).hbm_elements
    assert break_even_tile(program, d) == tile
    assert forward(program, N, d, tile, tile).hbm_elements < limit
    # One tile size less is a tie in N²; two less moves more.
    assert square_coefficient(program, tile - 1, d) == 4
    assert forward(program, N, d, tile - 2, tile - 2).hbm_elements > limit


@pytest.mark.parametrize("d", [16, 64, 128])
def test_the_papers_tiles_fill_sram_without_s(d):
    M = 4 * d * d
    assert block_sizes(M, d) == (d, d)
    assert block_rule_needs(M, d) == M + d * d + 2 * d
    assert block_sizes(M // 2, d) == (d // 2, d // 2)
    assert block_rule_needs(M // 2, d) > M // 2
    first_fit = 8 * d * (d + 1)
    assert block_rule_needs(first_fit, d) == first_fit
    assert block_rule_needs(first_fit - 4 * d, d) > first_fit - 4 * d
    for sram in (M, first_fit, 100 * M):
        assert block_rule_needs(sram, d, "backward") > sram


def test_48_kilobytes_of_fp32_lose_with_the_papers_tiles():
    sram, d = 48 * 1024 // 4, 64
    assert block_sizes(sram, d) == (48, 48)
    assert break_even_tile("flash1", d) == 50
    assert block_rule_needs(sram, d) > sram


def test_orders_of_accesses_and_their_range():
    assert standard_accesses(1024, 64) == 1024 * 64 + 1024**2
    assert flash_accesses(1024, 64, 1024 * 64) == 1024 * 64
    assert least_accesses(1024, 64) == 4 * flash_accesses(1024, 64, 1024 * 64)
    for sram in (63, 1024 * 64 + 1):
        with pytest.raises(ValueError, match=rf"sram must lie in 64\.\.65536 .* got {sram}"):
            flash_accesses(1024, 64, sram)


# Popular misconceptions that counting settles.


def test_keys_and_values_are_not_loaded_once():
    N, d = 1024, 64
    found = forward("flash2", N, d, 128, 64)
    assert found.reads == {"Q": N * d, "K": 8 * N * d, "V": 8 * N * d}


def test_traffic_is_not_linear_in_length():
    moved = [forward("flash2", N, 64, 128, 64).hbm_elements for N in (1 << 14, 1 << 15)]
    assert 3.9 < moved[1] / moved[0] < 4


def test_smaller_tiles_save_less_and_the_saving_is_not_n_squared_over_b_squared():
    N, d = 1 << 14, 64
    standard = forward("algorithm0", N, d, 1, 1).hbm_elements
    saved = {B: standard / forward("flash2", N, d, B, B).hbm_elements for B in (64, 128, 256)}
    assert saved[64] < saved[128] < saved[256]
    for B, factor in saved.items():
        assert factor == pytest.approx(2 * B / d, rel=0.02)


def test_flash_attention_does_not_always_move_less():
    N, d = 1 << 14, 64
    standard = forward("algorithm0", N, d, 1, 1).hbm_elements
    minimal = forward("flash1", N, d, 32, 32).hbm_elements
    assert minimal / standard == pytest.approx((3 * d + 4) / (4 * 32), rel=0.01)
    assert minimal > 1.5 * standard
    assert forward("flash2", N, d, 31, 32).hbm_elements > standard


def test_half_the_sram_means_twice_the_traffic_not_four_times():
    N, d, M = 1 << 14, 64, 1 << 15
    moved = [forward("flash1", N, d, *block_sizes(m, d)).hbm_elements for m in (M, M // 2)]
    assert moved[1] / moved[0] == pytest.approx(2, rel=0.01)


def test_causal_does_more_than_half_of_the_work():
    for T in (1, 2, 8, 64):
        whole, causal = (
            forward("flash2", 16 * T, 8, 16, 16, causal=c).matmul_flops for c in (False, True)
        )
        assert Fraction(causal, whole) == Fraction(T + 1, 2 * T)


# The interface.


def test_counts_add_up_and_turn_into_json():
    a = Counts({"Q": 3, "K": 0}, {"O": 2}, hbm_bytes=20, sram_peak_bytes=5, exp_count=1)
    b = Counts({"Q": 1, "V": 4}, {}, hbm_bytes=20, sram_peak_bytes=9, add_flops=2)
    assert (a + b).to_json() == {
        "hbm_read_elements": 8,
        "hbm_write_elements": 2,
        "hbm_bytes": 40,
        "sram_load_elements": 0,
        "sram_store_elements": 0,
        "sram_peak_bytes": 9,
        "matmul_flops": 0,
        "exp_count": 1,
        "add_flops": 2,
        "reads": {"Q": 4, "V": 4},
        "writes": {"O": 2},
    }
    assert a == Counts({"Q": 3}, {"O": 2}, hbm_bytes=20, sram_peak_bytes=5, exp_count=1)
    assert (a + Counts(sram_peak_bytes=None)).sram_peak_bytes is None
    assert a != Counts({"K": 3}, {"O": 2}, hbm_bytes=20, sram_peak_bytes=5, exp_count=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"program": "flash3"}, "program must be one of algorithm0, .*; got 'flash3'"),
        ({"direction": "both"}, "direction must be one of forward, backward; got 'both'"),
        ({"tile_m": 0}, "tile_m must be a whole number >= 1, got 0"),
        ({"tile_n": 1.5}, "tile_n must be a whole number >= 1, got 1.5"),
        ({"batch": 2}, r"batch must lie in 0\.\.1, got 2"),
        ({"head": -1}, r"head must lie in 0\.\.3, got -1"),
        (
            {"visited": np.ones((3, 3), bool)},
            r"visited must be bool of shape \(2, 3\) or \(1 or 2, 1 or 4, 2, 3\), got bool of "
            r"shape \(3, 3\)",
        ),
        ({"visited": np.ones((2, 3))}, "visited must be bool of shape .* got float64"),
        (
            {"program": "algorithm0", "direction": "backward", "dlse": True},
            "dlse must be False for algorithm0",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_named(change, message):
    options = {"program": "flash2", "tile_m": 8, "tile_n": 8, "direction": "forward"} | change
    with pytest.raises(ValueError, match=message):
        counts(problem=Problem(16, 24, 4, batch=2, num_heads=4), **options)


def theory_files():
    files = sorted(Path(simulator.theory.__file__).parent.glob("*.py"))
    assert len(files) >= 5
    return files


def test_theory_imports_neither_tiling_nor_programs():
    for path in theory_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                assert not {"tiling", "programs", "memory", "ledger"} & set(name.split(".")), path


def test_forms_have_no_loop_over_tiles():
    for path in theory_files():
        if path.name in ("flash.py", "standard.py", "visits.py"):
            tree = ast.parse(path.read_text())
            found = [n for n in ast.walk(tree) if isinstance(n, ast.While | ast.AsyncFor)]
            loops = [n for n in ast.walk(tree) if isinstance(n, ast.For | ast.comprehension)]
            targets = {ast.unparse(loop.iter) for loop in loops}
            allowed = {"t.largest", "fields(self)", "(slice(None, -1), slice(-1, None))"}
            assert not found
            assert targets <= allowed, path
