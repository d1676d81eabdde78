import builtins
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flash_numba.problem import Problem
from simulator.inputs import demo_input, load_input, random_input
from simulator.installation import install_extra


def tensors(
    seed=0, q=(2, 5, 4, 8), k=(2, 7, 2, 8), v=(2, 7, 2, 6), dtype: type = np.float32
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in (("q", q), ("k", k), ("v", v))
    }


@pytest.fixture
def save(tmp_path):
    def save(name="in.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return save


def test_npz_keeps_values_and_ignores_what_else_is_there(save):
    arrays = tensors()
    loaded = load_input(save(**arrays, tokens=np.array(["a"])))
    for name, array in zip("qkv", loaded, strict=True):
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, arrays[name])


def test_npy_is_the_three_stacked(tmp_path):
    stacked = np.random.default_rng(1).standard_normal((3, 2, 5, 4, 8)).astype(np.float16)
    np.save(tmp_path / "in.npy", stacked)
    np.testing.assert_array_equal(load_input(tmp_path / "in.npy"), stacked)


def test_safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = tensors(dtype=ml_dtypes.bfloat16)
    numpy.save_file(arrays, tmp_path / "in.safetensors")
    loaded = load_input(str(tmp_path / "in.safetensors"))
    for name, array in zip("qkv", loaded, strict=True):
        assert array.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        (np.float64, None, np.float32),
        (np.float64, "bf16", ml_dtypes.bfloat16),
        (np.float32, "fp16", np.float16),
        (np.float16, None, np.float16),
    ],
)
def test_element_type(save, stored, asked, expected):
    arrays = tensors(dtype=stored)
    for name, array in zip("qkv", load_input(save(**arrays), dtype=asked), strict=True):
        assert array.dtype == expected
        np.testing.assert_array_equal(array, arrays[name].astype(expected))


def refused(path, message, dtype=None, error: type[Exception] = ValueError):
    with pytest.raises(error) as caught:
        load_input(path, dtype=dtype)
    assert re.search(message, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": (2, 5, 8)}, r"^q must have 4 axes \(batch, seqlen, heads, head_dim\), got .*5, 8"),
        ({"k": (2, 6, 2, 8)}, "k and v must agree in seqlen_k .*; k has 6, v has 7"),
        ({"v": (1, 7, 2, 6)}, "agree in batch .* v has 1"),
        ({"k": (2, 7, 2, 9)}, "q and k must agree in head_dim .* k has 9"),
        ({"q": (2, 5, 3, 8)}, "heads of q must be a multiple .* got 3 and 2"),
    ],
)
def test_shapes_are_refused(save, changed, message):
    refused(save(**tensors(**changed)), message)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused_with_its_place(save, bad):
    arrays = tensors()
    arrays["k"][1, 3, 0, 2] = bad
    refused(save(**arrays), rf"^k must be finite, got {bad} at \(1, 3, 0, 2\) \(1 such")


def test_what_the_element_type_cannot_hold_is_refused(save):
    arrays = tensors()
    arrays["v"][0, 1, 0, 2] = 70000
    assert load_input(save(**arrays))[2][0, 1, 0, 2] == 70000
    refused(save(**arrays), r"^v must fit fp16, got 70000.0 at \(0, 1, 0, 2\)", dtype="fp16")
    refused(save(**arrays), r"^v must fit fp8", dtype="fp8")


@pytest.mark.parametrize("dtype", [np.int32, np.complex64, bool])
def test_non_float_is_refused(save, dtype):
    arrays = tensors()
    arrays["q"] = np.zeros((2, 5, 4, 8), dtype)
    refused(save(**arrays), f"^q must hold floats, got dtype {np.dtype(dtype)}")


def test_bf16_in_npz_has_lost_its_type(save):
    refused(save(**tensors(dtype=ml_dtypes.bfloat16)), "must hold floats, got dtype .*safetensors")


