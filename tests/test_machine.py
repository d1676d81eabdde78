"""The machine on hand-written programs: what each operation costs, and what it refuses."""

import warnings
from typing import Any

import numpy as np
import pytest

from flash_numba.problem import Problem
from simulator.counts import Counts
from simulator.events import EventLog
from simulator.machine import Machine
from simulator.memory import SramOverflow, TileError, UnusedTile

PROBLEM = Problem(seqlen_q=8, seqlen_k=6, head_dim=3, head_dim_v=2, dtype="fp16")
"""Two query tiles of 4 rows, and key tiles of 4 and 2."""


def machine(data=True, **options) -> Machine:
    """Q, K, V, O and LSE are in HBM; a program may make the rest."""
    rng = np.random.default_rng(0)
    shapes = {"Q": (1, 8, 3), "K": (6, 3), "V": (6, 2), "O": (1, 8, 2), "LSE": (1, 8)}
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gpu = Machine(PROBLEM, 4, 4, data=tensors if data else None, **options)
    gpu.kernel("k")
    return gpu


def counts(gpu: Machine) -> Counts:
    return gpu.ledger.counts(gpu.sram.peak)


def in_hbm(gpu: Machine, name: str) -> Any:
    return gpu.tensor(name).data


def load(gpu: Machine, name: str, *index):
    return gpu.load("load", gpu.tensor(name)[index])


# What operations cost


def test_a_load_reads_hbm_and_stores_to_sram():
    gpu = machine()
    sK = load(gpu, "K", slice(4, 6))
    np.testing.assert_array_equal(sK.data, in_hbm(gpu, "K")[4:6])
    expected = Counts({"K": 6}, hbm_bytes=12, sram_store_elements=6, sram_peak_bytes=12)
    assert counts(gpu) == expected


def test_a_vector_takes_four_bytes_whatever_the_dtype():
    gpu = machine()
    load(gpu, "LSE", 0, slice(0, 4))
    assert gpu.sram.used == 16
    assert counts(gpu).hbm_bytes == 16


@pytest.mark.parametrize("in_sram", [True, False])
def test_a_store_loads_only_from_sram(in_sram):
    gpu = machine()
    tile = (gpu.in_sram if in_sram else gpu.in_registers)("dV", (4, 2), 1.0)
    gpu.store("store", gpu.tensor("dV")[slice(0, 4)], tile)
    found = counts(gpu)
    assert found.writes == {"dV": 8}
    assert (found.sram_store_elements, found.sram_load_elements) == ((8, 8) if in_sram else (0, 0))
    assert np.all(in_hbm(gpu, "dV")[:4] == 1)
    assert np.all(np.isnan(in_hbm(gpu, "dV")[4:]))


def test_a_constant_comes_from_registers():
    gpu = machine()
    gpu.fill("fill", gpu.tensor("LSE")[0, 0:4], -np.inf)
    assert counts(gpu) == Counts(writes={"LSE": 4}, hbm_bytes=16)
    assert np.all(in_hbm(gpu, "LSE")[0, :4] == -np.inf)


def test_an_accumulate_reads_writes_and_adds():
    gpu = machine()
    region = gpu.tensor("dQ")[0, 0:4]
    gpu.fill("zero", region, 2.0)
    gpu.accumulate("add", region, gpu.in_registers("dQ", (4, 3), 1.0))
    expected = Counts({"dQ": 12}, {"dQ": 24}, hbm_bytes=72, add_flops=12)
    assert counts(gpu) == expected
    assert np.all(in_hbm(gpu, "dQ")[0, :4] == 3)


@pytest.mark.parametrize("add", [True, False])
def test_a_product_loads_each_operand_once(add):
    gpu = machine()
    sQ, sK = load(gpu, "Q", 0, slice(0, 4)), load(gpu, "K", slice(4, 6))
    sS = gpu.in_sram("S", (4, 2), 1.0)
    before = counts(gpu)
    gpu.product("S", sS, sQ, sK.T, scale=2.0, add=add)
    after = counts(gpu)
    assert after.sram_load_elements - before.sram_load_elements == 12 + 6 + (8 if add else 0)
    assert after.sram_store_elements - before.sram_store_elements == 8
    assert after.matmul_flops == 2 * 4 * 2 * 3
    expected = 2 * in_hbm(gpu, "Q")[0, :4] @ in_hbm(gpu, "K")[4:6].T + (1 if add else 0)
    np.testing.assert_allclose(sS.data, expected, rtol=1e-6)


def test_elementwise_work_loads_operands_and_stores_results_in_sram():
    gpu = machine()
    sO, r = load(gpu, "O", 0, slice(0, 4)), gpu.in_registers("r", (4,), 2.0)
    gpu.compute("work", (sO, r), (sO, r), lambda O, r: (O * r[:, None], r + 1), exp=5)
    found = counts(gpu)
    assert (found.sram_load_elements, found.sram_store_elements) == (8, 8 + 8)
    assert found.exp_count == 5
    np.testing.assert_array_equal(sO.data, 2 * in_hbm(gpu, "O")[0, :4])
    assert np.all(r.data == 3)


