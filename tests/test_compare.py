import csv
import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from flash_numba.masks import boolean
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask
from simulator import hardware
from simulator.agreement import alone
from simulator.compare import BASELINES, DEFAULT_PROGRAMS, choose, comparison
from simulator.compare_result import KEYS
from simulator.compare_table import duration, size
from simulator.compare_words import sentences
from simulator.inputs import random_input
from simulator.memory import SramOverflow
from simulator.programs import PROGRAMS, Pass, flash2

SMALL = Problem(96, 160, 16, dtype="fp16")


def shown(found, width=80):
    out = io.StringIO()
    Console(width=width, file=out, highlight=False).print(found.table())
    return out.getvalue()


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        Problem(113, 113, 32, head_dim_v=24, causal=True, dtype="bf16"),
        Problem(70, 203, 16, window=(40, 5), dtype="fp32"),
        Problem(64, 90, 16, num_heads=4, num_kv_heads=2, batch=2, dtype="fp8", causal=True),
    ],
    ids=["N96-M160-D16", "N113-D32-V24-causal", "N70-M203-D16-window", "B2-H4-KV2-N64-M90-causal"],
)
@pytest.mark.parametrize("all_heads", [False, True], ids=["one-head", "all-heads"])
def test_counted_equals_closed_form(problem, direction, all_heads):
    found = comparison(
        problem, 32, 48, direction=direction, programs=list(PROGRAMS), all_heads=all_heads
    )
    assert [entry.program for entry in found.entries][: len(BASELINES)] == list(BASELINES)
    for entry in found.entries:
        assert entry.counted is not None
        assert entry.counted.hbm_bytes > 0
        assert entry.equal, entry.program


def test_full_attention_by_the_formulas_of_the_papers():
    n, d, tile = 1024, 64, 64
    found = comparison(Problem(n, n, d, dtype="fp16"), tile, tile)
    tiles = n // tile
    expected = {
        "algorithm0": (2 * n * n + 3 * n * d, 2 * n * n + n * d),
        "flash1": (tiles * (2 * n * d + 2 * n) + 2 * n * d + 2 * n, None),
        "flash2": (n * d + tiles * 2 * n * d, n * d + n),
    }
    for program, (reads, writes) in expected.items():
        counted = found.entry(program).counted
        assert counted is not None
        assert counted.hbm_read_elements == reads
        assert writes in (None, counted.hbm_write_elements)
    flash2 = found.entry("flash2")
    # lse takes 4 bytes an element, everything else 2.
    expected_bytes = 2 * (2 * n * d + tiles * 2 * n * d) + 4 * n
    assert found.ratio(flash2) == expected_bytes / (2 * (4 * n * n + 4 * n * d))


def test_time_is_the_longest_of_three_roofs():
    found = comparison(Problem(1024, 1024, 64, dtype="fp16"), 128, 64, gpu="V100")
    counted = found.entry("flash2").counted
    roof = found.roofline(found.entry("flash2"))
    assert counted is not None
    assert roof is not None
    assert roof.memory_s == counted.hbm_bytes / 900e9
    assert roof.matmul_s == counted.matmul_flops / 125e12
    assert roof.total_s == max(roof.memory_s, roof.matmul_s, roof.exp_s)
    assert duration(roof.total_s) in shown(found)


def test_both_is_the_sum_and_the_higher_peak():
    forward, backward, both = (
        comparison(SMALL, 32, 32, direction=way) for way in ("forward", "backward", "both")
    )
    for one, other, sum_ in zip(forward.entries, backward.entries, both.entries, strict=True):
        for key in KEYS:
            a, b, c = (getattr(entry.counted, key) for entry in (one, other, sum_))
            if key != "sram_peak_bytes":
                assert c == a + b
            elif a is None:
                assert c is None
            else:
                assert c == max(a, b)


def test_all_heads_shares_kv_heads_in_the_backward():
    problem = Problem(64, 64, 16, batch=3, num_heads=4, num_kv_heads=2)
    one = comparison(problem, 32, 32).entry("flash2").counted
    every = comparison(problem, 32, 32, all_heads=True).entry("flash2").counted
    assert one is not None
    assert every is not None
    assert every.hbm_bytes == 12 * one.hbm_bytes
    one, every = (
        comparison(problem, 32, 32, direction="backward", all_heads=al).entry("flash2").counted
        for al in (False, True)
    )
    assert one is not None
    assert every is not None
    assert every.writes["dQ"] == 12 * one.writes["dQ"]
    assert every.writes["dK"] == 6 * one.writes["dK"]


