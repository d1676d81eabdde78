"""Errors of a rung beside those of torch's flash backend, which is FlashAttention-2: on a GPU."""

import numpy as np
import pytest
import torch
from dense import attention
from test_flash2_gpu import make
from torch.nn.attention import SDPBackend, sdpa_kernel

SEEDS, RMS, LARGEST = 20, 1.05, 1.5
"""Random problems, and how many times theirs the root mean square and largest error may be."""

EACH_DTYPE = pytest.mark.parametrize("dtype", ["fp16", "bf16"])
EACH_SHAPE = pytest.mark.parametrize(("d", "causal"), [(64, False), (128, True), (128, False)])


class Errors:
    """Errors of some tensors, ours and theirs."""

    def __init__(self, tensors: int):
        self.squares, self.largest = np.zeros((2, tensors)), np.zeros((2, tensors))

    def add(self, exact, *results) -> None:
        """Those of one problem: `exact` and each of `results`, ours first, are tuples."""
        for i, tensors in enumerate(results):
            for j, (found, true) in enumerate(zip(tensors, exact, strict=True)):
                error = (found.double() - true).abs()
                self.squares[i, j] += float((error**2).mean())
                self.largest[i, j] = max(self.largest[i, j], float(error.max()))

    def check(self) -> None:
        """Hold ours against theirs."""
        ratios = np.sqrt(self.squares[0] / self.squares[1])
        assert (ratios <= RMS).all(), f"root mean squares: {ratios}"
        ratios = self.largest[0] / self.largest[1]
        assert (ratios <= LARGEST).all(), f"largest: {ratios}"


def flash(q, k, v, causal: bool):
    """What torch's flash backend gives, in the layout (batch, seqlen, heads, head_dim)."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        given = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)
    return out.transpose(1, 2)


def check_outputs(forward, d: int, causal: bool, dtype: str) -> None:
    """Of ``forward(problem, q, k, v)``.

    So many heads that FlashAttention-2 does not split the keys: parts that are added in fp32 have
    maxima of their own, which makes more weights powers of two.
    """
    errors = Errors(1)
    for seed in range(SEEDS):
        problem, q, k, v, _ = make((1, 16, 16, 1000, 1000, d, d, dtype, {"causal": causal}), seed)
        exact = attention(problem, q, k, v).out
        errors.add((exact,), (forward(problem, q, k, v),), (flash(q, k, v, causal),))
    errors.check()


def check_gradients(backward, d: int, causal: bool, dtype: str) -> None:
    """Of ``backward(problem, q, k, v, dout)``."""
    errors = Errors(3)
    for seed in range(SEEDS):
        case = make((1, 2, 2, 1000, 1000, d, d, dtype, {"causal": causal}), seed)
        _, q, k, v, dout = case
        want = attention(*case)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        theirs = torch.autograd.grad(flash(leaves[0], leaves[1], leaves[2], causal), leaves, dout)
        errors.add((want.dq, want.dk, want.dv), backward(*case), theirs)
    errors.check()
