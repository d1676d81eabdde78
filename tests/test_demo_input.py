import zipfile
from importlib import resources

import numpy as np
import pytest

DATA = resources.files("simulator") / "data"


@pytest.fixture(scope="module")
def demo():
    with resources.as_file(DATA / "minilm_layer.npz") as path, np.load(path) as arrays:
        return dict(arrays)


def test_is_small_and_holds_no_pickle():
    with resources.as_file(DATA / "minilm_layer.npz") as path:
        assert path.stat().st_size < 1_000_000
        assert sorted(zipfile.ZipFile(path).namelist()) == ["k.npy", "q.npy", "tokens.npy", "v.npy"]
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["tokens"].dtype.kind == "U"


def test_shapes_and_values(demo):
    for name in "qkv":
        assert demo[name].shape == (1, 206, 12, 32)
        assert demo[name].dtype == np.float16
        assert np.isfinite(demo[name]).all()
        assert (demo[name].std(axis=(0, 1, 3), dtype=np.float64) > 0.05).all()


def test_tokens_are_the_paragraph(demo):
    tokens = demo["tokens"].tolist()
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    text = " ".join(tokens).replace(" ##", "")
    assert text.startswith(
        "[CLS] it is interesting to contemplate an entangled bank , clothed with"
    )
    assert text.endswith("the higher animals , directly follows . [SEP]")


def test_heads_have_the_habits_that_the_readme_states(demo):
    q, k = (demo[name][0].astype(np.float64) for name in "qk")
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(32)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.trace(weights[8], 1) / 206 == pytest.approx(0.67, abs=0.005)
    assert np.trace(weights[9], -1) / 206 == pytest.approx(0.40, abs=0.005)
    entropy = -(weights * np.log(weights)).sum(-1).mean(-1)
    assert entropy[[1, 5]].min() > 0.75 * np.log(206)
