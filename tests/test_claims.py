"""The ledger of claims: complete, with numbers, and judged as a person judges the numbers."""

import json
import re
from dataclasses import replace
from itertools import count

import pytest
from typer.testing import CliRunner

from simulator.accelerators import MI250_DIE, TPU_V4
from simulator.claims import CLAIMS, TOPICS, VERDICTS, hardware, ledger, practice
from simulator.claims.algorithm import right_gradient
from simulator.claims.claim import UNCHECKABLE, UNMEASURED, claim
from simulator.claims.evidence import Attention, form, off_by
from simulator.claims.memory import held
from simulator.claims_cli import SOURCES
from simulator.cli import app
from simulator.hardware import A100, H100, roofline
from simulator.waiting import waiting

ROWS = {one.name: (one, found) for one, found in ledger()}

MAY_BE_UNCHECKABLE = {
    *("C38", "C41", "C46", "C49", "C67", "C73", "C76"),
    *("C83", "C84", "C85", "C86", "C87", "C91", "C92", "C94"),
}

EXPECTED = {
    "holds": "C02 C06 C11 C17 C30 C35 C60 C72",
    "holds with conditions": "C01 C05 C08 C12 C14 C15 C16 C19 C21 C25 C28 C29 C32 C33 C34 C37 C39 "
    "C42 C44 C45 C48 C59 C62 C63 C64 C68 C69 C70 C74 C77 C78 C79 C80 C88 C89",
    "wrong": "C03 C04 C07 C09 C10 C13 C18 C20 C22 C23 C24 C26 C27 C31 C36 C40 C43 C47 C50 C51 "
    "C52 C53 C54 C55 C56 C57 C58 C61 C65 C66 C71 C75 C81 C82 C90 C93 C95 "
    "M01 M02 M03 M04 M05 M06 M07 M08 M09 M10",
}
"""Verdicts by hand: code that changes one must be right where this table is wrong."""


def test_every_claim_is_there_once():
    claims = [f"C{number:02}" for number in range(1, 96)]
    misconceptions = [f"M{number:02}" for number in range(1, 11)]
    assert sorted(CLAIMS) == claims + misconceptions
    assert {one.topic for one in CLAIMS.values()} == set(TOPICS)
    with pytest.raises(ValueError, match="C01 is there twice"):
        claim("C01", "")(lambda: ROWS["C01"][1])


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_a_verdict_has_its_numbers(name):
    one, found = ROWS[name]
    assert found.verdict in VERDICTS
    assert re.search(r"\d", found.measured), found.measured
    assert found.exact
    assert len(one.text) > 8
    assert one.text.endswith(".")
    assert not re.search(r"\bnan\b|\binf\b", found.measured)


def test_only_these_cannot_be_checked_here():
    assert {name for name, (_, found) in ROWS.items() if found.verdict == UNCHECKABLE} == (
        MAY_BE_UNCHECKABLE
    )


@pytest.mark.parametrize("name", sorted(MAY_BE_UNCHECKABLE))
def test_what_cannot_be_checked_has_a_bound(name, monkeypatch):
    """It says if the claim is plausible, from counts and data sheets: with others, other numbers.

    All of them are changed by factors of their own, so that no ratio stays.
    """
    claim, found = ROWS[name]
    assert "would decide" in found.exact + found.measured
    assert re.search(r"\b(not )?plausible\b", found.measured)
    assert re.search(r"\d (TFLOP/s|GB|TB/s|ms|µs|bytes)\b|\d(x\b|%)", found.measured)
    factors = count(2)

    def other_form(*args, **kwargs):
        counts = form(*args, **kwargs) * next(factors)
        names = ("hbm_bytes", "sram_peak_bytes")
        more = {name: (getattr(counts, name) or 0) * next(factors) for name in names}
        return replace(counts, **more)

    def slower(gpu, factor):
        rates = {dtype: rate / factor for dtype, rate in gpu.tensor_flops_per_s.items()}
        return replace(gpu, tensor_flops_per_s=rates)

    for module in (practice, hardware):
        monkeypatch.setattr(module, "form", other_form)
        monkeypatch.setattr(module, "A100", slower(A100, 5))
        monkeypatch.setattr(module, "H100", slower(H100, 7))
    other = claim.check().measured
    assert re.findall(r"[\d.,]+", other) != re.findall(r"[\d.,]+", found.measured)


def test_bounds_follow_the_data_sheets():
    """C49, C83 and C92 by hand: tiles against local memory, least times against each other."""
    flash = form("flash2", 4096)
    assert flash.sram_peak_bytes == (128 + 2 * 64) * 64 * 2
    assert f"{flash.sram_peak_bytes:,} bytes at d=64" in ROWS["C83"][1].measured
    assert f"{64 * 1024:,} bytes of local memory" in ROWS["C83"][1].measured
    assert ROWS["C83"][1].measured.endswith("plausible with these tiles for d=64, d=128")
    on_a100 = max(flash.hbm_bytes / 2039e9, flash.matmul_flops / 312e12)
    for device, bandwidth, peak in ((MI250_DIE, 1638.4e9, 181.05e12), (TPU_V4, 1200e9, 275e12)):
        least = max(flash.hbm_bytes / bandwidth, flash.matmul_flops / peak)
        told = f"{device.name} {1e6 * least:.1f} µs ({least / on_a100:.1f}x)"
        assert told in ROWS["C92"][1].measured
    frame = form("flash2", 8192)
    least = roofline(
        A100,
        hbm_bytes=8 * frame.hbm_bytes,
        matmul_flops=8 * frame.matmul_flops,
        exp_count=8 * frame.exp_count,
        dtype="fp16",
    ).total_s
    assert f"at least {1e3 * least:.2f} ms a layer" in ROWS["C49"][1].measured
    assert f"0.3 ms are {0.3e-3 / least:.0%} of a layer" in ROWS["C49"][1].measured


