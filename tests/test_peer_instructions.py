"""What flash2 and torch's fp32 kernel execute, as ncu prints it and as README tells it."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import nsight  # noqa: E402

FOUND = json.loads((ROOT / "benchmarks" / "results" / "h200_peer_instructions.json").read_text())
FLASH2, TORCH = (row["instructions"] for row in FOUND["rows"])
SHAPE = FOUND["shape"]
MULTIPLY_ADDS = 2 * SHAPE["batch"] * SHAPE["heads"] * SHAPE["seqlen"] ** 2 * SHAPE["head_dim"]
"""Of the two products of a forward pass."""

PRINTED = """==PROF== Profiling "one"
"Kernel Name","one(float*)"
"Address","Source","# Samples","Instructions Executed"
"0x10","      LDC R1, c[0x0][0x28]","1","4"
"0x20","@!P0  LDS.128 R4, [R2]","2","1,024"
"0x30","@P1   LDS.128 R8, [R2+0x10]","2","6"
"0x40","      EXIT","0","4"
"Kernel Name","two"
"Address","Source","# Samples","Instructions Executed"
"0x10","      EXIT","0","8"
"""


def test_instructions_of_each_kernel_are_added_up():
    assert nsight.by_instruction(PRINTED.splitlines()) == {
        "one(float*)": {"LDS.128": 1030, "LDC": 4, "EXIT": 4},
        "two": {"EXIT": 8},
    }
    with pytest.raises(RuntimeError, match="no kernels were profiled"):
        nsight.by_instruction(["==WARNING== no kernels were profiled"])


def test_flash2_multiplies_without_tensor_cores():
    multiply_adds = 32 * FLASH2["FFMA"]
    assert MULTIPLY_ADDS <= multiply_adds <= 1.01 * MULTIPLY_ADDS
    assert not any(name.startswith("HMMA") for name in FLASH2)


def test_torch_multiplies_three_times_in_tf32():
    products = [name for name in TORCH if name.startswith("HMMA")]
    assert products == ["HMMA.1688.F32.TF32"]
    assert 16 * 8 * 8 * TORCH[products[0]] == 3 * MULTIPLY_ADDS
    told = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"each product as three in TF32 (`{products[0]}`" in told
