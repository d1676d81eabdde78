"""Kernels compile without a GPU for every architecture, and keep to registers where it matters."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda")

from flash_numba.kernels import flash1, flash1_backward, offline, tensor_core_tiles
from flash_numba.kernels.builds import ARCHITECTURES, Build, all_builds, listed_builds, prepare
from flash_numba.kernels.offline import assemble, compile_ptx, ptxas_release, static_shared_bytes
from flash_numba.kernels.spec import Spec, backward_tiles, forward_tiles
from flash_numba.kernels.tensor_core_gradients_tiles import gradient_tiles
from flash_numba.ladder import RUNGS
from flash_numba.launch import SHARED_LIMITS, shared_limit

TABLE = json.loads(
    (Path(__file__).parents[1] / "benchmarks/results/compile_table.json").read_text()
)
ROWS = {
    tuple(Build(**{f: row[f] for f in Build._fields})._replace(cc=tuple(row["cc"]))): row
    for row in TABLE["rows"]
}
# One of each kernel, and the oldest and the newest architecture.
COMPILED_HERE = [
    ("flash2", "forward", "fp32", 64, "causal", (7, 5)),
    ("flash2", "forward", "fp32", 128, "full", (9, 0, "a")),
    ("flash2", "backward", "fp32", 64, "full", (9, 0, "a")),
    ("flash2", "backward", "fp32", 128, "causal", (12, 0)),
]
# The simple rungs: kernels that walk tiles, and one that reads rows.
SIMPLE_COMPILED_HERE = [
    ("flash1", "forward", "fp32", 64, "causal", (7, 5)),
    ("flash1", "backward", "fp32", 64, "ALiBi and dropout", (9, 0, "a")),
    ("standard", "forward S", "fp32", 128, "causal", (7, 5)),
    ("standard", "backward dS", "fp16", 64, "ALiBi and dropout", (9, 0, "a")),
]
# Both element types, a GPU of each size of shared memory, one with all there is in a kernel.
TENSOR_CORE_COMPILED_HERE = [
    ("tensor_core", "forward", "fp16", 128, "causal", (7, 5)),
    ("tensor_core", "forward", "bf16", 128, "causal", (8, 9)),
    ("tensor_core", "forward", "fp16", 128, "full", (9, 0, "a")),
    ("tensor_core", "forward", "fp16", 64, "ALiBi and dropout", (9, 0, "a")),
    ("tensor_core", "backward", "bf16", 64, "causal", (9, 0, "a")),
    ("tensor_core", "backward dQ", "bf16", 64, "causal", (8, 0)),
    ("tensor_core", "backward dKdV", "fp16", 128, "full", (9, 0, "a")),
]
DATA_SHEET_KB = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (12, 0): 99}


def has_nvvm():
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvvm")
        load_nvidia_dynamic_lib("nvrtc")
    except RuntimeError:
        return False
    return True


def test_table_covers_the_listed_builds():
    assert set(ROWS) == {tuple(build) for build in listed_builds()}


@pytest.mark.parametrize("key", sorted(ROWS, key=str), ids=str)
def test_table_of_the_fast_tiles(key):
    """flash2's backward never spills; on the GPUs of most shared memory nothing plain does much."""
    row = ROWS[key]
    static = 0 if key[0] == "tensor_core" and key[1] != "backward" else 16
    assert row["shared_bytes"] + static <= 1024 * DATA_SHEET_KB[key[5][:2]]
    assert row["registers"] <= 255
    plain = key[5][:2] == (9, 0) and key[3] <= 128 and key[4] == "full"
    if plain or key[:2] == ("flash2", "backward"):
        # dK and dV side by side take every register: a dozen loads a tile cost less than another
        # tile.
        full = key[1] == "backward dKdV" or (key[1] == "backward" and key[3] == 128)
        allowed = 48 if key[0] == "tensor_core" and full else 0
        assert row["spill_bytes"] <= allowed
        assert row["stack_bytes"] <= allowed


MOST_SPILLED = {
    "full": 48,
    "causal": 128,
    "packed full": 64,
    "window and key lengths": 200,
    "packed causal": 200,
    "ALiBi and dropout": 2200,
}
"""Bytes that a thread of the fast rungs may spill, by kind of problem.

What is timed against other libraries is full or causal, by kernels with 48 bytes at most: 128 are
those of the two kernels that run where scores change or not all gradients are asked for. The ends
of a window and a sequence's place are numbers that the loop keeps besides, read again a tile.
Random bits beside a tile of S and one of dP do not fit at all.
"""