@pytest.mark.parametrize("name", ["C05", "C40", "C55"])
def test_what_was_measured_on_a_gpu_says_where_and_when(name):
    assert re.search(r"NVIDIA \w+, 20\d\d-\d\d-\d\d", ROWS[name][1].measured)


def test_verdicts():
    by_verdict = {verdict: names.split() for verdict, names in EXPECTED.items()}
    judged = {name: verdict for verdict, names in by_verdict.items() for name in names}
    assert judged.keys() | MAY_BE_UNCHECKABLE == CLAIMS.keys()
    found = {name: ROWS[name][1].verdict for name in judged}
    assert found == judged


@pytest.mark.parametrize("name", ["C05", "C55"])
def test_without_measurements_nothing_is_judged(monkeypatch, tmp_path, name):
    monkeypatch.setattr(practice, "RESULTS", tmp_path)
    monkeypatch.setattr(practice, "results", lambda _: None)
    found = CLAIMS[name].check()
    assert found.verdict == UNMEASURED
    assert re.search(r"\d", found.measured)


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ({64: 100, 128: 120, 256: 100}, "holds"),
        ({64: 100, 128: 110, 256: 90}, "wrong"),
        ({64: 100, 128: 120, 256: 119}, "wrong"),
    ],
)
def test_tiles_are_judged_by_the_better_rival(monkeypatch, rates, verdict):
    """Of two shapes of a tile the faster one counts, and lengths up to 2048 do not."""
    rows = [
        {"head_dim": 64, "seqlen": N, "tile_m": B, "tflops": rate * slower}
        for N, sign in ((2048, -1), (4096, 1))
        for B, rate in rates.items()
        for slower in (0.5, 1 if sign > 0 else 1 / rate)
    ]
    stored = {"machine": {"gpu": "a GPU", "date": "2026-11-30"}, "rows": rows}
    monkeypatch.setattr(practice, "results", lambda name: stored)
    found = practice.tile_of_128()
    assert found.verdict == verdict
    assert f"d=64, N=4,096: 64 {rates[64]}, 128 {rates[128]}, 256 {rates[256]}" in found.measured
    assert practice.judged([0.2, 0.1]) == "holds with conditions"


def test_frameworks_are_counted_not_their_modules():
    assert ROWS["C45"][1].measured == "1 of 2 frameworks here: pytorch"


def test_gradients_are_told_apart():
    head = Attention(size=5, seed=3)
    assert off_by(right_gradient(head), head.dQ) < 1e-7
    assert off_by(1.01 * right_gradient(head), head.dQ) > 1e-3


def test_what_is_held_is_counted_by_hand():
    assert held(8, 4, flash=False) == 2 * (4 * 8 * 4 + 2 * 8 * 8)
    assert held(8, 4, flash=True) == 2 * 4 * 8 * 4 + 4 * 8


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["claims", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_command_prints_a_topic():
    text = " ".join(run("--topic", "misconceptions").split())
    assert "10 claims: 10 wrong" in text
    assert "M10" in text


def test_command_tells_a_claim_in_full():
    text = " ".join(run("c20", "M01").split())
    assert "C20 (source 0 §2.2): HBM accesses fall" in text
    assert "exactly: Θ(N²d²/M) (Theorem 2)" in text
    assert "M01: Q, K and V are each loaded once." in text
    assert SOURCES in text
    assert SOURCES not in " ".join(run("M01").split())
    documents = {claim.source.split()[0].strip(",") for claim in CLAIMS.values() if claim.source}
    assert documents == set(re.findall(r"(\d) is a", SOURCES))


def test_command_prints_json():
    rows = [json.loads(line) for line in run("--topic", "precision", "--json").splitlines()]
    assert [row["name"] for row in rows] == ["C19", "C28", "C33", "C70", "C74", "C77"]
    assert set(rows[0]) == {"name", "source", "text", "topic", "verdict", "exact", "measured"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["C96"], "claim must be one of C01 to C95, M01 to M10, which `flash-numba claims` lists"),
        (["--topic", "weather"], "topic must be one of memory"),
        (["C01", "--topic", "memory"], "cannot go with"),
    ],
)
def test_command_refuses(arguments, message):
    result = CliRunner().invoke(app, ["claims", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_a_person_sees_that_claims_are_checked(monkeypatch, capsys):
    for terminal in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with waiting("counting"):
            pass
        assert ("counting" in capsys.readouterr().err) == bool(terminal)