def test_a_block_mask_is_held_against_its_visited_tiles():
    rng = np.random.default_rng(0)
    keep = np.kron(rng.random((3, 4)) < 0.5, np.ones((32, 40))).astype(bool)[None, None]
    mask = boolean(keep)
    block_mask = BlockMask.from_mask(mask, SMALL, 32, 40)
    problem = Problem(96, 160, 16, dtype="fp16", block_mask=block_mask)
    found = comparison(problem, 32, 40, direction="both")
    assert all(entry.equal for entry in found.entries)
    full = comparison(SMALL, 32, 40, direction="both")
    for program, less in (("algorithm0", False), ("flash2", True)):
        mine, theirs = found.entry(program).counted, full.entry(program).counted
        assert mine is not None
        assert theirs is not None
        assert (mine.hbm_bytes < theirs.hbm_bytes) == less


def test_json_has_the_agreed_keys_and_plain_numbers():
    found = comparison(SMALL, 32, 32).to_json()
    assert list(found) == ["problem", "programs"]
    assert found["problem"] == {
        "seqlen_q": 96,
        "seqlen_k": 160,
        "head_dim": 16,
        "tile_m": 32,
        "tile_n": 32,
        "causal": False,
        "dtype": "fp16",
        "direction": "forward",
        "heads": 1,
    }
    names = [(entry["name"], entry["baseline"]) for entry in found["programs"]]
    assert names == [
        ("standard", "algorithm0"),
        ("standard", "tiled"),
        ("flash1", None),
        ("flash2", None),
    ]
    for entry in found["programs"]:
        assert list(entry) == ["name", "baseline", *KEYS, "theory"]
        assert entry["theory"] == {key: entry[key] for key in KEYS}
        for key in KEYS:
            if key == "sram_peak_bytes" and entry["baseline"] == "algorithm0":
                assert entry[key] is None
            else:
                assert type(entry[key]) is int


def test_csv_says_the_same_as_json():
    found = comparison(SMALL, 32, 32)
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    for row, entry in zip(rows, found.to_json()["programs"], strict=True):
        assert row["name"] == entry["name"]
        for key in KEYS:
            written = "" if entry[key] is None else str(entry[key])
            assert row[key] == row[f"theory_{key}"] == written


def test_what_does_not_fit_says_why_and_leaves_the_others():
    # K, V, Q and O of 64 KiB each are more than 227 KiB; flash2 keeps O in registers.
    found = comparison(Problem(256, 256, 256, dtype="fp16"), 128, 128)
    flash1 = found.entry("flash1")
    assert flash1.counted is None
    assert "tile O (128x256, 65,536 bytes) does not fit" in (flash1.does_not_fit or "")
    assert found.roofline(flash1) is None
    assert found.ratio(flash1) is None
    assert found.entry("flash2").equal
    text = shown(found)
    assert "does not fit" in text
    assert "needs 289.0 KiB" in text
    assert any(line.startswith("flash1: tile O (128x256") for line in sentences(found))
    (entry,) = (e for e in found.to_json()["programs"] if e["name"] == "flash1")
    assert entry["hbm_bytes"] is None
    assert entry["theory"]["sram_peak_bytes"] == 289 * 1024
    assert "tile O" in entry["does_not_fit"]
    assert "tile O" in found.to_csv()


@pytest.mark.parametrize("all_heads", [False, True], ids=["one-head", "all-heads"])
def test_with_arrays_programs_compute_attention(all_heads):
    problem = Problem(70, 90, 16, batch=2, num_heads=4, num_kv_heads=2, causal=True)
    options = {"direction": "both", "programs": list(PROGRAMS), "all_heads": all_heads}
    options |= {"batch": 1, "head": 3} if not all_heads else {}
    found = comparison(problem, 32, 48, arrays=random_input(problem), **options)
    plain = comparison(problem, 32, 48, **options)
    for entry, counted in zip(found.entries, plain.entries, strict=True):
        assert entry.counted == counted.counted
        assert list(entry.differences or ()) == ["O", "dQ", "dK", "dV"]
        # fp32 sums of at most 4 * 90 terms of order 1, at 6e-8 each.
        assert 0 < max((entry.differences or {}).values()) < 5e-5
    assert plain.entries[0].differences is None
    assert "error of" in shown(found)
    assert "error of" not in shown(plain)


def test_the_head_that_is_compared_is_the_one_asked_for():
    problem = Problem(40, 50, 16, batch=2, num_heads=4, num_kv_heads=2)
    q, k, v = random_input(problem)
    one, (q_1, k_1, v_1) = alone(problem, (q, k, v), 1, 3)
    assert (one.batch, one.num_heads, one.num_kv_heads) == (1, 1, 1)
    np.testing.assert_array_equal(q_1[0, :, 0], q[1, :, 3])
    np.testing.assert_array_equal(k_1[0, :, 0], k[1, :, 1])
    np.testing.assert_array_equal(v_1[0, :, 0], v[1, :, 1])


def test_a_count_that_is_off_is_seen(monkeypatch):
    other = dataclasses.replace(PROGRAMS["flash2"], forward=PROGRAMS["flash1"].forward)
    monkeypatch.setitem(PROGRAMS, "flash2", other)
    found = comparison(SMALL, 32, 32)
    assert [entry.equal for entry in found.entries] == [True, True, True, False]
    assert shown(found).count("DIFFERS") == 1


