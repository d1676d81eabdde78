"""The reference against torch's scaled_dot_product_attention in float64 on the CPU."""

import numpy as np
import pytest

from flash_numba import masks, reference
from flash_numba.problem import Problem

torch = pytest.importorskip("torch", reason="torch is not installed")
sdpa = torch.nn.functional.scaled_dot_product_attention

SIZES = [(1, 1), (5, 5), (13, 29), (29, 13)]
BATCH, HEADS, HEAD_DIM, HEAD_DIM_V = 2, 4, 8, 6
RNG = np.random.default_rng(3)


def boolean_mask(n, m):
    """A random mask that leaves every row a key (torch gives NaN where none is left)."""
    mask = RNG.random((BATCH, HEADS, n, m)) < 0.6
    mask[..., 0] = True
    return mask


def bottom_right(n, m):
    """The causal mask of flash_numba; torch's own is_causal aligns top-left."""
    return np.tri(n, m, m - n, dtype=bool)


KINDS = {
    "full": lambda n, m: ({}, {}),
    "causal": lambda n, m: ({"causal": True}, {"attn_mask": bottom_right(n, m)}),
    "boolean": lambda n, m: (
        {"mask": masks.boolean(mask := boolean_mask(n, m))},
        {"attn_mask": mask},
    ),
    "bias": lambda n, m: (
        {"score_mods": [masks.bias(bias := RNG.standard_normal((BATCH, HEADS, n, m)))]},
        {"attn_mask": bias},
    ),
    "scale": lambda n, m: ({"softmax_scale": -1.7}, {"scale": -1.7}),
    "scale-0": lambda n, m: ({"softmax_scale": 0.0}, {"scale": 0.0}),
}


def heads_first(array):
    return torch.tensor(np.ascontiguousarray(array.transpose(0, 2, 1, 3)), requires_grad=True)


def heads_last(tensor) -> np.ndarray:
    return tensor.detach().numpy().transpose(0, 2, 1, 3)


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids="KV{}".format)
@pytest.mark.parametrize(("n", "m"), SIZES, ids="{}".format)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_forward_and_backward_agree_with_torch(kind, n, m, kv_heads):
    ours, theirs = kind(n, m)
    problem = Problem(n, m, HEAD_DIM, HEAD_DIM_V, BATCH, HEADS, kv_heads, **ours)
    q, k, v, do = (RNG.standard_normal(problem.shapes[name]) for name in ("q", "k", "v", "do"))
    o, lse = reference.forward(problem, q, k, v)
    gradients = reference.backward(problem, q, k, v, do)

    empty = lse == -np.inf
    if "attn_mask" in theirs:
        theirs["attn_mask"] = torch.tensor(theirs["attn_mask"], requires_grad="bias" in str(ours))
    inputs = [heads_first(array) for array in (q, k, v)]
    out = sdpa(*inputs, enable_gqa=kv_heads < HEADS, **theirs)
    # Rows without a key are ours to define: torch may give NaN there.
    seen = torch.tensor(~empty)[..., None]
    torch.where(seen, out, 0).backward(heads_first(do).detach())
    right = [torch.where(seen, out, 0), *(tensor.grad for tensor in inputs)]
    for found, answer in zip([o, *gradients[:3]], right, strict=True):
        np.testing.assert_allclose(found, heads_last(answer), rtol=1e-10, atol=1e-12)
    if gradients.aux:
        answer = theirs["attn_mask"].grad.numpy()
        np.testing.assert_allclose(gradients.aux[0], answer, rtol=1e-10, atol=1e-12)
