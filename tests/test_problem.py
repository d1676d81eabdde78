"""A problem refuses what it cannot mean, saying what is allowed and what it was given."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flash_numba.masks import Mask
from flash_numba.problem import DTYPES, Problem, dtype_name
from flash_numba.tiling import BlockMask

SIZES: dict[str, Any] = {"seqlen_q": 4, "seqlen_k": 6, "head_dim": 16}
SEEN = Mask("anything", lambda b, h, i, j, aux: True)
BLOCKS = BlockMask.from_mask(SEEN, Problem(**SIZES), 2, 2)


def test_what_is_not_said_has_a_default():
    problem = Problem(**SIZES)
    assert problem.softmax_scale == 0.25
    assert (problem.head_dim_v, problem.num_kv_heads, problem.group) == (16, 1, 1)
    assert (problem.dtype, problem.itemsize) == ("fp32", 4)
    assert problem.visibility is None
    assert problem.key_length(0) == 6


def test_key_lengths_align_each_sequence_to_its_own_end():
    problem = Problem(**SIZES, batch=2, key_lengths=[6, 3], causal=True)
    assert problem.shift.tolist() == [2, -1]
    assert [problem.key_length(batch) for batch in range(2)] == [6, 3]
    q_idx, k_idx = np.ogrid[:4, :6]
    assert problem.visibility is not None
    for batch, length in enumerate([6, 3]):
        seen = problem.visibility.keep(batch, 0, q_idx, k_idx, problem.visibility.aux)
        assert seen[3].tolist() == [j < length for j in range(6)]


def test_masks_combine_in_one():
    problem = Problem(**SIZES, causal=True, window=(1, None), mask=SEEN, block_mask=BLOCKS)
    assert problem.range_mask is not None
    assert problem.visibility is not None
    assert problem.range_mask.name == "causal & window(1, None) & anything"
    assert problem.visibility.name == "causal & window(1, None) & anything & anything"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"seqlen_q": -1}, ValueError, "seqlen_q must be a whole number >= 0, got -1"),
        ({"seqlen_k": 2.0}, ValueError, r"seqlen_k must be a whole number >= 0, got 2\.0"),
        ({"head_dim": 0}, ValueError, "head_dim must be a whole number >= 1, got 0"),
        ({"head_dim_v": 0}, ValueError, "head_dim_v must be a whole number >= 1, got 0"),
        ({"batch": True}, ValueError, "batch must be a whole number >= 0, got True"),
        ({"num_heads": 0}, ValueError, "num_heads must be a whole number >= 1, got 0"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be a whole number >= 1, got 0"),
        (
            {"num_heads": 6, "num_kv_heads": 4},
            ValueError,
            "num_heads must be a multiple of num_kv_heads, got num_heads=6 and num_kv_heads=4",
        ),
        ({"dtype": "int8"}, ValueError, "dtype must be one of fp32, fp16, bf16, fp8; got 'int8'"),
        (
            {"softmax_scale": float("nan")},
            ValueError,
            "softmax_scale must be a finite number, got nan",
        ),
        ({"softmax_scale": "big"}, ValueError, "softmax_scale must be a finite number, got 'big'"),
        ({"causal": "no"}, TypeError, "causal must be True or False, got 'no'"),
        ({"window": 3}, ValueError, r"window must be a pair \(left, right\).*got 3"),
        ({"window": (1, 2, 3)}, ValueError, r"window must be a pair.*got \(1, 2, 3\)"),
        ({"window": (-1, None)}, ValueError, "window side.*whole number >= 0, got -1"),
        ({"window": (None, 1.5)}, ValueError, r"window side.*whole number >= 0, got 1\.5"),
        ({"key_lengths": [1, 2]}, ValueError, r"key_lengths.*of shape \(1,\), got .*\(2,\)"),
        ({"key_lengths": [1.0]}, ValueError, "key_lengths must be whole numbers.*got float64"),
        ({"key_lengths": [7]}, ValueError, r"key_lengths must lie in 0\.\.6.*got \[7\]"),
        ({"key_lengths": [-1]}, ValueError, r"key_lengths must lie in 0\.\.6.*got \[-1\]"),
        ({"mask": np.ones((4, 6))}, TypeError, "mask must be a Mask or None, got array"),
        ({"block_mask": SEEN}, TypeError, "block_mask must be a BlockMask or None, got Mask"),
        (
            {"block_mask": BLOCKS, "seqlen_k": 7, "num_heads": 2},
            ValueError,
            r"\(1 or 1, 1 or 2, 2, 4\).*got \(1, 1, 2, 3\)",
        ),
        ({"score_mods": SEEN}, TypeError, "score_mods must be a sequence of ScoreMod, got Mask"),
        ({"score_mods": [SEEN]}, TypeError, "score_mods must hold ScoreMod objects, got Mask"),
        ({"dropout_p": 1.0}, ValueError, r"dropout_p must be in \[0, 1\), got 1\.0"),
        ({"dropout_p": -0.1}, ValueError, r"dropout_p must be in \[0, 1\), got -0\.1"),
        ({"dropout_p": None}, ValueError, "dropout_p must be a finite number, got None"),
        ({"seed": -1}, ValueError, "seed must be a whole number >= 0, got -1"),
        ({"seed": 2**64}, ValueError, r"seed must be below 2\*\*64, got 18446744073709551616"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_refused_by_name(options, error, says):
    with pytest.raises(error, match=says):
        Problem(**(SIZES | options))


@pytest.mark.parametrize(
    "options",
    [
        {"seqlen_q": 0},
        {"seqlen_k": 0},
        {"batch": 0, "key_lengths": []},
        {"softmax_scale": 0},
        {"softmax_scale": np.float32(-2)},
        {"causal": np.bool_(True)},
        {"window": (np.int64(2), None)},
        {"seed": 2**64 - 1},
        {"seqlen_q": np.int32(4)},
    ],
    ids=str,
)
def test_a_boundary_is_allowed(options):
    Problem(**(SIZES | options))


def arrays(**changes):
    given = {"q": (2, 4, 6, 8), "k": (2, 5, 3, 8), "v": (2, 5, 3, 7)} | changes
    return [np.zeros(given[name], np.float16) for name in ("q", "k", "v")]


def test_arrays_pose_their_problem():
    problem = Problem.of(*arrays(), causal=True)
    sizes = problem.batch, problem.seqlen_q, problem.seqlen_k, problem.head_dim, problem.head_dim_v
    assert sizes == (2, 4, 5, 8, 7)
    assert (problem.num_heads, problem.num_kv_heads, problem.dtype) == (6, 3, "fp16")
    assert problem.causal


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"q": (4, 6, 8)},
            r"q must have 4 axes \(batch, seqlen, heads, head_dim\), got shape \(4, 6, 8\)",
        ),
        ({"v": (2, 5, 3, 7, 1)}, r"v must have 4 axes.*got shape \(2, 5, 3, 7, 1\)"),
        ({"q": (3, 4, 6, 8)}, r"agree in batch \(.*q has 3, k has 2, v has 2"),
        ({"v": (2, 6, 3, 7)}, r"k and v must agree in seqlen_k \(.*k has 5, v has 6"),
        ({"v": (2, 5, 6, 7)}, r"k and v must agree in num_kv_heads \(.*k has 3, v has 6"),
        ({"q": (2, 4, 6, 9)}, r"q and k must agree in head_dim \(.*q has 9, k has 8"),
        ({"q": (2, 4, 7, 8)}, r"multiple of the heads of k and v, got 7 and 3.*layout is \(batch"),
        ({"k": (2, 5, 0, 8), "v": (2, 5, 0, 7)}, "num_kv_heads must be a whole number >= 1, got 0"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arrays_that_do_not_fit_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        Problem.of(*arrays(**changes))


def test_float64_arrays_need_a_dtype_to_stand_for():
    given = [array.astype(np.float64) for array in arrays()]
    with pytest.raises(TypeError, match=r"dtype must be one of float32, float16.*got float64"):
        Problem.of(*given)
    assert Problem.of(*given, dtype="bf16").dtype == "bf16"


def test_arrays_of_two_types_are_refused():
    q, k, v = arrays()
    with pytest.raises(TypeError, match="one dtype, got float16, float16 and float32"):
        Problem.of(q, k, v.astype(np.float32))


def test_every_type_has_a_name():
    for name, dtype in DTYPES.items():
        assert dtype_name(dtype) == name
    assert dtype_name(ml_dtypes.bfloat16) == "bf16"


def test_an_array_of_another_shape_is_refused():
    problem = Problem.of(*arrays())
    problem.check_shapes(dq=np.zeros((2, 4, 6, 8)), dlse=np.zeros((2, 6, 4)))
    with pytest.raises(ValueError, match=r"do must have shape \(2, 4, 6, 7\).*got \(2, 4, 6, 8\)"):
        problem.check_shapes(do=np.zeros((2, 4, 6, 8)))
    says = r"dlse must have shape \(2, 6, 4\) \(batch, num_heads, seqlen_q\), got \(2, 4, 6\)"
    with pytest.raises(ValueError, match=says):
        problem.check_shapes(dlse=np.zeros((2, 4, 6)))