def test_the_peak_is_what_was_resident_at_once():
    gpu = machine()
    for size in (2, 4, 3):
        tile = gpu.in_sram("S", (size, 4), 0.0)
        tile.used = True
        gpu.free(tile)
    assert gpu.sram.peak == 4 * 4 * 2
    assert gpu.sram.used == 0


def test_registers_are_counted_apart():
    gpu = machine()
    for _ in gpu.head_grid():
        gpu.in_registers("S", (4, 4), 0.0)
        gpu.in_registers("m", (4,), 0.0)
        gpu.in_registers("S", (4, 2), 0.0)  # takes the place of the S before
    for _ in gpu.head_grid():
        gpu.in_registers("S", (4, 2), 0.0)
    assert gpu.register_peak == 4 * (4 * 2 + 4)
    assert gpu.sram.peak == 0


def test_a_tensor_made_from_another_counts_under_its_name():
    gpu = machine()
    for name in ("P", "dropped P"):
        gpu.fill("fill", gpu.tensor(name)[0, 0:4], float(len(name)))
    assert counts(gpu).writes == {"P": 2 * 4 * 6}
    assert np.all(in_hbm(gpu, "P")[0, :4] == 1)
    assert np.all(in_hbm(gpu, "dropped P")[0, :4] == 9)


def test_a_loaded_tile_does_not_change_with_hbm():
    gpu = machine()
    sO = load(gpu, "O", 0, slice(0, 4))
    before = sO.data.copy()
    gpu.fill("overwrite", gpu.tensor("O")[0, 0:4], 7.0)
    np.testing.assert_array_equal(sO.data, before)


# What it refuses


def test_reading_a_freed_tile():
    gpu = machine()
    sK, sV = load(gpu, "K", slice(0, 4)), load(gpu, "V", slice(0, 4))
    rO = gpu.in_registers("O", (3, 2))
    gpu.product("use", rO, sK.T, sV)
    gpu.free(sK)
    with pytest.raises(TileError, match=r"^again: tile K \(3x4\) is read but not resident"):
        gpu.product("again", rO, sK.T, sV)


def test_writing_a_freed_tile():
    gpu = machine()
    sO = load(gpu, "O", 0, slice(0, 4))
    gpu.compute("use", (sO,), (sO,), np.negative)
    gpu.free(sO)
    with pytest.raises(TileError, match=r"tile O \(4x2\) is written but not resident"):
        gpu.compute("fill", (sO,), (), lambda: np.zeros((4, 2)))


def test_reading_a_tile_that_holds_nothing():
    gpu = machine()
    with pytest.raises(TileError, match=r"tile S \(4x4\) is read but nothing has been put into it"):
        gpu.compute("use", (), (gpu.in_registers("S", (4, 4)),), lambda S: ())


def test_loading_a_tile_that_is_never_used():
    gpu = machine()
    sK = load(gpu, "K", slice(0, 4))
    with pytest.warns(UnusedTile, match=r"tile K \(4x3\) was loaded but never used"):
        gpu.free(sK)


def test_a_transposed_tile_uses_the_tile():
    gpu = machine()
    sK = load(gpu, "K", slice(0, 4))
    gpu.compute("use", (gpu.in_registers("k", (4,)),), (sK.T,), lambda K: K[0])
    with warnings.catch_warnings(action="error"):
        gpu.free(sK)


def test_freeing_twice():
    gpu = machine()
    sK = gpu.in_sram("K", (4, 3), 0.0)
    sK.used = True
    gpu.free(sK)
    with pytest.raises(TileError, match=r"tile K \(4x3\) is freed but not resident"):
        gpu.free(sK)


def test_a_block_that_ends_with_resident_tiles():
    gpu = machine()

    def program():
        for _ in gpu.head_grid():
            load(gpu, "K", slice(0, 4))
            load(gpu, "V", slice(0, 4))

    with pytest.raises(TileError, match="not freed: K 4x3 24 bytes, V 4x2 16 bytes"):
        program()


