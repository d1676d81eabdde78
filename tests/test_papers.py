"""docs/papers.md says what the closed forms say of the paper's numbers."""

import re
from pathlib import Path

import pytest

from simulator.theory.asymptotics import block_rule_needs, break_even_tile
from simulator.theory.papers import (
    A100_SRAM_BYTES,
    ARXIV,
    NEURIPS,
    both_passes,
    figure_2_flash,
    figure_2_middle,
    figure_2_standard,
    flop_readings,
    least_milliseconds,
    theorem_2_curve,
    whole_matrix_passes,
)

TEXT = (Path(__file__).parents[1] / "docs" / "papers.md").read_text()
PROSE = " ".join(TEXT.split())
SRAMS = [64, 256, 4096, 16384, 65536]


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def printed_rows():
    pairs = zip(
        ("GFLOPs", "HBM R/W (GB)", "runtime (ms)"),
        ("gflops", "gigabytes", "milliseconds"),
        strict=True,
    )
    return [row(name, *getattr(ARXIV, key), *getattr(NEURIPS, key)) for name, key in pairs]


def flash_rows():
    return [
        row(r.tile_n, r.tile_m, r.reading, f"{r.gigabytes:.1f}")
        for r in figure_2_flash()
        if r.dtype == "fp16"
    ]


def standard_rows():
    readings = figure_2_standard()
    half = len(readings) // 2
    return [
        row(a.reading, f"{a.gigabytes:.1f}", f"{b.gigabytes:.1f}")
        for a, b in zip(readings[:half], readings[half:], strict=True)
    ]


def flop_rows():
    return [
        row(name, f"{both_passes(name, 64, 64).matmul_flops / 1e9:.1f}")
        for name in ("algorithm0", "flash1")
    ]


def middle_rows():
    return [
        row(
            r.tile_n,
            f"{r.gigabytes:.2f}",
            f"{r.memory_milliseconds:.2f}",
            f"{r.product_milliseconds:.2f}",
            r.sram_bytes / 1024,
        )
        for r in figure_2_middle()
    ]


def curve_rows():
    forward = theorem_2_curve(1024, 64, SRAMS)
    backward = theorem_2_curve(1024, 64, SRAMS, "backward")
    return [
        row(a.sram, a.tile_m, a.tile_n, f"{a.ratio:.2f}", f"{b.ratio:.2f}")
        for a, b in zip(forward, backward, strict=True)
    ]


def test_every_table_row_is_recomputed():
    computed = [
        *printed_rows(),
        *flash_rows(),
        *standard_rows(),
        *flop_rows(),
        *middle_rows(),
        *curve_rows(),
    ]
    rules = re.compile(r"\|[-|]+\|")
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    heads = {lines[i - 1] for i, line in enumerate(lines) if rules.fullmatch(line)}
    body = [line for line in lines if line not in heads and not rules.fullmatch(line)]
    assert body == computed


def test_flash_traffic_is_reproduced_by_the_papers_tiles_alone():
    hits = [r for r in figure_2_flash() if r.prints(ARXIV.gigabytes[1])]
    assert [(r.dtype, r.tile_m, r.tile_n) for r in hits] == [("fp16", 64, 384)]
    prints = [
        tile_n
        for tile_n in range(1, 1025)
        if f"{both_passes('flash1', 64, tile_n).hbm_bytes / 1e9:.1f}" == "4.4"
    ]
    assert f"B_c lies in {prints[0]} to {prints[-1]}" in PROSE
    assert prints == list(range(prints[0], prints[-1] + 1))
    held = both_passes("flash1", 64, 384).sram_peak_bytes or 0
    assert held > A100_SRAM_BYTES
    assert f"holds {held / 1000:.0f} KB ({held / 1024:.0f} KiB) at once" in PROSE


def test_standard_traffic_is_not_reproduced():
    for printed in (ARXIV.gigabytes[0], NEURIPS.gigabytes[0]):
        assert not any(r.prints(printed) for r in figure_2_standard())
    masked = next(r for r in figure_2_standard() if r.reading == "passes for mask or dropout")
    assert f"is {100 * (1 - NEURIPS.gigabytes[0] / masked.gigabytes):.0f} % below" in PROSE
    assert f"no dropout: {masked.gigabytes:.1f} GB)" in PROSE
    passes = whole_matrix_passes(ARXIV.gigabytes[0])
    assert f"stands for {passes:.1f} passes" in PROSE
    possible = {11 + 4 * both + extra for both in (0, 1, 2) for extra in range(both + 1)}
    assert round(passes) not in possible


