"""Every instruction's emulation against what an H200 gave on random operands.

The kernels of three programs of benchmarks/ run thread by thread on the same operands: basic
instructions, Hopper's barriers, register moves and clusters, and what its backward pass adds.
Matrices and bulk copies have tests of their own. What the PTX ISA says is written here once more,
on NumPy.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels need numba")
pytest.importorskip("greenlet")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import basic_instructions as basic  # noqa: E402
import hopper_backward_instructions as gradients  # noqa: E402
import hopper_barriers as hopper  # noqa: E402

import flash_numba.device as device  # noqa: E402
from flash_numba.problem import DTYPES  # noqa: E402
from simulator.threads import trace  # noqa: E402

TINY = 2.0**-126
"""Smallest normal float32: below it ``.ftz`` gives 0."""
ELSEWHERE = {
    "tensor_core_instructions": "mma_m16n8k16_fp16 mma_m16n8k16_bf16 mma_m16n8k8_fp16 ldmatrix_x1 "
    "ldmatrix_x2 ldmatrix_x4 ldmatrix_x1_trans ldmatrix_x2_trans ldmatrix_x4_trans pack_fp16 "
    "pack_bf16 pack_fp16_by_parts",
    "hopper_instructions": "barrier_init barrier_expect barrier_wait fence_async "
    "fence_barrier_init tensor_load tensor_store bulk_commit bulk_wait_read map_address "
    "make_multiply_tiles make_add_product make_wait make_operand",
}
"""Instructions that other programs record, by the name of program and record."""
HINTS = "unroll_full unroll_none unroll_2 unroll_4 unroll_8"
"""What the compiler is told; no instruction."""


def record(program: str):
    path = BENCHMARKS / "results" / f"{program}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} was not measured yet")
    with np.load(path) as kept:
        return dict(kept)


def traced(cases: dict, name: str, cluster: int = 1, shared_bytes: int = 0, arguments=None) -> list:
    """What a case's kernel gives thread by thread."""
    case = cases[name]
    arrays = tuple(array.copy() for array in (*case.inputs, *case.outputs))
    given = arrays if arguments is None else arguments(case, arrays)
    trace(case.kernel, cluster=cluster)[case.blocks, case.threads, 0, shared_bytes](*given)
    return list(arrays[len(case.inputs) :])


def intrinsics() -> set[str]:
    """Names of all instructions of `flash_numba.device`, and of the functions that make some."""
    found = set()
    for info in pkgutil.walk_packages(device.__path__, "flash_numba.device."):
        module = importlib.import_module(info.name)
        found |= {name for name, value in vars(module).items() if hasattr(value, "emulate")}
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("make_"):
                names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                if names & {"described", "emulated_by"}:
                    found.add(node.name)
    return found


def test_every_instruction_is_recorded():
    known = HINTS.split()
    for case in (case for one in (basic, hopper, gradients) for case in one.cases().values()):
        known += case.covers.split()
    for program, names in ELSEWHERE.items():
        text = (BENCHMARKS / f"{program}.py").read_text()
        for name in names.split():
            made = name.split("_x")[0] if name.startswith("ldmatrix") else name
            assert made in text, (program, name)
        known += names.split()
    assert intrinsics() <= set(known)
    assert {name for name in known if not name.startswith("make_")} <= intrinsics()


# What the PTX ISA says