def test_a_wrong_program_is_seen(monkeypatch):
    forward = Pass(lambda gpu: flash2.forward(gpu, rescale=False), flash2.FORWARD_LINES)
    broken = dataclasses.replace(PROGRAMS["flash2"], forward=forward)
    monkeypatch.setitem(PROGRAMS, "flash2", broken)
    found = comparison(SMALL, 32, 32, arrays=random_input(SMALL))
    assert (found.entry("flash2").differences or {})["O"] > 0.01


def test_nothing_fits_is_an_error():
    problem = Problem(1024, 1024, 128, dtype="fp32")
    with pytest.raises(
        SramOverflow,
        match=r"^tile_m and tile_n must let all tiles fit .* does not fit: .* \(program tiled\)",
    ):
        comparison(problem, 1024, 1024)
    with pytest.raises(SramOverflow, match="flash1"):
        comparison(Problem(256, 256, 256, dtype="fp16"), 128, 128, programs=["flash1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "sideways"}, "direction must be one of forward, backward, both; got"),
        ({"programs": ["flash9"]}, "program must be one of .*flash2.*; got 'flash9'"),
        ({"gpu": "A1000"}, "gpu must be one of V100"),
        ({"tile_m": 0}, "tile_m must be a whole number >= 1, got 0"),
        ({"head": 1}, r"head must lie in 0\.\.0, got 1"),
        ({"batch": -1}, r"batch must lie in 0\.\.0, got -1"),
    ],
)
def test_bad_arguments(options, message):
    options = {"tile_m": 32, "tile_n": 32} | options
    with pytest.raises(ValueError, match=message):
        comparison(SMALL, **options)


def test_a_gpu_without_units_for_the_type_is_an_error():
    with pytest.raises(ValueError, match="dtype must be one that V100 multiplies"):
        comparison(Problem(64, 64, 16, dtype="bf16"), 32, 32, gpu="V100")


def test_choose():
    assert choose(None, None) == ["flash1", "flash2", "tiled"]
    assert {"algorithm0", *choose(None, None)} == set(DEFAULT_PROGRAMS)
    assert choose(["flash2"], ["fused_softmax"]) == ["flash2", "fused_softmax"]
    assert set(choose(["all"], ["all"])) == set(PROGRAMS)
    with pytest.raises(ValueError, match=r"program must be all or one of flash1.*; got 'tiled'"):
        choose(["tiled"], None)
    with pytest.raises(
        ValueError, match=r"baseline must be all or one of algorithm0.*got 'flash1'"
    ):
        choose(None, ["flash1"])


def said_of(found, program):
    (line,) = (line for line in sentences(found) if line.startswith(f"{program} moves"))
    return line


def test_words_say_who_moves_less_and_by_what():
    n, d, tile = 1024, 64, 128
    line = said_of(comparison(Problem(n, n, d, dtype="fp16"), tile, tile), "flash2")
    extra = (n // tile - 1) * 2 * n * d + n
    assert f"S and P never reach HBM, which saves {4 * n * n:,} elements" in line
    assert f"but {extra:,} more of the other tensors (K and V are read again" in line
    assert "more, not less" not in line


@pytest.mark.parametrize("program", ["tiled", "flash2"])
def test_words_say_again_only_of_what_is_read_again(program):
    one_tile = comparison(Problem(64, 64, 64, dtype="fp16"), 64, 64)
    assert "again" not in said_of(one_tile, program)


def test_words_say_so_when_flash_moves_more():
    # Break-even of the forward: query tiles of d/2 rows.
    for tile_m, more in ((16, True), (64, False)):
        found = comparison(Problem(1024, 1024, 64, dtype="fp16"), tile_m, 64)
        line = said_of(found, "flash2")
        assert ("more, not less" in line) == more
        assert ("A larger tile_m would repeat less" in line) == more


def test_table_fits_80_columns_and_defines_every_program():
    found = comparison(
        Problem(1024, 1024, 64, dtype="fp16"), 128, 64, direction="both", programs=list(PROGRAMS)
    )
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    flat = " ".join(text.split())
    for program in PROGRAMS.values():
        assert f"{program.name}: {' '.join(program.title.split())}." in flat


def test_nothing_to_move():
    found = comparison(Problem(0, 0, 8), 32, 32, direction="both")
    assert found.ratio(found.entry("flash2")) is None
    assert "equal" in shown(found)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (232448, "227.0 KiB"), (3 << 30, "3.0 GiB")],
)
def test_size(nbytes, text):
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.001, "1 ms"), (2.66e-6, "2.66 µs"), (0, "0 ns")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_h100_is_the_default():
    assert comparison(SMALL, 32, 32).gpu is hardware.get("H100")