def test_spills_do_not_grow():
    fast = [row for row in ROWS.values() if row["rung"] not in ("standard", "flash1")]
    assert {row["kind"] for row in fast} == set(MOST_SPILLED)
    for row in fast:
        timed = row["kind"] == "causal" and row["head_dim"] <= 128
        timed &= row["direction"] not in ("backward dQ", "backward dKdV")
        assert row["spill_bytes"] <= (48 if timed else MOST_SPILLED[row["kind"]]), row


@pytest.mark.parametrize("cc", sorted(DATA_SHEET_KB), ids=str)
def test_shared_limits_are_those_of_the_data_sheets(cc):
    assert shared_limit(cc) == 1024 * DATA_SHEET_KB[cc]
    assert SHARED_LIMITS[cc] == DATA_SHEET_KB[cc]


@pytest.mark.parametrize("cc", sorted(DATA_SHEET_KB), ids=str)
@pytest.mark.parametrize("vectors", [True, False])
def test_tiles_of_every_head_dim_fit_every_gpu(cc, vectors):
    for head_dim in range(1, 257, 5):
        for head_dim_v in (head_dim, 257 - head_dim):
            spec = Spec("fp32", head_dim, head_dim_v, vectors)
            forward = forward_tiles(spec, cc, shared_limit(cc))
            backward = backward_tiles(spec, cc, shared_limit(cc))
            for tiles in (forward, backward):
                assert tiles.shared_bytes + 16 <= shared_limit(cc)
                assert tiles.depth >= head_dim
                assert tiles.depth_v >= head_dim_v
            assert backward.depth % (backward.q_lanes * backward.q_parts) == 0
            assert backward.q_rows % 4 == 0


def test_every_build_of_every_rung_fits_its_gpu():
    """Of all rungs, kernels, types, kinds of problems and architectures; nothing is compiled."""
    builds = list(all_builds())
    assert {build.rung for build in builds} == {rung.name for rung in RUNGS if rung.modules}
    alike = {build._replace(kind="full", dtype="fp32"): build for build in builds}
    for build in alike.values():
        _, _, shared_bytes = prepare(build)
        assert shared_bytes <= 1024 * DATA_SHEET_KB[build.cc[:2]], build


@pytest.mark.parametrize("cc", sorted(DATA_SHEET_KB), ids=str)
def test_tiles_of_flash1_leave_room_for_its_factors(cc):
    for head_dim in range(1, 257, 5):
        for module in (flash1, flash1_backward):
            tiles = module.chosen_tiles(Spec("fp32", head_dim, 257 - head_dim, False), cc)
            assert tiles.shared_bytes + 8 * tiles.tile_m <= 1024 * DATA_SHEET_KB[cc]


def test_tiles_beyond_256_are_refused():
    with pytest.raises(ValueError, match="at most 256, got 257 and 64"):
        forward_tiles(Spec("fp32", 257, 64), (9, 0), shared_limit((9, 0)))
    with pytest.raises(ValueError, match="at most 256, got 64 and 300"):
        backward_tiles(Spec("fp32", 64, 300), (9, 0), shared_limit((9, 0)))
    with pytest.raises(ValueError, match="at most 256, got 257 and 64"):
        tensor_core_tiles.forward_tiles(Spec("fp16", 257, 64), (9, 0), shared_limit((9, 0)))


def test_older_gpus_are_refused():
    with pytest.raises(ValueError, match=r">= 7\.5, got 7\.0"):
        shared_limit((7, 0))


def compiled(key):
    if not has_nvvm():
        pytest.skip("no NVVM library: install the extra cu13")
    (build,) = (build for build in listed_builds() if tuple(build) == key)
    kernel, signature, shared_bytes = prepare(build)
    ptx = compile_ptx(kernel, signature, build.cc)
    assert "__local_depot" not in ptx
    own = static_shared_bytes(ptx)
    keeps_some = build.rung in ("flash1", "hopper") or build.direction == "backward"
    assert (own > 0) == keeps_some
    assert shared_bytes + own <= 1024 * DATA_SHEET_KB[build.cc[:2]]
    return build, ptx


