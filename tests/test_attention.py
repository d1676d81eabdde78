"""The front door on arrays of the host, answered by the tile simulator."""

import math
import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import CASES, REFUSALS
from harness import check
from public_api import PublicApi, rounding

import flash_numba
from flash_numba import attention, flash_attention, flash_attention_backward, ladder, masks
from flash_numba import reference as ref
from flash_numba.budget import within_budget
from flash_numba.ladder import NoGpu
from flash_numba.masks import Mask, ScoreMod
from flash_numba.problem import DTYPES, Problem
from flash_numba.tiling import BlockMask

pytestmark = pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def qkv(batch=2, seqlen_q=9, seqlen_k=13, heads=4, kv_heads=2, head_dim=8, head_dim_v=6):
    q = normal(batch, seqlen_q, heads, head_dim)
    return (
        q,
        normal(batch, seqlen_k, kv_heads, head_dim),
        normal(batch, seqlen_k, kv_heads, head_dim_v),
    )


def hold(found, expected, twin, dtype="fp32"):
    verdict = within_budget(found, expected, twin, dtype)
    assert verdict, verdict


@pytest.mark.parametrize("spec", CASES, ids=[spec.id for spec in CASES])
def test_cases(spec):
    case = spec.build()
    case.repeats = min(case.repeats, 2)  # on one thread nothing can race
    check(case, PublicApi(), rounding(spec.id))


