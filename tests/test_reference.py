"""The float64 reference: every gradient by finite differences, and what must not change an answer.

`test_reference_torch.py` holds it against torch, `test_cases.py` against known answers.
"""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from harness import dense
from hypothesis import given, settings
from hypothesis import strategies as st

from flash_numba import masks, reference
from flash_numba.dropout import keep_mask
from flash_numba.masks import Mask, ScoreMod
from flash_numba.problem import Problem
from flash_numba.tiling import BlockMask

N, M, D = 6, 7, 5
SIZES: dict[str, Any] = {"seqlen_q": N, "seqlen_k": M, "head_dim": D, "dtype": "fp32"}
SIZES |= {"head_dim_v": 4, "batch": 2, "num_heads": 4, "num_kv_heads": 2}


def normal(seed: int, shape) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def arrays(problem: Problem) -> dict[str, Any]:
    names = "q", "k", "v", "do", "dlse"
    return {name: normal(seed, problem.shapes[name]) for seed, name in enumerate(names)}


def cubed(score, batch, head, q_idx, k_idx, aux):
    return score + aux[0] * score * score * score


def cubed_derivative(score, batch, head, q_idx, k_idx, aux):
    return 1 + 3 * aux[0] * score * score


def doubled(score, batch, head, q_idx, k_idx, aux):
    return 2 * score


def wave(score, batch, head, q_idx, k_idx, aux):
    return math.sin(score) if k_idx > q_idx else 2 * score


def wave_derivative(score, batch, head, q_idx, k_idx, aux):
    return math.cos(score) if k_idx > q_idx else 2.0


def bias(*own) -> ScoreMod:
    return masks.bias(np.broadcast_to(normal(7, own), (2, 4, N, M)))


RANDOM_MASK = masks.boolean(normal(8, (2, 4, N, M)) > 0.5)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal-with-empty-rows": {"causal": True, "seqlen_k": 3},
    "window": {"window": (2, 1)},
    "lengths": {"key_lengths": [3, M], "causal": True, "window": (3, None)},
    "no-keys-in-one-sequence": {"key_lengths": [0, 5]},
    "boolean-mask": {"mask": RANDOM_MASK},
    "block-mask": {"block_mask": BlockMask.from_mask(RANDOM_MASK, Problem(**SIZES), 2, 3)},
    "bias": {"score_mods": [bias(2, 4, N, M)]},
    "bias-over-batch-and-queries": {"score_mods": [bias(1, 4, 1, M)]},
    "bias-over-heads-and-keys": {"score_mods": [bias(2, 1, N, 1)], "causal": True},
    "one-bias-for-all": {"score_mods": [bias(1, 1, 1, 1)]},
    "alibi": {"score_mods": [masks.alibi(np.abs(normal(9, (2, 4))), M - N)]},
    "softcap": {"score_mods": [masks.softcap(1.5)]},
    "relative": {"score_mods": [masks.relative_positions(normal(10, 3), np.arange(1, 4) / 3)]},
    "user": {"score_mods": [ScoreMod("cubed", cubed, (0.3,), cubed_derivative)]},
    "user-doubled": {"score_mods": [ScoreMod("doubled", doubled, (), lambda *where: 2.0)]},
    "user-scalars": {"score_mods": [ScoreMod("wave", wave, (), wave_derivative)], "causal": True},
    "dropout": {"dropout_p": 0.4, "seed": 12345678901},
    "scale-0": {"softmax_scale": 0.0},
    "scale-negative": {"softmax_scale": -0.7},
    "everything": {
        "causal": True,
        "window": (4, 3),
        "key_lengths": [5, M],
        "mask": masks.boolean(normal(11, (2, 4, N, M)) > -1),
        "score_mods": [
            masks.softcap(2.0),
            masks.alibi(np.abs(normal(12, (2, 4))), np.array([5 - N, M - N])),
            bias(1, 4, N, 1),
            masks.relative_positions(normal(13, 2), np.array([0.5, 2.0])),
            ScoreMod("cubed", cubed, (0.1,), cubed_derivative),
        ],
        "dropout_p": 0.2,
    },
}


def loss(problem: Problem, q, k, v, do, dlse) -> float:
    o, lse = reference.forward(problem, q, k, v)
    return float((o * do).sum() + (np.where(np.isfinite(lse), lse, 0) * dlse).sum())