def test_wrong_keys(save):
    arrays = tensors()
    refused(
        save(query=arrays["q"], k=arrays["k"]), "named q, k and v; .* lacks q, v and holds k, q"
    )
    refused(save(), "lacks q, k, v and holds nothing")


@pytest.mark.parametrize("shape", [(2, 2, 5, 4, 8), (3, 5, 4, 8), (3,), ()])
def test_npy_of_another_shape(tmp_path, shape):
    np.save(tmp_path / "in.npy", np.zeros(shape))
    refused(tmp_path / "in.npy", rf"must have shape \(3, batch.*got {re.escape(str(shape))}")


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize("name", ["in.npy", "in.npz", "in.pkl", "in.pt"])
def test_pickles_are_refused_unopened(tmp_path, name):
    bomb = np.array([Bomb()], dtype=object)
    path = tmp_path / name
    if name == "in.npz":
        np.savez(path, q=bomb, k=bomb, v=bomb)
    elif name == "in.npy":
        np.save(path, bomb)
    else:
        path.write_bytes(pickle.dumps(Bomb()))
    refused(path, "pickled Python objects are refused")


def test_a_bare_pickle_called_npy_is_refused(tmp_path):
    (tmp_path / "in.npy").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path / "in.npy", "a pickle: pickled Python objects are refused")


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"])
def test_unreadable(tmp_path, suffix, content):
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"in.{suffix}"
    path.write_bytes(content)
    refused(path, "^input must be .*cannot be read: .")


@pytest.mark.parametrize("keep", [0.2, 0.9])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_truncated(tmp_path, suffix, keep):
    path = tmp_path / f"in.{suffix}"
    if suffix == "npy":
        np.save(path, np.zeros((3, 1, 50, 2, 8)))
    else:
        np.savez(path, **tensors())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    refused(path, "^input must be .*cannot be read: .")


def test_damaged_inside_an_archive(tmp_path):
    path = tmp_path / "in.npz"
    np.savez_compressed(path, **tensors())
    damaged = bytearray(path.read_bytes())
    damaged[60:90] = bytes(30)
    path.write_bytes(damaged)
    refused(path, "cannot be read: .")


def test_missing_file_folder_and_kind(tmp_path):
    refused(tmp_path / "none.npz", "does not exist", error=FileNotFoundError)
    (tmp_path / "folder.npy").mkdir()
    refused(tmp_path / "folder.npy", "cannot be read: .*directory")
    refused(tmp_path / "in.csv", r"must be \.npz .* got .*in\.csv")
    refused(tmp_path / "in.npz", "dtype must be one of fp32, fp16, bf16, fp8; got 'int8'", "int8")


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def blocked(name, *rest, **options):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return real(name, *rest, **options)

    (tmp_path / "in.safetensors").write_bytes(b"")
    monkeypatch.setattr(builtins, "__import__", blocked)
    refused(tmp_path / "in.safetensors", re.escape(install_extra("safetensors")))


def test_demo_input():
    q, k, v, tokens = demo_input()
    assert q.shape == k.shape == v.shape == (1, 206, 12, 32)
    assert len(tokens) == 206
    assert tokens[:3] == ["[CLS]", "it", "is"]


def test_random_input_follows_problem_and_seed():
    problem = Problem(40, 60, 16, head_dim_v=8, batch=2, num_heads=4, num_kv_heads=2, dtype="bf16")
    q, k, v = random_input(problem, seed=3)
    assert q.shape == (2, 40, 4, 16)
    assert k.shape == (2, 60, 2, 16)
    assert v.shape == (2, 60, 2, 8)
    assert {array.dtype for array in (q, k, v)} == {np.dtype(ml_dtypes.bfloat16)}
    # 5120 normal values: the standard error of their variance is sqrt(2/5120) = 0.02.
    assert abs(np.var(q.astype(np.float64)) - 1) < 0.1
    np.testing.assert_array_equal(random_input(problem, seed=3)[0], q)
    assert (random_input(problem, seed=4)[0] != q).any()