def bits(array) -> np.ndarray:
    return np.asarray(array).view({2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def equal_numbers(found, expected) -> bool:
    """Equal to the bit, but for the payload of a NaN."""
    nan = np.isnan(found) & np.isnan(expected)
    return bool((nan | (bits(found) == bits(expected))).all())


def test_arithmetic_is_as_the_isa_defines_it():
    """9.7.3: ``ex2.approx.ftz`` to 2**-22; ``max`` prefers numbers to NaN, +0 to -0; ``mul.rn``."""
    case = basic.cases()["numbers"]
    x, y = case.inputs
    power, most, product, same = traced(basic.cases(), "numbers")
    with np.errstate(all="ignore"):
        exact = np.exp2(x.astype(np.float64))
        close = np.abs(power - exact) <= 2.0**-22 * exact + TINY
        assert (close | (power == exact) | (np.isnan(x) & np.isnan(power)) | (exact > 3.4e38)).all()
        larger = np.where(np.isnan(y) | (x > y), x, y)
        larger = np.where(np.isnan(x), y, larger)
        larger = np.where((x == 0) & (y == 0), x + y, larger)
        larger = np.where((x == 0) & (y == 0) & (np.signbit(x) & np.signbit(y)), x, larger)
        assert equal_numbers(most, larger.astype(np.float32))
        assert equal_numbers(product, (x.astype(np.float64) * y.astype(np.float64)).astype("f4"))
    np.testing.assert_array_equal(same, np.arange(len(x)))


def test_quick_arithmetic_is_as_the_isa_defines_it():
    """9.7.3.14, 9.7.3.20: ``rcp.approx`` to 2**-23, ``lg2.approx`` to 2**-22."""
    (x,) = basic.cases()["quick_numbers"].inputs
    logarithm, inverse = traced(basic.cases(), "quick_numbers")
    exact = np.log2(x.astype(np.float64))
    assert (np.abs(logarithm - exact) <= 2.0**-22 * np.maximum(np.abs(exact), 1)).all()
    assert (np.abs(inverse * x.astype(np.float64) - 1) <= 2.0**-23).all()


def test_conversions_are_as_the_isa_defines_them():
    """9.7.9.22: to nearest even; 9.7.9.3: bits as they are."""
    halves, x, words = basic.cases()["conversions"].inputs
    wide, narrow, as_bits, floats = traced(basic.cases(), "conversions")
    with np.errstate(all="ignore"):
        assert equal_numbers(wide, halves.view(np.float16).astype(np.float32))
        assert equal_numbers(narrow.view(np.float16), x.astype(np.float16))
    np.testing.assert_array_equal(as_bits, bits(x))
    np.testing.assert_array_equal(bits(floats), words)


def test_movements_are_as_the_isa_defines_them():
    cases = basic.cases()
    x, h = cases["vectors"].inputs
    y, g = traced(cases, "vectors")
    turned = x.reshape(4, 64, 4)[::-1, ::-1]
    np.testing.assert_array_equal(y, turned.ravel())
    np.testing.assert_array_equal(g, h.reshape(256, 4)[::-1].ravel())
    (x,) = cases["pairs"].inputs
    (y,) = traced(cases, "pairs")
    np.testing.assert_array_equal(y, np.concatenate([x[510::-2], x[511::-2]]))
    x, h = cases["past L1"].inputs
    y, g = traced(cases, "past L1")
    np.testing.assert_array_equal(y, x.reshape(256, 4)[::-1].ravel())
    np.testing.assert_array_equal(g, h.reshape(256, 2)[::-1].ravel())
    flag, y = traced(cases, "messages")
    doubled = 2 * cases["messages"].inputs[0]
    np.testing.assert_array_equal(y, [doubled, doubled[::-1]])
    np.testing.assert_array_equal(flag, [7])
    x, h = cases["copies"].inputs
    y, g = traced(cases, "copies")
    t = np.arange(256)[:, None]
    np.testing.assert_array_equal(y, np.where(t[::-1] % 3 > 0, x.reshape(256, 4), 0).ravel())
    np.testing.assert_array_equal(g, np.where(t[::-1] % 3 > 1, h.reshape(256, 2), 0).ravel())
    (h,) = cases["words"].inputs
    g, f = traced(cases, "words")
    eights = h.reshape(256, 8)[np.arange(256) ^ 5]
    np.testing.assert_array_equal(g, eights.ravel())
    words = eights.reshape(256, 4, 2)[:, ::-1].reshape(256, 8)
    np.testing.assert_array_equal(f, words[np.arange(256) ^ 9].ravel())


def of_hopper(name: str, program=hopper) -> list:
    case = program.cases()[name]
    return traced(program.cases(), name, case.cluster, case.shared_bytes, program.arguments)


def test_barriers_and_clusters_are_as_the_isa_defines_them():
    (x,) = hopper.cases()["pipeline"].inputs
    y, z = of_hopper("pipeline")
    tiles = np.arange(hopper.TILES, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(y, x[:, ::-1] + tiles)
    np.testing.assert_array_equal(z, (x[0] + x[-1, ::-1])[np.arange(128) ^ 64])
    (x,) = hopper.cases()["neighbours"].inputs
    seen, written, added, who = of_hopper("neighbours")
    other = np.arange(4) ^ 1
    np.testing.assert_array_equal(seen, x[other][:, ::-1])
    np.testing.assert_array_equal(written, 2 * x[other][:, np.arange(128) ^ 1])
    t = np.arange(128).reshape(32, 4)
    sums = np.arange(4) + (t + (other % 2)[:, None, None]).sum(1)
    np.testing.assert_array_equal(added, sums)
    np.testing.assert_array_equal(who, [20, 21, 20, 21])
    (tensor,) = hopper.cases()["one load for all"].inputs
    lines, order = of_hopper("one load for all")
    box = np.zeros((2, hopper.ROWS, hopper.COLUMNS), np.uint16)
    box[:, 3:] = tensor[0, :13].transpose(1, 0, 2)
    row, chunk = np.indices((hopper.ROWS, 8))
    swizzled = np.empty((2, hopper.ROWS, 8, 8), np.uint16)
    swizzled[:, row, chunk ^ row % 8] = box.reshape(2, hopper.ROWS, 8, 8)
    np.testing.assert_array_equal(lines, np.repeat(swizzled.reshape(2, -1), 2, axis=0))
    np.testing.assert_array_equal(order, np.tile(np.arange(128), (2, 1)))


# What an H200 gave


@pytest.mark.parametrize("name", basic.cases())
def test_basic_instructions_of_an_h200(name):
    """To the bit, whatever NaN; powers of two to the 2**-22 that the PTX ISA allows."""
    kept = record("basic_instructions")
    if f"{name}/0" not in kept:
        pytest.skip(f"{name} was not measured yet")
    for number, found in enumerate(traced(basic.cases(), name)):
        given = kept[f"{name}/{number}"]
        if (name, number) == ("numbers", 0):
            both_nan = np.isnan(found) & np.isnan(given)
            with np.errstate(invalid="ignore"):
                close = np.abs(found - given) <= 2.0**-22 * np.abs(given) + TINY
            assert (both_nan | close | (found == given)).all()
            continue
        if name == "quick_numbers":
            assert (np.abs(found - given) <= 2.0**-22 * np.maximum(np.abs(given), 1)).all()
            continue
        if (name, number) == ("conversions", 1):
            found, given = found.view(np.float16), given.view(np.float16)
        if found.dtype.kind == "f" and (name, number) != ("conversions", 3):
            assert equal_numbers(found, given), number
        else:
            np.testing.assert_array_equal(bits(found), bits(given))


@pytest.mark.parametrize("name", hopper.cases())
def test_barriers_and_clusters_of_an_h200(name):
    kept = record("hopper_barriers")
    for number, found in enumerate(of_hopper(name)):
        np.testing.assert_array_equal(found, kept[f"{name}/{number}"])


@pytest.mark.parametrize("name", gradients.cases())
def test_instructions_of_hopper_gradients_of_an_h200(name):
    """To the bit; sums of normal numbers as far off as 129 additions in float32 may be."""
    kept = record("hopper_backward_instructions")
    for number, found in enumerate(of_hopper(name, gradients)):
        given = kept[f"{name}/{number}"]
        if name.endswith("normal"):
            inputs, dtype = gradients.cases()[name].inputs, name.split()[1]
            a, b = (one.view(DTYPES[dtype]).astype(float)[0, :, 0] for one in inputs)
            terms = np.linalg.norm(a, axis=0).max() * np.linalg.norm(b, axis=1).max()
            assert np.abs(found - given).max() <= 129 * 2.0**-23 * terms
        else:
            np.testing.assert_array_equal(bits(found), bits(given))


PROGRAMS = ["basic_instructions", "hopper_barriers", "hopper_instructions"]
PROGRAMS += ["hopper_backward_instructions"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_records_say_where_they_are_from(program):
    machine = json.loads(str(record(program)["machine"]))
    assert set(machine) == {"gpu", "driver", "versions", "date"}
    assert machine["gpu"] == "NVIDIA H200"