@pytest.mark.parametrize("key", COMPILED_HERE, ids=str)
def test_build(key):
    build, ptx = compiled(key)
    assert ptx.count("fma.rn.f32") >= 256
    assert ("cp.async" in ptx) == (build.cc >= (8, 0))
    check_resources(build, ptx)


@pytest.mark.parametrize("key", SIMPLE_COMPILED_HERE, ids=str)
def test_build_of_a_simple_rung(key):
    check_resources(*compiled(key))


@pytest.mark.parametrize("key", TENSOR_CORE_COMPILED_HERE, ids=str)
def test_build_of_the_tensor_core_rung(key):
    build, ptx = compiled(key)
    ampere = build.cc >= (8, 0)
    shape = "m16n8k16" if ampere else "m16n8k8"
    kind = {"fp16": "f16", "bf16": "bf16"}[build.dtype]
    assert ptx.count(f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32") >= 64
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared") >= 16
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared") >= 16
    assert ("cp.async" in ptx) == ampere
    check_resources(build, ptx)


@pytest.mark.parametrize("cc", sorted(DATA_SHEET_KB), ids=str)
@pytest.mark.parametrize("vectors", [True, False])
def test_tensor_core_tiles_of_every_head_dim_fit_every_gpu(cc, vectors):
    for head_dim in range(1, 257, 5):
        for head_dim_v in (head_dim, 257 - head_dim):
            spec = Spec("fp16", head_dim, head_dim_v, vectors)
            tiles = tensor_core_tiles.forward_tiles(spec, cc, shared_limit(cc))
            assert tiles.shared_bytes <= shared_limit(cc)
            assert tiles.depth >= head_dim
            assert tiles.depth_v >= head_dim_v
            assert tiles.tile_n % (tiles.threads // 8) == tiles.tile_m % (tiles.threads // 8) == 0
            gradients = gradient_tiles(spec, cc, shared_limit(cc))
            assert (gradients is None) == (cc == (7, 5)) or max(head_dim, head_dim_v) > 128
            if gradients is not None:
                at_once = gradients.threads // 8
                assert gradients.tile_n % at_once == gradients.tile_m % at_once == 0
                assert gradients.dq_blocks * gradients.dq_spread > 0
                assert gradients.shared_bytes + 16 <= shared_limit(cc)


HOPPER_COMPILED_HERE = [
    ("hopper", "forward", "fp16", 64, "causal", (9, 0, "a")),
    ("hopper", "forward", "bf16", 128, "full", (9, 0, "a")),
]


@pytest.mark.parametrize("key", HOPPER_COMPILED_HERE, ids=str)
def test_build_of_the_hopper_rung(key):
    """Its products stay asynchronous: `assemble` raises where ptxas serialises them."""
    build, ptx = compiled(key)
    kind = {"fp16": "f16", "bf16": "bf16"}[build.dtype]
    steps = build.head_dim // 16
    assert ptx.count(f"m64n128k16.f32.{kind}.{kind}") >= 2 * steps
    assert ptx.count("cp.async.bulk.tensor.4d.shared") >= 3
    assert ptx.count("cp.async.bulk.tensor.4d.global") >= 1
    assert "setmaxnreg.dec" in ptx
    check_resources(build, ptx)


def test_serialised_products_are_refused(monkeypatch):
    """A compiler that says so is an error, not a slower kernel."""
    said = "ptxas info : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
    said += "serialized due to insufficient register resources"
    run = SimpleNamespace(stdout="", stderr=said, returncode=0)
    monkeypatch.setattr(offline.subprocess, "run", lambda *_, **__: run)
    monkeypatch.setattr(offline, "find_ptxas", lambda: "ptxas")
    with pytest.raises(RuntimeError, match="asynchrony out of wgmma"):
        assemble("", (9, 0, "a"))


def check_resources(build, ptx):
    """They are those of the table, where the same ptxas is installed."""
    if ptxas_release() is None:
        pytest.skip("no ptxas: pip install nvidia-cuda-nvcc")
    found = assemble(ptx, build.cc)
    if ptxas_release() == TABLE["ptxas"]:
        row = ROWS[tuple(build)]
        assert abs(found.registers - row["registers"]) <= 4
        assert found.spill_bytes <= row["spill_bytes"]


def test_architectures_are_the_supported_ones():
    assert {cc[:2] for cc in ARCHITECTURES} == set(DATA_SHEET_KB)
