"""Gradients of learned tensors in the scores, on a GPU, of every rung."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from aux_gradients import broadcast_bias, hold, steep_mod
from harness import inputs

from flash_numba import flash_attention, flash_attention_backward, masks, tiling
from flash_numba.ladder import RUNGS
from flash_numba.problem import DTYPES, Problem

pytestmark = pytest.mark.gpu
OWN_TYPE = {rung.name: rung.dtypes[0] for rung in RUNGS if rung.modules}
"""The first element type that a rung takes."""
each_rung = pytest.mark.parametrize("kernel", OWN_TYPE)
SHAPES = [axes for count in range(5) for axes in combinations(range(4), count)]


def gradients(problem, given, kernel, needs, dlse=None, **options):
    q, k, v, do = (given[name] for name in ("q", "k", "v", "do"))
    options |= {"kernel": kernel, "causal": problem.causal, "window": problem.window}
    options |= {"key_lengths": problem.key_lengths, "block_mask": problem.block_mask}
    options |= {"dropout_p": problem.dropout_p, "seed": problem.seed}
    o, lse = flash_attention(q, k, v, return_lse=True, **options)
    return flash_attention_backward(do, q, k, v, o, lse, dlse=dlse, needs=needs, **options)


@pytest.mark.parametrize("axes", SHAPES, ids=lambda axes: "one-along-" + "".join(map(str, axes)))
@each_rung
def test_a_bias_of_every_broadcast_shape(axes, kernel):
    rng = np.random.default_rng(len(axes))
    sizes: Any = {"batch": 2, "num_heads": 4, "num_kv_heads": 2}
    plain = Problem(113, 140, 40, **sizes, causal=True, dtype=OWN_TYPE[kernel])
    given = inputs(rng, plain)
    bias, change = broadcast_bias(rng, plain, axes)
    found = gradients(plain, given, kernel, ("q", "bias"), bias=bias)
    problem = replace(plain, score_mods=(change,))
    assert found.dbias.shape == bias.shape
    hold(problem, given.values(), (found.dbias,))


def stripes(batch, head, q_idx, k_idx, aux):
    return (q_idx // aux[0] + k_idx // aux[0]) % 3 != 0


OPTIONS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout_p": 0.3, "seed": 2**40 + 7},
    "window-lengths": {"window": (70, 3), "key_lengths": np.array([0, 131])},
    "listed": {"listed": True},
    "wide": {"head_dim": 256, "head_dim_v": 72},
}


@pytest.mark.parametrize("name", OPTIONS)
@each_rung
def test_all_at_once_repeats_bit_for_bit(name, kernel):
    """Softcap, bias, a user's own change, and a gradient of lse."""
    rng = np.random.default_rng(7)
    options: dict[str, Any] = {"head_dim": 64, "dtype": OWN_TYPE[kernel]} | OPTIONS[name]
    if options.pop("listed", False):
        mask = masks.Mask("stripes", stripes, (32,))
        options["block_mask"] = tiling.BlockMask.from_mask(mask, Problem(150, 203, 64), 32, 64)
    plain = Problem(150, 203, batch=2, num_heads=2, num_kv_heads=1, **options)
    given = inputs(rng, plain)
    dlse = rng.standard_normal(plain.shapes["lse"]).astype(np.float32)
    bias, change = broadcast_bias(rng, plain, (0, 2))
    mod = steep_mod(0.2 * rng.standard_normal((2, 2)).astype(np.float32))
    call = plain, given, kernel, ("q", "k", "v", "bias", "score_mod"), dlse
    changes = {"softcap": 2.0, "bias": bias, "score_mod": mod}
    found = gradients(*call, **changes)
    problem = replace(plain, score_mods=(masks.softcap(2.0), change, mod))
    hold(problem, given.values(), (found.dbias, found.dscore_mod), dlse, slope=9.0)
    for _ in range(4):
        again = gradients(*call, **changes)
        assert all(map(np.array_equal, found, again))


