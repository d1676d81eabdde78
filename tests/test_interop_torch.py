"""Attention on torch tensors: autograd, torch.compile, autocast; the tile simulator answers."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import CASES  # noqa: E402
from harness import check  # noqa: E402
from public_api import options_of, rounding  # noqa: E402

from flash_numba import attention, flash_attention, ladder, masks  # noqa: E402
from flash_numba import reference as ref  # noqa: E402
from flash_numba.budget import within_budget  # noqa: E402
from flash_numba.interop import pytorch, torch_repeated  # noqa: E402
from flash_numba.interop.torch_inputs import seed_tensor  # noqa: E402
from flash_numba.ladder import NoGpu  # noqa: E402
from flash_numba.masks import Mask, ScoreMod  # noqa: E402
from flash_numba.problem import Problem  # noqa: E402
from flash_numba.tiling import BlockMask  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*the tile simulator answers:UserWarning")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: NoGpu("no CUDA GPU: none in tests"))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


def leaf(*shape, dtype="fp32"):
    return torch.randn(shape).to(DTYPES[dtype]).requires_grad_()


def qkv(dtype="fp32"):
    return leaf(2, 9, 4, 8, dtype=dtype), *(leaf(2, 13, 2, 8, dtype=dtype) for _ in "kv")


def numpy(tensor) -> Any:
    return None if tensor is None else tensor.detach().double().numpy()


def hold(problem, q, k, v, gradients, do, dlse=None):
    """The gradients of q, k, v and of the score changes' tensors, against the reference."""
    arrays = [numpy(x) for x in (q, k, v, do, dlse)]
    truth = ref.backward(problem, *arrays)
    twin = ref.backward(problem, *arrays, dtype=problem.dtype)
    expected = zip(
        gradients,
        [*truth[:3], *truth.aux],
        [*twin[:3], *twin.aux],
        strict=True,
    )
    for gradient, exact, same in expected:
        found = numpy(gradient)
        verdict = within_budget(
            found, exact.reshape(found.shape), same.reshape(found.shape), problem.dtype
        )
        assert verdict, verdict


class TorchApi:
    """`flash_attention` on torch tensors and autograd, for `harness.check`."""

    def tensors(self, *arrays):
        made = []
        for array in arrays:
            if str(array.dtype) == "bfloat16":
                tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            else:
                tensor = torch.from_numpy(np.array(array))
            made.append(tensor)
        return made

    def outputs(self, problem, tensors):
        options = options_of(problem)
        for name in ("mask", "bias", "alibi_slopes"):
            if name in options:
                options[name] = torch.from_numpy(np.array(options[name]))
        return flash_attention(*tensors, return_lse=True, **options)

    def forward(self, problem, q, k, v):
        o, lse = self.outputs(problem, self.tensors(q, k, v))
        return numpy(o), numpy(lse)

    def backward(self, problem, q, k, v, do, dlse=None):
        tensors = [tensor.requires_grad_() for tensor in self.tensors(q, k, v)]
        outputs, gradients = self.outputs(problem, tensors), self.tensors(do)
        if dlse is None:
            outputs = outputs[:1]
        else:
            gradients += self.tensors(dlse)
        found = torch.autograd.grad(outputs, tensors, gradients)
        dq, dk, dv = (numpy(gradient) for gradient in found)
        return ref.Gradients(dq, dk, dv, ())


@pytest.mark.parametrize("spec", CASES, ids=[spec.id for spec in CASES])
def test_cases(spec):
    case = spec.build()
    case.repeats = 1
    check(case, TorchApi(), rounding(spec.id))


# Autograd

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
LENGTHS = np.array([13, 4])
MASK = torch.arange(9)[:, None] % 3 != torch.arange(13) % 3
WIDE = 2, 4, 9, 13
OPTIONS = {
    "plain": ({}, {}),
    "causal-window": ({"causal": True, "window": (4, None)}, {"causal": True, "window": (4, None)}),
    "mask": ({"mask": MASK}, {"mask": masks.boolean(np.broadcast_to(MASK.numpy(), WIDE))}),
    "lengths": ({"key_lengths": torch.tensor(LENGTHS)}, {"key_lengths": LENGTHS}),
    "lengths-list": ({"key_lengths": [13, 4]}, {"key_lengths": LENGTHS}),
    "softcap-alibi": (
        {"softcap": 2.0, "alibi_slopes": SLOPES},
        {
            "score_mods": [
                masks.softcap(2.0),
                masks.alibi(np.broadcast_to(SLOPES.numpy(), (2, 4)), 4),
            ]
        },
    ),
    "scale": ({"scale": np.float32(-0.25)}, {"softmax_scale": -0.25}),
    "dropout": ({"dropout_p": 0.3, "seed": 2**64 - 5}, {"dropout_p": 0.3, "seed": 2**64 - 5}),
}