def test_passes_over_whole_matrices_are_those_of_the_closed_forms():
    plain, masked = (both_passes(p).hbm_bytes for p in ("algorithm0", "with_mask_and_dropout"))
    assert whole_matrix_passes(plain / 1e9) == pytest.approx(11)
    assert whole_matrix_passes(masked / 1e9) == pytest.approx(11 + 2 * 4 + 2 * 1)


def test_printed_flops_fit_no_reading():
    readings = list(flop_readings())
    assert f"Of {len(readings):,} readings" in PROSE
    assert not any(r.prints(ARXIV.gflops) for r in readings)
    best = min(r.miss(ARXIV.gflops) for r in readings)
    assert f"the best misses one by {100 * best:.1f} %" in PROSE
    standard, flash = (
        both_passes(program, 64, 64).matmul_flops / 1e9 / printed
        for program, printed in zip(("algorithm0", "flash1"), ARXIV.gflops, strict=True)
    )
    assert f"are {standard:.0f} to {flash:.0f} times what is printed" in PROSE


def test_readings_agree_with_the_closed_forms_where_they_count_the_same():
    same = [
        r
        for r in flop_readings(range(1))
        if (r.flops_per_multiply_add, r.matrices, r.layers, r.passes) == (2, 1024, 1, "both")
        and not r.causal
    ]
    one_kernel, two_kernels = same
    for program, found in (
        ("tiled", one_kernel.standard),
        ("flash2", one_kernel.flash),
        ("flash2_two_kernel", two_kernels.flash),
    ):
        assert round(found * 1e9) == both_passes(program, 64, 64).matmul_flops


def test_what_the_printed_flops_would_be():
    scores = 1024 * 1024 * 1024
    a_score = [round(1e9 * printed / scores) for printed in ARXIV.gflops]
    assert "are {} and {} FLOPs a score".format(*a_score) in PROSE
    assert max(a_score) < 2 * 64
    product = 2 * 64 * 64 * 1024**2 / 1e9
    difference = ARXIV.gflops[1] - ARXIV.gflops[0]
    assert (
        f"difference, {difference:.1f} GFLOPs, is one product over 64 matrices ({product:.2f})"
        in (PROSE)
    )
    fits = [
        r
        for r in flop_readings(range(41, 300))
        if r.prints(ARXIV.gflops) and r.passes == "both" and r.matrices == 64
    ]
    assert f"then {fits[0].other_per_score} FLOPs a score would remain" in PROSE


def test_runtimes_are_bounds():
    bounds = [least_milliseconds(printed) for printed in ARXIV.gigabytes]
    assert "take {:.1f} and {:.1f} ms (arXiv)".format(*bounds) in PROSE
    shares = [100 * b / ms for b, ms in zip(bounds, ARXIV.milliseconds, strict=True)]
    assert "{:.0f} % and {:.0f} % of the printed runtimes".format(*shares) in PROSE


def test_figure_2_middle_has_the_papers_shape():
    rows = figure_2_middle()
    traffic = [r.gigabytes for r in rows]
    assert traffic == sorted(traffic, reverse=True)
    bound_by_memory = [r.memory_milliseconds > r.product_milliseconds for r in rows]
    assert bound_by_memory == [True, True, True, False]
    assert [r.sram_bytes <= A100_SRAM_BYTES for r in rows] == [True, True, True, False]


@pytest.mark.parametrize(("direction", "low", "high"), [("forward", 3, 16), ("backward", 5, 26)])
@pytest.mark.parametrize("seqlen", [256, 1024, 4096])
@pytest.mark.parametrize("d", [32, 64, 128])
def test_theorems_2_and_5_hold_with_constants(direction, low, high, seqlen, d):
    srams = [d, 4 * d, d * d // 2, d * d, seqlen * d // 4, seqlen * d]
    for point in theorem_2_curve(seqlen, d, srams, direction):
        assert low <= point.ratio <= high


def test_tile_sizes_in_the_text():
    assert f"from B_c = {break_even_tile('flash1', 64)} at d = 64" in PROSE
    assert f"from B_r = {break_even_tile('flash2', 64)}." in PROSE
    assert f"the forward pass holds {block_rule_needs(16384, 64):,}." in PROSE
    assert block_rule_needs(33280, 64) == 33280
    assert "M = 8d(d + 1) = 33,280" in PROSE
