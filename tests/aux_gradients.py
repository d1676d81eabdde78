"""Score changes with a learned tensor, and how far its gradient may be from the reference's."""

from collections.abc import Iterable

import numpy as np

from flash_numba import fn, masks
from flash_numba import reference as ref
from flash_numba.budget import within_budget
from flash_numba.masks import ScoreMod
from flash_numba.problem import Problem

UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}


def steep(score, batch, head, q_idx, k_idx, aux):
    """A user's own: by head, weights of the score's square and of a wave over the queries."""
    return score + aux[1][head, 0] * score * score + aux[1][head, 1] * fn.sin(aux[0] * q_idx)


def steep_derivative(score, batch, head, q_idx, k_idx, aux):
    return 1.0 + 2.0 * aux[1][head, 0] * score


def steep_aux_derivative(score, batch, head, q_idx, k_idx, term, aux):
    return fn.where(term == 0, score * score, fn.sin(aux[0] * q_idx))


def steep_mod(learned) -> ScoreMod:
    """`learned` is (heads, 2)."""
    rule = 1, ("head", "term"), steep_aux_derivative
    return ScoreMod("steep", steep, (0.5, learned), steep_derivative, *rule)


def summed(mod: ScoreMod, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Axes of the scores that the gradient of a change's tensor sums over."""
    own = {axis for axis, size in zip(mod.aux_axes, shape, strict=True) if size > 1}
    return tuple(axis for axis in ("batch", "head", "query", "key") if axis not in own)


def rounding(problem: Problem, mod: ScoreMod, truth, v, do, o, slope: float) -> float:
    """What delta, another sum than dP, may leave of dS (see `harness.tiled_rounding`), summed up.

    A row's error is P times a common one, and the row of P sums to 1. `slope` bounds the
    derivatives that dS is multiplied with.
    """
    do, v, o = (np.abs(np.asarray(x, np.float64)) for x in (do, v, o))
    row = (do * (v.max(initial=0.0) + o)).sum(axis=-1).transpose(0, 2, 1)  # (batch, head, query)
    unit = (np.sqrt(problem.head_dim_v) + 2) * 2.0**-24 + UNIT[problem.dtype]  # O is rounded too
    row *= unit / (1 - problem.dropout_p) * slope
    axes = [
        n for n, axis in enumerate(("batch", "head", "query")) if axis in summed(mod, truth.shape)
    ]
    return float(row.sum(axis=tuple(axes)).max(initial=0.0))


def hold(problem: Problem, inputs: Iterable, found, dlse=None, slope: float = 1.0) -> None:
    """Hold gradients of learned tensors, one for each change that has one, against the truth.

    `inputs` are q, k, v and do.
    """
    q, k, v, do = inputs
    truth = ref.backward(problem, q, k, v, do, dlse).aux
    twin = ref.backward(problem, q, k, v, do, dlse, dtype="fp32").aux
    o, _ = ref.forward(problem, q, k, v)
    mods = [mod for mod in problem.score_mods if mod.aux_index is not None]
    for mod, got, exact, close in zip(mods, found, truth, twin, strict=True):
        array = np.asarray(got, np.float64).reshape(exact.shape)
        verdict = within_budget(array, exact, close, "fp32")
        allowed = verdict.allowance + rounding(problem, mod, exact, v, do, o, slope)
        allowed += UNIT[problem.dtype] * np.abs(exact).max(initial=0.0)
        assert verdict.error <= allowed, (mod.name, verdict, allowed)


def broadcast_bias(rng, problem: Problem, axes: tuple[int, ...]):
    """A bias that is one number along `axes`, and the change that it makes."""
    whole = problem.batch, problem.num_heads, problem.seqlen_q, problem.seqlen_k
    own = tuple(1 if axis in axes else size for axis, size in enumerate(whole))
    bias = rng.standard_normal(own).astype(np.float32)
    return bias, masks.bias(np.broadcast_to(bias, whole))