@pytest.mark.parametrize(("options", "fields"), OPTIONS.values(), ids=OPTIONS)
def test_gradients_of_o_and_lse(options, fields):
    q, k, v = qkv()
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    do, dlse = torch.randn(o.shape), torch.randn(lse.shape)
    gradients = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", **fields)
    hold(problem, q, k, v, gradients, do, dlse)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_16_bit_types(dtype):
    q, k, v = qkv(dtype)
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    assert (o.dtype, lse.dtype) == (DTYPES[dtype], torch.float32)
    do = torch.randn(o.shape).to(o.dtype)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    assert {gradient.dtype for gradient in gradients} == {o.dtype}
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype=dtype, causal=True)
    hold(problem, q, k, v, gradients, do)


@pytest.mark.parametrize("shape", [(9, 13), (4, 1, 13), (2, 1, 1, 13), (13,)])
def test_the_bias_gradient(shape):
    q, k, v = qkv()
    bias = leaf(*shape)
    o = flash_attention(q, k, v, bias=bias)
    do = torch.randn(o.shape)
    gradients = torch.autograd.grad(o, (q, k, v, bias), do)
    assert gradients[3].shape == shape
    change = masks.bias(np.broadcast_to(bias.detach().numpy(), WIDE))
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", score_mods=[change])
    hold(problem, q, k, v, gradients, do)


def test_the_gradient_of_an_expanded_bias():
    q, k, v = qkv()
    column = leaf(9, 1)
    do = torch.randn(q.shape)
    expanded, own = (
        torch.autograd.grad(flash_attention(q, k, v, bias=bias), column, do)[0]
        for bias in (column.expand(9, 13), column)
    )
    torch.testing.assert_close(expanded, own)


def test_learned_weights_of_a_score_change():
    q, k, v = qkv()
    weights, theta = leaf(3), torch.rand(3)
    o = flash_attention(q, k, v, score_mod=masks.relative_positions(weights, theta))
    do = torch.randn(o.shape)
    gradients = torch.autograd.grad(o, (q, k, v, weights), do)
    change = masks.relative_positions(weights.detach().numpy(), theta.numpy())
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", score_mods=[change])
    hold(problem, q, k, v, gradients, do)


def spy(monkeypatch):
    """What backward calls of the API were asked for."""
    asked, whole = [], attention.backward

    def backward(posed, needs, *rest):
        asked.append(tuple(needs))
        return whole(posed, needs, *rest)

    monkeypatch.setattr(attention, "backward", backward)
    return asked


@pytest.mark.parametrize("needs", [("v",), ("q", "k"), ("bias",)])
def test_only_the_gradients_asked_for(needs, monkeypatch):
    asked = spy(monkeypatch)
    tensors = dict(zip(("q", "k", "v", "bias"), (*qkv(), leaf(13)), strict=True))
    for name, tensor in tensors.items():
        tensor.requires_grad_(name in needs)
    flash_attention(**tensors).sum().backward()
    assert asked == [needs]
    for name, tensor in tensors.items():
        assert (tensor.grad is not None) == (name in needs)


def test_nothing_is_kept_where_nothing_needs_a_gradient():
    q, k, v = (x.detach() for x in qkv())
    assert not flash_attention(q, k, v).requires_grad
    with torch.no_grad():
        assert not flash_attention(*qkv()).requires_grad