def test_an_error_inside_a_block_is_not_hidden_by_its_tiles():
    gpu = machine()

    def program():
        for _ in gpu.head_grid():
            load(gpu, "K", slice(0, 4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


def test_a_tile_that_does_not_fit():
    gpu = machine(sram_bytes=50)
    load(gpu, "K", slice(0, 4))
    load(gpu, "V", slice(0, 4))
    message = (
        r"tile S \(4x2, 16 bytes\) does not fit: 10 of 50 bytes of SRAM are free; "
        r"resident: K 4x3 24 bytes, V 4x2 16 bytes"
    )
    with pytest.raises(SramOverflow, match=message):
        gpu.in_sram("S", (4, 2))
    gpu.in_sram("S", (1, 5))
    assert gpu.sram.peak == 50


def test_a_product_of_the_wrong_shape():
    gpu = machine()
    sQ, sK = load(gpu, "Q", 0, slice(0, 4)), load(gpu, "K", slice(0, 4))
    message = r"S: S \(4x4\) cannot hold the product of Q \(4x3\) and K \(4x3\)"
    with pytest.raises(TileError, match=message):
        gpu.product("S", gpu.in_registers("S", (4, 4)), sQ, sK)


def test_storing_a_tile_of_the_wrong_shape():
    gpu = machine()
    tile = gpu.in_registers("O", (4, 3), 0.0)
    message = r"tile O \(4x3\) does not fit O\[0, 4:8\], which is 4x2"
    with pytest.raises(TileError, match=message):
        gpu.store("store", gpu.tensor("O")[0, 4:8], tile)


def test_an_unknown_tensor():
    with pytest.raises(TileError, match=r"tensor must be one of Q, K, V, O, .* got 'W'"):
        machine().tensor("W")


# Blocks run in any order


@pytest.mark.parametrize("data", [True, False])
def test_two_blocks_that_store_to_the_same_place(data):
    gpu = machine(data, log=None if data else EventLog(), lines={"k": ["store"]})

    def program():
        for _ in gpu.column_grid():
            gpu.fill("store", gpu.tensor("dQ")[0, 2:4], 0.0)

    message = r"block 1 stores to dQ\[0, 2:4\] .*which block 0 .* stores to.*accumulate"
    with pytest.raises(TileError, match=message):
        program()


def test_blocks_may_store_beside_each_other_and_accumulate_in_one_place():
    gpu = machine()
    for head, rows in gpu.row_grid():
        gpu.fill("store", gpu.tensor("dQ")[head, rows], 0.0)
    gpu.kernel("next")
    for cols in gpu.column_grid():
        one = gpu.in_registers("dQ", (8, 3), float(cols.stop))
        gpu.accumulate("add", gpu.tensor("dQ")[0, 0:8], one)
    assert np.all(in_hbm(gpu, "dQ") == 4 + 6)


def test_a_block_and_a_later_kernel_may_store_again():
    gpu = machine()
    region = gpu.tensor("dQ")[0, 0:4]
    for _ in gpu.head_grid():
        gpu.fill("store", region, 0.0)
        gpu.fill("store", region, 1.0)
    gpu.kernel("next")
    for _ in gpu.head_grid():
        gpu.fill("store", region, 2.0)
    assert np.all(in_hbm(gpu, "dQ")[0, :4] == 2)


def test_a_block_that_reads_what_another_one_stores():
    gpu = machine()

    def racing():
        for number, cols in enumerate(gpu.column_grid()):
            if number == 0:
                gpu.fill("store", gpu.tensor("O")[0, cols], 0.0)
            else:
                load(gpu, "O", 0, slice(2, 6))

    with pytest.raises(TileError, match=r"block 1 reads O\[0, 2:6\] .*which block 0"):
        racing()


def test_reading_what_nothing_has_written():
    gpu = machine()
    with pytest.raises(TileError, match=r"dQ\[0, 0:4\] is read but nothing has written it"):
        load(gpu, "dQ", 0, slice(0, 4))


def test_reading_what_is_written_only_in_part():
    gpu = machine()
    gpu.fill("zero", gpu.tensor("dQ")[0, 0:4], 0.0)
    load(gpu, "dQ", 0, slice(0, 4))
    with pytest.raises(TileError, match=r"dQ\[0, 2:6\] is read but nothing has written all of it"):
        load(gpu, "dQ", 0, slice(2, 6))


# The log


def test_watched_values_are_kept_after_every_pair_of_tiles():
    log = EventLog()
    gpu = machine(log=log, lines={"k": ["work"]})
    for _, m_block, rows in gpu.query_tile_grid():
        total = gpu.in_registers("l", (rows.stop - rows.start,), 0.0)
        gpu.watch(row_sum=total)
        for n_block, _ in gpu.key_tiles(0, m_block):
            gpu.compute("work", (total,), (total,), lambda t, n=n_block: t + 1 + 10 * n)
    assert [values["row_sum"][0] for values in log.watched.values()] == [1, 12, 1, 12]
    columns = [(log.columns["m_block"][at], log.columns["n_block"][at]) for at in log.watched]
    assert columns == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_watched_matrix_keeps_its_leading_columns_as_they_were():
    log = EventLog()
    gpu = machine(log=log, lines={"k": ["work"]})
    for _, m_block, _ in gpu.query_tile_grid():
        tile = gpu.in_registers("O", (4, 6), 1.0)
        gpu.watch(O=tile)
        for _ in gpu.key_tiles(0, m_block):
            gpu.compute("work", (tile,), (tile,), lambda O: O)
        tile.data[:] = 9
    assert [values["O"].tolist() for values in log.watched.values()] == [[[1.0] * 4] * 4] * 4