@each_rung
def test_many_keys_repeat_bit_for_bit_30_times(kernel):
    """The gradient of 40 weights, in two walks that all blocks share."""
    rng = np.random.default_rng(8)
    plain = Problem(700, 900, 64, num_heads=3, causal=True, dtype=OWN_TYPE[kernel])
    given = inputs(rng, plain)
    weights, theta = rng.standard_normal((2, 40)).astype(np.float32)
    mod = masks.relative_positions(weights / 8, theta)
    call = plain, given, kernel, ("score_mod",)
    found = gradients(*call, score_mod=mod)
    hold(replace(plain, score_mods=(mod,)), given.values(), (found.dscore_mod,))
    for _ in range(29):
        assert np.array_equal(gradients(*call, score_mod=mod).dscore_mod, found.dscore_mod)


@pytest.mark.parametrize("kind", ["no-keys", "no-queries", "no-batch"])
@each_rung
def test_empty_problems_have_zeros(kind, kernel):
    batch, n, m = {"no-keys": (2, 5, 0), "no-queries": (2, 0, 5), "no-batch": (0, 5, 5)}[kind]
    plain = Problem(n, m, 16, batch=batch, num_heads=2, dtype=OWN_TYPE[kernel])
    given = inputs(np.random.default_rng(0), plain)
    for shape in ((m,), (2, 1, 1), (batch, 2, n, m), (1, 1, n, 1)):
        bias = np.ones(shape, np.float32)
        found = gradients(plain, given, kernel, ("bias",), bias=bias)
        assert np.array_equal(found.dbias, np.zeros(shape))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@each_rung
def test_a_bias_of_16_bits(dtype, kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(9)
    plain = Problem(70, 90, 64, num_heads=2, dtype=dtype)
    given = inputs(rng, plain)
    element = getattr(torch, str(DTYPES[dtype]))

    def on_gpu(array):
        return torch.from_numpy(array.astype(np.float32)).to("cuda", element).requires_grad_()

    q, k, v, do = map(on_gpu, given.values())
    bias = on_gpu(rng.standard_normal((2, 1, 90)))
    o = flash_attention(q, k, v, bias=bias, kernel=kernel)
    o.backward(do)
    assert bias.grad is not None
    assert bias.grad.dtype == element
    read = bias.detach().float().cpu().numpy()
    host = flash_attention(*list(given.values())[:3], bias=read, kernel=kernel)
    assert np.array_equal(host.astype(np.float32), o.detach().float().cpu().numpy())
    problem = replace(plain, score_mods=(masks.bias(np.broadcast_to(read, (1, 2, 70, 90))),))
    found = bias.grad.float().cpu().numpy()
    hold(problem, given.values(), (found,))


@each_rung
def test_torch_autograd_reaches_bias_and_weights(kernel):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(10)
    plain = Problem(97, 130, 64, batch=2, num_heads=2, causal=True, dtype=OWN_TYPE[kernel])
    given = inputs(rng, plain)
    q, k, v, do = (torch.from_numpy(x).cuda() for x in given.values())
    leaf = torch.from_numpy(rng.standard_normal((97, 1)).astype(np.float32)).cuda().requires_grad_()
    weights, theta = (torch.from_numpy(x).cuda() for x in rng.random((2, 5), np.float32))
    weights.requires_grad_()
    mod = masks.relative_positions(weights, theta)
    bias = leaf.expand(97, 130)[::1]  # of stride 0 itself
    o = flash_attention(q, k, v, bias=bias, score_mod=mod, causal=True, kernel=kernel)
    found = torch.autograd.grad(o, (leaf, weights), do)
    wide = np.broadcast_to(leaf.detach().cpu().numpy(), (2, 2, 97, 130))
    host = masks.relative_positions(weights.detach().cpu().numpy(), theta.cpu().numpy())
    problem = replace(plain, score_mods=(masks.bias(wide), host))
    hold(problem, given.values(), [x.cpu().numpy() for x in found])