def test_a_loss_of_lse_alone():
    q, k, v = qkv()
    _, lse = flash_attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.mean(), (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 8**0.5
    expected = torch.autograd.grad(scores.logsumexp(-1).mean(), (q, k))
    torch.testing.assert_close((dq, dk), expected)
    assert not dv.any()


def test_strided_tensors_and_gradients():
    """Transposed q, expanded k, sliced v; do of stride 0 and a strided one."""
    base_q, base_k, base_v = leaf(2, 4, 9, 8), leaf(2, 13, 1, 8), leaf(2, 13, 4, 16)
    strided = base_q.transpose(1, 2), base_k.expand(-1, -1, 4, -1), base_v[..., ::2]
    copies = [x.detach().contiguous().requires_grad_() for x in strided]
    for do in (torch.randn(2, 9, 4, 16)[..., 1::2], torch.ones(1).expand(2, 9, 4, 8)):
        found = torch.autograd.grad(flash_attention(*strided), (base_q, base_k, base_v), do)
        dq, dk, dv = torch.autograd.grad(flash_attention(*copies), copies, do.contiguous())
        torch.testing.assert_close(found[0], dq.transpose(1, 2))
        torch.testing.assert_close(found[1], dk.sum(2, keepdim=True))
        torch.testing.assert_close(found[2][..., ::2], dv)


def test_negated_views():
    q, k, v = (x.detach() for x in qkv())
    negated = torch._neg_view(q)
    assert negated.is_neg()
    torch.testing.assert_close(flash_attention(negated, k, v), flash_attention(-q, k, v))


def test_it_is_differentiable_once():
    q, k, v = qkv()
    (dq,) = torch.autograd.grad(flash_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="can be differentiated once"):
        dq.sum().backward()


def forward_mode(given):
    with torch.autograd.forward_ad.dual_level():
        flash_attention(torch.autograd.forward_ad.make_dual(given[0], given[0]), *given[1:])


TRANSFORMS = {
    "forward_ad": forward_mode,
    "jvp": lambda given: torch.func.jvp(flash_attention, given, given),
    "jvp of vmap": lambda given: torch.func.jvp(
        torch.vmap(flash_attention), *2 * [tuple(x[None] for x in given)]
    ),
    "grad": lambda given: torch.func.grad(lambda q: flash_attention(q, *given[1:]).sum())(given[0]),
    "jacrev": lambda given: torch.func.jacrev(flash_attention)(*given),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_derivatives_that_do_not_exist_are_no_zeros(transform):
    with pytest.raises(NotImplementedError, match="differentiable by torch"):
        transform(tuple(x.detach() for x in qkv()))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_vmap():
    given = [torch.stack([x.detach(), -x.detach()]) for x in qkv()]
    expected = torch.stack([flash_attention(*one) for one in zip(*given, strict=True)])
    torch.testing.assert_close(torch.vmap(flash_attention)(*given), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_that_are_not_dense_are_refused():
    q, k, v = (x.detach() for x in qkv())
    with pytest.raises(TypeError, match=r"k must be a dense .*of layout torch.sparse_coo"):
        flash_attention(q, k.to_sparse(), v)
    with pytest.raises(TypeError, match="q must be a dense torch tensor, got one that is nested"):
        flash_attention(torch.nested.nested_tensor(list(q)), k, v)


# Dropout


def test_the_backward_drops_what_the_forward_dropped():
    q, k, v = qkv()
    torch.manual_seed(8)
    o = flash_attention(q, k, v, dropout_p=0.48)
    do = torch.randn(o.shape)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    torch.manual_seed(8)
    seed = int(seed_tensor(None)) % 2**64
    problem = Problem.of(numpy(q), numpy(k), numpy(v), dtype="fp32", dropout_p=0.48, seed=seed)
    hold(problem, q, k, v, gradients, do)


def test_manual_seed_rules_the_drawn_seeds():
    given = [x.detach() for x in qkv()]
    first, second = (flash_attention(*given, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(4)
    third = flash_attention(*given, dropout_p=0.5)
    torch.manual_seed(4)
    fourth = flash_attention(*given, dropout_p=0.5)
    assert not torch.equal(first, second)
    assert torch.equal(third, fourth)


# torch.compile

EVEN = Mask("even", lambda batch, head, q_idx, k_idx, aux: (q_idx + k_idx) % 2 == 0)
RELATIVE = masks.relative_positions(torch.randn(3).requires_grad_(), torch.rand(3))
BLOCKS = BlockMask.from_mask(masks.causal(4), Problem(9, 13, 8), 4, 4)
COMPILED = {
    "plain": {},
    "causal-window": {"causal": True, "window": (4, 2), "softcap": 5.0},
    "mask-lengths": {"mask": MASK, "key_lengths": torch.tensor(LENGTHS)},
    "bias-alibi": {"bias": torch.randn(9, 13, requires_grad=True), "alibi_slopes": SLOPES},
    "lengths-list": {"key_lengths": [13, 4]},
    "lengths-numpy": {"key_lengths": np.array(LENGTHS)},
    "seeded": {"dropout_p": 0.5, "seed": 2**64 - 1},
    "functions": {"score_mod": RELATIVE, "mask_mod": EVEN},
    "block-mask": {"block_mask": BLOCKS},
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
def test_compiled_calls_are_one_graph(options, backend):
    def loss(q, k, v):
        o, lse = flash_attention(q * 2, k, v, return_lse=True, **options)
        return (o.sin().sum() + lse.nan_to_num(neginf=0.0).cos().sum()).square()

    given = qkv()
    learned = [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    learned += [RELATIVE.aux[0]] if "score_mod" in options else []
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    expected, found = loss(*given), compiled(*given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (*given, *learned)),
        torch.autograd.grad(expected, (*given, *learned)),
    )


@pytest.mark.parametrize("torch_first", [False, True])
def test_compiled_calls_do_without_what_is_known(torch_first, monkeypatch):
    def look(*tensors):
        pytest.fail("a known kind of calls was looked at")

    given = [x.detach() for x in qkv()]
    expected = flash_attention(*given)
    kind = None, False, (None, None), 0.0, "auto", None, False, look
    monkeypatch.setattr(torch_repeated, "_known", [kind])
    monkeypatch.setattr(attention, "torch_repeated", torch_repeated if torch_first else None)
    with pytest.raises(pytest.fail.Exception):
        flash_attention(*given)
    compiled = torch.compile(flash_attention, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given), expected)


def test_a_function_made_inside_of_a_compiled_one():
    """A graph has a number in its place, under which it must still be found when the graph runs."""

    def call(q, k, v):
        def doubled(score, batch, head, q_idx, k_idx, aux):
            return score * 2.0

        return flash_attention(q, k, v, score_mod=doubled, mask_mod=lambda b, h, i, j, aux: i >= j)

    given = [x.detach() for x in qkv()]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), call(*given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_dropout_draws_a_new_mask_each_call(backend):
    given = [x.detach() for x in qkv()]
    compiled = torch.compile(
        lambda q, k, v: flash_attention(q, k, v, dropout_p=0.5), fullgraph=True, backend=backend
    )
    assert not torch.equal(compiled(*given), compiled(*given))


def test_compiled_for_any_size_and_scale():
    def call(q, k, v, scale):
        return flash_attention(q, k, v, causal=True, scale=scale, dropout_p=0.25, seed=3)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlen, scale in ((5, 0.5), (9, 0.25), (12, -1.5)):
        q, k, v = (leaf(2, seqlen, 2, 8) for _ in "qkv")
        given = q, k, v
        expected, found = call(*given, scale), compiled(*given, scale)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given)
        )


def test_a_compiled_call_is_checked_when_it_runs():
    compiled = torch.compile(flash_attention, fullgraph=True, backend="eager")
    given = [x.detach() for x in qkv()]
    with pytest.raises(ValueError, match=r"dropout_p must be in \[0, 1\), got 1.0"):
        compiled(*given, dropout_p=1.0)


def arguments(**changed):
    numbers: dict[str, Any] = dict.fromkeys(pytorch._Arguments._fields)
    numbers |= {
        "causal": True,
        "softcap": 0.0,
        "dropout_p": 0.0,
        "score_mod": 0,
        "mask_mod": 0,
        "block_mask": 0,
        "kernel": "auto",
    }
    return pytorch._Arguments(**numbers | changed)


@pytest.mark.parametrize("bias", [None, (9, 13)], ids=["plain", "bias"])
def test_the_ops_hold_to_their_schemas_and_shapes(bias):
    given = arguments(bias=None if bias is None else leaf(*bias))
    q, k, v = qkv()
    torch.library.opcheck(pytorch.forward, (q, k, v, *given))
    plain = [x.detach() for x in (q, k, v)]
    still = given._replace(bias=None if given.bias is None else given.bias.detach())
    o, lse = pytorch.forward(*plain, *still)
    needs = [True, False, True, bias is not None, False]
    torch.library.opcheck(
        pytorch.backward, (needs, torch.randn(o.shape), None, o, lse, *plain, *still)
    )


# Autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_takes_its_own_type(dtype, compiled):
    q, k, v = qkv()
    v_half = v.detach().to(torch.float16)
    call = flash_attention
    if compiled:
        call = torch.compile(flash_attention, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=dtype):
        o = call(q, k, v_half)
    assert o.dtype == dtype
    torch.testing.assert_close(o, flash_attention(q.to(dtype), k.to(dtype), v_half.to(dtype)))
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


# Bad input


def doubled(score, batch, head, q_idx, k_idx, aux):
    return 2 * score


def test_a_plain_score_change_serves_the_forward_only():
    q, k, v = qkv()
    o = flash_attention(q, k, v, score_mod=doubled)
    torch.testing.assert_close(o, flash_attention(q, k, v, scale=2 / 8**0.5))
    with pytest.raises(ValueError, match=r"derivative.*'doubled'.*None"):
        o.sum().backward()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"alibi_slopes": SLOPES.clone().requires_grad_()}, "alibi_slopes"),
        ({"score_mod": ScoreMod("s", doubled, (leaf(3),))}, r"score_mod\.aux"),
        ({"mask_mod": Mask("m", EVEN.keep, (leaf(3),))}, r"mask_mod\.aux"),
        ({"score_mod": masks.relative_positions(leaf(3), leaf(3))}, r"score_mod\.aux"),
    ],
    ids=["slopes", "no-rule", "mask", "theta"],
)
def test_a_gradient_that_would_be_lost_is_refused(options, name):
    with pytest.raises(ValueError, match=f"{name} must not require a gradient"):
        flash_attention(*qkv(), **options)