@pytest.mark.filterwarnings("ignore:.*works only on scalars")
@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_gradients_agree_with_finite_differences(options):
    problem = Problem(**(SIZES | options))
    given = arrays(problem)
    gradients = reference.backward(problem, **given)
    tensors = [mod.aux[mod.aux_index] for mod in problem.score_mods if mod.aux_index is not None]
    assert len(gradients.aux) == len(tensors)
    variables = [given["q"], given["k"], given["v"], *map(own_part, tensors)]
    for number, (variable, gradient) in enumerate(
        zip(variables, [*gradients[:3], *gradients.aux], strict=True)
    ):
        assert gradient.shape == variable.shape
        assert gradient.dtype == np.float64
        for direction in normal(20 + number, (3, *variable.shape)):
            slope = central_difference(problem, given, variable, direction)
            expected = (gradient * direction).sum()
            # Central differences with step 1e-5 err by about 1e-10 of the third derivative.
            assert slope == pytest.approx(expected, rel=1e-6, abs=1e-7), number


def own_part(tensor: np.ndarray) -> np.ndarray:
    """A writable view of a broadcast tensor's own elements."""
    base = tensor if tensor.base is None else tensor.base
    return base if base.ndim == tensor.ndim else tensor


def central_difference(problem, given, variable, direction, step=1e-5) -> float:
    values = []
    was = variable.copy()
    for sign in (1, -1):
        variable[...] = was + sign * step * direction
        values.append(loss(problem, **given))
    variable[...] = was
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.filterwarnings("ignore:.*works only on scalars")
@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_rows_that_see_no_key_are_zero_and_nothing_is_nan(options):
    problem = Problem(**(SIZES | options))
    given = arrays(problem)
    o, lse = reference.forward(problem, given["q"], given["k"], given["v"])
    gradients = reference.backward(problem, **given)
    for array in (o, *gradients[:3], *gradients.aux):
        assert np.isfinite(array).all()
    empty = lse == -np.inf
    assert np.isfinite(lse[~empty]).all()
    rows = empty.transpose(0, 2, 1)
    assert not o[rows].any()
    assert not gradients.dq[rows].any()
    visible = np.zeros((2, 4, N, problem.seqlen_k), bool)
    for batch, head in np.ndindex(2, 4):
        length = problem.key_length(batch)
        q_idx, k_idx = np.ogrid[:N, :length]
        mask = problem.visibility
        keep = True if mask is None else mask.keep(batch, head, q_idx, k_idx, mask.aux)
        visible[batch, head, :, :length] = keep
    np.testing.assert_array_equal(empty, ~visible.any(axis=3))
    seen = visible.any(axis=2).reshape(2, 2, 2, -1).any(axis=2)
    unseen = ~np.swapaxes(seen, 1, 2)
    assert not gradients.dk[unseen].any()
    assert not gradients.dv[unseen].any()


def test_keys_beyond_a_sequences_own_length_are_never_read():
    problem = Problem(**SIZES, key_lengths=[3, 5], causal=True, dropout_p=0.3, seed=5)
    given = arrays(problem)
    clean = reference.forward(problem, given["q"], given["k"], given["v"])
    clean_gradients = reference.backward(problem, **given)
    for name in ("k", "v"):
        given[name][0, 3:], given[name][1, 5:] = np.nan, np.inf
    np.testing.assert_array_equal(
        reference.forward(problem, given["q"], given["k"], given["v"])[0], clean[0]
    )
    gradients = reference.backward(problem, **given)
    for found, right in zip(gradients[:3], clean_gradients[:3], strict=True):
        np.testing.assert_array_equal(found, right)
    assert not gradients.dk[0, 3:].any()
    assert not gradients.dv[1, 5:].any()


@pytest.mark.parametrize("length", [0, 1, 4, M])
def test_key_lengths_are_a_shorter_problem(length):
    options: dict[str, Any] = {"causal": True, "window": (3, 1), "head_dim_v": 4}
    padded = Problem(N, M, D, batch=1, key_lengths=[length], **options)
    short = Problem(N, length, D, **options)
    given = arrays(padded)
    cut = given | {name: given[name][:, :length] for name in ("k", "v")}
    for found, right in zip(
        reference.backward(padded, **given)[:3], reference.backward(short, **cut)[:3], strict=True
    ):
        np.testing.assert_allclose(found[:, : right.shape[1]], right, atol=1e-15)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3), st.booleans())
@settings(max_examples=100)
def test_random_sizes_agree_with_whole_array_attention(n, m, group, kv_heads, causal):
    sizes = {"num_heads": group * kv_heads, "num_kv_heads": kv_heads, "batch": 2}
    problem = Problem(n, m, D, 3, **sizes, causal=causal)
    given = arrays(problem)
    visible = np.tri(n, m, m - n, dtype=bool) if causal else True
    answers = dense(problem, **given, visible=visible)
    o, lse = reference.forward(problem, given["q"], given["k"], given["v"])
    dq, dk, dv, aux = reference.backward(problem, **given)
    for name, found in {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}.items():
        np.testing.assert_allclose(found, answers[name], 1e-12, 1e-12, err_msg=name)
    assert aux == ()