@pytest.mark.parametrize("kernel", ["flash1", "standard"])
@pytest.mark.parametrize("number", ["K08", "K09", "K12", "K15", "K19", "K25", "K26"])
def test_cases_on_the_other_rungs(kernel, number):
    case = next(spec for spec in CASES if spec.id.split("-")[0] == number).build()
    check(case, PublicApi(kernel), rounding(number))


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.id for refusal in REFUSALS])
def test_wrong_shapes_are_refused(refusal):
    arrays = (np.zeros(shape, np.float32) for shape in refusal.shapes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the parts are checked below
        flash_attention(*arrays)
    for part in refusal.says:
        assert part in str(error.value)


def test_standard_attention_is_the_standard_rung(monkeypatch):
    from simulator import run

    ran = []
    whole = run.simulate
    monkeypatch.setattr(
        run, "simulate", lambda name, *a, **kw: ran.append(name) or whole(name, *a, **kw)
    )
    arrays = qkv()
    standard, flash = flash_numba.standard_attention(*arrays), flash_attention(*arrays)
    np.testing.assert_allclose(standard, flash, atol=1e-5)
    assert ran == ["tiled", "flash2"]


# Kinds and types of arrays


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_results_have_the_type_that_came_in(dtype):
    q, k, v = (x.astype(DTYPES[dtype]) for x in qkv())
    o, lse = flash_attention(q, k, v, return_lse=True)
    assert (o.dtype, lse.dtype) == (DTYPES[dtype], np.float32)
    problem = Problem.of(q, k, v)
    for found, truth, twin in zip(
        (o, lse),
        ref.forward(problem, q, k, v),
        ref.forward(problem, q, k, v, dtype=dtype),
        strict=True,
    ):
        hold(found, truth, twin, dtype if found is o else "fp32")
    gradients = flash_attention_backward(o, q, k, v, o, lse)
    for gradient, source in zip(gradients, (q, k, v), strict=False):
        assert (gradient.dtype, gradient.shape) == (source.dtype, source.shape)
    assert gradients.dbias is None and gradients.dscore_mod is None  # noqa: PT018


class Exported:
    """A library's array that speaks DLPack, with or without a namespace."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Namespaced(Exported):
    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def from_dlpack(array):
                return Namespaced(np.from_dlpack(array))

        return Namespace


@pytest.mark.parametrize(("kind", "answer"), [(Exported, np.ndarray), (Namespaced, Namespaced)])
def test_dlpack_arrays(kind, answer):
    q, k, v = qkv()
    expected = flash_attention(q, k, v, causal=True)
    found = flash_attention(kind(q), kind(k), kind(v), causal=True)
    assert type(found) is answer
    np.testing.assert_array_equal(np.from_dlpack(found), expected)


def test_strided_and_read_only_inputs_are_used_as_they_are():
    q, k, v = qkv(heads=2, kv_heads=2, head_dim_v=8)
    expected = flash_attention(q, k, v)
    strided = np.asfortranarray(q), k[::-1].copy()[::-1], np.repeat(v, 2, axis=-1)[..., ::2]
    for array in strided:
        array.flags.writeable = False
    np.testing.assert_allclose(flash_attention(*strided), expected, atol=1e-6)
    expanded = np.broadcast_to(k[:, :, :1], k.shape)
    np.testing.assert_array_equal(
        flash_attention(q, expanded, v), flash_attention(q, expanded.copy(), v)
    )


# Options become the one problem that the reference answers


def case_of_options():
    """Options of the API beside the masks and changes that they mean, on `qkv()`."""
    mask = RNG.random((2, 1, 9, 13)) < 0.6
    slopes = RNG.random(4).astype(np.float32)
    bias = normal(4, 1, 13)
    lengths = np.array([13, 5])
    weights, theta = normal(3), normal(3)
    relative = masks.relative_positions(weights, theta)
    even = Mask("even", lambda batch, head, q_idx, k_idx, aux: (q_idx + k_idx) % 2 == 0)
    full = 2, 4, 9, 13

    def wide(array):
        return np.broadcast_to(array, full)

    return {
        "causal": ({"causal": True}, {"causal": True}),
        "window": ({"window": (2, None)}, {"window": (2, None)}),
        "key_lengths": ({"key_lengths": lengths}, {"key_lengths": lengths}),
        "key_lengths-list": ({"key_lengths": [13, 5]}, {"key_lengths": lengths}),
        "scale": ({"scale": -0.3}, {"softmax_scale": -0.3}),
        "scale-zero": ({"scale": 0}, {"softmax_scale": 0.0}),
        "mask": ({"mask": mask}, {"mask": masks.boolean(wide(mask))}),
        "mask-2d": ({"mask": mask[0, 0]}, {"mask": masks.boolean(wide(mask[0, 0]))}),
        "bias": ({"bias": bias}, {"score_mods": [masks.bias(wide(bias))]}),
        "alibi-lengths": (
            {"alibi_slopes": slopes, "key_lengths": lengths},
            {
                "score_mods": [masks.alibi(np.broadcast_to(slopes, (2, 4)), lengths - 9)],
                "key_lengths": lengths,
            },
        ),
        "all-score-changes": (
            {"softcap": 2.0, "alibi_slopes": slopes, "bias": bias, "score_mod": relative},
            {
                "score_mods": [
                    masks.softcap(2.0),
                    masks.alibi(np.broadcast_to(slopes, (2, 4)), 4),
                    masks.bias(wide(bias)),
                    relative,
                ]
            },
        ),
        "all-masks": (
            {"mask": mask, "mask_mod": even, "causal": True},
            {"mask": masks.boolean(wide(mask)) & even, "causal": True},
        ),
        "dropout": ({"dropout_p": 0.4, "seed": 7}, {"dropout_p": 0.4, "seed": 7}),
    }


OPTIONS = case_of_options()


@pytest.mark.parametrize(("options", "fields"), OPTIONS.values(), ids=OPTIONS)
def test_options_mean_what_the_reference_computes(options, fields):
    q, k, v = qkv()
    do, dlse = normal(2, 9, 4, 6), normal(2, 4, 9)
    problem = Problem.of(q, k, v, **fields)
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    truth, twin = ref.forward(problem, q, k, v), ref.forward(problem, q, k, v, dtype="fp32")
    hold(o, truth[0], twin[0])
    hold(lse, truth[1], twin[1])
    needs = ["q", "k", "v"]
    needs += ["bias"] if "bias" in options else []
    needs += ["score_mod"] if "score_mod" in options else []
    found = flash_attention_backward(do, q, k, v, o, lse, dlse=dlse, needs=needs, **options)
    truth = ref.backward(problem, q, k, v, do, dlse)
    twin = ref.backward(problem, q, k, v, do, dlse, dtype="fp32")
    for name in ("dq", "dk", "dv"):
        hold(getattr(found, name), getattr(truth, name), getattr(twin, name))
    given = [options[name] for name in ("bias",) if name in options]
    given += [options[name].aux[0] for name in ("score_mod",) if name in options]
    got = [gradient for gradient in (found.dbias, found.dscore_mod) if gradient is not None]
    for gradient, tensor, exact, same in zip(got, given, truth.aux, twin.aux, strict=True):
        assert gradient.shape == tensor.shape
        hold(gradient, exact.reshape(tensor.shape), same.reshape(tensor.shape))


def test_a_plain_function_as_mask_and_score_change():
    q, k, v = qkv()

    def twice(score, batch, head, q_idx, k_idx, aux):
        return 2 * score

    def near(batch, head, q_idx, k_idx, aux):
        return abs(q_idx - k_idx) <= 3

    found = flash_attention(q, k, v, scale=0.2, score_mod=twice, mask_mod=near)
    same = flash_attention(q, k, v, scale=0.4, mask=abs(np.arange(9)[:, None] - np.arange(13)) <= 3)
    np.testing.assert_allclose(found, same, atol=1e-6)


def test_a_score_change_without_derivative_has_no_backward():
    q, k, v = qkv()
    options: dict[str, Any] = {"score_mod": lambda score, batch, head, q_idx, k_idx, aux: 2 * score}
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    with pytest.raises(ValueError, match=r"derivative.*<lambda>.*None"):
        flash_attention_backward(o, q, k, v, o, lse, **options)


def test_a_block_mask_skips_its_tiles():
    q, k, v = qkv(seqlen_q=20, seqlen_k=20)
    problem = Problem.of(q, k, v)
    visible = np.kron(np.eye(5, dtype=bool), np.ones((4, 4), bool))
    mask = masks.boolean(np.broadcast_to(visible, (2, 4, 20, 20)))
    listed = BlockMask.from_mask(mask, problem, 8, 4)
    np.testing.assert_allclose(
        flash_attention(q, k, v, block_mask=listed),
        flash_attention(q, k, v, mask=visible),
        atol=1e-6,
    )


def test_the_backward_starts_from_the_o_and_lse_it_is_given():
    """Attention over two halves of the keys is one attention, if each half gets its o and lse."""
    q, k, v = qkv()
    do = normal(2, 9, 4, 6)
    o, lse = flash_attention(q, k, v, return_lse=True)
    whole = flash_attention_backward(do, q, k, v, o, lse)
    first, second = (
        flash_attention_backward(do, q, k[:, part], v[:, part], o, lse)
        for part in (slice(0, 6), slice(6, 13))
    )
    np.testing.assert_allclose(first.dq + second.dq, whole.dq, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([first.dk, second.dk], 1), whole.dk, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 13), (4, 1, 13), (1, 1, 1, 1), (2, 4, 9, 13), (13,), ()])
def test_the_bias_gradient_has_the_shape_of_the_bias(shape):
    q, k, v = qkv()
    bias, do = normal(*shape), normal(2, 9, 4, 6)
    o, lse = flash_attention(q, k, v, bias=bias, return_lse=True)
    found = flash_attention_backward(do, q, k, v, o, lse, bias=bias, needs=("bias",))
    assert found.dq is None
    assert found.dbias.shape == shape
    problem = Problem.of(
        q, k, v, score_mods=[masks.bias(np.broadcast_to(bias, (2, 4, 9, 13)).copy())]
    )
    (whole,) = ref.backward(problem, q, k, v, do).aux
    axes = tuple(range(4 - len(shape))) + tuple(
        4 - len(shape) + axis for axis, size in enumerate(shape) if size == 1
    )
    expected = whole.sum(axis=axes, keepdims=True).reshape(shape)
    np.testing.assert_allclose(found.dbias, expected, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 9, 13), (2, 0, 13), (2, 9, 0)], ids=["B0", "N0", "M0"])
def test_empty_problems_have_empty_or_zero_gradients(sizes):
    q, k, v = qkv(*sizes)
    bias = normal(4, 1, 1)
    o, lse = flash_attention(q, k, v, bias=bias, return_lse=True)
    assert not o.any()
    assert (lse == -np.inf).all()
    found = flash_attention_backward(o, q, k, v, o, lse, bias=bias, needs=("q", "k", "v", "bias"))
    for gradient, source in zip(found, (q, k, v, bias), strict=False):
        assert gradient.shape == source.shape
        assert not gradient.any()


def test_each_element_of_an_expanded_bias_has_its_own_gradient():
    q, k, v = qkv()
    bias, do = np.broadcast_to(normal(9, 1), (9, 13)), normal(2, 9, 4, 6)
    o, lse = flash_attention(q, k, v, bias=bias, return_lse=True)
    found, copied = (
        flash_attention_backward(do, q, k, v, o, lse, bias=tensor, needs="bias").dbias
        for tensor in (bias, bias.copy())
    )
    np.testing.assert_array_equal(found, copied)


# Dropout


def test_each_call_draws_a_new_dropout_mask_unless_seeded():
    q, k, v = qkv()
    a, b = (flash_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert (a != b).any()
    a, b = (flash_attention(q, k, v, dropout_p=0.5, seed=2**64 - 1) for _ in range(2))
    np.testing.assert_array_equal(a, b)


def test_the_backward_asks_for_the_seed():
    q, k, v = qkv()
    o, lse = flash_attention(q, k, v, dropout_p=0.5, return_lse=True)
    with pytest.raises(ValueError, match=r"seed must be the one of the forward call.*None"):
        flash_attention_backward(o, q, k, v, o, lse, dropout_p=0.5)


# What it says


def test_it_says_once_that_the_simulator_answers(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: said once here"))
    q, k, v = qkv()
    with pytest.warns(UserWarning, match="said once here; the tile simulator answers") as seen:
        flash_attention(q, k, v)
    assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flash_attention(q, k, v)


def test_inputs_are_not_scanned_and_nan_spreads():
    q, k, v = qkv()
    q[0, 3, 1, 0], k[1, 2, 0, 0] = np.nan, np.inf
    o = flash_attention(q, k, v)
    assert np.isnan(o[0, 3, 1]).all()
    assert np.isfinite(o[0, :3]).all()


# Bad input: (changed arguments, error, parts of its message)

FINE = np.zeros((2, 9, 4, 8), np.float32)
KEYS = np.zeros((2, 13, 2, 8), np.float32)
LAYOUT = "batch, seqlen, heads, head_dim"
SCORES = "(2, 4, 9, 13)"
BAD = {
    "rank": ({"q": FINE[0]}, ValueError, ["q must have 4 axes", LAYOUT, "(9, 4, 8)"]),
    "list": ({"k": [[1.0]]}, TypeError, ["k must be an array", "builtins.list"]),
    "none": ({"v": None}, TypeError, ["v must be an array", "NoneType"]),
    "masked-array": ({"v": np.ma.array(KEYS)}, TypeError, ["v must be an array", "MaskedArray"]),
    "float64": ({"q": np.float64(FINE)}, TypeError, ["q must have dtype float32", "float64"]),
    "int": ({"k": np.int32(KEYS)}, TypeError, ["k must have dtype", "bfloat16", "int32"]),
    "fp8": ({"q": FINE.astype(ml_dtypes.float8_e4m3fn)}, TypeError, ["q must have dtype", "fp8"]),
    "mixed-types": (
        {"v": KEYS.astype(np.float16)},
        TypeError,
        ["one dtype", "q has fp32", "v has fp16"],
    ),
    "mixed-kinds": (
        {"k": Exported(KEYS)},
        TypeError,
        ["one kind", "q as a NumPy array", "k as a DLPack"],
    ),
    "key-and-value-lengths": ({"v": KEYS[:, :6]}, ValueError, ["k has 13", "v has 6", LAYOUT]),
    "batches": ({"k": KEYS[:1]}, ValueError, ["agree in batch", "k has 1"]),
    "head-dims": ({"q": FINE[..., :4]}, ValueError, ["agree in head_dim", "q has 4", "k has 8"]),
    "heads": ({"q": FINE[:, :, :3]}, ValueError, ["multiple", "3 and 2", LAYOUT]),
    "K48": (
        dict.fromkeys("qkv", np.zeros((1, 3, 71280, 128), np.float16)),
        ValueError,
        [LAYOUT, "(1, 3, 71280, 128)", "71280 heads of 3 positions", "swap axes 1 and 2"],
    ),
    "scale-nan": ({"scale": math.nan}, ValueError, ["scale must be a finite number", "nan"]),
    "scale-text": ({"scale": "1"}, ValueError, ["scale must be a finite number", "'1'"]),
    "causal": ({"causal": 1}, TypeError, ["causal must be True or False", "1"]),
    "window": ({"window": 3}, ValueError, ["window must be a pair", "3"]),
    "window-side": ({"window": (-1, 0)}, ValueError, ["window side", ">= 0", "-1"]),
    "lengths-beyond": ({"key_lengths": [13, 14]}, ValueError, ["0..13", "[13, 14]"]),
    "lengths-shape": ({"key_lengths": [13]}, ValueError, ["key_lengths", "(2,)", "(1,)"]),
    "lengths-type": ({"key_lengths": [1.0, 2.0]}, ValueError, ["key_lengths", "float64"]),
    "mask-type": ({"mask": np.ones((9, 13))}, TypeError, ["mask must be a bool", "float64"]),
    "mask-object": (
        {"mask": masks.causal(4)},
        TypeError,
        ["mask must be a bool array", "mask_mod"],
    ),
    "mask-shape": (
        {"mask": np.ones((2, 9, 13), bool)},
        ValueError,
        ["mask must broadcast", SCORES, "(2, 9, 13)"],
    ),
    "bias-rank": (
        {"bias": np.zeros((1, 1, 1, 1, 1), np.float32)},
        ValueError,
        ["bias must broadcast", SCORES],
    ),
    "bias-type": ({"bias": np.zeros((9, 13))}, TypeError, ["bias must have dtype fp32", "float64"]),
    "slopes-shape": (
        {"alibi_slopes": np.ones(2, np.float32)},
        ValueError,
        ["alibi_slopes", "(4,)", "(2, 4)", "(2,)"],
    ),
    "slopes-type": ({"alibi_slopes": np.ones(4)}, TypeError, ["alibi_slopes", "float64"]),
    "softcap": ({"softcap": -1.0}, ValueError, ["softcap", ">= 0", "-1.0"]),
    "softcap-nan": ({"softcap": math.nan}, ValueError, ["softcap", "finite", "nan"]),
    "score-mod": ({"score_mod": 3}, TypeError, ["score_mod must be a ScoreMod or a function", "3"]),
    "mask-mod": ({"mask_mod": FINE[0, 0]}, TypeError, ["mask_mod must be a Mask or a function"]),
    "block-mask": ({"block_mask": 5}, TypeError, ["block_mask must be a BlockMask", "5"]),
    "dropout-1": ({"dropout_p": 1.0}, ValueError, ["dropout_p must be in [0, 1)", "1.0"]),
    "dropout-negative": ({"dropout_p": -0.1}, ValueError, ["dropout_p must be in [0, 1)", "-0.1"]),
    "seed": ({"dropout_p": 0.1, "seed": 2**64}, ValueError, ["seed must be below 2**64"]),
    "seed-type": ({"dropout_p": 0.1, "seed": 0.5}, ValueError, ["seed must be a whole", "0.5"]),
    "kernel": (
        {"kernel": "flash3"},
        ValueError,
        ["kernel must be one of auto, hopper, tensor_core, flash2, flash1, standard", "flash3"],
    ),
    "kernel-type": ({"kernel": None}, ValueError, ["kernel must be one of auto", "None"]),
    "deterministic": ({"deterministic": 1}, TypeError, ["deterministic", "True, False or None"]),
    "return-lse": ({"return_lse": 1}, TypeError, ["return_lse must be True or False", "1"]),
}


@pytest.mark.parametrize(("changed", "error", "parts"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_anything_runs(changed, error, parts, monkeypatch):
    monkeypatch.setattr(attention, "_simulate", lambda *a, **kw: pytest.fail("it ran"))
    arguments = {"q": FINE, "k": KEYS, "v": KEYS} | changed
    with pytest.raises(error) as raised:
        flash_attention(**arguments)
    for part in parts:
        assert part in str(raised.value)


BAD_BACKWARD = {
    "do-shape": (
        {"do": FINE[:, :3]},
        ValueError,
        ["do must have shape (2, 9, 4, 8)", "(2, 3, 4, 8)"],
    ),
    "do-type": ({"do": FINE.astype(np.float16)}, TypeError, ["do must have dtype fp32", "fp16"]),
    "do-kind": ({"do": Exported(FINE)}, TypeError, ["one kind", "do as a DLPack"]),
    "o-none": ({"o": None}, TypeError, ["o must be an array", "NoneType"]),
    "lse-shape": (
        {"lse": FINE[..., 0]},
        ValueError,
        ["lse must have shape (2, 4, 9)", "(2, 9, 4)"],
    ),
    "lse-type": (
        {"lse": np.zeros((2, 4, 9), np.float16)},
        TypeError,
        ["lse must have dtype fp32", "fp16"],
    ),
    "needs": (
        {"needs": ("q", "mask")},
        ValueError,
        ["needs", "q, k, v, bias, score_mod", "'mask'"],
    ),
    "needs-bias": ({"needs": "bias"}, ValueError, ["needs has 'bias'", "no bias is given"]),
    "needs-mod": (
        {"needs": ["score_mod"], "score_mod": lambda score, *where: score},
        ValueError,
        ["aux_index", "got ScoreMod"],
    ),
}


@pytest.mark.parametrize(("changed", "error", "parts"), BAD_BACKWARD.values(), ids=BAD_BACKWARD)
def test_bad_input_to_the_backward_is_refused(changed, error, parts, monkeypatch):
    monkeypatch.setattr(attention, "_simulate", lambda *a, **kw: pytest.fail("it ran"))
    lse = np.zeros((2, 4, 9), np.float32)
    arguments = {"do": FINE, "q": FINE, "k": KEYS, "v": KEYS, "o": FINE, "lse": lse} | changed
    with pytest.raises(error) as raised:
        flash_attention_backward(**arguments)
    for part in parts:
        assert part in str(raised.value)


def test_heads_that_outnumber_short_sequences_are_not_taken_for_a_wrong_layout():
    q, k = normal(1, 1, 300, 4), normal(1, 80, 300, 4)
    one = slice(5, 6)
    found = flash_attention(q, k, k)[:, :, one]
    np.testing.assert_allclose(found, flash_attention(q[:, :, one], k[:, :, one], k[:, :, one]))


def test_the_options_are_documented():
    doc = flash_attention.__doc__ or ""
    names = flash_attention.__code__.co_varnames[: flash_attention.__code__.co_argcount]
    names += tuple(flash_attention.__kwdefaults__ or {})
    missing = [name for name in names if not re.search(rf"^    {name} :", doc, re.M)]
    assert missing == []
    assert ScoreMod.__name__ in doc