Q, K, V = qkv()
BAD = {
    "kinds": ({"k": K.detach().numpy()}, TypeError, "q as a torch tensor and k as a NumPy array"),
    "mask-kind": (
        {"mask": MASK.numpy()},
        TypeError,
        "q as a torch tensor and mask as a NumPy array",
    ),
    "types": ({"v": V.half()}, TypeError, "q has fp32, k has fp32, v has fp16"),
    "float64": ({"q": Q.double()}, TypeError, "q must have dtype float32.*float64"),
    "device": ({"k": K.to("meta")}, TypeError, "one device, got q on cpu and k on meta"),
    "devices": (dict.fromkeys("qkv", Q.to("meta")), TypeError, "host.*torch tensor on meta"),
    "lengths": ({"v": V[:, :6]}, ValueError, "k has 13, v has 6"),
    "scale": ({"scale": float("nan")}, ValueError, "scale must be a finite number, got nan"),
    "scale-tensor": ({"scale": torch.ones(())}, ValueError, "scale must be a finite number"),
    "window": ({"window": 3}, ValueError, "window must be a pair"),
    "dropout": ({"dropout_p": 1.0}, ValueError, r"dropout_p must be in \[0, 1\), got 1.0"),
    "seed": ({"dropout_p": 0.5, "seed": -1}, ValueError, "seed must be a whole number >= 0"),
    "kernel": ({"kernel": 3}, ValueError, "kernel must be one of auto"),
    "deterministic": (
        {"deterministic": "yes"},
        TypeError,
        "deterministic must be True, False or None",
    ),
    "score-mod": ({"score_mod": 3}, TypeError, "score_mod must be a ScoreMod or a function, got 3"),
    "block-mask": ({"block_mask": 5}, TypeError, "block_mask must be a BlockMask"),
    "key-lengths": ({"key_lengths": "13"}, TypeError, "key_lengths must be an array"),
}


@pytest.mark.parametrize(("changed", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_anything_runs(changed, error, match, monkeypatch):
    monkeypatch.setattr(attention, "_simulate", lambda *a, **kw: pytest.fail("it ran"))
    with pytest.raises(error, match=match):
        flash_attention(**({"q": Q, "k": K, "v": V} | changed))