def test_dropout_drops_weights_after_the_softmax():
    options: dict[str, Any] = {"num_heads": 4, "batch": 2, "head_dim_v": M}
    whole = Problem(N, M, D, **options)
    dropped = Problem(N, M, D, **options, dropout_p=0.3, seed=9)
    q, k, v, *_ = arrays(whole).values()
    v[:] = np.eye(M)[:, None, :]
    weights, lse = reference.forward(whole, q, k, v)
    found, lse_dropped = reference.forward(dropped, q, k, v)
    np.testing.assert_array_equal(lse, lse_dropped)
    q_idx, k_idx = np.ogrid[:N, :M]
    for batch, head in np.ndindex(2, 4):
        keep = keep_mask(9, batch * 4 + head, q_idx, k_idx, 0.3)
        right = weights[batch, :, head] * keep / 0.7
        np.testing.assert_allclose(found[batch, :, head], right, atol=1e-15)


def test_score_changes_apply_in_the_order_given():
    shift = ScoreMod("shift", lambda s, b, h, i, j, aux: s + 1.0)
    double = ScoreMod("double", lambda s, b, h, i, j, aux: s * 2.0)
    q = k = np.zeros((1, 1, 1, 1))
    for mods, right in (((shift, double), 2.0), ((double, shift), 1.0)):
        _, lse = reference.forward(Problem(1, 1, 1, score_mods=mods), q, k, k)
        assert lse.item() == right


def test_a_row_whose_scores_are_all_minus_infinity_is_empty():
    tensor = np.zeros((2, 4, N, M))
    tensor[:, :, 2] = -np.inf
    problem = Problem(**SIZES, score_mods=[masks.bias(tensor)])
    given = arrays(problem)
    o, lse = reference.forward(problem, given["q"], given["k"], given["v"])
    gradients = reference.backward(problem, **given)
    assert not o[:, 2].any()
    assert np.all(lse[..., 2] == -np.inf)
    assert not gradients.dq[:, 2].any()
    assert not gradients.aux[0][:, :, 2].any()
    assert all(np.isfinite(array).all() for array in gradients[:3])


def test_scores_far_from_zero_neither_overflow_nor_vanish():
    q = np.full((1, 2, 1, 1), 1.0)
    for offset in (-1e6, 1e6):
        k = np.full((1, 3, 1, 1), offset)
        o, lse = reference.forward(Problem(2, 3, 1), q, k, np.ones_like(k))
        np.testing.assert_allclose(o, 1)
        np.testing.assert_allclose(lse, offset + np.log(3), rtol=1e-15)


def test_what_is_not_finite_spreads_to_its_own_row_alone():
    problem = Problem(**SIZES)
    given = arrays(problem)
    given["q"][1, 3, 2, 0] = np.nan
    o, lse = reference.forward(problem, given["q"], given["k"], given["v"])
    bad = np.zeros((2, N, 4), bool)
    bad[1, 3, 2] = True
    np.testing.assert_array_equal(np.isnan(o).all(axis=-1), bad)
    np.testing.assert_array_equal(np.isnan(lse), bad.transpose(0, 2, 1))


def test_a_mask_of_scalars_is_a_mask():
    def keep(batch, head, q_idx, k_idx, aux):
        return k_idx <= q_idx and (k_idx % 2 == 0 or head > 1)

    vector = Mask("v", lambda b, h, i, j, aux: (j <= i) & ((j % 2 == 0) | (h > 1)))
    given = arrays(Problem(**SIZES))
    right = reference.backward(Problem(**SIZES, mask=vector), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = reference.backward(Problem(**SIZES, mask=Mask("s", keep)), **given)
    np.testing.assert_array_equal(found.dq, right.dq)


def test_a_backward_pass_without_a_derivative_is_refused():
    problem = Problem(**SIZES, score_mods=[ScoreMod("mine", cubed, (0.3,))])
    given = arrays(problem)
    reference.forward(problem, given["q"], given["k"], given["v"])
    nothing = Problem(N, M, D, 4, batch=0, score_mods=problem.score_mods)
    for refused in (problem, nothing):
        with pytest.raises(ValueError, match="'mine' must have a callable derivative, got None"):
            reference.backward(refused, **arrays(refused))


@pytest.mark.parametrize("name", ["q", "k", "v", "do", "dlse"])
def test_an_array_of_the_wrong_shape_is_refused(name):
    problem = Problem(**SIZES)
    given = arrays(problem)
    given[name] = given[name][:, 1:]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        reference.backward(problem, **given)
    if name in ("q", "k", "v"):
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            reference.forward(problem, given["q"], given["k"], given["v"])
