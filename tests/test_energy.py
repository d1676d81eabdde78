import pytest

from flash_numba.problem import Problem
from simulator import theory
from simulator.counts import Counts
from simulator.energy import (
    BOARD_WATTS,
    PJ_PER_BYTE,
    PJ_PER_FLOP,
    SOURCES,
    at_most,
    energy,
)


def test_every_figure_has_a_source():
    assert SOURCES.keys() == {*PJ_PER_BYTE, *PJ_PER_FLOP, *BOARD_WATTS}


def test_by_hand():
    counts = Counts(
        hbm_bytes=1_000_000, matmul_flops=4_000, sram_load_elements=30, sram_store_elements=10
    )
    found = energy(counts, "fp32")
    assert found.hbm_j == pytest.approx(48e-6)  # 6 pJ a bit
    assert found.sram_j == pytest.approx(160 / 8 * 10e-12)
    assert found.product_j == pytest.approx(2_000 * 4.6e-12)
    assert found.total_j == found.hbm_j + found.sram_j + found.product_j


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_flash_attention_saves_the_energy_of_the_traffic_alone(dtype):
    problem = Problem(4096, 4096, 64, dtype=dtype)
    standard, flash = (
        energy(theory.counts(name, problem, 128, 64, direction="forward"), dtype)
        for name in ("algorithm0", "flash2")
    )
    assert flash.product_j == standard.product_j
    assert flash.hbm_j < standard.hbm_j / 3


def test_refuses():
    with pytest.raises(ValueError, match="dtype must be one of fp32, fp16, got 'fp8'"):
        energy(Counts(), "fp8")
    with pytest.raises(ValueError, match="gpu must be one of A100, H100, H200, got 'T4'"):
        at_most("T4", 1.0)
    assert at_most("H200", 0.001) == pytest.approx(0.7)
